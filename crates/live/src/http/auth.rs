//! Keys: who has none of the server's keys gets nothing from the paths below `/v1` (vLLM 0.33.0,
//! entrypoints/serve/middleware).

use super::app::App;
use super::error::json_response;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, Response, StatusCode, header};
use axum::middleware::Next;
use serde_json::json;
use std::sync::Arc;

/// Lets a request through, or not.
pub async fn check(State(app): State<Arc<App>>, request: Request, next: Next) -> Response<Body> {
    let keys = &app.settings.api_keys;
    let path = request.uri().path();
    let guarded = path.starts_with("/v1") || path.starts_with("/inference");
    if keys.is_empty() || !guarded || request.method() == Method::OPTIONS {
        return next.run(request).await;
    }
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = given.and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    if token.is_some_and(|token| keys.iter().any(|key| same(key, token))) {
        return next.run(request).await;
    }
    json_response(StatusCode::UNAUTHORIZED, &json!({"error": "Unauthorized"}))
}

/// Equal, found out in a time that does not tell where they differ.
fn same(key: &str, given: &str) -> bool {
    let differing = key.bytes().zip(given.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
    key.len() == given.len() && differing == 0
}
