//! SGLang's page hashes (sglang/srt/mem_cache/utils.py `compute_node_event_hash_values`, mem_cache/events.py,
//! disaggregation/kv_events.py; version 0.5.23).
//!
//! digest(page) = SHA-256(digest of the page before it ‖ its tokens as little-endian u32); the event names it by
//! its first eight bytes as a signed number. Namespaces come in twice: the cache salt seeds the chain, and
//! adapters (in the `dynamo` format the salt, too) are mixed into the number.

use sha2::{Digest, Sha256};

/// What besides its tokens tells a request's pages from those of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SglangNamespace {
    /// `extra_key`, with the adapter's id at its end if there is one.
    pub extra_key: Option<String>,
    /// `cache_salt`.
    pub cache_salt: Option<String>,
    /// The adapter's public name.
    pub lora_name: Option<String>,
}

/// Hashes the pages of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageHasher {
    first: Option<[u8; 32]>,
    seed: Option<[u8; 32]>,
}

impl PageHasher {
    /// For `namespace`; `dynamo` is the event format of that name.
    pub fn new(namespace: &SglangNamespace, dynamo: bool) -> PageHasher {
        let SglangNamespace { extra_key, cache_salt, lora_name } = namespace;
        let salted = |salt: &String| {
            Sha256::new().chain_update(b"sglang-cache-salt-v1\0").chain_update(salt).finalize()
        };
        let named = match dynamo {
            true => (extra_key.as_deref(), cache_salt.as_deref()),
            false => (extra_key.as_deref().filter(|_| lora_name.is_some()), None),
        };
        PageHasher { first: cache_salt.as_ref().map(|salt| salted(salt).into()), seed: namespace_seed(named) }
    }

    /// The digest of a page behind `parent`.
    pub fn digest(&self, parent: Option<[u8; 32]>, tokens: &[u32]) -> [u8; 32] {
        let mut hash = Sha256::new();
        if let Some(before) = parent.or(self.first) {
            hash.update(before);
        }
        for token in tokens {
            hash.update(token.to_le_bytes());
        }
        hash.finalize().into()
    }

    /// The number of a page in events.
    pub fn number(&self, digest: [u8; 32]) -> i64 {
        let number = first_eight(digest);
        match self.seed {
            None => number,
            Some(seed) => {
                let mixed = Sha256::new().chain_update(seed).chain_update(number.to_be_bytes()).finalize();
                first_eight(mixed.into())
            }
        }
    }
}

/// `kv_event_namespace_seed`. Each part is told from one that is missing, and from those beside it.
fn namespace_seed((extra_key, cache_salt): (Option<&str>, Option<&str>)) -> Option<[u8; 32]> {
    if extra_key.is_none() && cache_salt.is_none() {
        return None;
    }
    let mut hash = Sha256::new();
    hash.update(b"sglang-kv-event-namespace-v1");
    for part in [extra_key, cache_salt] {
        match part {
            None => hash.update([0]),
            Some(part) => {
                hash.update([1]);
                hash.update((part.len() as u64).to_le_bytes());
                hash.update(part);
            }
        }
    }
    Some(hash.finalize().into())
}

fn first_eight(digest: [u8; 32]) -> i64 {
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    i64::from_be_bytes(first)
}
