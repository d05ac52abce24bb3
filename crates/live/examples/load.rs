//! Many streams at once against a server that speaks as OpenAI does: did each get all its tokens, and how far apart
//! did they come?
//!
//!   cargo run --release -p windtunnel-live --example load -- 127.0.0.1:8000 --streams 1000 --tokens 500
//!
//! One line of JSON: streams, tokens, lost tokens, time to the first token and mean gap between tokens (its mean over
//! all streams, as a load test tells it). The gaps are what a client sees: they begin and end at its socket.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

struct Arguments {
    address: SocketAddr,
    streams: u32,
    tokens: u32,
    prompt: u32,
    /// Time over which the streams begin.
    ramp: Duration,
}

/// What one stream saw.
struct Seen {
    tokens: u32,
    done: bool,
    first: Duration,
    last: Duration,
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!("usage: load HOST:PORT [--streams N] [--tokens N] [--prompt TOKENS] [--ramp-ms MS]");
        return ExitCode::from(2);
    };
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(run(arguments)),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(1)
        }
    }
}

fn arguments() -> Option<Arguments> {
    let mut given = std::env::args().skip(1);
    let address = given.next()?.parse().ok()?;
    let mut arguments = Arguments { address, streams: 1000, tokens: 500, prompt: 32, ramp: Duration::ZERO };
    while let Some(name) = given.next() {
        let value: u32 = given.next()?.parse().ok()?;
        match name.as_str() {
            "--streams" => arguments.streams = value,
            "--tokens" => arguments.tokens = value,
            "--prompt" => arguments.prompt = value,
            "--ramp-ms" => arguments.ramp = Duration::from_millis(value.into()),
            _ => return None,
        }
    }
    Some(arguments)
}

async fn run(arguments: Arguments) -> ExitCode {
    let Arguments { address, streams, tokens, prompt, ramp } = arguments;
    let begun = Instant::now();
    let mut all = JoinSet::new();
    for number in 0..streams {
        all.spawn(async move {
            tokio::time::sleep(ramp * number / streams.max(1)).await;
            stream(address, number, tokens, prompt).await
        });
    }
    let (mut failed, mut seen) = (0, Vec::new());
    while let Some(ended) = all.join_next().await {
        match ended {
            Ok(Ok(one)) => seen.push(one),
            _ => failed += 1,
        }
    }
    let wall = begun.elapsed().as_secs_f64();
    let whole = seen.iter().filter(|one| one.done && one.tokens == tokens).count();
    let got: u64 = seen.iter().map(|one| u64::from(one.tokens)).sum();
    let gaps: Vec<f64> = seen
        .iter()
        .filter(|one| one.tokens > 1)
        .map(|one| (one.last - one.first).as_secs_f64() * 1e3 / f64::from(one.tokens - 1))
        .collect();
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len().max(1) as f64;
    let firsts: Vec<f64> = seen.iter().map(|one| one.first.as_secs_f64() * 1e3).collect();
    println!(
        "{{\"streams\": {streams}, \"whole\": {whole}, \"failed\": {failed}, \"tokens\": {got}, \"lost_tokens\": {}, \
         \"mean_itl_ms\": {:.4}, \"least_mean_itl_ms\": {:.4}, \"most_mean_itl_ms\": {:.4}, \"mean_ttft_ms\": {:.2}, \
         \"seconds\": {wall:.2}, \"tokens_per_second\": {:.0}}}",
        u64::from(streams) * u64::from(tokens) - got,
        mean(&gaps),
        gaps.iter().copied().fold(f64::INFINITY, f64::min),
        gaps.iter().copied().fold(0.0, f64::max),
        mean(&firsts),
        got as f64 / wall,
    );
    if whole == streams as usize { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// One stream. Its tokens are counted by their chunks' usage, since one chunk may hold several.
async fn stream(address: SocketAddr, number: u32, tokens: u32, prompt: u32) -> std::io::Result<Seen> {
    let mut socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    // Prompts that share no block: their first token is their own.
    let ids: Vec<String> = (0..prompt).map(|at| (300 + (number * 7 + at) % 30_000).to_string()).collect();
    let body = format!(
        "{{\"prompt\": [{}], \"max_tokens\": {tokens}, \"ignore_eos\": true, \"stream\": true, \
         \"cache_salt\": \"{number}\"}}",
        ids.join(",")
    );
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: load\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    );
    let begun = Instant::now();
    socket.write_all(request.as_bytes()).await?;
    let mut seen = Seen { tokens: 0, done: false, first: Duration::ZERO, last: Duration::ZERO };
    let mut words = Words::default();
    let mut buffer = vec![0; 16 << 10];
    loop {
        let read = socket.read(&mut buffer).await?;
        if read == 0 {
            return Ok(seen);
        }
        let now = begun.elapsed();
        let new = words.count(&buffer[..read]);
        seen.done |= words.done;
        if new > 0 {
            if seen.tokens == 0 {
                seen.first = now;
            }
            seen.tokens += new;
            seen.last = now;
        }
    }
}

/// Counts the words in the texts of chunks, of which a mock worker's reply has one for each token.
#[derive(Default)]
struct Words {
    line: Vec<u8>,
    done: bool,
}

impl Words {
    fn count(&mut self, bytes: &[u8]) -> u32 {
        let mut words = 0;
        for &byte in bytes {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            const KEY: &[u8] = b"\"text\":\"";
            if let Some(at) = self.line.windows(KEY.len()).position(|window| window == KEY) {
                let text = self.line[at + KEY.len()..].split(|byte| *byte == b'"').next().unwrap_or_default();
                words += text.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).count() as u32;
            }
            self.done |= self.line.starts_with(b"data: [DONE]");
            self.line.clear();
        }
        words
    }
}
