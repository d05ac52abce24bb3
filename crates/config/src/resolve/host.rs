//! The tier in the host's memory: for whom it is modelled, how much it holds, and how KV gets there and back.

use super::Findings;
use super::engine::KV_CACHE;
use super::engine::name;
use super::role::{RoleKeys, token_bytes};
use crate::document::{Backend, BytesPerToken, HicacheWritePolicy, Semantics as SemanticsKey};
use crate::experiment::{DiskOffload, HostOffload};
use std::path::Path;
use windtunnel_engine::sglang::{HostTier, WritePolicy};

/// The slowest copies, in GB/s.
const SLOWEST: f64 = 0.001;

/// SGLang's `--hicache-ratio` where no size is given (arg_groups/hicache_hook.py, 0.5.23).
const HICACHE_RATIO: f64 = 2.0;

fn path(key: &str) -> String {
    format!("{KV_CACHE}.host_offload.{key}")
}

/// Bytes per nanosecond; none is no limit. What is slower than a megabyte a second is a mistake in the unit.
fn bandwidth(path: &str, gbps: f64, findings: &mut Findings) -> Option<f64> {
    if gbps > 0.0 && gbps < SLOWEST {
        let got = findings.shown(path, gbps);
        findings.problem(
            path,
            format!("got {got}; allowed is a number of at least {SLOWEST}, or 0 for no limit"),
        );
    }
    (gbps > 0.0).then_some(gbps)
}

/// How KV gets to the host and back. Only the engines' own offloads are modelled, and only where nothing else moves KV.
pub(super) fn offload(keys: &RoleKeys, folder: &Path, findings: &mut Findings) -> Option<HostOffload> {
    let offload = keys.worker.kv_cache.host_offload.as_ref()?;
    let here = match (keys.backend, keys.semantics, keys.role) {
        (Backend::Vllm | Backend::Sglang, SemanticsKey::Native, "aggregated") => None,
        (Backend::Vllm | Backend::Sglang, SemanticsKey::Native, _) => {
            Some("engine.mode disaggregated".to_owned())
        }
        (Backend::Vllm | Backend::Sglang, SemanticsKey::Aisimulate013, _) => {
            Some("engine.semantics aisimulate_0_13".to_owned())
        }
        (backend @ Backend::Trtllm, ..) => Some(format!("backend {}", name(backend))),
    };
    if let Some(here) = here {
        let message = format!(
            "given, but it belongs to aggregated workers of vllm and sglang under engine.semantics native, and here is {here}"
        );
        findings.problem(&format!("{KV_CACHE}.host_offload"), message);
        return None;
    }
    let to_host = bandwidth(&path("d2h_bandwidth_gbps"), offload.d2h_bandwidth_gbps, findings);
    let from_host = bandwidth(&path("h2d_bandwidth_gbps"), offload.h2d_bandwidth_gbps, findings);
    let block_size = keys.worker.kv_cache.block_size.unwrap_or_default();
    if keys.backend == Backend::Vllm && block_size == 1 {
        // The last token of a prompt is always computed, so of such a prompt nothing is left that was loaded.
        let message =
            "got 1; with host_offload allowed is 2 or more: vLLM would load a prompt of one token for ever";
        findings.problem(&format!("{KV_CACHE}.block_size"), message);
    }
    let latency = findings.time(&path("latency_to_first_byte_ms"), offload.latency_to_first_byte_ms)?;
    let token = bytes_of_token(keys, folder);
    if token.is_none() && (to_host.is_some() || from_host.is_some()) {
        bytes_needed(findings);
        return None;
    }
    Some(HostOffload { bytes_per_token: token.unwrap_or(0), to_host, from_host, latency })
}

/// The same for a disk behind it: vLLM's alone, whose offload has such a tier.
pub(super) fn disk(keys: &RoleKeys, folder: &Path, findings: &mut Findings) -> Option<DiskOffload> {
    let disk = keys.worker.kv_cache.g3_offload.as_ref()?;
    let path = |key: &str| format!("{KV_CACHE}.g3_offload{key}");
    if keys.worker.kv_cache.host_offload.is_none() {
        let message = "given, but what is on a disk comes by way of the host's memory: kv_cache.host_offload is needed, too";
        findings.problem(&path(""), message);
        return None;
    }
    if keys.backend != Backend::Vllm {
        let here = name(keys.backend);
        findings.problem(&path(""), format!("given, but it belongs to backend vllm, and here is {here}"));
        return None;
    }
    let read = bandwidth(&path(".read_bandwidth_gbps"), disk.read_bandwidth_gbps, findings);
    let write = bandwidth(&path(".write_bandwidth_gbps"), disk.write_bandwidth_gbps, findings);
    let latency = findings.time(&path(".latency_to_first_byte_ms"), disk.latency_to_first_byte_ms)?;
    let token = bytes_of_token(keys, folder);
    if token.is_none() && (read.is_some() || write.is_some()) {
        bytes_needed(findings);
        return None;
    }
    Some(DiskOffload {
        bytes_per_token: token.unwrap_or(0),
        blocks: disk.num_g3_blocks,
        read,
        write,
        latency,
    })
}

fn bytes_of_token(keys: &RoleKeys, folder: &Path) -> Option<u64> {
    match keys.worker.kv_cache.bytes_per_token {
        BytesPerToken::Bytes(bytes) => Some(bytes),
        BytesPerToken::Auto(_) => {
            token_bytes(&keys.model, keys.kvcache_quant_mode, folder, keys.worker.parallelism.tensor)
        }
    }
}

fn bytes_needed(findings: &mut Findings) {
    let path = format!("{KV_CACHE}.bytes_per_token");
    let got = findings.shown(&path, "auto");
    let message = format!(
        "got {got}; with host_offload that needs an engine.model that `windtunnel models` lists, or a \
         config.json: give one of these, or a number here"
    );
    findings.problem(&path, message);
}

/// Blocks of vLLM's offload.
pub(super) fn vllm_blocks(keys: &RoleKeys, findings: &mut Findings) -> Option<u32> {
    let offload = keys.worker.kv_cache.host_offload.as_ref()?;
    for (key, given) in [
        ("hicache_ratio", offload.hicache_ratio.is_some()),
        ("hicache_size", offload.hicache_size.is_some()),
        ("hicache_write_policy", offload.hicache_write_policy.is_some()),
    ] {
        findings.foreign(&path(key), given, "backend sglang", "backend vllm");
    }
    if offload.num_host_blocks.is_none() {
        findings.problem(
            &path("num_host_blocks"),
            "not given; backend vllm needs it: allowed is a number of blocks",
        );
    }
    offload.num_host_blocks
}

/// SGLang's HiCache, for a pool of so many tokens.
pub(super) fn hicache(
    keys: &mut RoleKeys,
    folder: &Path,
    (pool, page): (u32, u32),
    findings: &mut Findings,
) -> Option<HostTier> {
    let token = bytes_of_token(keys, folder);
    let cached = keys.worker.kv_cache.prefix_caching != Some(false);
    let offload = keys.worker.kv_cache.host_offload.as_mut()?;
    if !cached {
        let message =
            "given, but SGLang's HiCache is a part of its prefix cache, and prefix_caching is false";
        findings.problem(&format!("{KV_CACHE}.host_offload"), message);
    }
    let policy = *offload.hicache_write_policy.get_or_insert(HicacheWritePolicy::WriteThrough);
    // A page more than the tokens fill (mem_cache/pool_host/base.py, 0.5.23).
    let pages_for = |tokens: f64| (tokens as u64 / u64::from(page)).saturating_add(1);
    let pages = match (offload.num_host_blocks, offload.hicache_ratio, offload.hicache_size) {
        (Some(pages), None, None) => u64::from(pages),
        (None, None, Some(size)) => {
            let Some(token) = token.filter(|&bytes| bytes > 0) else {
                bytes_needed(findings);
                return None;
            };
            pages_for(f64::from(size) * 1e9 / token as f64)
        }
        (None, ratio, None) => {
            let ratio = *offload.hicache_ratio.insert(ratio.unwrap_or(HICACHE_RATIO));
            pages_for(f64::from(pool) * ratio)
        }
        _ => {
            let message = "given, with more than one of num_host_blocks, hicache_ratio and hicache_size: allowed is one";
            findings.problem(&format!("{KV_CACHE}.host_offload"), message);
            return None;
        }
    };
    let write_policy = match policy {
        HicacheWritePolicy::WriteThrough => WritePolicy::WriteThrough,
        HicacheWritePolicy::WriteThroughSelective => WritePolicy::WriteThroughSelective,
        HicacheWritePolicy::WriteBack => WritePolicy::WriteBack,
    };
    let Ok(pages) = u32::try_from(pages) else {
        let message = format!("comes to {pages} pages; allowed are {}", u32::MAX);
        findings.problem(&format!("{KV_CACHE}.host_offload"), message);
        return None;
    };
    Some(HostTier { pages, write_policy })
}
