//! `kv_transfer_params`: what a request says of KV that others have computed or will read, and what its answer does
//! (vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py, 0.33.0).

use super::app::App;
use super::error::{ApiError, Dialect};
use super::generation::{Choice, Generation};
use crate::kv_transfer::{Remote, RemoteKv, Transfers};
use serde_json::{Value, json};
use std::sync::Arc;

/// What a request asks for. Where the worker takes no part in transfers, nothing, as with vLLM.
///
/// # Errors
/// Params that name no KV.
pub fn asked(app: &App, params: Option<&Value>) -> Result<Remote, ApiError> {
    let wrong = |message: String| ApiError::field("kv_transfer_params", message);
    let Some(params) = params.filter(|params| !params.is_null()) else { return Ok(Remote::None) };
    let Some(params) = params.as_object() else {
        return Err(wrong("kv_transfer_params is not an object".into()));
    };
    let pulling = app.transfers.as_ref().filter(|_| app.settings.dialect == Dialect::Vllm);
    let Some(transfers) = pulling else { return Ok(Remote::None) };
    let role = transfers.settings().role;
    let flag = |name: &str| params.get(name).and_then(Value::as_bool) == Some(true);
    match (flag("do_remote_prefill"), flag("do_remote_decode")) {
        (true, true) => Err(wrong("do_remote_prefill and do_remote_decode are both true".into())),
        (true, false) if role.consumes() => {
            let missing = |name: &str| wrong(format!("do_remote_prefill is true, and {name} is missing"));
            let text = |name: &str| {
                let value = params.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
                value.map(str::to_owned).ok_or_else(|| missing(name))
            };
            let port = params.get("remote_port").and_then(Value::as_u64);
            let port =
                port.and_then(|port| u16::try_from(port).ok()).ok_or_else(|| missing("remote_port"))?;
            if params.get("remote_block_ids").and_then(Value::as_array).is_none_or(Vec::is_empty) {
                return Err(missing("remote_block_ids"));
            }
            let cached = params.get("remote_prefill_cached_tokens").and_then(Value::as_u64);
            Ok(Remote::Pull(Arc::new(RemoteKv {
                engine_id: text("remote_engine_id")?,
                request_id: text("remote_request_id")?,
                host: text("remote_host")?,
                port,
                cached_tokens: cached.and_then(|tokens| u32::try_from(tokens).ok()),
            })))
        }
        (false, true) if role.produces() => Ok(Remote::Hold),
        _ => Ok(Remote::None),
    }
}

/// Where the KV of a choice of this worker is held; nowhere if nobody is to go on with it.
pub fn held_at(app: &App, choice: &Choice) -> Option<RemoteKv> {
    choice.held()?;
    let pull = app.transfers.as_ref()?.settings().pull()?;
    let info = choice.info();
    Some(RemoteKv {
        engine_id: pull.engine_id.clone(),
        request_id: Transfers::request_id(info.id, &info.name),
        host: pull.host.clone(),
        port: pull.port,
        cached_tokens: Some(choice.cached_tokens()),
    })
}

/// What the answer says: where what was computed can be read. Null where nothing is held.
pub fn answered(generation: &Generation) -> Value {
    if generation.app().settings.dialect != Dialect::Vllm {
        return Value::Null;
    }
    let app = generation.app();
    let held = generation.choices().first().and_then(|choice| Some((choice, held_at(app, choice)?)));
    let Some((choice, at)) = held else { return Value::Null };
    // The token that was given last is not computed.
    let computed =
        choice.info().prompt.len() + choice.times().map_or(0, |times| times.output_tokens as usize - 1);
    json!({
        "do_remote_prefill": true,
        "do_remote_decode": false,
        "remote_block_ids": [choice.held()],
        "remote_engine_id": at.engine_id,
        "remote_request_id": at.request_id,
        "remote_host": at.host,
        "remote_port": at.port,
        "tp_size": app.transfers.as_ref().map(|transfers| transfers.settings().tensor),
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": computed,
        "remote_blocks_expiry_time": null,
        "remote_registration_generation": 0,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": at.cached_tokens,
    })
}
