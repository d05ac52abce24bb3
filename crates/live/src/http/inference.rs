//! `POST /inference/v1/generate`: tokens in, tokens out (vLLM 0.33.0,
//! entrypoints/scale_out/token_in_token_out/protocol.py).

use super::app::App;
use super::body;
use super::error::{ApiError, json_response};
use super::form::Object;
use super::generation::{Choice, Generation, News};
use super::kv_transfer;
use super::openai::Endpoint;
use super::openai::{OpenAiRequest, Prompt, ask};
use super::serving::start;
use super::sse;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// What it is asked.
#[derive(Debug, Deserialize)]
struct Generate {
    #[serde(default)]
    request_id: Option<String>,
    token_ids: Vec<u32>,
    #[serde(default)]
    sampling_params: Object<OpenAiRequest>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    cache_salt: Option<String>,
    #[serde(default)]
    priority: Option<i32>,
    #[serde(default)]
    return_token_ids: Option<bool>,
    #[serde(default)]
    kv_transfer_params: Option<Value>,
    #[serde(default)]
    features: Option<Value>,
}

/// The handler.
pub async fn generate(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Response<Body> {
    let dialect = app.settings.dialect;
    serve(app, &headers, body).await.unwrap_or_else(|error| error.response(dialect))
}

async fn serve(app: Arc<App>, headers: &HeaderMap, body: Body) -> Result<Response<Body>, ApiError> {
    let (asked, size): (Generate, usize) = body::sized(&app, headers, body).await?;
    if asked.features.is_some_and(|features| !features.is_null()) {
        let error =
            ApiError::new(StatusCode::NOT_IMPLEMENTED, "content that is not text cannot be simulated");
        return Err(ApiError { param: Some("features".into()), ..error });
    }
    let Object(mut request) = asked.sampling_params;
    let name = asked.request_id.unwrap_or_else(|| app.name());
    request.prompt = Some(Prompt::Tokens(asked.token_ids));
    request.model = asked.model;
    request.stream = Some(asked.stream == Some(true));
    request.cache_salt = asked.cache_salt;
    request.priority = asked.priority;
    request.kv_transfer_params = asked.kv_transfer_params;
    let prompt_ids = asked.return_token_ids == Some(true);
    let model = app.model(request.model.as_deref())?;
    let streams = request.stream == Some(true);
    let (own, id) = (headers.clone(), name.clone());
    let mut ask = app.work_on(size, move |app| ask(app, &request, &own, Endpoint::Completions, &id)).await?;
    if let Some(traced) = &mut ask.traced {
        // Its one prompt has the name of the request.
        traced.prompt = None;
    }
    let (mut generation, fault) = start(&app, headers, ask).await?;
    let shape = Shape { name, model, prompt_ids };
    if streams {
        let chunk = move |generation: &Generation, news: &News, first: bool| {
            let choice = &generation.choices()[news.choice];
            let mut chunk = shape.frame(vec![json!({
                "index": news.index,
                "finish_reason": news.finish,
                "token_ids": choice.plan.tokens[news.tokens.0 as usize..news.tokens.1 as usize],
                "logprobs": null,
            })]);
            if first && shape.prompt_ids {
                chunk["prompt_token_ids"] = choice.info().prompt.to_vec().into();
            }
            chunk
        };
        return Ok(sse::response(generation, fault, Box::new(chunk)));
    }
    generation.finish().await?;
    let choices = generation.choices().iter().map(whole).collect();
    let mut answer = shape.frame(choices);
    answer["usage"] = json!({
        "prompt_tokens": generation.prompt_tokens(),
        "completion_tokens": generation.completion_tokens(),
        "total_tokens": generation.prompt_tokens() + generation.completion_tokens(),
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens()},
    });
    answer["kv_transfer_params"] = kv_transfer::answered(&generation);
    if let Some(choice) = generation.choices().first().filter(|_| prompt_ids) {
        answer["prompt_token_ids"] = choice.info().prompt.to_vec().into();
    }
    Ok(sse::whole(json_response(StatusCode::OK, &answer), fault))
}

struct Shape {
    name: String,
    model: String,
    prompt_ids: bool,
}

impl Shape {
    fn frame(&self, choices: Vec<Value>) -> Value {
        json!({"request_id": self.name, "model": self.model, "output_mode": "tokens", "choices": choices})
    }
}

fn whole(choice: &Choice) -> Value {
    json!({
        "index": choice.index,
        "finish_reason": choice.finish(),
        "token_ids": choice.plan.tokens[..choice.sent_tokens() as usize],
        "logprobs": null,
    })
}
