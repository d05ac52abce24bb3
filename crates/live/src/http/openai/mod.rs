//! The OpenAI endpoints, as the engines serve them: completions and chat completions.

mod answer;
mod ask;
mod logprobs;
mod request;
mod sse;
mod tools;

pub use ask::{ask, frame, prompts, session};
pub use request::{OneOrMany, OpenAiRequest, Prompt};
pub use tools::ToolCall;

use super::app::App;
use super::body;
use super::error::{ApiError, json_response};
use super::serving::start;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use std::sync::Arc;

/// Which of the two endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
}

impl Endpoint {
    /// What its ids begin with.
    pub fn prefix(self) -> &'static str {
        match self {
            Endpoint::Completions => "cmpl-",
            Endpoint::Chat => "chatcmpl-",
        }
    }
}

/// `POST /v1/completions`.
pub async fn completions(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Response<Body> {
    answer(&app, &headers, body, Endpoint::Completions).await
}

/// `POST /v1/chat/completions`.
pub async fn chat(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Response<Body> {
    answer(&app, &headers, body, Endpoint::Chat).await
}

async fn answer(app: &Arc<App>, headers: &HeaderMap, body: Body, endpoint: Endpoint) -> Response<Body> {
    let given = headers.get("x-request-id").and_then(|id| id.to_str().ok()).filter(|id| !id.is_empty());
    let own = given.map_or_else(|| app.name(), str::to_owned);
    let mut response = match serve(app, headers, body, endpoint, &own).await {
        Ok(response) => response,
        Err(error) => error.response(app.settings.dialect),
    };
    if app.settings.request_id_headers
        && let Ok(value) = HeaderValue::from_str(&own)
    {
        response.headers_mut().insert(HeaderName::from_static("x-request-id"), value);
    }
    response
}

async fn serve(
    app: &Arc<App>,
    headers: &HeaderMap,
    body: Body,
    endpoint: Endpoint,
    own: &str,
) -> Result<Response<Body>, ApiError> {
    let (request, size): (OpenAiRequest, usize) = body::sized(app, headers, body).await?;
    let model = app.model(request.model.as_deref())?;
    let name = request.request_id.clone().unwrap_or_else(|| own.to_owned());
    let id = format!("{}{name}", endpoint.prefix());
    let (own, streams) = (headers.clone(), request.stream == Some(true));
    let asked = app.work_on(size, move |app| {
        let ask = ask::ask(app, &request, &own, endpoint, &id)?;
        let shape = answer::Shape::new(app, &request, &ask, (endpoint, id, model))?;
        Ok((ask, shape))
    });
    let (ask, shape) = asked.await?;
    let (mut generation, fault) = start(app, headers, ask).await?;
    if streams {
        return Ok(super::sse::response(generation, fault, Box::new(sse::Chunks::new(shape))));
    }
    generation.finish().await?;
    let size = shape.expected(&generation);
    let whole = app.work_on(size, move |_| Ok(json_response(StatusCode::OK, &shape.whole(&generation))));
    Ok(super::sse::whole(whole.await?, fault))
}
