//! The lines of an oracle's trace for vLLM, in the order of keys in which the oracle writes them.

use super::scenario::Settings;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::Value;

/// A line of a trace.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum TraceLine {
    /// First line: what was asked for and what is in force.
    Config {
        /// The engine.
        engine: &'static str,
        /// The version whose behaviour is reproduced.
        version: &'static str,
        /// The config.
        config: Settings,
        /// What is in force.
        effective: Value,
    },
    /// One `schedule` call.
    Step(Box<Step>),
    /// Last line.
    Summary(Summary),
}

/// An object whose keys keep their order.
#[derive(Clone, Debug, Default)]
pub struct Ordered<V>(pub Vec<(String, V)>);

impl<V: Serialize> Serialize for Ordered<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

/// One `schedule` call and its completion.
#[derive(Clone, Debug, Default, Serialize)]
#[allow(missing_docs, reason = "the oracle's README defines every key")]
pub struct Step {
    pub step: u64,
    pub t_sched_ms: f64,
    pub arrived: Vec<String>,
    pub sched: Vec<(String, u32)>,
    pub total: u64,
    pub new: Vec<String>,
    pub resumed: Vec<String>,
    pub preempted: Vec<String>,
    pub cached: Vec<String>,
    pub hits: Vec<(String, u32, u32)>,
    pub lookups: u32,
    pub computed: Ordered<u32>,
    pub free_before: u32,
    pub free_after_sched: u32,
    pub running: Vec<String>,
    pub waiting: Vec<String>,
    pub sampled: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Ordered<Vec<u32>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub t_start_ms: Option<f64>,
    pub t_end_ms: f64,
    pub finished: Vec<(String, &'static str)>,
    pub tokens_out: Ordered<u32>,
    pub free_after_update: u32,
    pub n_running: usize,
    pub n_waiting: usize,
    pub n_preemptions_total: u64,
    pub cached_blocks: u32,
    pub events: Vec<Event>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_queue: Option<Vec<u32>>,
}

/// A KV event; hashes are numbered in order of first appearance.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "t", rename_all = "lowercase")]
#[allow(missing_docs, reason = "the oracle's README defines every key")]
pub enum Event {
    Stored { parent: Option<u32>, hashes: Vec<u32>, n_tokens: u32, block_size: u32 },
    Removed { hashes: Vec<u32> },
}

/// The end of a trace.
#[derive(Clone, Debug, Default, Serialize)]
#[allow(missing_docs, reason = "the oracle's README defines every key")]
pub struct Summary {
    pub steps: u64,
    pub t_ms: f64,
    pub finished: usize,
    pub requests: usize,
    pub stuck: bool,
    pub preemptions: Ordered<u32>,
    pub unfinished: Vec<String>,
}

/// Rounds as the oracle does before writing a time.
pub(super) fn four_digits(ms: f64) -> f64 {
    (ms * 1e4).round() / 1e4
}
