//! vLLM's block hashes (vllm/v1/core/kv_cache_utils.py `hash_block_tokens`, `init_none_hash` and
//! `generate_block_hash_extra_keys`, vllm/utils/hashing.py; version 0.33.0).
//!
//! hash(block) = H((hash of the block before it, or NONE_HASH; its tokens; extra keys, or None)), where H hashes
//! the pickle or the canonical CBOR of that tuple.

use super::Python;
use super::cbor::Cbor;
use super::pickle::Pickle;
use sha2::{Digest, Sha256};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_128;

/// What NONE_HASH is made from when nothing else is said, with hashes that do not need a secret seed.
const DEFAULT_SEED: &str = "vllm-none-hash";

/// `--prefix-caching-hash-algo`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashAlgorithm {
    /// SHA-256 over the pickle: vLLM's default.
    #[default]
    Sha256,
    /// SHA-256 over canonical CBOR, which does not depend on Python.
    Sha256Cbor,
    /// XXH3-128 over the pickle.
    Xxhash,
    /// XXH3-128 over canonical CBOR.
    XxhashCbor,
}

impl HashAlgorithm {
    /// All of them.
    pub const ALL: [HashAlgorithm; 4] =
        [HashAlgorithm::Sha256, HashAlgorithm::Sha256Cbor, HashAlgorithm::Xxhash, HashAlgorithm::XxhashCbor];

    /// Its name on vLLM's command line.
    pub fn name(self) -> &'static str {
        match self {
            HashAlgorithm::Sha256 => "sha256",
            HashAlgorithm::Sha256Cbor => "sha256_cbor",
            HashAlgorithm::Xxhash => "xxhash",
            HashAlgorithm::XxhashCbor => "xxhash_cbor",
        }
    }

    /// Whether anyone can make two blocks with one hash, if the seed is known.
    fn needs_secret_seed(self) -> bool {
        matches!(self, HashAlgorithm::Xxhash | HashAlgorithm::XxhashCbor)
    }
}

/// A block's hash: 32 bytes of SHA-256 or 16 of XXH3-128.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockHash {
    bytes: [u8; 32],
    length: u8,
}

impl BlockHash {
    fn new(digest: &[u8]) -> BlockHash {
        let mut bytes = [0; 32];
        bytes[..digest.len()].copy_from_slice(digest);
        BlockHash { bytes, length: digest.len() as u8 }
    }

    /// All of it, as in events with `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0`.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// Its last eight bytes as a big-endian number, as in events by default.
    pub fn as_u64(&self) -> u64 {
        let mut last = [0; 8];
        last.copy_from_slice(&self.as_bytes()[usize::from(self.length) - 8..]);
        u64::from_be_bytes(last)
    }
}

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// An image, a sound or a video in a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Multimodal {
    /// The hash of its content, or the name given to it.
    pub identifier: String,
    /// The first of its placeholder tokens in the prompt.
    pub offset: u32,
    /// How many there are.
    pub length: u32,
}

/// A LoRA adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// What requests call it.
    pub name: String,
    /// Where it was loaded from.
    pub path: String,
    /// Its number in the engine, from 1.
    pub id: u32,
}

/// What besides its tokens tells a request's blocks from those of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// LoRA adapter.
    pub adapter: Option<Adapter>,
    /// `cache_salt` of the request. An empty one counts as none.
    pub cache_salt: Option<String>,
    /// Media of the prompt, by offset.
    pub media: Vec<Multimodal>,
}

/// One of the keys that are hashed with a block's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraKey<'a> {
    /// Of every block of a request with an adapter.
    Lora {
        /// The adapter's name.
        name: &'a str,
        /// Where it was loaded from.
        path: &'a str,
    },
    /// Of every block that has tokens of the medium.
    Medium {
        /// Its identifier.
        identifier: &'a str,
        /// Where it begins, from the block's first token: negative in the blocks that continue it.
        offset: i64,
    },
    /// Of the first block.
    CacheSalt(&'a str),
}

impl Namespace {
    /// The keys of the block that begins with token `start` and ends before `end`, in the engine's order.
    pub fn extra_keys(&self, start: u32, end: u32) -> Vec<ExtraKey<'_>> {
        let mut keys = Vec::new();
        if let Some(Adapter { name, path, .. }) = &self.adapter {
            keys.push(ExtraKey::Lora { name, path });
        }
        let inside = |medium: &&Multimodal| {
            medium.offset < end && u64::from(medium.offset) + u64::from(medium.length) > u64::from(start)
        };
        keys.extend(self.media.iter().filter(inside).map(|medium| ExtraKey::Medium {
            identifier: &medium.identifier,
            offset: i64::from(medium.offset) - i64::from(start),
        }));
        if start == 0
            && let Some(salt) = self.cache_salt.as_deref()
            && !salt.is_empty()
        {
            keys.push(ExtraKey::CacheSalt(salt));
        }
        keys
    }
}

/// Computes block hashes with one algorithm and one seed.
#[derive(Clone, Debug)]
pub struct BlockHasher {
    algorithm: HashAlgorithm,
    none: BlockHash,
    seed: Arc<str>,
}

impl BlockHasher {
    /// `seed` is the value of `PYTHONHASHSEED`, if it is set. Without one, NONE_HASH is the same in every process
    /// with SHA-256, and random with XXH3.
    pub fn new(algorithm: HashAlgorithm, seed: Option<&str>) -> BlockHasher {
        let seed: Arc<str> = match seed {
            Some(seed) => seed.into(),
            None if algorithm.needs_secret_seed() => random_hex().into(),
            None => DEFAULT_SEED.into(),
        };
        let none = match algorithm {
            HashAlgorithm::Sha256 | HashAlgorithm::Xxhash => Pickle::of(|it| it.text(&seed)),
            HashAlgorithm::Sha256Cbor | HashAlgorithm::XxhashCbor => Cbor::of(|it| it.text(&seed)),
        };
        BlockHasher { algorithm, none: digest(algorithm, &none), seed }
    }

    /// What stands for the block before a first one.
    pub fn none_hash(&self) -> BlockHash {
        self.none
    }

    /// What NONE_HASH was made from.
    pub fn seed(&self) -> &str {
        &self.seed
    }

    /// The hash of a block: `parent` is that of the block before it.
    pub fn hash(&self, parent: Option<BlockHash>, tokens: &[u32], extra_keys: &[ExtraKey<'_>]) -> BlockHash {
        let parent = parent.unwrap_or(self.none);
        let bytes = match self.algorithm {
            HashAlgorithm::Sha256 | HashAlgorithm::Xxhash => {
                Pickle::of(|it| write_block(it, parent, tokens, extra_keys))
            }
            HashAlgorithm::Sha256Cbor | HashAlgorithm::XxhashCbor => {
                Cbor::of(|it| write_block(it, parent, tokens, extra_keys))
            }
        };
        digest(self.algorithm, &bytes)
    }
}

fn write_block<W: Python>(writer: &mut W, parent: BlockHash, tokens: &[u32], extra_keys: &[ExtraKey<'_>]) {
    writer.tuple(3, |block| {
        block.bytes(parent.as_bytes());
        block.tuple(tokens.len(), |block| tokens.iter().for_each(|&token| block.int(i64::from(token))));
        if extra_keys.is_empty() {
            block.none();
        } else {
            block.tuple(extra_keys.len(), |block| extra_keys.iter().for_each(|&key| write_key(block, key)));
        }
    });
}

fn write_key<W: Python>(writer: &mut W, key: ExtraKey<'_>) {
    match key {
        ExtraKey::Lora { name, path } => writer.tuple(3, |key| {
            key.constant("lora");
            key.text(name);
            key.text(path);
        }),
        ExtraKey::Medium { identifier, offset } => writer.tuple(3, |key| {
            key.constant("mm");
            key.text(identifier);
            key.int(offset);
        }),
        ExtraKey::CacheSalt(salt) => writer.tuple(2, |key| {
            key.constant("cache_salt");
            key.text(salt);
        }),
    }
}

fn digest(algorithm: HashAlgorithm, bytes: &[u8]) -> BlockHash {
    if algorithm.needs_secret_seed() {
        BlockHash::new(&xxh3_128(bytes).to_be_bytes())
    } else {
        BlockHash::new(&Sha256::digest(bytes))
    }
}

/// 32 bytes that nobody can foretell, in hexadecimal. Each `RandomState` has keys of its own, which the first of a
/// thread draws from the operating system.
fn random_hex() -> String {
    (0..4u64).map(|at| format!("{:016x}", RandomState::new().hash_one(at))).collect()
}
