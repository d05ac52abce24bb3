//! Reads a Mooncake trace several times and prints what it holds and how long a reading took.
//! Usage: read_trace FILE [BLOCK_SIZE]

use std::time::Instant;
use windtunnel_engine::Content;
use windtunnel_traffic::{Format, Times, TraceFile, TrafficError, WorkloadSource};

fn main() -> Result<(), TrafficError> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_else(|| "examples/quickstart-trace.jsonl".into());
    let block_size = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(512);
    let source = WorkloadSource::Trace(TraceFile {
        path: path.into(),
        format: Format::Mooncake { block_size },
        times: Times::Recorded { speedup: 1.0 },
        limit: None,
    });
    let mut milliseconds = Vec::new();
    let mut summary = String::new();
    for _ in 0..20 {
        let start = Instant::now();
        let (mut requests, mut prompt, mut output, mut ids, mut highest) = (0u64, 0u64, 0u64, 0u64, 0u64);
        for arrival in source.open()? {
            let request = arrival?.request;
            requests += 1;
            prompt += u64::from(request.prompt_tokens);
            output += u64::from(request.output.max_tokens);
            if let Content::Prefixes { ids: row, .. } = &request.content {
                ids += row.len() as u64;
                highest = row.iter().copied().fold(highest, u64::max);
            }
        }
        milliseconds.push(start.elapsed().as_secs_f64() * 1e3);
        summary = format!(
            "{requests} requests, {prompt} input and {output} output tokens, {ids} ids, {} prefixes",
            highest + 1
        );
    }
    milliseconds.sort_by(f64::total_cmp);
    println!("{summary}");
    println!("median of 20 readings {:.2} ms, fastest {:.2} ms", milliseconds[10], milliseconds[0]);
    Ok(())
}
