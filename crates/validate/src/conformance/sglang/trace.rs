//! The lines of SGLang's oracle, in the order of keys in which it writes them.

use super::scenario::Settings;
use crate::conformance::engine::Engine;
use crate::conformance::trace::{Event, Ordered};
use serde::Serialize;
use windtunnel_engine::sglang::Config;

/// The first line.
#[derive(Clone, Debug, Serialize)]
pub struct Header {
    /// The engine.
    pub engine: Engine,
    /// The version whose behaviour is reproduced.
    pub version: &'static str,
    /// The config.
    pub config: Settings,
    /// What is in force.
    pub effective: Effective,
}

/// The settings in force, under the engine's own names.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names are those of SGLang's scheduler")]
pub struct Effective {
    pub page_size: u32,
    pub max_total_num_tokens: u32,
    pub max_running_requests: u32,
    pub chunked_prefill_size: Option<u32>,
    pub max_prefill_tokens: u32,
    pub schedule_policy: String,
    pub is_mixed_chunk: bool,
    pub enable_overlap: bool,
    pub max_req_len: u32,
    pub max_req_input_len: u32,
    pub tree_cache: &'static str,
    pub tree_core: &'static str,
    pub allocator: &'static str,
    pub new_token_ratio: NewTokenRatio,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_tokens: Option<u64>,
}

/// How the share of the outputs that is reserved moves.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct NewTokenRatio {
    /// Where it starts.
    pub init: f64,
    /// What it does not fall below.
    pub min: f64,
    /// What it loses with each decode pass.
    pub decay: f64,
}

impl Effective {
    pub(super) fn of(settings: &Settings, config: &Config, new_token_ratio: NewTokenRatio) -> Effective {
        Effective {
            page_size: config.page_size,
            max_total_num_tokens: config.max_total_tokens,
            max_running_requests: config.max_running_requests,
            chunked_prefill_size: config.chunked_prefill_size,
            max_prefill_tokens: config.max_prefill_tokens,
            schedule_policy: settings.schedule_policy.clone(),
            is_mixed_chunk: config.mixed_chunk,
            enable_overlap: config.overlap,
            max_req_len: config.max_req_len(),
            max_req_input_len: config.max_req_input_len(),
            // The engine's classes, which are the same with and without its radix cache.
            tree_cache: "UnifiedRadixCache",
            tree_core: "RustUnifiedTreeCore",
            allocator: match config.page_size {
                1 => "TokenToKVPoolAllocator",
                _ => "PagedTokenToKVPoolAllocator",
            },
            new_token_ratio,
            host_tokens: config.host.map(|host| u64::from(host.pages) * u64::from(config.page_size)),
        }
    }
}

/// One `schedule` call and its completion.
#[derive(Clone, Debug, Default, Serialize)]
#[allow(missing_docs, reason = "docs/conformance.md defines every key")]
pub struct Step {
    pub step: u64,
    pub t_sched_ms: f64,
    pub arrived: Vec<String>,
    pub waiting_before: Vec<String>,
    #[serde(flatten)]
    pub batch: Batch,
    pub requeued: Vec<(String, bool)>,
    pub retract: Vec<Retract>,
    pub ratio_before: f64,
    pub ratio_after: f64,
    pub avail_before: u32,
    pub evictable_before: u32,
    pub avail_after_sched: u32,
    pub evictable_after_sched: u32,
    pub protected_after_sched: u32,
    pub running: Vec<String>,
    pub waiting: Vec<String>,
    pub batch_is_full: bool,
    #[serde(flatten)]
    pub host: Option<Host>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_end: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_overlap: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub t_start_ms: Option<f64>,
    pub t_end_ms: f64,
    pub finished: Vec<(String, &'static str)>,
    pub tokens_out: Ordered<u32>,
    pub avail_after: u32,
    pub evictable_after: u32,
    pub protected_after: u32,
    pub events: Vec<Event>,
}

/// The keys that a host tier adds.
#[derive(Clone, Debug, Default, Serialize)]
#[allow(missing_docs, reason = "docs/conformance.md defines every key")]
pub struct Host {
    pub copies: Vec<(&'static str, u32, f64)>,
    pub host_free: u64,
    pub writing: usize,
    pub loading: usize,
}

/// What `schedule` chose. Which keys a line has depends on it.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Batch {
    /// Nothing.
    None(NoBatch),
    /// Prefill, with or without decodes behind.
    Extend(Extend),
    /// Decode only.
    Decode(Decode),
}

impl Default for Batch {
    fn default() -> Batch {
        Batch::None(NoBatch::default())
    }
}

/// The keys of a pass without a batch.
#[derive(Clone, Debug, Default, Serialize)]
#[allow(missing_docs, reason = "docs/conformance.md defines every key")]
pub struct NoBatch {
    pub mode: Option<&'static str>,
    pub sched: Vec<(String, u32)>,
    pub total: u64,
}

/// The keys of a pass with prefill.
#[derive(Clone, Debug, Default, Serialize)]
#[allow(missing_docs, reason = "docs/conformance.md defines every key")]
pub struct Extend {
    pub sched: Vec<(String, u32)>,
    pub prefix: Ordered<u32>,
    pub mixed_decode: Vec<String>,
    pub new: Vec<String>,
    pub resumed: Vec<String>,
    pub chunk_cont: Vec<String>,
    pub mode: &'static str,
    pub total: u64,
    pub chunked_req: Option<String>,
    pub seq_lens: Vec<u32>,
}

/// The keys of a pass that only decodes.
#[derive(Clone, Debug, Default, Serialize)]
#[allow(missing_docs, reason = "docs/conformance.md defines every key")]
pub struct Decode {
    pub sched: Vec<(String, u32)>,
    pub mode: &'static str,
    pub total: u64,
    pub chunked_req: Option<String>,
    pub seq_lens: Vec<u32>,
}

/// One retraction.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "docs/conformance.md defines every key")]
pub struct Retract {
    pub retracted: Vec<String>,
    pub new_ratio: f64,
    pub aborted: Vec<String>,
    pub avail_before: u32,
    pub avail_after: u32,
}

/// The end of a trace.
#[derive(Clone, Debug, Default, Serialize)]
#[allow(missing_docs, reason = "docs/conformance.md defines every key")]
pub struct Summary {
    pub steps: u64,
    pub t_ms: f64,
    pub finished: usize,
    pub requests: usize,
    pub stuck: bool,
    pub unfinished: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::trace::{self, TraceLine};

    fn names<const N: usize>(names: [&str; N]) -> Vec<String> {
        names.map(str::to_owned).into()
    }

    fn numbers<const N: usize>(entries: [(&str, u32); N]) -> Vec<(String, u32)> {
        entries.map(|(name, n)| (name.to_owned(), n)).into()
    }

    fn written(step: Step) -> String {
        serde_json::to_string(&TraceLine::Step(trace::Step::Sglang(Box::new(step)))).unwrap()
    }

    /// Overlap, a hit, an eviction.
    #[test]
    fn a_prefill_is_written_as_the_oracle_writes_it() {
        let step = Step {
            step: 679,
            t_sched_ms: 7837.82,
            arrived: names(["r194"]),
            waiting_before: names(["r194"]),
            batch: Batch::Extend(Extend {
                sched: numbers([("r194", 11)]),
                prefix: Ordered(numbers([("r194", 128)])),
                new: names(["r194"]),
                mode: "EXTEND",
                total: 11,
                seq_lens: vec![139],
                ..Extend::default()
            }),
            ratio_before: 0.062209,
            ratio_after: 0.062209,
            avail_before: 80,
            evictable_before: 1408,
            avail_after_sched: 64,
            evictable_after_sched: 1280,
            protected_after_sched: 448,
            running: names(["r187", "r189", "r193"]),
            disable_overlap: Some(false),
            t_start_ms: Some(7847.97),
            t_end_ms: 7858.52,
            tokens_out: Ordered(numbers([("r194", 1)])),
            avail_after: 64,
            evictable_after: 1312,
            protected_after: 336,
            events: vec![Event::Removed { hashes: vec![857, 858, 859, 860, 861, 862], medium: Some("GPU") }],
            ..Step::default()
        };
        let golden = r#"{"kind":"step","step":679,"t_sched_ms":7837.82,"arrived":["r194"],"waiting_before":["r194"],"sched":[["r194",11]],"prefix":{"r194":128},"mixed_decode":[],"new":["r194"],"resumed":[],"chunk_cont":[],"mode":"EXTEND","total":11,"chunked_req":null,"seq_lens":[139],"requeued":[],"retract":[],"ratio_before":0.062209,"ratio_after":0.062209,"avail_before":80,"evictable_before":1408,"avail_after_sched":64,"evictable_after_sched":1280,"protected_after_sched":448,"running":["r187","r189","r193"],"waiting":[],"batch_is_full":false,"disable_overlap":false,"t_start_ms":7847.97,"t_end_ms":7858.52,"finished":[],"tokens_out":{"r194":1},"avail_after":64,"evictable_after":1312,"protected_after":336,"events":[{"t":"removed","hashes":[857,858,859,860,861,862],"medium":"GPU"}]}"#;
        assert_eq!(written(step), golden);
    }

    /// The chunk of a prompt with a decode behind.
    #[test]
    fn a_mixed_batch_is_written_as_the_oracle_writes_it() {
        let step = Step {
            step: 1,
            t_sched_ms: 12.5,
            arrived: names(["r001", "r002", "r003"]),
            waiting_before: names(["r001", "r002", "r003"]),
            batch: Batch::Extend(Extend {
                sched: numbers([("r001", 511), ("r000", 1)]),
                prefix: Ordered(numbers([("r001", 0)])),
                mixed_decode: names(["r000"]),
                new: names(["r001"]),
                mode: "MIXED",
                total: 512,
                chunked_req: Some("r001".into()),
                seq_lens: vec![511, 51],
                ..Extend::default()
            }),
            ratio_before: 0.7,
            ratio_after: 0.7,
            avail_before: 15950,
            avail_after_sched: 15438,
            protected_after_sched: 50,
            waiting: names(["r002", "r003"]),
            ratio_end: Some(0.7),
            t_end_ms: 48.1,
            tokens_out: Ordered(numbers([("r001", 0), ("r000", 2)])),
            avail_after: 15438,
            protected_after: 50,
            ..Step::default()
        };
        let golden = r#"{"kind":"step","step":1,"t_sched_ms":12.5,"arrived":["r001","r002","r003"],"waiting_before":["r001","r002","r003"],"sched":[["r001",511],["r000",1]],"prefix":{"r001":0},"mixed_decode":["r000"],"new":["r001"],"resumed":[],"chunk_cont":[],"mode":"MIXED","total":512,"chunked_req":"r001","seq_lens":[511,51],"requeued":[],"retract":[],"ratio_before":0.7,"ratio_after":0.7,"avail_before":15950,"evictable_before":0,"avail_after_sched":15438,"evictable_after_sched":0,"protected_after_sched":50,"running":[],"waiting":["r002","r003"],"batch_is_full":false,"ratio_end":0.7,"t_end_ms":48.1,"finished":[],"tokens_out":{"r001":0,"r000":2},"avail_after":15438,"evictable_after":0,"protected_after":50,"events":[]}"#;
        assert_eq!(written(step), golden);
    }

    /// A decode that did not fit.
    #[test]
    fn a_retraction_is_written_as_the_oracle_writes_it() {
        let batch = ["r007", "r006", "r004", "r002", "r005", "r001"];
        let step = Step {
            step: 50,
            t_sched_ms: 541.6,
            waiting_before: names(["r009", "r010", "r011", "r012", "r013", "r008", "r003"]),
            batch: Batch::Decode(Decode {
                sched: numbers(batch.map(|name| (name, 1))),
                mode: "DECODE",
                total: 6,
                chunked_req: None,
                seq_lens: vec![77, 79, 81, 84, 102, 111],
            }),
            requeued: vec![("r000".into(), true)],
            retract: vec![Retract {
                retracted: names(["r000"]),
                new_ratio: 0.887324,
                aborted: Vec::new(),
                avail_before: 1,
                avail_after: 112,
            }],
            ratio_before: 0.672566,
            ratio_after: 0.887324,
            avail_before: 1,
            avail_after_sched: 106,
            running: names(batch),
            waiting: names(["r009", "r010", "r011", "r012", "r013", "r008", "r003", "r000"]),
            ratio_end: Some(0.887324),
            t_end_ms: 551.9,
            tokens_out: Ordered(numbers(batch.map(|name| (name, 44)))),
            avail_after: 106,
            ..Step::default()
        };
        let golden = r#"{"kind":"step","step":50,"t_sched_ms":541.6,"arrived":[],"waiting_before":["r009","r010","r011","r012","r013","r008","r003"],"sched":[["r007",1],["r006",1],["r004",1],["r002",1],["r005",1],["r001",1]],"mode":"DECODE","total":6,"chunked_req":null,"seq_lens":[77,79,81,84,102,111],"requeued":[["r000",true]],"retract":[{"retracted":["r000"],"new_ratio":0.887324,"aborted":[],"avail_before":1,"avail_after":112}],"ratio_before":0.672566,"ratio_after":0.887324,"avail_before":1,"evictable_before":0,"avail_after_sched":106,"evictable_after_sched":0,"protected_after_sched":0,"running":["r007","r006","r004","r002","r005","r001"],"waiting":["r009","r010","r011","r012","r013","r008","r003","r000"],"batch_is_full":false,"ratio_end":0.887324,"t_end_ms":551.9,"finished":[],"tokens_out":{"r007":44,"r006":44,"r004":44,"r002":44,"r005":44,"r001":44},"avail_after":106,"evictable_after":0,"protected_after":0,"events":[]}"#;
        assert_eq!(written(step), golden);
    }

    /// What the oracle writes when the first request comes later than time 0: the start of the cache is
    /// published by an idle engine.
    #[test]
    fn a_pass_without_a_batch_is_written_as_the_oracle_writes_it() {
        let step = Step {
            ratio_before: 0.7,
            ratio_after: 0.7,
            avail_before: 400,
            avail_after_sched: 400,
            ratio_end: Some(0.7),
            avail_after: 400,
            events: vec![Event::Cleared],
            ..Step::default()
        };
        let golden = r#"{"kind":"step","step":0,"t_sched_ms":0.0,"arrived":[],"waiting_before":[],"mode":null,"sched":[],"total":0,"requeued":[],"retract":[],"ratio_before":0.7,"ratio_after":0.7,"avail_before":400,"evictable_before":0,"avail_after_sched":400,"evictable_after_sched":0,"protected_after_sched":0,"running":[],"waiting":[],"batch_is_full":false,"ratio_end":0.7,"t_end_ms":0.0,"finished":[],"tokens_out":{},"avail_after":400,"evictable_after":0,"protected_after":0,"events":[{"t":"AllBlocksCleared"}]}"#;
        assert_eq!(written(step), golden);
    }

    /// With a page size of its own.
    #[test]
    fn the_first_line_is_written_as_the_oracle_writes_it() {
        let settings: Settings = serde_json::from_str(
            r#"{"max_total_tokens": 640, "page_size": 16, "schedule_conservativeness": 0.1,
                "name": "retract_p16", "comment": "same, page 16"}"#,
        )
        .unwrap();
        let ratio = NewTokenRatio { init: 0.06999999999999999, min: 0.0098, decay: 0.00010033333333333331 };
        let line = TraceLine::Config(trace::Header::Sglang(Box::new(Header {
            engine: Engine::Sglang,
            version: Engine::Sglang.version(),
            effective: Effective::of(&settings, &settings.config(), ratio),
            config: settings,
        })));
        let golden = r#"{"kind":"config","engine":"sglang","version":"0.5.23","config":{"page_size":16,"max_total_tokens":640,"max_running_requests":64,"chunked_prefill_size":8192,"max_prefill_tokens":16384,"schedule_policy":"fcfs","enable_mixed_chunk":false,"disable_radix_cache":false,"schedule_conservativeness":0.1,"enable_priority_scheduling":false,"schedule_low_priority_values_first":false,"disable_priority_preemption":false,"priority_scheduling_preemption_threshold":10,"disable_overlap":true,"context_length":8192,"radix_eviction_policy":null,"ignore_eos":false,"kv_events":true,"step_ms_base":10.0,"step_ms_per_token":0.05,"max_steps":2000,"env":{},"name":"retract_p16","comment":"same, page 16"},"effective":{"page_size":16,"max_total_num_tokens":640,"max_running_requests":64,"chunked_prefill_size":8192,"max_prefill_tokens":16384,"schedule_policy":"fcfs","is_mixed_chunk":false,"enable_overlap":false,"max_req_len":639,"max_req_input_len":634,"tree_cache":"UnifiedRadixCache","tree_core":"RustUnifiedTreeCore","allocator":"PagedTokenToKVPoolAllocator","new_token_ratio":{"init":0.06999999999999999,"min":0.0098,"decay":0.00010033333333333331}}}"#;
        assert_eq!(serde_json::to_string(&line).unwrap(), golden);
    }
}
