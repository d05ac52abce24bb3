//! The config of a vLLM scenario.

use crate::conformance::engine::Engine;
use crate::conformance::error::ConformanceError;
use crate::conformance::files::ConfigFile;
use crate::conformance::scenario::Clock;
use serde::{Deserialize, Serialize};
use windtunnel_engine::vllm::{
    Config, KvLoadFailurePolicy, KvRole, Policy, PreemptionMode, ResumedWork, TransferRules,
};

/// The oracle's config. Defaults are the oracle's own.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// May name the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<Engine>,
    /// `num_gpu_blocks`, the null block included.
    pub num_blocks: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// Prefix caching.
    pub enable_prefix_caching: bool,
    /// Chunked prefill.
    pub enable_chunked_prefill: bool,
    /// Token budget of a pass.
    pub max_num_batched_tokens: u32,
    /// Seats.
    pub max_num_seqs: u32,
    /// Seats for admission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_num_active_seqs: Option<u32>,
    /// Context length.
    pub max_model_len: u32,
    /// `fcfs` or `priority`.
    pub policy: PolicyName,
    /// Longest chunk, 0 for none.
    pub long_prefill_token_threshold: u32,
    /// Adaptive threshold.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub long_prefill_token_threshold_adaptive: bool,
    /// Asynchronous scheduling.
    pub async_scheduling: bool,
    /// Fraction of blocks kept free at admission.
    pub watermark: f64,
    /// The whole prompt must fit at admission.
    pub scheduler_reserve_full_isl: bool,
    /// Prefill cadence.
    pub prefill_schedule_interval: u32,
    /// The prefill cadence of data-parallel ranks, by the number of the step.
    #[serde(skip_serializing_if = "is_one")]
    pub dp_prefill_interval: u32,
    /// The part in transfers of KV.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_role: Option<KvRoleName>,
    /// What becomes of a request whose load fails.
    #[serde(skip_serializing_if = "KvLoadFailurePolicyName::is_fail")]
    pub kv_load_failure_policy: KvLoadFailurePolicyName,
    /// Duration of any load, 5 ms if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_latency_ms: Option<f64>,
    /// Duration of a load per token, 0.02 ms if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_ms_per_token: Option<f64>,
    /// Time until the blocks of any request have been read, 8 ms if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_latency_ms: Option<f64>,
    /// The same per token, 0.02 ms if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_ms_per_token: Option<f64>,
    /// Blocks of the host's memory, 64 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offload_chunks: Option<u32>,
    /// Duration of any store, 2 ms if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_latency_ms: Option<f64>,
    /// Duration of a store per token, 0.02 ms if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_ms_per_token: Option<f64>,
    /// A disk behind it (the tier `fs` of the tiered offload).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub offload_disk: bool,
    /// Duration of any read from it, 3 ms if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_latency_ms: Option<f64>,
    /// The same per token, 0.02 ms if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_ms_per_token: Option<f64>,
    /// Duration of any write to it, 3 ms if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_latency_ms: Option<f64>,
    /// The same per token, 0.02 ms if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_ms_per_token: Option<f64>,
    /// Time until it has answered what is there, 1 ms if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub look_up_ms: Option<f64>,
    /// Record KV events.
    pub kv_events: bool,
    /// Record block ids and the free queue.
    pub dump_free_queue: bool,
    /// Duration of a non-empty pass.
    pub step_ms_base: f64,
    /// Duration per token.
    pub step_ms_per_token: f64,
    /// Passes after which the replay stops.
    pub max_steps: u64,
    /// The scenario's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// vLLM's scheduling policy, as written in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyName {
    /// First come, first served.
    Fcfs,
    /// By priority.
    Priority,
}

/// The part of a rank in transfers of KV, as written in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvRoleName {
    /// The decode side.
    KvConsumer,
    /// The prefill side.
    KvProducer,
    /// Blocks go to the host's memory and come back.
    Offload,
}

/// vLLM's `kv_load_failure_policy`, as written in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvLoadFailurePolicyName {
    /// The request ends.
    #[default]
    Fail,
    /// It computes what is missing.
    Recompute,
}

impl KvLoadFailurePolicyName {
    fn is_fail(&self) -> bool {
        *self == KvLoadFailurePolicyName::Fail
    }
}

fn is_one(interval: &u32) -> bool {
    *interval == 1
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            engine: None,
            num_blocks: 101,
            block_size: 16,
            enable_prefix_caching: true,
            enable_chunked_prefill: true,
            max_num_batched_tokens: 2048,
            max_num_seqs: 128,
            max_num_active_seqs: None,
            max_model_len: 8192,
            policy: PolicyName::Fcfs,
            long_prefill_token_threshold: 0,
            long_prefill_token_threshold_adaptive: false,
            async_scheduling: false,
            watermark: 0.0,
            scheduler_reserve_full_isl: true,
            prefill_schedule_interval: 1,
            dp_prefill_interval: 1,
            kv_role: None,
            kv_load_failure_policy: KvLoadFailurePolicyName::Fail,
            load_latency_ms: None,
            load_ms_per_token: None,
            send_latency_ms: None,
            send_ms_per_token: None,
            offload_chunks: None,
            store_latency_ms: None,
            store_ms_per_token: None,
            offload_disk: false,
            read_latency_ms: None,
            read_ms_per_token: None,
            write_latency_ms: None,
            write_ms_per_token: None,
            look_up_ms: None,
            kv_events: true,
            dump_free_queue: false,
            step_ms_base: 10.0,
            step_ms_per_token: 0.05,
            max_steps: 2000,
            name: None,
            comment: None,
        }
    }
}

impl Settings {
    pub(in crate::conformance) fn read(file: &ConfigFile) -> Result<Settings, ConformanceError> {
        let settings: Settings = file.parse()?;
        settings.clock().check(file)?;
        if settings.dp_prefill_interval == 0 {
            return Err(file.fault("dp_prefill_interval", "0 must be at least 1"));
        }
        settings.check_transfers(file)?;
        Ok(settings)
    }

    fn check_transfers(&self, file: &ConfigFile) -> Result<(), ConformanceError> {
        let times = [
            ("load_latency_ms", self.load_latency_ms),
            ("load_ms_per_token", self.load_ms_per_token),
            ("send_latency_ms", self.send_latency_ms),
            ("send_ms_per_token", self.send_ms_per_token),
            ("store_latency_ms", self.store_latency_ms),
            ("store_ms_per_token", self.store_ms_per_token),
            ("read_latency_ms", self.read_latency_ms),
            ("read_ms_per_token", self.read_ms_per_token),
            ("write_latency_ms", self.write_latency_ms),
            ("write_ms_per_token", self.write_ms_per_token),
            ("look_up_ms", self.look_up_ms),
        ];
        if self.offload_disk && self.kv_role != Some(KvRoleName::Offload) {
            return Err(file.fault("offload_disk", "true needs kv_role offload"));
        }
        for (key, ms) in times {
            let Some(ms) = ms else { continue };
            if self.kv_role.is_none() {
                return Err(file.fault(key, "needs a kv_role"));
            }
            if !(0.0..=1e9).contains(&ms) {
                return Err(file.fault(key, format!("{ms} must be from 0 to 1e9")));
            }
        }
        Ok(())
    }

    /// How long the load of so many tokens takes.
    pub(super) fn load_ms(&self, tokens: u32) -> f64 {
        self.load_latency_ms.unwrap_or(5.0) + f64::from(tokens) * self.load_ms_per_token.unwrap_or(0.02)
    }

    /// How long it takes until so many tokens have been read.
    pub(super) fn send_ms(&self, tokens: u32) -> f64 {
        self.send_latency_ms.unwrap_or(8.0) + f64::from(tokens) * self.send_ms_per_token.unwrap_or(0.02)
    }

    /// How long the store of so many tokens takes.
    pub(super) fn store_ms(&self, tokens: u32) -> f64 {
        self.store_latency_ms.unwrap_or(2.0) + f64::from(tokens) * self.store_ms_per_token.unwrap_or(0.02)
    }

    /// How long the read of so many tokens from the disk takes.
    pub(super) fn read_ms(&self, tokens: u32) -> f64 {
        self.read_latency_ms.unwrap_or(3.0) + f64::from(tokens) * self.read_ms_per_token.unwrap_or(0.02)
    }

    /// How long the write of so many tokens takes.
    pub(super) fn write_ms(&self, tokens: u32) -> f64 {
        self.write_latency_ms.unwrap_or(3.0) + f64::from(tokens) * self.write_ms_per_token.unwrap_or(0.02)
    }

    /// How long the disk takes to say what is there.
    pub(super) fn look_up_ms(&self) -> f64 {
        self.look_up_ms.unwrap_or(1.0)
    }

    pub(super) fn clock(&self) -> Clock {
        Clock::new(self.step_ms_base, self.step_ms_per_token)
    }

    /// The rank's settings.
    pub fn config(&self) -> Config {
        Config {
            num_blocks: self.num_blocks,
            block_size: self.block_size,
            prefix_caching: self.enable_prefix_caching,
            chunked_prefill: self.enable_chunked_prefill,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_num_seqs: self.max_num_seqs,
            max_num_active_seqs: self.max_num_active_seqs,
            max_model_len: self.max_model_len,
            policy: match self.policy {
                PolicyName::Fcfs => Policy::Fcfs,
                PolicyName::Priority => Policy::Priority,
            },
            preemption_mode: PreemptionMode::Lifo,
            long_prefill_token_threshold: self.long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive: self.long_prefill_token_threshold_adaptive,
            async_scheduling: self.async_scheduling,
            watermark: self.watermark,
            reserve_full_isl: self.scheduler_reserve_full_isl,
            prefill_schedule_interval: self.prefill_schedule_interval,
            max_num_queued_reqs: None,
            max_num_queued_tokens: None,
            kv_role: self.kv_role.map(|role| match role {
                KvRoleName::KvConsumer => KvRole::Consumer,
                KvRoleName::KvProducer => KvRole::Producer,
                KvRoleName::Offload => KvRole::Both,
            }),
            host_blocks: (self.kv_role == Some(KvRoleName::Offload))
                .then_some(self.offload_chunks.unwrap_or(64)),
            disk: self.offload_disk.then_some(None),
            transfer_rules: TransferRules::Nixl,
            kv_load_failure_policy: match self.kv_load_failure_policy {
                KvLoadFailurePolicyName::Fail => KvLoadFailurePolicy::Fail,
                KvLoadFailurePolicyName::Recompute => KvLoadFailurePolicy::Recompute,
            },
            kv_events: self.kv_events.into(),
            resumed_work: ResumedWork::Prefill,
        }
    }
}
