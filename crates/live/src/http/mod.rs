//! The engines' HTTP servers: what is asked in their words, answered in their words.
//!
//! `app` is what handlers share, `serving` the way into the engine, `generation` a request at work whatever its
//! wire format, `sse` an answer in pieces, `texts` work on texts beside all that; `openai`, `inference`, `sglang`, `tokens`, `control` and `info` are the
//! endpoints, `kv_transfer`, `bootstrap` and `disaggregated` what requests and answers say of KV elsewhere, `relay` one address for prefill and decode workers, `faults` what goes wrong on purpose, `server` the sockets.

mod app;
mod auth;
mod body;
mod bootstrap;
mod control;
mod disaggregated;
mod error;
mod faults;
mod form;
mod generation;
mod inference;
mod info;
mod kv_transfer;
mod openai;
mod relay;
pub mod server;
mod serving;
mod sglang;
mod sse;
mod texts;
mod tokens;

pub use app::{App, ServerSettings};
pub(crate) use error::json_response;
pub use error::{ApiError, Dialect};
pub use faults::{FaultKind, FaultSettings};
pub use relay::Behind;

use axum::Router;
use axum::routing::{get, post};
use std::sync::Arc;

/// The routes of a server.
pub fn router(app: Arc<App>) -> Router {
    let own = match app.settings.dialect {
        Dialect::Vllm => vllm(),
        Dialect::Sglang => sglang(),
        Dialect::Trtllm => trtllm(),
    };
    own.route("/version", get(info::version))
        .route("/v1/models", get(info::models))
        .route("/v1/models/{*name}", get(info::model))
        .route("/v1/completions", post(openai::completions))
        .route("/v1/chat/completions", post(openai::chat))
        .route("/metrics", get(info::metrics))
        .route("/admin/config", get(control::config).post(control::change_config))
        .fallback(info::not_found)
        .method_not_allowed_fallback(info::wrong_method)
        .layer(axum::middleware::from_fn_with_state(app.clone(), auth::check))
        .with_state(app)
}

/// What only vLLM's server has (0.33.0).
fn vllm() -> Router<Arc<App>> {
    Router::new()
        .route("/health", get(info::health))
        .route("/ping", get(info::health).post(info::health))
        .route("/load", get(info::load))
        .route("/kv_event_sources", get(info::kv_event_sources))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/v1/completions/render", post(tokens::render_completion))
        .route("/v1/chat/completions/render", post(tokens::render_chat))
        .route("/inference/v1/generate", post(inference::generate))
        .route("/reset_prefix_cache", post(control::reset_prefix_cache))
        .route("/reset_mm_cache", post(control::nothing_to_reset))
        .route("/reset_encoder_cache", post(control::nothing_to_reset))
        .route("/sleep", post(control::sleep))
        .route("/wake_up", post(control::wake_up))
        .route("/is_sleeping", get(control::is_sleeping))
        .route("/pause", post(control::pause))
        .route("/resume", post(control::resume))
        .route("/is_paused", get(control::is_paused))
        .route("/v1/load_lora_adapter", post(control::load_lora))
        .route("/v1/unload_lora_adapter", post(control::unload_lora))
        // What vllm-router reads the block size from.
        .route("/get_server_info", get(sglang::server_info))
}

/// What only SGLang's server has (0.5.23).
fn sglang() -> Router<Arc<App>> {
    Router::new()
        .route("/health", get(sglang::health))
        .route("/health_generate", get(sglang::health))
        .route("/ready", get(info::health))
        .route("/generate", post(sglang::generate).put(sglang::generate))
        .route("/model_info", get(sglang::model_info))
        .route("/get_model_info", get(sglang::model_info))
        .route("/server_info", get(sglang::server_info))
        .route("/get_server_info", get(sglang::server_info))
        .route("/v1/loads", get(sglang::loads))
        .route("/flush_cache", get(sglang::flush_cache).post(sglang::flush_cache))
        .route("/abort_request", post(sglang::abort))
        .route("/load_lora_adapter", post(control::load_lora))
        .route("/unload_lora_adapter", post(control::unload_lora))
        .route("/tokenize", post(tokens::tokenize))
        .route("/v1/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/v1/detokenize", post(tokens::detokenize))
}

/// What only TensorRT-LLM's server has (tensorrt_llm/serve/openai_server.py).
fn trtllm() -> Router<Arc<App>> {
    Router::new().route("/health", get(info::health)).route("/health_generate", get(sglang::health))
}
