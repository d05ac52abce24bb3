//! What operators tell a vLLM server: empty the cache, sleep, pause, adapters come and go.

use super::app::{App, Rest};
use super::body;
use super::error::{ApiError, json_response};
use super::tokens::answer;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::{Arc, PoisonError};

/// The value of a key of a query, percent signs not undone: the values asked for here have none.
fn query<'a>(query: &'a Option<String>, key: &str) -> Option<&'a str> {
    let pairs = query.as_deref()?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.into_iter().find(|(name, _)| *name == key).map(|(_, value)| value)
}

/// `POST /reset_prefix_cache`.
pub async fn reset_prefix_cache(State(app): State<Arc<App>>, RawQuery(asked): RawQuery) -> Response<Body> {
    if query(&asked, "reset_running_requests") == Some("true") {
        let message = "resetting under running requests cannot be simulated";
        return ApiError::new(StatusCode::NOT_IMPLEMENTED, message).response(app.settings.dialect);
    }
    json_response(StatusCode::OK, &json!({"success": app.reset_cache().await}))
}

/// `POST /reset_mm_cache` and `/reset_encoder_cache`: there is nothing in them.
pub async fn nothing_to_reset() -> Response<Body> {
    Response::new(Body::empty())
}

/// `POST /sleep`: what is at work is given up, the cache is lost, and requests wait until it wakes.
pub async fn sleep(State(app): State<Arc<App>>, RawQuery(asked): RawQuery) -> Response<Body> {
    let level = query(&asked, "level").unwrap_or("1");
    let Some(level) = level.parse().ok().filter(|level| *level <= 2u32) else {
        return ApiError::field("level", "level must be 0, 1 or 2").response(app.settings.dialect);
    };
    if let Err(error) = rest(&app, &asked, Rest { sleep: level, paused: level == 0 }).await {
        return error.response(app.settings.dialect);
    }
    if level > 0 {
        app.reset_cache().await;
    }
    json_response(StatusCode::OK, &json!({"status": "sleeping", "level": level}))
}

/// `POST /pause`: requests wait until it goes on.
pub async fn pause(State(app): State<Arc<App>>, RawQuery(asked): RawQuery) -> Response<Body> {
    let sleep = app.rest.borrow().sleep;
    match rest(&app, &asked, Rest { sleep, paused: true }).await {
        Ok(()) => json_response(StatusCode::OK, &json!({"status": "paused"})),
        Err(error) => error.response(app.settings.dialect),
    }
}

/// Lets new requests wait, and ends those at work, or lets them end (`mode`).
async fn rest(app: &App, asked: &Option<String>, rest: Rest) -> Result<(), ApiError> {
    let mode = query(asked, "mode").unwrap_or("abort");
    if !["abort", "wait"].contains(&mode) {
        let message = format!("mode {mode:.20} cannot be simulated, allowed is abort or wait");
        return Err(ApiError::field("mode", message));
    }
    app.rest.send_replace(rest);
    if mode == "abort" {
        app.abort("");
    }
    while app.worker.stats().iter().any(|stats| stats.running + stats.waiting > 0) {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    Ok(())
}

/// `POST /wake_up`.
pub async fn wake_up(State(app): State<Arc<App>>, RawQuery(asked): RawQuery) -> Response<Body> {
    if query(&asked, "tags").is_some() {
        let message = "waking in parts cannot be simulated";
        return ApiError::new(StatusCode::NOT_IMPLEMENTED, message).response(app.settings.dialect);
    }
    app.rest.send_replace(Rest::default());
    json_response(StatusCode::OK, &json!({"status": "awake", "tags": null}))
}

/// `POST /resume`.
pub async fn resume(State(app): State<Arc<App>>) -> Response<Body> {
    app.rest.send_modify(|rest| rest.paused = false);
    json_response(StatusCode::OK, &json!({"status": "resumed"}))
}

/// `GET /is_sleeping`.
pub async fn is_sleeping(State(app): State<Arc<App>>) -> Response<Body> {
    json_response(StatusCode::OK, &json!({"is_sleeping": app.rest.borrow().sleep > 0}))
}

/// `GET /is_paused`.
pub async fn is_paused(State(app): State<Arc<App>>) -> Response<Body> {
    json_response(StatusCode::OK, &json!({"is_paused": app.rest.borrow().paused}))
}

#[derive(Debug, Deserialize)]
struct Lora {
    lora_name: String,
    #[serde(default)]
    lora_path: Option<String>,
    #[serde(default)]
    load_inplace: Option<bool>,
}

/// `POST /v1/load_lora_adapter`. Nothing is read from the path.
pub async fn load_lora(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Response<Body> {
    match load(&app, &headers, body).await {
        Ok(text) => Response::new(Body::from(text)),
        Err(error) => error.response(app.settings.dialect),
    }
}

async fn load(app: &Arc<App>, headers: &HeaderMap, body: Body) -> Result<String, ApiError> {
    let asked: Lora = body::json(app, headers, body).await?;
    let path = asked.lora_path.filter(|path| !path.is_empty());
    let (false, Some(path)) = (asked.lora_name.is_empty(), path) else {
        let message = "both lora_name and lora_path are needed";
        return Err(ApiError { kind: "InvalidUserInput", ..ApiError::new(StatusCode::BAD_REQUEST, message) });
    };
    let mut loras = app.loras.write().unwrap_or_else(PoisonError::into_inner);
    if loras.contains_key(&asked.lora_name) && asked.load_inplace != Some(true) {
        let message = format!("the adapter {} is loaded already", asked.lora_name);
        return Err(ApiError { kind: "InvalidUserInput", ..ApiError::new(StatusCode::BAD_REQUEST, message) });
    }
    let text = format!("Success: LoRA adapter '{}' added successfully.", asked.lora_name);
    let adapter = app.adapter(&asked.lora_name, &path);
    loras.insert(asked.lora_name, adapter);
    Ok(text)
}

/// `POST /v1/unload_lora_adapter`.
pub async fn unload_lora(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Response<Body> {
    let asked: Lora = match body::json(&app, &headers, body).await {
        Ok(asked) => asked,
        Err(error) => return error.response(app.settings.dialect),
    };
    let mut loras = app.loras.write().unwrap_or_else(PoisonError::into_inner);
    match loras.remove(&asked.lora_name) {
        Some(_) => Response::new(Body::from(format!(
            "Success: LoRA adapter '{}' removed successfully.",
            asked.lora_name
        ))),
        None => {
            ApiError::new(StatusCode::NOT_FOUND, format!("the adapter {} is not loaded", asked.lora_name))
                .response(app.settings.dialect)
        }
    }
}

/// `GET /admin/config`: what can be changed while it runs.
pub async fn config(State(app): State<Arc<App>>) -> Response<Body> {
    json_response(StatusCode::OK, &shown(&app))
}

fn shown(app: &App) -> Value {
    let mut shown = json!(app.faults.settings());
    let most = app.most_requests.load(std::sync::atomic::Ordering::Relaxed);
    shown["max_concurrent_requests"] = if most == u64::MAX { Value::Null } else { most.into() };
    shown
}

/// What `/admin/config` may change.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    failure_rate: Option<f64>,
    failure_types: Option<Vec<super::faults::FaultKind>>,
    timeout_ms: Option<u64>,
    slow_first_token_ms: Option<u64>,
    fault_after_tokens: Option<u32>,
    stall_ms: Option<u64>,
    speedup_ratio: Option<f64>,
    max_concurrent_requests: Option<u64>,
}

/// `POST /admin/config`: changes what is given, all of it or nothing.
pub async fn change_config(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Response<Body> {
    answer(&app, change(&app, &headers, body).await)
}

async fn change(app: &Arc<App>, headers: &HeaderMap, body: Body) -> Result<Value, ApiError> {
    let change: Change = body::json(app, headers, body).await?;
    let mut faults = app.faults.settings();
    faults.failure_rate = change.failure_rate.unwrap_or(faults.failure_rate);
    faults.failure_types = change.failure_types.unwrap_or(faults.failure_types);
    faults.timeout_ms = change.timeout_ms.unwrap_or(faults.timeout_ms);
    faults.slow_first_token_ms = change.slow_first_token_ms.unwrap_or(faults.slow_first_token_ms);
    faults.fault_after_tokens = change.fault_after_tokens.unwrap_or(faults.fault_after_tokens);
    faults.stall_ms = change.stall_ms.unwrap_or(faults.stall_ms);
    faults.check().map_err(|message| ApiError::field("failure_rate", message))?;
    if let Some(speed) = change.speedup_ratio.filter(|speed| !(*speed >= 0.0 && speed.is_finite())) {
        let message = format!("speedup_ratio is {speed}, allowed is 0 or more");
        return Err(ApiError::field("speedup_ratio", message));
    }
    app.faults.set(faults);
    if let Some(speed) = change.speedup_ratio {
        app.worker.set_speed(speed);
    }
    if let Some(most) = change.max_concurrent_requests {
        app.most_requests.store(most, std::sync::atomic::Ordering::Relaxed);
    }
    Ok(shown(app))
}
