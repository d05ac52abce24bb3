//! The memory fraction that an engine takes where none is given. Unset stays unset until it comes here: a
//! default of ours would hide the engine's.

use super::{Backend, CapacityError, MIB, Request, Rules, refuse};

/// The engine's own memory fraction; AISimulate's under its rules.
pub(super) fn default(request: &Request) -> Result<f64, CapacityError> {
    match (request.rules, request.backend) {
        (Rules::Aisimulate013, Backend::Sglang) => Ok(0.88),
        (Rules::Aisimulate013, Backend::Vllm | Backend::Trtllm) => Ok(0.9),
        (Rules::Native, Backend::Vllm) => vllm(request.backend_version),
        (Rules::Native, Backend::Sglang) => Ok(sglang(request)),
        // tensorrt_llm/llmapi/llm_args.py, KvCacheConfig.free_gpu_memory_fraction.
        (Rules::Native, Backend::Trtllm) => Ok(0.9),
    }
}

/// vllm/config/cache.py: 0.9 up to 0.19, 0.92 from 0.22 to 0.33. Between them it was not looked up.
fn vllm(version: Option<&str>) -> Result<f64, CapacityError> {
    let Some(version) = version else { return Ok(0.92) };
    let mut numbers = version.trim_start_matches('v').split('.').map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(0)), Some(Ok(minor))) if minor <= 19 => Ok(0.9),
        (Some(Ok(0)), Some(Ok(minor))) if minor >= 22 => Ok(0.92),
        (Some(Ok(major)), _) if major >= 1 => Ok(0.92),
        _ => refuse(
            "backend_version",
            format!(
                "got \"{version}\", of which the default of gpu_memory_utilization is not known (0.9 up to \
                 0.19, 0.92 from 0.22 on): give the memory fraction"
            ),
        ),
    }
}

/// srt/server_args.py of SGLang 0.5.16, `_handle_gpu_memory_settings`: what is set aside for a chunk, for
/// parallel ranks and for CUDA graphs, at least 10 GiB on accelerators above 60 GiB.
fn sglang(request: &Request) -> f64 {
    let accelerators = request.sharding.tensor * request.sharding.pipeline;
    let few = accelerators < 4;
    let memory = request.accelerator.memory_bytes as f64 / MIB;
    let graph_batch = if memory < 20.0 * 1024.0 {
        8.0
    } else if memory < 35.0 * 1024.0 {
        if few { 24.0 } else { 80.0 }
    } else if memory < 60.0 * 1024.0 {
        if few { 32.0 } else { 160.0 }
    } else if memory < 160.0 * 1024.0 {
        if few { 256.0 } else { 512.0 }
    } else {
        512.0
    };
    let chunk = f64::from(request.max_batched_tokens);
    let mut aside = 512.0 + 1.5 * chunk + f64::from(accelerators) / 8.0 * 1024.0 + graph_batch * 2.0;
    if request.attention_data > 1 {
        let ranks = f64::from(request.attention_data);
        aside +=
            graph_batch * ranks * 3.0 + if graph_batch > 300.0 { graph_batch * ranks * 1.5 } else { 0.0 };
    }
    if memory > 60.0 * 1024.0 {
        aside = aside.max(10.0 * 1024.0);
    }
    let fraction = (memory - aside) / memory;
    ((fraction * 1000.0).round_ties_even() / 1000.0).max(0.001)
}
