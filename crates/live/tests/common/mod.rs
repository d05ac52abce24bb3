//! Deployments and requests that the tests share.
#![allow(dead_code, reason = "each test file takes what it needs")]

pub mod http;

use std::ops::Range;
use std::sync::{Arc, Mutex};
use windtunnel_config::Deployment;
use windtunnel_engine::{Nanos, RankStats, Rejection, RequestId};
use windtunnel_live::kv_transfer::Transfers;
use windtunnel_live::observer::{
    Ended, FirstToken, Lengths, Observers, PassObserver, PassReport, RequestInfo, RequestTimes,
};
use windtunnel_live::stream::TokenStream;
use windtunnel_live::{Stops, Submission, Worker, WorkerOptions};

/// An SGLang worker of pages of one token, with fixed times.
pub const SGLANG: &str = "
engine:
  model: m
  hardware: h
  backend: sglang
  context_length: 4096
  workers:
    aggregated:
      kv_cache: {block_size: 1, capacity: {type: fixed, blocks: 16384}}
      timing: {type: fixed, prefill_ms: 100, decode_ms: 10}
";

/// Prefill and decode workers with passes of 100 ms with prefill and 10 ms without; blocks of 16 tokens.
pub const APART: &str = "
engine:
  mode: disaggregated
  model: m
  hardware: h
  context_length: 4096
  workers:
    prefill:
      kv_cache: {block_size: 16, capacity: {type: fixed, blocks: 1024}}
      timing: {type: fixed, prefill_ms: 100, decode_ms: 10}
    decode:
      kv_cache: {block_size: 16, capacity: {type: fixed, blocks: 1024}}
      timing: {type: fixed, prefill_ms: 100, decode_ms: 10}
";

/// A vLLM deployment with passes of fixed times: 100 ms with prefill, 10 ms of decode.
pub const FIXED: &str = "
engine:
  model: m
  hardware: h
  backend: vllm
  context_length: 4096
  workers:
    aggregated:
      scheduler: {max_batched_tokens: 2048, max_sequences: 256}
      kv_cache: {block_size: 16, capacity: {type: fixed, blocks: 1024}}
      timing: {type: fixed, prefill_ms: 100, decode_ms: 10}
";

pub fn deployment(yaml: &str, overrides: &[&str]) -> Deployment {
    side(yaml, overrides, false)
}

/// The same; of a file with two sides the one that goes on, or that which computes prompts.
pub fn side(yaml: &str, overrides: &[&str], prefill: bool) -> Deployment {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    let experiment = windtunnel_config::from_str("test", yaml, &overrides).expect("a good deployment");
    match experiment.prefill {
        Some(side) if prefill => side.deployment,
        _ => experiment.deployment,
    }
}

/// What an observer saw, as lines.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>, Arc<Mutex<Vec<RequestTimes>>>, Arc<Mutex<Queued>>);

/// What waits for its prefill, and what waits for its decode.
type Queued = (Lengths, Lengths);

impl Log {
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().expect("no observer panicked").clone()
    }

    /// The times of the requests that ended, in order.
    pub fn times(&self) -> Vec<RequestTimes> {
        self.1.lock().expect("no observer panicked").clone()
    }

    /// What waited as of the last pass.
    pub fn queued(&self) -> Queued {
        *self.2.lock().expect("no observer panicked")
    }

    fn note(&self, line: String) {
        self.0.lock().expect("no observer panicked").push(line);
    }
}

impl PassObserver for Log {
    fn submitted(&mut self, info: &Arc<RequestInfo>, _: Nanos, stats: &RankStats) {
        self.note(format!("submitted {} waiting {}", info.name, stats.waiting));
    }

    fn rejected(&mut self, info: &RequestInfo, reason: Rejection, _: Nanos) {
        self.note(format!("rejected {} {}", info.name, reason.kind()));
    }

    fn pass(&mut self, pass: &PassReport<'_>) {
        let gaps: Vec<String> = pass.gaps.iter().map(|(gap, n)| format!("{}x{n}", gap.as_ms())).collect();
        let ended: Vec<String> =
            pass.ended.iter().map(|e| format!("{} {}", e.info.name, e.reason.as_str())).collect();
        *self.2.lock().expect("no observer panicked") = (pass.queued_prefill, pass.queued_decode);
        let times = pass.ended.iter().map(|ended| *ended.times);
        self.1.lock().expect("no observer panicked").extend(times);
        self.note(format!(
            "pass {} of {} ms: {} tokens, {} first, gaps {gaps:?}, ended {ended:?}",
            pass.number,
            pass.end.since(pass.start).as_ms(),
            pass.tokens,
            pass.first_tokens.len(),
        ));
    }

    fn handed_over(&mut self, first: &FirstToken<'_>, _: Nanos) {
        self.note(format!("handed over {}", first.info.name));
    }

    fn ended(&mut self, ended: &Ended<'_>, stats: &RankStats) {
        self.1.lock().expect("no observer panicked").push(*ended.times);
        self.note(format!("{} {} running {}", ended.info.name, ended.reason.as_str(), stats.running));
    }
}

/// A worker whose ranks all tell one log.
pub fn worker(deployment: &Deployment, no_delay: bool) -> (Worker, Log) {
    worker_with(deployment, no_delay, None)
}

/// The same with a part in transfers of KV.
pub fn worker_with(
    deployment: &Deployment,
    no_delay: bool,
    transfers: Option<Arc<Transfers>>,
) -> (Worker, Log) {
    let log = Log::default();
    let mut observers = |_| {
        let mut observers = Observers::default();
        observers.push(Box::new(log.clone()));
        observers
    };
    let replicas = deployment.replicas;
    let options = WorkerOptions {
        replicas,
        no_delay,
        kv_events: true,
        transfers,
        routed: replicas.get() > 1,
        observers: &mut observers,
    };
    (Worker::start(deployment, options).expect("a worker"), log)
}

/// A request of `prompt` tokens that are shared with no other, and at most `max_tokens` output tokens.
pub fn request(worker: &Worker, prompt: u32, max_tokens: u32) -> Submission {
    stopping(worker, prompt, max_tokens, Stops::default())
}

/// The request of this process's first prompt again, of `prompt` tokens.
pub fn again(worker: &Worker, prompt: u32) -> Submission {
    let id = worker.next_id();
    submission(info(id, 0..prompt, 2))
}

/// A submission of a request that ends by its length.
pub fn submission(info: RequestInfo) -> Submission {
    Submission::new(Arc::new(TokenStream::new(Arc::new(info))), Stops::default())
}

/// The same with what ends it before that.
pub fn stopping(worker: &Worker, prompt: u32, max_tokens: u32, stops: Stops) -> Submission {
    let id = worker.next_id();
    let first = 1_000 * u32::try_from(id.0).expect("few requests");
    let info = info(id, first..first + prompt, max_tokens);
    Submission::new(Arc::new(TokenStream::new(Arc::new(info))), stops)
}

/// What is asked for with a prompt of these tokens.
fn info(id: RequestId, prompt: Range<u32>, max_tokens: u32) -> RequestInfo {
    RequestInfo {
        id,
        name: format!("r{}", id.0),
        prompt: prompt.collect(),
        output: (0..max_tokens).collect(),
        max_tokens,
        asked_max_tokens: Some(max_tokens),
        choices: 1,
        streaming: false,
        lora: None,
        cache_salt: None,
        priority: None,
        traced: None,
        routed: None,
    }
}

/// Runs what waits for a worker.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}
