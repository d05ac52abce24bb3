//! The config of an SGLang scenario: the oracle's keys, and those of their values that are refused because
//! the scheduler does not have them.

use crate::conformance::engine::Engine;
use crate::conformance::error::ConformanceError;
use crate::conformance::files::ConfigFile;
use crate::conformance::scenario::Clock;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use windtunnel_engine::sglang::{Config, HostTier, Policy, Priority, WritePolicy};

/// The orders of the waiting queue. SGLang has more of them; they need what a scenario does not hold
/// (routing keys, times of waiting).
const POLICIES: [Policy; 5] = [
    Policy::Fcfs,
    Policy::Lpm,
    Policy::DfsWeight,
    Policy::Lof,
    // The oracle's own seed.
    Policy::Random { seed: 0 },
];

/// The environment variable that a scenario may set.
const CLIP_VARIABLE: &str = "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION";

/// The oracle's config. Defaults are the oracle's own, in its order.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// May name the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<Engine>,
    /// Tokens per page.
    pub page_size: u32,
    /// Tokens of the KV pool.
    pub max_total_tokens: u32,
    /// Seats of the running batch.
    pub max_running_requests: u32,
    /// Longest prefill of a pass; 0 or less is no limit.
    pub chunked_prefill_size: i64,
    /// Token budget of a prefill pass.
    pub max_prefill_tokens: u32,
    /// Order of the waiting queue.
    pub schedule_policy: String,
    /// Decodes ride along with chunked prefills.
    pub enable_mixed_chunk: bool,
    /// No prefix is kept.
    pub disable_radix_cache: bool,
    /// Scales the share of the outputs that is reserved.
    pub schedule_conservativeness: f64,
    /// Priority scheduling.
    pub enable_priority_scheduling: bool,
    /// The smaller, the more urgent.
    pub schedule_low_priority_values_first: bool,
    /// No running request makes room for one that is more urgent.
    pub disable_priority_preemption: bool,
    /// How much more urgent that one must be.
    pub priority_scheduling_preemption_threshold: i32,
    /// Process a pass before the next one is scheduled.
    pub disable_overlap: bool,
    /// Context length.
    pub context_length: u32,
    /// Which prefix goes first; only least recently used is known.
    pub radix_eviction_policy: Option<String>,
    /// Of requests that do not say it themselves.
    pub ignore_eos: bool,
    /// Record KV events.
    pub kv_events: bool,
    /// Duration of a non-empty pass.
    pub step_ms_base: f64,
    /// Duration per token.
    pub step_ms_per_token: f64,
    /// Passes after which the replay stops.
    pub max_steps: u64,
    /// Environment variables of the engine.
    pub env: Map<String, Value>,
    /// Most requests in a prefill batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_max_requests: Option<u32>,
    /// Most requests in the waiting queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_queued_requests: Option<u32>,
    /// Who is retracted first: by `length` or by `priority`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retraction_policy: Option<RetractionPolicy>,
    /// Decode passes after a prefill pass before the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_decode_interval: Option<u32>,
    /// Where that holds: at least so many running requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_decode_interval_min_bs: Option<u32>,
    /// A tier in the host's memory, and when it is written to: `write_through`, `write_through_selective` or
    /// `write_back`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hicache_write_policy: Option<WritePolicyName>,
    /// Its tokens for each token of the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hicache_ratio: Option<f64>,
    /// How long a copy to it takes, whatever its size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_latency_ms: Option<f64>,
    /// How much longer for each token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_ms_per_token: Option<f64>,
    /// How long a copy from it takes, whatever its size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_latency_ms: Option<f64>,
    /// How much longer for each token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_ms_per_token: Option<f64>,
    /// The scenario's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// Who is retracted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RetractionPolicy {
    /// The one with the fewest outputs.
    Length,
    /// The least urgent one.
    Priority,
}

/// When the host tier is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "windtunnel_engine::sglang::WritePolicy says what they are")]
#[expect(clippy::enum_variant_names, reason = "SGLang's own names")]
pub enum WritePolicyName {
    WriteThrough,
    WriteThroughSelective,
    WriteBack,
}

impl From<WritePolicyName> for WritePolicy {
    fn from(name: WritePolicyName) -> WritePolicy {
        match name {
            WritePolicyName::WriteThrough => WritePolicy::WriteThrough,
            WritePolicyName::WriteThroughSelective => WritePolicy::WriteThroughSelective,
            WritePolicyName::WriteBack => WritePolicy::WriteBack,
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            engine: None,
            page_size: 1,
            max_total_tokens: 4000,
            max_running_requests: 64,
            chunked_prefill_size: 8192,
            max_prefill_tokens: 16384,
            schedule_policy: "fcfs".into(),
            enable_mixed_chunk: false,
            disable_radix_cache: false,
            schedule_conservativeness: 1.0,
            enable_priority_scheduling: false,
            schedule_low_priority_values_first: false,
            disable_priority_preemption: false,
            priority_scheduling_preemption_threshold: 10,
            disable_overlap: true,
            context_length: 8192,
            radix_eviction_policy: None,
            ignore_eos: false,
            kv_events: true,
            step_ms_base: 10.0,
            step_ms_per_token: 0.05,
            max_steps: 2000,
            env: Map::new(),
            prefill_max_requests: None,
            max_queued_requests: None,
            retraction_policy: None,
            prefill_decode_interval: None,
            prefill_decode_interval_min_bs: None,
            hicache_write_policy: None,
            hicache_ratio: None,
            store_latency_ms: None,
            store_ms_per_token: None,
            load_latency_ms: None,
            load_ms_per_token: None,
            name: None,
            comment: None,
        }
    }
}

impl Settings {
    pub(in crate::conformance) fn read(file: &ConfigFile) -> Result<Settings, ConformanceError> {
        let mut settings: Settings = file.parse()?;
        if settings.hicache_write_policy.is_some() {
            // As the oracle does, so that the first line of a trace says them.
            let ((load, load_token), (store, store_token)) =
                (settings.copy_ms(true), settings.copy_ms(false));
            (settings.store_latency_ms, settings.store_ms_per_token) = (Some(store), Some(store_token));
            (settings.load_latency_ms, settings.load_ms_per_token) = (Some(load), Some(load_token));
        }
        settings.clock().check(file)?;
        settings.check().map_err(|(key, reason)| file.fault(key, reason))?;
        Ok(settings)
    }

    /// What the scheduler does not have: the key, and what is wrong with its value.
    fn check(&self) -> Result<(), (&'static str, String)> {
        let policy = &self.schedule_policy;
        if !POLICIES.iter().any(|known| known.name() == policy) {
            let known = POLICIES.map(Policy::name).join(", ");
            return Err(("schedule_policy", format!("got {policy}; allowed are {known}")));
        }
        if self.chunked_prefill_size > i64::from(u32::MAX) {
            let reason = format!("{} must be at most {}", self.chunked_prefill_size, u32::MAX);
            return Err(("chunked_prefill_size", reason));
        }
        if let Some(policy) = self.radix_eviction_policy.as_deref()
            && !matches!(policy, "" | "lru")
        {
            return Err(("radix_eviction_policy", format!("got {policy}; allowed is lru")));
        }
        self.check_host_tier()?;
        for (variable, value) in &self.env {
            if variable != CLIP_VARIABLE {
                return Err(("env", format!("{variable} is not known; allowed is {CLIP_VARIABLE}")));
            }
            if positive(value).is_none() {
                let allowed = "allowed is an integer from 1 to 4294967295";
                return Err(("env", format!("{variable}: got {value}; {allowed}")));
            }
        }
        Ok(())
    }

    fn check_host_tier(&self) -> Result<(), (&'static str, String)> {
        let keys = [
            ("hicache_ratio", self.hicache_ratio),
            ("store_latency_ms", self.store_latency_ms),
            ("store_ms_per_token", self.store_ms_per_token),
            ("load_latency_ms", self.load_latency_ms),
            ("load_ms_per_token", self.load_ms_per_token),
        ];
        for (key, value) in keys.into_iter().filter_map(|(key, value)| Some((key, value?))) {
            if self.hicache_write_policy.is_none() {
                return Err((key, "goes with hicache_write_policy only".into()));
            }
            if !(0.0..=1e9).contains(&value) {
                return Err((key, format!("{value} must be from 0 to 1e9")));
            }
        }
        if self.hicache_write_policy.is_some() && self.hicache_ratio.is_none() {
            return Err(("hicache_ratio", "is needed with hicache_write_policy".into()));
        }
        Ok(())
    }

    /// How long a copy from or to the host takes: for itself, and for each token.
    pub(super) fn copy_ms(&self, load: bool) -> (f64, f64) {
        match load {
            true => (self.load_latency_ms.unwrap_or(5.0), self.load_ms_per_token.unwrap_or(0.02)),
            false => (self.store_latency_ms.unwrap_or(2.0), self.store_ms_per_token.unwrap_or(0.02)),
        }
    }

    /// The host tier (pool_host/base.py, 0.5.23: a page more than the ratio gives).
    fn host_tier(&self) -> Option<HostTier> {
        let write_policy = self.hicache_write_policy?.into();
        let pool = self.max_total_tokens / self.page_size.max(1) * self.page_size;
        let tokens = (f64::from(pool) * self.hicache_ratio?) as u32;
        Some(HostTier { pages: (tokens / self.page_size.max(1)).saturating_add(1), write_policy })
    }

    pub(super) fn clock(&self) -> Clock {
        Clock::new(self.step_ms_base, self.step_ms_per_token)
    }

    /// The rank's settings.
    pub fn config(&self) -> Config {
        let chunk = u32::try_from(self.chunked_prefill_size).ok().filter(|&size| size > 0);
        let policy = POLICIES.into_iter().find(|policy| policy.name() == self.schedule_policy);
        let defaults = Config::new(self.max_total_tokens, self.page_size, self.context_length);
        Config {
            max_running_requests: self.max_running_requests,
            max_prefill_tokens: self.max_prefill_tokens,
            chunked_prefill_size: chunk,
            // scheduler.py (0.5.23) `init_chunked_prefill`: without chunks there is nothing to mix into.
            mixed_chunk: self.enable_mixed_chunk && chunk.is_some(),
            schedule_policy: policy.unwrap_or(Policy::Fcfs),
            priority: self.enable_priority_scheduling.then_some(Priority {
                low_values_first: self.schedule_low_priority_values_first,
                preemption_threshold: (!self.disable_priority_preemption)
                    .then_some(self.priority_scheduling_preemption_threshold),
            }),
            schedule_conservativeness: self.schedule_conservativeness,
            clip_max_new_tokens: self
                .env
                .get(CLIP_VARIABLE)
                .and_then(positive)
                .unwrap_or(defaults.clip_max_new_tokens),
            radix_cache: !self.disable_radix_cache,
            overlap: !self.disable_overlap,
            retract_by_priority: self.retraction_policy == Some(RetractionPolicy::Priority),
            prefill_max_requests: self.prefill_max_requests,
            max_queued_requests: self.max_queued_requests,
            prefill_decode_interval: self.prefill_decode_interval.unwrap_or(0),
            prefill_decode_interval_min_bs: self.prefill_decode_interval_min_bs.unwrap_or(0),
            host: self.host_tier(),
            // The engine takes every request.
            refuse_unservable: false,
            kv_events: self.kv_events.into(),
            ..defaults
        }
    }
}

/// The value of a variable: a number, or a number as text, as an environment holds it.
fn positive(value: &Value) -> Option<u32> {
    let number = match value {
        Value::String(text) => text.trim().parse().ok()?,
        other => other.as_u64()?,
    };
    u32::try_from(number).ok().filter(|&number| number > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use windtunnel_engine::sglang::{Disaggregation, HandOffRules};

    fn checked(config: Value) -> Result<Config, String> {
        let settings: Settings = serde_json::from_value(config).map_err(|e| e.to_string())?;
        settings.check().map_err(|(key, reason)| format!("{key}: {reason}"))?;
        Ok(settings.config())
    }

    #[test]
    fn an_empty_config_is_the_oracles_default() {
        let config = checked(json!({})).unwrap();
        let expected = Config {
            max_running_requests: 64,
            overlap: false,
            refuse_unservable: false,
            kv_events: true.into(),
            ..Config::new(4000, 1, 8192)
        };
        assert_eq!(config, expected);
        // SGLang's own defaults, which the oracle keeps.
        assert_eq!((config.chunked_prefill_size, config.max_prefill_tokens), (Some(8192), 16384));
        assert_eq!(config.clip_max_new_tokens, 4096);
    }

    #[test]
    fn every_key_reaches_the_rank() {
        let config = checked(json!({
            "engine": "sglang", "page_size": 16, "max_total_tokens": 1920, "max_running_requests": 7,
            "chunked_prefill_size": 256, "max_prefill_tokens": 1024, "schedule_policy": "lof",
            "enable_mixed_chunk": true, "disable_radix_cache": true, "schedule_conservativeness": 0.3,
            "enable_priority_scheduling": true, "schedule_low_priority_values_first": true,
            "priority_scheduling_preemption_threshold": 4, "disable_overlap": false,
            "context_length": 1000, "radix_eviction_policy": "lru", "ignore_eos": true,
            "kv_events": false, "max_steps": 9, "env": {"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "128"},
            "prefill_max_requests": 5, "max_queued_requests": 6, "retraction_policy": "priority",
            "prefill_decode_interval": 3, "prefill_decode_interval_min_bs": 2,
            "hicache_write_policy": "write_back", "hicache_ratio": 0.5, "store_latency_ms": 1.0, "store_ms_per_token": 0.1,
            "load_latency_ms": 2.0, "load_ms_per_token": 0.2, "name": "n", "comment": "c",
        }))
        .unwrap();
        let expected = Config {
            max_total_tokens: 1920,
            page_size: 16,
            context_length: 1000,
            max_running_requests: 7,
            max_prefill_tokens: 1024,
            chunked_prefill_size: Some(256),
            mixed_chunk: true,
            schedule_policy: Policy::Lof,
            priority: Some(Priority { low_values_first: true, preemption_threshold: Some(4) }),
            schedule_conservativeness: 0.3,
            clip_max_new_tokens: 128,
            radix_cache: false,
            overlap: true,
            prefill_decode_interval: 3,
            prefill_decode_interval_min_bs: 2,
            retract_by_priority: true,
            prefill_max_requests: Some(5),
            max_queued_requests: Some(6),
            // Half of 1920 tokens are 60 pages, and one more.
            host: Some(HostTier { pages: 61, write_policy: WritePolicy::WriteBack }),
            disaggregation: Disaggregation::Off,
            hand_off_rules: HandOffRules::InTurns,
            refuse_unservable: false,
            kv_events: false.into(),
            kv_event_tokens: 16,
        };
        assert_eq!(config, expected);
        let unmovable = json!({"enable_priority_scheduling": true, "disable_priority_preemption": true});
        assert_eq!(checked(unmovable).unwrap().priority.unwrap().preemption_threshold, None);
    }

    #[test]
    fn without_chunks_nothing_is_mixed() {
        for size in [0, -1] {
            let config = checked(json!({"chunked_prefill_size": size, "enable_mixed_chunk": true})).unwrap();
            assert_eq!((config.chunked_prefill_size, config.mixed_chunk), (None, false));
        }
    }

    #[test]
    fn what_the_scheduler_does_not_have_is_refused() {
        for policy in ["hrrn", "routing-key", "shortest-prefill-first"] {
            assert_eq!(
                checked(json!({"schedule_policy": policy})).unwrap_err(),
                format!("schedule_policy: got {policy}; allowed are fcfs, lpm, dfs-weight, lof, random")
            );
        }
        let cases = [
            (json!({"radix_eviction_policy": "lfu"}), "radix_eviction_policy: got lfu; allowed is lru"),
            (
                json!({"env": {"SGLANG_X": 1}}),
                "env: SGLANG_X is not known; allowed is SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION",
            ),
            (
                json!({"env": {"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": 0}}),
                "env: SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION: got 0; \
                 allowed is an integer from 1 to 4294967295",
            ),
            (
                json!({"chunked_prefill_size": 4294967296u64}),
                "chunked_prefill_size: 4294967296 must be at most 4294967295",
            ),
        ];
        for (config, reason) in cases {
            assert_eq!(checked(config).unwrap_err(), reason);
        }
        assert!(checked(json!({"radix_eviction_policy": "", "env": {}})).is_ok());
        let unknown = checked(json!({"num_blocks": 3})).unwrap_err();
        assert!(unknown.starts_with("unknown field `num_blocks`"), "{unknown}");
    }
}
