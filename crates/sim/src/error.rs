//! What can stop a run.

use thiserror::Error;
use windtunnel_engine::{ConfigError, Nanos};
use windtunnel_traffic::TrafficError;

/// Requests named in an error at most.
const LISTED: usize = 10;

/// A run that did not come to its end.
#[derive(Debug, Error)]
pub enum SimError {
    /// The workload is wrong.
    #[error(transparent)]
    Traffic(#[from] TrafficError),
    /// The engine refuses its settings.
    #[error(transparent)]
    Engine(#[from] ConfigError),
    /// Requests are left that nothing will ever wake.
    #[error(
        "worker {worker}, rank {rank}: the run stopped with {} unfinished requests there and nothing left to \
         happen: {}; the engine would wait for ever, too{}", .requests.len(), list(.requests), way_out(.engine)
    )]
    Stuck {
        /// The engine.
        engine: &'static str,
        /// The first worker that is stuck.
        worker: u32,
        /// The rank in it.
        rank: u32,
        /// Their numbers in the workload.
        requests: Vec<u64>,
    },
    /// Requests preempt each other for ever.
    #[error(
        "worker {worker}, rank {rank}: requests preempt each other without end, and none gets a token: {}; the \
         engine would do the same with these settings (try more blocks, or for vllm reserve_full_isl: true)",
        list(.requests)
    )]
    Livelock {
        /// The worker.
        worker: u32,
        /// The rank in it.
        rank: u32,
        /// Its unfinished requests, by their numbers in the workload.
        requests: Vec<u64>,
    },
    /// The engine would have died.
    #[error(
        "worker {worker}, rank {rank}: the engine would end here with \"{words}\": it admits more than its KV pool \
         holds, because too little is reserved for outputs (try a larger schedule_conservativeness or \
         clip_max_new_tokens, or more blocks)"
    )]
    EngineFault {
        /// The worker.
        worker: u32,
        /// The rank in it.
        rank: u32,
        /// What the engine says.
        words: &'static str,
    },
    /// A pass would end after the longest possible run.
    #[error(
        "worker {worker}: a pass of {} ms would end later than 292 years after the start; the timing of the \
         workers or the times of the workload are too large", .duration.as_ms()
    )]
    Endless {
        /// The worker.
        worker: u32,
        /// How long the pass takes.
        duration: Nanos,
    },
    /// The event log tells of the engine's blocks, and the router needs others.
    #[error(
        "event log: the engine tells of blocks of {engine} tokens, and the router looks at blocks of {router}, so \
         there is no log with this router (try router.block_size: {engine})"
    )]
    EventBlocks {
        /// Tokens of the engine's blocks.
        engine: u32,
        /// Tokens of the router's.
        router: u32,
    },
    /// The event log cannot be written.
    #[error("event log: {0}")]
    Events(#[source] std::io::Error),
    /// The telemetry file cannot be written.
    #[error("telemetry: {0}")]
    Telemetry(#[source] std::io::Error),
    /// It was interrupted.
    #[error("interrupted")]
    Interrupted,
}

/// What avoids that requests wait for ever.
fn way_out(engine: &str) -> &'static str {
    match engine {
        "trtllm" => {
            ": prompts can stand in each other's way under guaranteed_no_evict (try more blocks, capacity_policy: \
             max_utilization, or prefix_caching: false)"
        }
        "sglang" => ": one that lost its memory has become too large to be admitted again (try more blocks)",
        _ => "",
    }
}

fn list(requests: &[u64]) -> String {
    let mut text: Vec<String> = requests.iter().take(LISTED).map(u64::to_string).collect();
    if requests.len() > LISTED {
        text.push(format!("and {} more", requests.len() - LISTED));
    }
    text.join(", ")
}
