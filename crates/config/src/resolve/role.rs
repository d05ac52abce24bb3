//! The keys of one role as its deployment is made from them: its worker, and what is common to all roles.
//!
//! Roles are made one after the other by the same code, which names the paths of `workers.aggregated`; where a
//! problem is told, `Findings` puts the role's own path instead.

use super::places;
use crate::document::{
    Backend, BytesPerToken, ContextLength, Defaults, Engine, GemmQuantMode, KvCacheQuantMode, LinkSharing,
    MoeQuantMode, Semantics, Worker,
};
use std::path::Path;
use windtunnel_perf::models::{ModelDescription, Sharding};
use windtunnel_perf::packs::Gpu;

/// Which role, and its keys.
pub(super) struct RoleKeys {
    pub role: &'static str,
    pub model: String,
    pub hardware: String,
    /// What the hardware can do, where a file describes it.
    pub gpu: Option<Gpu>,
    pub backend: Backend,
    pub backend_version: Option<String>,
    pub gemm_quant_mode: Option<GemmQuantMode>,
    pub moe_quant_mode: Option<MoeQuantMode>,
    pub kvcache_quant_mode: Option<KvCacheQuantMode>,
    pub context_length: ContextLength,
    pub enable_chunked_prefill: Option<bool>,
    pub semantics: Semantics,
    pub defaults: Defaults,
    pub gpu_memory_gib: Option<f64>,
    /// The bytes of a token that is handed over are worked out from the model.
    pub sizes_transfers: bool,
    pub worker: Worker,
}

impl RoleKeys {
    pub(super) fn new(role: &'static str, keys: &Engine, worker: Worker) -> RoleKeys {
        RoleKeys {
            role,
            model: keys.model.clone(),
            hardware: worker.hardware.clone().unwrap_or_else(|| keys.hardware.clone()),
            gpu: None,
            backend: keys.backend,
            backend_version: keys.backend_version.clone(),
            gemm_quant_mode: keys.gemm_quant_mode,
            moe_quant_mode: keys.moe_quant_mode,
            kvcache_quant_mode: keys.kvcache_quant_mode,
            context_length: keys.context_length,
            enable_chunked_prefill: keys.enable_chunked_prefill,
            semantics: keys.semantics,
            defaults: keys.defaults,
            sizes_transfers: keys.kv_transfer.as_ref().is_some_and(|transfer| {
                let timed =
                    transfer.bandwidth_gb_per_second.is_some() || transfer.links == LinkSharing::FairShare;
                timed && matches!(transfer.bytes_per_token, BytesPerToken::Auto(_))
            }),
            // What is given is the memory of the common hardware.
            gpu_memory_gib: if worker.hardware.is_some() { None } else { keys.gpu_memory_gib },
            worker,
        }
    }

    /// The path of the key that names its hardware.
    pub(super) fn hardware_path(&self) -> &'static str {
        if self.worker.hardware.is_some() { "engine.workers.aggregated.hardware" } else { "engine.hardware" }
    }

    /// The worker, filled in; what was filled in of the common keys goes back to them.
    pub(super) fn into_worker(self, keys: &mut Engine) -> Worker {
        keys.enable_chunked_prefill = self.enable_chunked_prefill;
        if self.worker.hardware.is_none() {
            keys.gpu_memory_gib = self.gpu_memory_gib;
        }
        self.worker
    }
}

/// KV bytes of one token on an accelerator, by the model, if it is one that can be described: by its name, or by the
/// config.json at that path, beside the configuration file or in the working directory.
pub(super) fn token_bytes(
    model: &str,
    given: Option<KvCacheQuantMode>,
    folder: &Path,
    tensor: u32,
) -> Option<u64> {
    let model = match ModelDescription::named(model) {
        Some(model) => model,
        None => {
            let file = places(model, folder).into_iter().find(|file| file.is_file())?;
            ModelDescription::read(&file).ok()?
        }
    };
    let given = given.map(KvCacheQuantMode::dtype);
    let dtype = given.or(model.kv_cache_dtype).unwrap_or(model.dtype);
    Some(model.kv_bytes_per_token(Sharding { tensor, ..Sharding::ONE }, dtype))
}
