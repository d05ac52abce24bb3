//! Text to tokens and back, and prompts as tokens without a reply: what routers ask before they route.

use super::app::App;
use super::body;
use super::error::{ApiError, Dialect, json_response};
use super::openai::{Endpoint, OpenAiRequest, Prompt, frame, prompts};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// What `/tokenize` is asked.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Tokenize {
    return_token_strs: Option<bool>,
    #[serde(flatten)]
    request: OpenAiRequest,
}

/// What `/detokenize` is asked.
#[derive(Debug, Deserialize)]
struct Detokenize {
    #[serde(default)]
    model: Option<String>,
    tokens: Tokens,
    #[serde(default)]
    skip_special_tokens: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "allowed is a list of tokens or a list of lists of tokens")]
enum Tokens {
    One(Vec<u32>),
    Many(Vec<Vec<u32>>),
}

/// `POST /tokenize`.
pub async fn tokenize(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Response<Body> {
    answer(&app, tokenized(&app, &headers, body).await)
}

/// `POST /detokenize`.
pub async fn detokenize(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Response<Body> {
    answer(&app, detokenized(&app, &headers, body).await)
}

/// `POST /v1/completions/render`.
pub async fn render_completion(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Response<Body> {
    answer(&app, rendered(&app, &headers, body, Endpoint::Completions).await)
}

/// `POST /v1/chat/completions/render`.
pub async fn render_chat(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Response<Body> {
    answer(&app, rendered(&app, &headers, body, Endpoint::Chat).await)
}

/// What came of it, as an answer.
pub fn answer(app: &App, outcome: Result<Value, ApiError>) -> Response<Body> {
    match outcome {
        Ok(body) => json_response(StatusCode::OK, &body),
        Err(error) => error.response(app.settings.dialect),
    }
}

async fn tokenized(app: &Arc<App>, headers: &HeaderMap, body: Body) -> Result<Value, ApiError> {
    let (asked, size) = body::sized(app, headers, body).await?;
    app.work_on(size, move |app| tokens_of(app, &asked)).await
}

/// Of any length: no context has to hold them.
fn tokens_of(app: &App, asked: &Tokenize) -> Result<Value, ApiError> {
    app.model(asked.request.model.as_deref())?;
    let framed = asked.request.add_special_tokens != Some(false);
    let tokens = match &asked.request.prompt {
        Some(Prompt::Text(text)) => frame(app, &app.tokens_of(text)?, framed),
        Some(Prompt::Texts(texts)) if app.settings.dialect == Dialect::Sglang => {
            let framed = |text: &String| Ok(frame(app, &app.tokens_of(text)?, framed));
            let all: Vec<Vec<u32>> = texts.iter().map(framed).collect::<Result<_, ApiError>>()?;
            let counts: Vec<usize> = all.iter().map(Vec::len).collect();
            return Ok(json!({"tokens": all, "count": counts, "max_model_len": app.settings.max_model_len}));
        }
        Some(_) => return Err(ApiError::field("prompt", "the prompt is not a text")),
        None => prompts(app, &asked.request, Endpoint::Chat)?.swap_remove(0).tokens,
    };
    let strings = asked.return_token_strs == Some(true);
    let strings = strings.then(|| tokens.iter().map(|&t| app.tokenizer.spelling(t)).collect::<Vec<_>>());
    Ok(json!({
        "count": tokens.len(), "max_model_len": app.settings.max_model_len, "tokens": tokens, "token_strs": strings,
    }))
}

async fn detokenized(app: &Arc<App>, headers: &HeaderMap, body: Body) -> Result<Value, ApiError> {
    let (asked, size) = body::sized(app, headers, body).await?;
    app.work_on(size, move |app| text_of(app, &asked)).await
}

fn text_of(app: &App, asked: &Detokenize) -> Result<Value, ApiError> {
    app.model(asked.model.as_deref())?;
    let sglang = app.settings.dialect == Dialect::Sglang;
    // vLLM shows special tokens, SGLang does not unless it is told to.
    let skip = sglang && asked.skip_special_tokens != Some(false);
    let vocabulary = app.tokenizer.vocabulary();
    let text = |tokens: &Vec<u32>| match tokens.iter().find(|token| **token >= vocabulary) {
        Some(token) => {
            let message = format!("token {token} does not exist, the vocabulary has {vocabulary}");
            Err(ApiError::field("tokens", message))
        }
        None => Ok(app.tokenizer.decode(tokens, skip)),
    };
    let key = if sglang { "text" } else { "prompt" };
    Ok(match &asked.tokens {
        Tokens::One(tokens) => json!({key: text(tokens)?}),
        Tokens::Many(lists) if sglang => json!({key: lists.iter().map(text).collect::<Result<Vec<_>, _>>()?}),
        Tokens::Many(_) => return Err(ApiError::field("tokens", "tokens is not one list")),
    })
}

/// The prompts of a request as `/inference/v1/generate` takes them.
async fn rendered(
    app: &Arc<App>,
    headers: &HeaderMap,
    body: Body,
    endpoint: Endpoint,
) -> Result<Value, ApiError> {
    let (request, size) = body::sized(app, headers, body).await?;
    app.work_on(size, move |app| prompts_of(app, &request, endpoint)).await
}

fn prompts_of(app: &App, request: &OpenAiRequest, endpoint: Endpoint) -> Result<Value, ApiError> {
    let model = app.model(request.model.as_deref())?;
    let name = request.request_id.clone().unwrap_or_else(|| app.name());
    let own = [
        ("n", json!(request.n)),
        ("max_tokens", json!(request.max_completion_tokens.or(request.max_tokens))),
        ("min_tokens", json!(request.min_tokens)),
        ("ignore_eos", json!(request.ignore_eos)),
        ("stop", json!(request.stop.as_ref().map(|stop| stop.list()))),
        ("stop_token_ids", json!(request.stop_token_ids)),
        ("seed", json!(request.seed)),
        ("temperature", json!(request.temperature)),
        ("top_p", json!(request.top_p)),
    ];
    let given: serde_json::Map<String, Value> = own
        .into_iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| (key.into(), value))
        .collect();
    let all: Vec<Value> = prompts(app, request, endpoint)?
        .into_iter()
        .map(|prompt| {
            json!({
                "request_id": format!("{}{name}", endpoint.prefix()),
                "token_ids": prompt.tokens,
                "features": null,
                "sampling_params": given,
                "model": model,
                "stream": request.stream == Some(true),
                "cache_salt": request.cache_salt,
                "priority": request.priority.unwrap_or(0),
            })
        })
        .collect();
    Ok(match endpoint {
        Endpoint::Completions => all.into(),
        Endpoint::Chat => all.into_iter().next().unwrap_or(Value::Null),
    })
}
