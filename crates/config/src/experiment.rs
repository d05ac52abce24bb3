//! What a configuration means, as plain checked values: a deployment, a workload, and its objectives.
//!
//! Whoever holds one of these needs to know nothing of YAML, paths or defaults.

use crate::fleet::{Faults, Scaling};
use std::num::NonZeroU32;
use std::sync::Arc;
use windtunnel_engine::{Chunk, DecodeSet, Nanos, RankConfig, Shape};
use windtunnel_perf::TimingModel;
use windtunnel_perf::capacity::Budget;
use windtunnel_router::{Policy, PrefillTime, Telling};
use windtunnel_traffic::{Source, TrafficError, WorkloadSource};

/// Everything that one prediction needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// What serves. Where prefill has workers of its own, those that decode.
    pub deployment: Deployment,
    /// The prefill workers, where they are others.
    pub prefill: Option<Prefill>,
    /// What is asked of it.
    pub workload: Workload,
    /// What a good request is, if anything was said.
    pub sla: Option<Sla>,
    /// How the number of workers that give the tokens changes, if it does.
    pub scaling: Option<Scaling>,
    /// What fails of the workers that give the tokens; given where anything fails.
    pub faults: Option<Faults>,
    /// What an hour of an accelerator costs.
    pub price_per_gpu_hour: Option<f64>,
    /// Every value in effect, given or by default, in the layout of the configuration file. Loading it
    /// again gives the same experiment.
    pub effective: serde_json::Value,
}

impl Experiment {
    /// The workers are not the same from the beginning of a run to its end.
    pub fn is_elastic(&self) -> bool {
        self.is_scaled() || self.faults.is_some()
    }

    /// The number of workers of some role changes.
    pub fn is_scaled(&self) -> bool {
        self.scaling.is_some() || self.prefill.as_ref().is_some_and(|prefill| prefill.scaling.is_some())
    }
}

/// Whose rules hold where the real engine and AISimulate differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Semantics {
    /// The real engine's.
    Native,
    /// Those of AISimulate 0.13.
    Aisimulate013,
}

/// Which rank of a worker takes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// One after the other.
    RoundRobin,
    /// As vLLM's own balancer: the rank with the lowest load.
    VllmBalancer,
}

/// Copies between an accelerator and its host's memory: a lane for each direction. A bandwidth in GB/s is one in bytes
/// per nanosecond.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostOffload {
    /// Bytes of a token.
    pub bytes_per_token: u64,
    /// Bytes per nanosecond to the host, no limit if none.
    pub to_host: Option<f64>,
    /// Bytes per nanosecond from the host, no limit if none.
    pub from_host: Option<f64>,
    /// Added to each copy.
    pub latency: Nanos,
}

/// A disk behind the host's memory: a lane for reads and one for writes. A bandwidth in GB/s is one in bytes per
/// nanosecond.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskOffload {
    /// Bytes of a token.
    pub bytes_per_token: u64,
    /// The most blocks that it holds, no bound if none.
    pub blocks: Option<u32>,
    /// Bytes per nanosecond, no limit if none.
    pub read: Option<f64>,
    /// Bytes per nanosecond, no limit if none.
    pub write: Option<f64>,
    /// Added to each copy; and how long a look-up takes.
    pub latency: Nanos,
}

/// Workers that compute prompts for others, and how these get the KV.
#[derive(Clone, Debug, PartialEq)]
pub struct Prefill {
    /// The workers.
    pub deployment: Deployment,
    /// How KV gets from them to the decode workers.
    pub transfer: KvTransfer,
    /// How their number changes, if it does.
    pub scaling: Option<Scaling>,
    /// What fails of them; given where anything fails.
    pub faults: Option<Faults>,
}

/// How KV gets from one worker to another. A bandwidth in GB/s is one in bytes per nanosecond.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KvTransfer {
    /// KV bytes of one token; 0 where transfers take no time.
    pub bytes_per_token: u64,
    /// Most bytes per nanosecond of one transfer, no limit if none.
    pub bandwidth: Option<f64>,
    /// Which tokens are charged.
    pub charged: ChargedTokens,
    /// What transfers share.
    pub sharing: LinkSharing,
    /// Layers, if each is sent as soon as it is computed.
    pub overlap_layers: Option<u32>,
}

impl KvTransfer {
    /// How long a transfer of so many tokens takes on a link of its own, after a computation of `computed_for` that
    /// it may overlap with, layer by layer.
    pub fn alone(&self, tokens: u32, computed_for: Nanos) -> Nanos {
        let bytes = f64::from(tokens) * self.bytes_per_token as f64;
        let whole = self.bandwidth.map_or(0.0, |rate| bytes / rate);
        let left = match self.overlap_layers.map(f64::from) {
            None => whole,
            // The last layer at least, and what the computation did not cover.
            Some(layers) => {
                let covered = computed_for.0 as f64 * (layers - 1.0) / layers;
                (whole - covered).max(whole / layers)
            }
        };
        Nanos(left.round() as u64)
    }
}

/// Which tokens of a prompt are charged to its transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChargedTokens {
    /// Those of the blocks that the decode worker does not have.
    #[default]
    DestinationMissing,
    /// All.
    FullPrompt,
}

/// What transfers share.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum LinkSharing {
    /// Nothing.
    #[default]
    PerRequest,
    /// Evenly the interfaces of the two workers.
    FairShare {
        /// Bytes per nanosecond of an interface, for each direction.
        interface: f64,
    },
}

/// What serves: one pool of equal workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Deployment {
    /// Whose rules hold.
    pub semantics: Semantics,
    /// Name of the model: a label, the timing does not depend on it.
    pub model: String,
    /// Name of the accelerator: a label, the timing does not depend on it.
    pub hardware: String,
    /// Version of the engine: a label.
    pub backend_version: Option<String>,
    /// Name of the pool: `aggregated`, `prefill` or `decode`.
    pub role: &'static str,
    /// Workers at the start, all ready at 0.
    pub replicas: NonZeroU32,
    /// From the decision to add a worker to its readiness. Workers of the start do not wait.
    pub startup: Nanos,
    /// How the model is spread over the accelerators of one worker.
    pub parallelism: Parallelism,
    /// Accelerators of one worker: those of a rank times its ranks.
    pub gpus_per_worker: u32,
    /// Data-parallel ranks of one worker, each with its own scheduler and KV cache.
    pub ranks: NonZeroU32,
    /// Which rank of its worker takes a request that names none.
    pub placement: Placement,
    /// The ranks of a worker start their passes together and wait for the slowest. False with one rank.
    pub barrier: bool,
    /// Requests are sent with `ignore_eos`, unless their trace says otherwise.
    pub ignore_eos: bool,
    /// Settings of each rank.
    pub engine: RankConfig,
    /// How its number of KV blocks was worked out; none where it was given.
    pub capacity: Option<Budget>,
    /// How long a pass takes.
    pub timing: TimingModel,
    /// KV bytes of one token, if given.
    pub kv_bytes_per_token: Option<u64>,
    /// How blocks get to the host's memory and back, where there is such a tier.
    pub host_offload: Option<HostOffload>,
    /// The same of a disk behind that.
    pub disk_offload: Option<DiskOffload>,
    /// Which worker takes the next request.
    pub router: Policy,
    /// From a change of a prefix cache to the instant at which the router knows of it.
    pub kv_event_lag: Nanos,
}

impl Deployment {
    /// Most tokens of a request, prompt and output together.
    pub fn context_length(&self) -> u32 {
        match &self.engine {
            RankConfig::Vllm(config) => config.max_model_len,
            RankConfig::Sglang(config) => config.context_length,
            RankConfig::Trtllm(config) => config.max_seq_len,
        }
    }

    /// What its router has to be told.
    pub fn telling(&self) -> Telling {
        Telling::new(self.router.needs(), self.kv_event_lag)
    }

    /// How long a prefill takes alone, by the deployment's own timing: what its router may expect.
    pub fn prefill_time(&self) -> PrefillTime {
        let timing = self.timing.clone();
        Arc::new(move |new_tokens, before| {
            let prefill = [Chunk { new_tokens, before }];
            timing.pass_duration(&Shape { prefill: &prefill, decode: DecodeSet::default() })
        })
    }
}

/// How a model is spread. The timing laws of this version do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parallelism {
    /// Tensor parallelism: accelerators of one rank.
    pub tensor: u32,
    /// Tensor parallelism of the experts. Adds no accelerator.
    pub moe_tensor: u32,
    /// Expert parallelism. Adds no accelerator.
    pub moe_expert: u32,
}

/// What is asked of a deployment.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// What the requests are made from.
    pub source: WorkloadSource,
    /// Who decides when a request is sent.
    pub pace: Pace,
    /// Instants after this one are not run; requests in flight then stay unfinished.
    pub max_virtual_time: Option<Nanos>,
}

impl Workload {
    /// Begins the stream of requests.
    ///
    /// # Errors
    /// What [`WorkloadSource::open`] refuses.
    pub fn open(&self) -> Result<Source, TrafficError> {
        self.source.open()
    }
}

/// Who decides when a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// The times of the source (open loop).
    Arrivals,
    /// The driver: as many as this are in flight, and the next is sent when one ends (closed loop).
    Concurrency(NonZeroU32),
}

/// Bounds that make a request a good one. Either those of the tokens or the one of the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sla {
    /// Arrival to first token.
    pub ttft: Option<Nanos>,
    /// Mean gap between tokens.
    pub itl: Option<Nanos>,
    /// Arrival to last token.
    pub e2e: Option<Nanos>,
}
