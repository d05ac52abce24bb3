//! `disaggregated_params` of TensorRT-LLM: a request of which the worker computes the prompt only, or of which another one
//! has (tensorrt_llm/serve/openai_protocol.py, openai_disagg_service.py; read, and compared with nothing).
//!
//! What the engine calls opaque says here where the KV is held.

use super::app::App;
use super::error::{ApiError, Dialect};
use super::generation::Generation;
use super::kv_transfer::held_at;
use crate::kv_transfer::{Remote, RemoteKv};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;

const FIELD: &str = "disaggregated_params";

/// Where KV is held.
#[derive(Debug, Serialize, Deserialize)]
struct Opaque {
    engine_id: String,
    request_id: String,
    host: String,
    port: u16,
}

/// What is asked for of a request's two parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Both.
    Whole,
    /// The prompt, and the first token. Other workers read the KV.
    Context,
    /// What follows: where the KV is, and the tokens that are there.
    Generation(Arc<RemoteKv>, Vec<u32>),
}

#[derive(Deserialize)]
struct Params {
    request_type: String,
    first_gen_tokens: Option<Vec<u32>>,
    ctx_request_id: Option<i64>,
    encoded_opaque_state: Option<String>,
    ctx_usage: Option<Value>,
}

fn wrong(message: impl Into<String>) -> ApiError {
    ApiError::field(FIELD, message)
}

/// What a request asks for. Other servers take this field for one that they do not know.
///
/// # Errors
/// Params that name no KV, or that the worker has no part in.
pub fn asked(app: &App, params: Option<&Value>) -> Result<Part, ApiError> {
    let params = params.filter(|params| !params.is_null() && app.settings.dialect == Dialect::Trtllm);
    let Some(params) = params else { return Ok(Part::Whole) };
    if !params.is_object() {
        return Err(wrong(format!("{FIELD} is not an object")));
    }
    let params = Params::deserialize(params).map_err(|error| wrong(format!("{FIELD}: {error}")))?;
    let role = app.transfers.as_ref().map(|transfers| transfers.settings().role);
    match params.request_type.as_str() {
        "context_and_generation" => Ok(Part::Whole),
        "context_only" if role.is_some_and(|role| role.produces()) => Ok(Part::Context),
        "generation_only" if role.is_some_and(|role| role.consumes()) => generation(params),
        kind @ ("context_only" | "generation_only") => {
            let flag = if kind == "context_only" { "prefill" } else { "decode" };
            let message =
                format!("request_type is {kind}; only workers with --disaggregation-mode {flag} serve it");
            Err(wrong(message))
        }
        other => Err(wrong(format!(
            "request_type is \"{other}\", allowed are context_only, generation_only and context_and_generation"
        ))),
    }
}

fn generation(params: Params) -> Result<Part, ApiError> {
    let missing = |name: &str| wrong(format!("request_type is generation_only, and {name} is missing"));
    let tokens = params.first_gen_tokens.filter(|tokens| !tokens.is_empty());
    let tokens = tokens.ok_or_else(|| missing("first_gen_tokens"))?;
    params.ctx_request_id.ok_or_else(|| missing("ctx_request_id"))?;
    let state = params.encoded_opaque_state.ok_or_else(|| missing("encoded_opaque_state"))?;
    let state = BASE64.decode(state).ok().and_then(|state| serde_json::from_slice::<Opaque>(&state).ok());
    let Opaque { engine_id, request_id, host, port } =
        state.ok_or_else(|| wrong("encoded_opaque_state is not that of a mock worker"))?;
    let cached =
        params.ctx_usage.as_ref().and_then(|usage| usage.pointer("/prompt_tokens_details/cached_tokens"));
    let cached_tokens = cached.and_then(Value::as_u64).and_then(|tokens| u32::try_from(tokens).ok());
    Ok(Part::Generation(Arc::new(RemoteKv { engine_id, request_id, host, port, cached_tokens }), tokens))
}

impl Part {
    /// What it has to do with the KV of others.
    pub fn remote(&self) -> Remote {
        match self {
            Part::Whole => Remote::None,
            Part::Context => Remote::Hold,
            Part::Generation(remote, _) => Remote::Pull(remote.clone()),
        }
    }
}

/// A prompt that was computed elsewhere goes on with what was sampled there.
///
/// # Errors
/// This worker would have said something else.
pub fn check_first(given: &[u32], planned: &[u32]) -> Result<(), ApiError> {
    if planned.starts_with(given) {
        return Ok(());
    }
    Err(wrong(format!(
        "first_gen_tokens is {given:?}, and this worker's reply begins with {:?}; both workers need the same --response \
         and --seed",
        &planned[..given.len().min(planned.len())]
    )))
}

/// What the answer says of a request whose KV is held for others.
pub fn answered(generation: &Generation) -> Option<Value> {
    let app = generation.app();
    let choice = generation.choices().first().filter(|_| app.settings.dialect == Dialect::Trtllm)?;
    let RemoteKv { engine_id, request_id, host, port, .. } = held_at(app, choice)?;
    let state = Opaque { engine_id, request_id, host, port };
    let state = json!(state).to_string();
    Some(json!({
        "request_type": "context_only",
        "first_gen_tokens": choice.plan.tokens[..choice.sent_tokens() as usize],
        "ctx_request_id": choice.info().id.0,
        "encoded_opaque_state": BASE64.encode(state),
        "draft_tokens": null,
    }))
}
