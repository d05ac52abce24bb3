//! The lines of a trace as far as engines write them alike: their kinds, KV events, maps in order, and
//! rounding. The keys of a step are in each engine's own `trace`.

use super::{sglang, vllm};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use std::collections::HashMap;
use windtunnel_engine::{BlockKey, KvEvent, KvEvents, Tier};

/// A line of a trace.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum TraceLine {
    /// First line: what was asked for and what is in force.
    Config(Header),
    /// One `schedule` call.
    Step(Step),
    /// Last line.
    Summary(Summary),
}

/// The first line of each engine.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Header {
    /// vLLM's.
    Vllm(Box<vllm::Header>),
    /// SGLang's.
    Sglang(Box<sglang::Header>),
}

/// A step of each engine.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Step {
    /// vLLM's.
    Vllm(Box<vllm::Step>),
    /// SGLang's.
    Sglang(Box<sglang::Step>),
}

impl Step {
    /// Its number.
    pub fn number(&self) -> u64 {
        match self {
            Step::Vllm(step) => step.step,
            Step::Sglang(step) => step.step,
        }
    }
}

/// The end of each engine's trace.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Summary {
    /// vLLM's.
    Vllm(vllm::Summary),
    /// SGLang's.
    Sglang(sglang::Summary),
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

/// A KV event; hashes are numbered in order of first appearance.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "t", rename_all = "lowercase")]
#[allow(missing_docs, reason = "docs/conformance.md defines every key")]
pub enum Event {
    Stored {
        parent: Option<u32>,
        hashes: Vec<u32>,
        n_tokens: u32,
        block_size: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        medium: Option<&'static str>,
    },
    Removed {
        hashes: Vec<u32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        medium: Option<&'static str>,
    },
    #[serde(rename = "AllBlocksCleared")]
    Cleared,
}

/// How an engine names the tiers in its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Media {
    /// vLLM: what enters a lower tier has neither length nor parent (offloading/scheduler.py `take_events`, 0.33.0).
    Vllm,
    /// SGLang (disaggregation/kv_events.py `StorageMedium`, 0.5.23).
    Sglang,
}

impl Media {
    fn name(self, tier: Tier) -> Option<&'static str> {
        match (self, tier) {
            (Media::Vllm, Tier::Device) => None,
            (Media::Vllm, Tier::Host) => Some("CPU"),
            (Media::Vllm, Tier::Disk) => Some("STORAGE"),
            (Media::Sglang, Tier::Device) => Some("GPU"),
            (Media::Sglang, Tier::Host) => Some("CPU_PINNED"),
            (Media::Sglang, Tier::Disk) => Some("DISK"),
        }
    }
}

/// Writes KV events down, and remembers for it which number an identity has.
pub(super) struct EventWriter {
    numbers: HashMap<BlockKey, u32>,
    block_size: u32,
    media: Media,
}

impl EventWriter {
    /// For blocks of so many tokens.
    pub(super) fn new(block_size: u32, media: Media) -> EventWriter {
        EventWriter { numbers: HashMap::new(), block_size, media }
    }

    pub(super) fn write(&mut self, events: &KvEvents) -> Vec<Event> {
        let media = self.media;
        events
            .iter()
            .map(|event| match event {
                KvEvent::Stored { tier, parent, blocks, .. } => {
                    let bare = media == Media::Vllm && tier != Tier::Device;
                    Event::Stored {
                        parent: parent.map(|key| self.number(key)),
                        hashes: blocks.iter().map(|&key| self.number(key)).collect(),
                        n_tokens: if bare { 0 } else { blocks.len() as u32 * self.block_size },
                        block_size: if bare { 0 } else { self.block_size },
                        medium: media.name(tier),
                    }
                }
                KvEvent::Removed { tier, blocks } => Event::Removed {
                    hashes: blocks.iter().map(|&key| self.number(key)).collect(),
                    medium: media.name(tier),
                },
                KvEvent::Cleared => Event::Cleared,
            })
            .collect()
    }

    fn number(&mut self, key: BlockKey) -> u32 {
        let next = self.numbers.len() as u32;
        *self.numbers.entry(key).or_insert(next)
    }
}

/// Rounds as Python's `round` does: to the nearest decimal of the value itself, ties to even.
pub(super) fn rounded(value: f64, digits: usize) -> f64 {
    format!("{value:.digits$}").parse().unwrap_or(value)
}

/// Rounds as the oracles do before writing a time.
pub(super) fn rounded_ms(ms: f64) -> f64 {
    rounded(ms, 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_rounded_as_python_rounds_them() {
        assert_eq!(rounded(0.69899666, 6), 0.698997);
        // 2.675 is below its decimal, 0.125 is a tie.
        assert_eq!((rounded(2.675, 2), rounded(0.125, 2), rounded(0.375, 2)), (2.67, 0.12, 0.38));
        assert_eq!(rounded_ms(10.75), 10.75);
    }
}
