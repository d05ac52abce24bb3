//! What a server tells of itself.

use super::app::App;
use super::error::{ApiError, json_response};
use crate::metrics::CONTENT_TYPE;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Response, StatusCode};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// `GET /health`: 200 and nothing, or 503 when the engine is dead.
pub async fn health(State(app): State<Arc<App>>) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    if app.check_open().is_err() {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

/// `GET /version`.
pub async fn version(State(app): State<Arc<App>>) -> Response<Body> {
    json_response(StatusCode::OK, &json!({"version": app.settings.version}))
}

/// `GET /metrics`, as text whatever the client would rather have.
pub async fn metrics(State(app): State<Arc<App>>) -> Response<Body> {
    let Some(metrics) = &app.metrics else { return not_found(State(app)).await };
    let mut response = Response::new(Body::from(metrics.text()));
    let kind = axum::http::HeaderValue::from_static(CONTENT_TYPE);
    response.headers_mut().insert(axum::http::header::CONTENT_TYPE, kind);
    response
}

/// `GET /kv_event_sources`: where which rank publishes its KV events (vLLM).
pub async fn kv_event_sources(State(app): State<Arc<App>>) -> Response<Body> {
    json_response(StatusCode::OK, &json!(app.kv_event_sources))
}

/// `GET /load`.
pub async fn load(State(app): State<Arc<App>>) -> Response<Body> {
    json_response(StatusCode::OK, &json!({"server_load": app.load.load(Ordering::Relaxed)}))
}

/// `GET /v1/models`.
pub async fn models(State(app): State<Arc<App>>) -> Response<Body> {
    let mut cards: Vec<Value> = app.settings.served_names.iter().map(|name| card(&app, name, None)).collect();
    let loras = app.loras.read().unwrap_or_else(PoisonError::into_inner);
    cards.extend(loras.iter().map(|(name, adapter)| card(&app, name, Some(&adapter.path))));
    json_response(StatusCode::OK, &json!({"object": "list", "data": cards}))
}

/// `GET /v1/models/{name}`.
pub async fn model(State(app): State<Arc<App>>, Path(name): Path<String>) -> Response<Body> {
    let loras = app.loras.read().unwrap_or_else(PoisonError::into_inner);
    match (app.settings.served_names.contains(&name), loras.get(&name)) {
        (true, _) => json_response(StatusCode::OK, &card(&app, &name, None)),
        (false, Some(adapter)) => json_response(StatusCode::OK, &card(&app, &name, Some(&adapter.path))),
        (false, None) => ApiError::model(&name).response(app.settings.dialect),
    }
}

/// A model as vLLM shows it (entrypoints/openai/models/protocol.py); of an adapter, with its path.
fn card(app: &App, name: &str, lora: Option<&str>) -> Value {
    let owner = match app.settings.dialect {
        super::Dialect::Vllm => "vllm",
        super::Dialect::Sglang => "sglang",
        super::Dialect::Trtllm => "tensorrt_llm",
    };
    json!({
        "id": name,
        "object": "model",
        "created": app.started,
        "owned_by": owner,
        "root": lora.unwrap_or(&app.settings.model),
        "parent": lora.map(|_| &app.settings.served_names[0]),
        "max_model_len": if lora.is_some() { Value::Null } else { app.settings.max_model_len.into() },
        "permission": [{
            "id": format!("modelperm-{}", app.name()),
            "object": "model_permission",
            "created": app.started,
            "allow_create_engine": false,
            "allow_sampling": true,
            "allow_logprobs": true,
            "allow_search_indices": false,
            "allow_view": true,
            "allow_fine_tuning": false,
            "organization": "*",
            "group": null,
            "is_blocking": false,
        }],
    })
}

/// What has no handler.
pub async fn not_found(State(app): State<Arc<App>>) -> Response<Body> {
    let error = ApiError { kind: "Not Found", ..ApiError::new(StatusCode::NOT_FOUND, "Not Found") };
    error.response(app.settings.dialect)
}

/// What has a handler for other methods.
pub async fn wrong_method(State(app): State<Arc<App>>) -> Response<Body> {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed").response(app.settings.dialect)
}
