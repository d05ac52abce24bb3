//! Block and page hashes against those of the real engines (`tools/wire` made the goldens).

mod goldens;

use goldens::golden_lines;
use serde::Deserialize;
use windtunnel_live::kv_events::hash::{
    Adapter, BlockHasher, HashAlgorithm, Multimodal, Namespace, PageHasher, SglangNamespace,
};

#[derive(Deserialize)]
struct Lora {
    name: String,
    path: String,
    id: u32,
}

#[derive(Deserialize)]
struct Medium {
    identifier: String,
    offset: u32,
    length: u32,
}

#[derive(Deserialize)]
struct VllmCase {
    algorithm: String,
    seed: Option<String>,
    block_size: usize,
    #[serde(default)]
    tokens: Vec<u32>,
    token_range: Option<(u32, u32)>,
    lora: Option<Lora>,
    cache_salt: Option<String>,
    media: Vec<Medium>,
    none_hash: String,
    hashes: Vec<String>,
}

#[test]
fn vllm_blocks_have_the_engines_hashes() {
    let cases: Vec<VllmCase> = golden_lines("vllm_block_hashes.jsonl");
    assert_eq!(cases.len(), 33);
    for (number, case) in cases.into_iter().enumerate() {
        let algorithm = HashAlgorithm::ALL.into_iter().find(|a| a.name() == case.algorithm).unwrap();
        let hasher = BlockHasher::new(algorithm, case.seed.as_deref());
        assert_eq!(format!("{:?}", hasher.none_hash()), case.none_hash, "case {number}");
        let tokens = match case.token_range {
            Some((first, count)) => (first..first + count).collect(),
            None => case.tokens,
        };
        let medium = |m: Medium| Multimodal { identifier: m.identifier, offset: m.offset, length: m.length };
        let namespace = Namespace {
            adapter: case.lora.map(|lora| Adapter { name: lora.name, path: lora.path, id: lora.id }),
            cache_salt: case.cache_salt,
            media: case.media.into_iter().map(medium).collect(),
        };
        let mut parent = None;
        let mut hashes = Vec::new();
        for (at, block) in (0..).zip(tokens.chunks_exact(case.block_size)) {
            let start = at * case.block_size as u32;
            let keys = namespace.extra_keys(start, start + case.block_size as u32);
            parent = Some(hasher.hash(parent, block, &keys));
            hashes.push(format!("{:?}", parent.unwrap()));
        }
        assert_eq!(hashes, case.hashes, "case {number}");
    }
}

/// Without a seed XXH3 takes one that no other process has, as vLLM does: its hashes can be forged by whoever
/// knows the seed.
#[test]
fn xxhash_takes_a_seed_of_its_own() {
    let [a, b] = [(); 2].map(|()| BlockHasher::new(HashAlgorithm::Xxhash, None));
    assert_ne!(a.seed(), b.seed());
    assert_ne!(a.none_hash(), b.none_hash());
    let [a, b] = [(); 2].map(|()| BlockHasher::new(HashAlgorithm::Sha256, None));
    assert_eq!((a.seed(), a.none_hash()), ("vllm-none-hash", b.none_hash()));
}

/// In events a hash is its last eight bytes, read as a big-endian number, or all of it.
#[test]
fn a_block_hash_has_two_forms() {
    let hash = BlockHasher::new(HashAlgorithm::Sha256, Some("0")).none_hash();
    let text = format!("{hash:?}");
    assert_eq!(format!("{:016x}", hash.as_u64()), text[48..]);
    assert_eq!(hash.as_bytes().len(), 32);
}

#[derive(Deserialize)]
struct SglangCase {
    page_size: usize,
    tokens: Vec<u32>,
    extra_key: Option<String>,
    cache_salt: Option<String>,
    lora_name: Option<String>,
    dynamo: bool,
    hashes: Vec<i64>,
}

#[test]
fn sglang_pages_have_the_engines_hashes() {
    let cases: Vec<SglangCase> = golden_lines("sglang_page_hashes.jsonl");
    assert_eq!(cases.len(), 14);
    let mut negative = 0;
    for (number, case) in cases.into_iter().enumerate() {
        let SglangCase { extra_key, cache_salt, lora_name, .. } = case;
        let hasher = PageHasher::new(&SglangNamespace { extra_key, cache_salt, lora_name }, case.dynamo);
        let mut parent = None;
        let mut hashes = Vec::new();
        for page in case.tokens.chunks_exact(case.page_size) {
            let digest = hasher.digest(parent, page);
            parent = Some(digest);
            hashes.push(hasher.number(digest));
        }
        assert_eq!(hashes, case.hashes, "case {number}");
        negative += hashes.iter().filter(|&&hash| hash < 0).count();
    }
    assert!(negative > 0, "negative numbers are on the wire");
}
