//! One event as it goes out, and its bytes: MessagePack maps as the engines send them now, or arrays as vLLM sent
//! them before (vllm/distributed/kv_events.py 0.33.0, sglang/srt/disaggregation/kv_events.py 0.5.23).
//!
//! Knows fields and their order, not where they come from.

use super::hash::{BlockHash, ExtraKey};
use crate::msgpack::Msgpack;
use std::sync::Arc;

/// Whose events they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

/// How an event is laid out. The batch around it is an array in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// A map with the class name under `type`.
    #[default]
    Map,
    /// Class name and fields by position, as consumers of 2025 read them.
    Array,
}

/// A block's name in events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireHash {
    /// vLLM: the last eight bytes.
    Unsigned(u64),
    /// vLLM with `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0`: all of them.
    Bytes(BlockHash),
    /// SGLang: the first eight bytes.
    Signed(i64),
}

/// An extra key as events show it: without the tag that is hashed with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ShownKey {
    Text(String),
    Medium(String, i64),
}

impl From<ExtraKey<'_>> for ShownKey {
    fn from(key: ExtraKey<'_>) -> ShownKey {
        match key {
            ExtraKey::Lora { name, .. } => ShownKey::Text(name.to_owned()),
            ExtraKey::Medium { identifier, offset } => ShownKey::Medium(identifier.to_owned(), offset),
            ExtraKey::CacheSalt(salt) => ShownKey::Text(salt.to_owned()),
        }
    }
}

/// Blocks that can be found from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) hashes: Vec<WireHash>,
    pub(super) parent: Option<WireHash>,
    pub(super) tokens: Vec<u32>,
    pub(super) block_size: u32,
    pub(super) lora_id: Option<u32>,
    pub(super) lora_name: Option<Arc<str>>,
    /// vLLM: for each block.
    pub(super) extra_keys: Vec<Vec<ShownKey>>,
    /// SGLang.
    pub(super) cache_salt: Option<Arc<str>>,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WireEvent {
    Stored(Stored),
    Removed(Vec<WireHash>),
    Cleared,
}

/// `[time stamp, events, rank]`. The time stamp, in seconds, is a double at a fixed place.
pub(super) fn batch(
    timestamp: f64,
    events: &[WireEvent],
    dp_rank: u32,
    dialect: Dialect,
    encoding: Encoding,
) -> Vec<u8> {
    let mut out = Msgpack::default();
    out.array(3);
    out.float(timestamp);
    out.array(events.len());
    for event in events {
        Fields { out: &mut out, encoding }.event(event, dialect);
    }
    out.uint(u64::from(dp_rank));
    out.into_bytes()
}

/// Where in a batch its time stamp stands.
pub const TIMESTAMP: std::ops::Range<usize> = 2..10;

struct Fields<'a> {
    out: &'a mut Msgpack,
    encoding: Encoding,
}

impl Fields<'_> {
    fn event(&mut self, event: &WireEvent, dialect: Dialect) {
        match (event, dialect) {
            (WireEvent::Stored(stored), Dialect::Vllm) => self.vllm_stored(stored),
            (WireEvent::Stored(stored), Dialect::Sglang) => self.sglang_stored(stored),
            (WireEvent::Removed(hashes), _) => {
                let group = dialect == Dialect::Vllm;
                self.open("BlockRemoved", if group { 3 } else { 2 }, 5);
                self.hashes("block_hashes", hashes);
                self.text("medium", Some("GPU"));
                if group {
                    self.number("group_idx", Some(0));
                }
            }
            (WireEvent::Cleared, _) => self.open("AllBlocksCleared", 0, 0),
        }
    }

    /// Fields up to `lora_name` are always there. Of the rest, those with a value: a model with one group of
    /// full-attention layers has no sliding window, nothing is stored elsewhere, and sessions are not modelled.
    fn vllm_stored(&mut self, stored: &Stored) {
        let positional = self.encoding == Encoding::Array;
        self.open("BlockStored", if positional { 11 } else { 10 }, 15);
        self.hashes("block_hashes", &stored.hashes);
        self.hash("parent_block_hash", stored.parent);
        self.tokens(&stored.tokens);
        self.number("block_size", Some(stored.block_size));
        self.number("lora_id", stored.lora_id);
        self.text("medium", Some("GPU"));
        self.text("lora_name", stored.lora_name.as_deref());
        self.extra_keys(&stored.extra_keys);
        self.number("group_idx", Some(0));
        self.text("kv_cache_spec_kind", Some("full_attention"));
        if positional {
            self.text("kv_cache_spec_sliding_window", None);
        }
    }

    /// Behind `medium`, a map has what is given, an array all up to the last that is. Sessions are not modelled.
    fn sglang_stored(&mut self, stored: &Stored) {
        let behind = [
            ("cache_salt", stored.cache_salt.as_deref()),
            ("session_id", None),
            ("lora_name", stored.lora_name.as_deref()),
        ];
        let kept: Vec<_> = match self.encoding {
            Encoding::Map => behind.into_iter().filter(|(_, value)| value.is_some()).collect(),
            Encoding::Array => {
                let length = behind.iter().rposition(|(_, value)| value.is_some()).map_or(0, |last| last + 1);
                behind.into_iter().take(length).collect()
            }
        };
        self.open("BlockStored", 6 + kept.len(), 9);
        self.hashes("block_hashes", &stored.hashes);
        self.hash("parent_block_hash", stored.parent);
        self.tokens(&stored.tokens);
        self.number("block_size", Some(stored.block_size));
        self.number("lora_id", stored.lora_id);
        self.text("medium", Some("GPU"));
        kept.into_iter().for_each(|(name, value)| self.text(name, value));
    }

    /// `declared` fields has the class; msgspec chooses the form of a map's head by that, and then leaves out those
    /// that are at their defaults.
    fn open(&mut self, class: &str, fields: usize, declared: usize) {
        match self.encoding {
            Encoding::Map => {
                self.out.map_of(fields + 1, declared + 1);
                self.out.text("type");
            }
            Encoding::Array => self.out.array(fields + 1),
        }
        self.out.text(class);
    }

    fn name(&mut self, name: &str) {
        if self.encoding == Encoding::Map {
            self.out.text(name);
        }
    }

    fn text(&mut self, name: &str, value: Option<&str>) {
        self.name(name);
        match value {
            Some(value) => self.out.text(value),
            None => self.out.nil(),
        }
    }

    fn number(&mut self, name: &str, value: Option<u32>) {
        self.name(name);
        match value {
            Some(value) => self.out.uint(u64::from(value)),
            None => self.out.nil(),
        }
    }

    fn hashes(&mut self, name: &str, hashes: &[WireHash]) {
        self.name(name);
        self.out.array(hashes.len());
        hashes.iter().for_each(|&hash| self.bare_hash(hash));
    }

    fn hash(&mut self, name: &str, hash: Option<WireHash>) {
        self.name(name);
        match hash {
            Some(hash) => self.bare_hash(hash),
            None => self.out.nil(),
        }
    }

    fn bare_hash(&mut self, hash: WireHash) {
        match hash {
            WireHash::Unsigned(hash) => self.out.uint(hash),
            WireHash::Signed(hash) => self.out.int(hash),
            WireHash::Bytes(hash) => self.out.bytes(hash.as_bytes()),
        }
    }

    fn tokens(&mut self, tokens: &[u32]) {
        self.name("token_ids");
        self.out.array(tokens.len());
        tokens.iter().for_each(|&token| self.out.uint(u64::from(token)));
    }

    fn extra_keys(&mut self, blocks: &[Vec<ShownKey>]) {
        self.name("extra_keys");
        self.out.array(blocks.len());
        for keys in blocks {
            if keys.is_empty() {
                self.out.nil();
                continue;
            }
            self.out.array(keys.len());
            for key in keys {
                match key {
                    ShownKey::Text(text) => self.out.text(text),
                    ShownKey::Medium(identifier, offset) => {
                        self.out.array(2);
                        self.out.text(identifier);
                        self.out.int(*offset);
                    }
                }
            }
        }
    }
}
