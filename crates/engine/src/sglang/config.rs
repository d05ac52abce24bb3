//! The settings of an SGLang rank, under SGLang's own names, and what SGLang refuses about them.
//!
//! Plain values: where they come from (YAML, an oracle's config, a flag) is not known here.

use crate::error::ConfigError;
use crate::event::KvEventScope;
use crate::kv::HostTier;

/// Order of the waiting queue (SGLang `--schedule-policy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// First come, first served.
    Fcfs,
    /// Longest cached prefix first.
    Lpm,
    /// Depth first through the radix tree, the heaviest subtree first.
    DfsWeight,
    /// Longest output first.
    Lof,
    /// Shuffled in every turn that looks for prefill, as Python's `random.shuffle` does from this seed
    /// (`--random-seed`).
    Random {
        /// The seed.
        seed: u32,
    },
}

impl Policy {
    /// Its name on SGLang's command line.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Fcfs => "fcfs",
            Policy::Lpm => "lpm",
            Policy::DfsWeight => "dfs-weight",
            Policy::Lof => "lof",
            Policy::Random { .. } => "random",
        }
    }
}

/// Priority scheduling (`--enable-priority-scheduling`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// `--schedule-low-priority-values-first`.
    pub low_values_first: bool,
    /// A running request may be preempted for one that is more urgent by more than this. `None`:
    /// `--disable-priority-preemption`.
    pub preemption_threshold: Option<i32>,
}

/// Which part of its requests a rank serves (`--disaggregation-mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Disaggregation {
    /// All of it.
    #[default]
    Off,
    /// The prompts; what follows is served by ranks that receive their KV.
    Prefill,
    /// What follows the prompt. Its KV comes from a rank that serves prompts.
    Decode {
        /// `--num-reserved-decode-tokens`: tokens that stay free for each request when room is made for another one.
        reserved_tokens: u32,
        /// `--disaggregation-decode-extra-slots`: requests that may receive KV beyond the seats.
        extra_slots: u32,
    },
}

impl Disaggregation {
    /// Requests that may receive KV beyond `seats`, where nothing else is said (arg_groups/pd_disaggregation_hook.py).
    pub fn usual_extra_slots(seats: u32) -> u32 {
        if seats <= 32 { 2 * seats } else { 0 }
    }
}

/// When the two sides of a hand-off hear of each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandOffRules {
    /// In their turns, as the engine does. The first token is that of the prompt's side, and streams from the other.
    #[default]
    InTurns,
    /// At once, as in AISimulate 0.13: room is made for the prompt alone, and the receiving side gives all tokens.
    AtOnce,
}

/// Settings of one rank. Field names are SGLang 0.5.23's (server_args.py).
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `max_total_tokens`: tokens of the KV pool. What does not fill a page is not used.
    pub max_total_tokens: u32,
    /// Tokens per page.
    pub page_size: u32,
    /// Context length: prompt and output together.
    pub context_length: u32,
    /// Seats of the running batch.
    pub max_running_requests: u32,
    /// Token budget of a prefill pass.
    pub max_prefill_tokens: u32,
    /// Longest prefill of a pass, longer prompts are split; `None`: they are not.
    pub chunked_prefill_size: Option<u32>,
    /// `enable_mixed_chunk`: decodes ride along with prefills.
    pub mixed_chunk: bool,
    /// Order of the waiting queue.
    pub schedule_policy: Policy,
    /// Priority scheduling.
    pub priority: Option<Priority>,
    /// `retraction_policy` priority: the least urgent request is retracted first.
    pub retract_by_priority: bool,
    /// `prefill_max_requests`: most requests in a prefill batch.
    pub prefill_max_requests: Option<u32>,
    /// `max_queued_requests`: most requests in the waiting queue; who comes then is refused.
    pub max_queued_requests: Option<u32>,
    /// Scales the share of the outputs that is reserved for running requests.
    pub schedule_conservativeness: f64,
    /// Most output tokens that admission reserves for a request
    /// (`SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION`).
    pub clip_max_new_tokens: u32,
    /// Keep prefixes (not `disable_radix_cache`).
    pub radix_cache: bool,
    /// Schedule pass n+1 before pass n is processed (not `disable_overlap_schedule`).
    pub overlap: bool,
    /// Decode passes after a prefill pass before the next one,
    pub prefill_decode_interval: u32,
    /// where at least this many requests are running.
    pub prefill_decode_interval_min_bs: u32,
    /// The tier in the host's memory (`--enable-hierarchical-cache`).
    pub host: Option<HostTier>,
    /// Which part of its requests it serves.
    pub disaggregation: Disaggregation,
    /// How it hands them over.
    pub hand_off_rules: HandOffRules,
    /// Refuse a request that cannot be served. The engine's scheduler takes it: one with a prompt that is too
    /// long for context or pool runs as a single token and is aborted; one that not even an empty pool
    /// admits waits for ever with all behind it.
    pub refuse_unservable: bool,
    /// Which events of the prefix cache are kept.
    pub kv_events: KvEventScope,
    /// Tokens of a block in them: a multiple of a page. Blocks that lie across nodes of the tree belong to the
    /// one in which they end.
    pub kv_event_tokens: u32,
}

impl Config {
    /// SGLang's defaults on a GPU of 60 to 160 GB, for a pool and a context length.
    pub fn new(max_total_tokens: u32, page_size: u32, context_length: u32) -> Config {
        Config {
            max_total_tokens,
            page_size,
            context_length,
            max_running_requests: 256,
            max_prefill_tokens: 16384,
            chunked_prefill_size: Some(8192),
            mixed_chunk: false,
            schedule_policy: Policy::Fcfs,
            priority: None,
            retract_by_priority: false,
            prefill_max_requests: None,
            max_queued_requests: None,
            schedule_conservativeness: 1.0,
            clip_max_new_tokens: 4096,
            radix_cache: true,
            overlap: true,
            prefill_decode_interval: 0,
            prefill_decode_interval_min_bs: 0,
            host: None,
            disaggregation: Disaggregation::Off,
            hand_off_rules: HandOffRules::InTurns,
            refuse_unservable: true,
            kv_events: KvEventScope::Off,
            kv_event_tokens: page_size,
        }
    }

    /// Pages that can hold tokens.
    pub fn usable_pages(&self) -> u32 {
        self.max_total_tokens / self.page_size
    }

    /// Tokens of these pages (`max_total_num_tokens`).
    pub fn pool_tokens(&self) -> u32 {
        self.usable_pages() * self.page_size
    }

    /// Batches that may be in flight.
    pub fn depth(&self) -> usize {
        if self.overlap { 2 } else { 1 }
    }

    /// Most tokens of a prompt with its output (`max_req_len`).
    pub fn max_req_len(&self) -> u32 {
        self.context_length.min(self.pool_tokens()) - 1
    }

    /// Prompts of this length and above are not served (`max_req_input_len`).
    pub fn max_req_input_len(&self) -> u32 {
        self.max_req_len().saturating_sub(5)
    }

    /// The checks of SGLang's own configuration, and the bounds of this implementation.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let fail =
            |field, got: String, problem: &str| Err(ConfigError { field, got, problem: problem.to_owned() });
        if self.page_size == 0 {
            return fail("page_size", "0".into(), "must be at least 1");
        }
        if self.max_total_tokens < self.page_size || self.max_total_tokens < 8 {
            return fail(
                "max_total_tokens",
                self.max_total_tokens.to_string(),
                &format!("must be at least 8, and one page ({})", self.page_size),
            );
        }
        if self.context_length < 8 {
            return fail("context_length", self.context_length.to_string(), "must be at least 8");
        }
        if self.max_running_requests == 0 {
            return fail("max_running_requests", "0".into(), "must be at least 1");
        }
        if self.max_prefill_tokens == 0 {
            return fail("max_prefill_tokens", "0".into(), "must be at least 1");
        }
        if let Some(size) = self.chunked_prefill_size
            && (size == 0 || size % self.page_size != 0)
        {
            return fail(
                "chunked_prefill_size",
                size.to_string(),
                &format!("must be a multiple of page_size ({}); it can be off, too", self.page_size),
            );
        }
        if self.mixed_chunk && self.chunked_prefill_size.is_none() {
            return fail("mixed_chunk", "true".into(), "needs chunked_prefill_size");
        }
        if !(0.0..=1e9).contains(&self.schedule_conservativeness) {
            return fail(
                "schedule_conservativeness",
                self.schedule_conservativeness.to_string(),
                "must be from 0 to 1e9",
            );
        }
        if self.clip_max_new_tokens == 0 {
            return fail("clip_max_new_tokens", "0".into(), "must be at least 1");
        }
        if self.priority.is_some() && !matches!(self.schedule_policy, Policy::Fcfs | Policy::Lof) {
            return fail(
                "schedule_policy",
                self.schedule_policy.name().to_owned(),
                "does not go with priority scheduling, which needs fcfs or lof",
            );
        }
        if self.retract_by_priority && self.priority.is_none() {
            return fail("retract_by_priority", "true".into(), "needs priority scheduling");
        }
        if let Some(host) = self.host {
            if !self.radix_cache {
                return fail("host", host.write_policy.name().to_owned(), "needs the radix cache");
            }
            if self.disaggregation != Disaggregation::Off {
                let problem = "is not supported on one side of a prefill/decode deployment";
                return fail("host", host.write_policy.name().to_owned(), problem);
            }
            if host.pages == 0 {
                return fail("host.pages", "0".into(), "must be at least 1");
            }
        }
        if self.prefill_max_requests == Some(0) {
            return fail("prefill_max_requests", "0".into(), "must be at least 1");
        }
        Ok(())
    }
}
