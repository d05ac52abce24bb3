//! SGLang's own endpoints (0.5.23, srt/entrypoints/http_server.py): `/generate` and what routers ask.

use super::app::App;
use super::body;
use super::bootstrap::{self, RoomFields};
use super::error::{ApiError, json_response};
use super::form::Object;
use super::generation::{Ask, Choice, Generation, News};
use super::openai::{Endpoint as Kind, OneOrMany, OpenAiRequest, Prompt, prompts, session};
use super::serving::{begin, start};
use super::sse;
use crate::text::{Limits, StopReason};
use crate::traces::{Parent, Traced};
use crate::zmq::Endpoint;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use windtunnel_engine::RankConfig;

/// `max_new_tokens` of a request that does not say.
const DEFAULT_NEW_TOKENS: u32 = 128;
/// Choices of one prompt at most, as for OpenAI's endpoints.
const MOST_CHOICES: u32 = 128;
/// Longest time that a health probe waits for its token.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(20);

/// What `/generate` is asked.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Generate {
    text: Option<OneOrMany>,
    input_ids: Option<InputIds>,
    sampling_params: Option<Sampling>,
    rid: Option<OneOrMany>,
    stream: Option<bool>,
    return_logprob: Option<bool>,
    priority: Option<i32>,
    extra_key: Option<String>,
    lora_path: Option<String>,
    routed_dp_rank: Option<u32>,
    session_id: Option<String>,
    image_data: Option<Value>,
    bootstrap_host: Option<Value>,
    bootstrap_port: Option<Value>,
    bootstrap_room: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "allowed is a list of tokens or a list of lists of tokens")]
enum InputIds {
    One(Vec<u32>),
    Many(Vec<Vec<u32>>),
}

/// One set of bounds for all prompts, or one for each, which must then be alike.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "allowed is an object, or a list of objects, of sampling parameters")]
enum Sampling {
    One(Box<Object<SamplingParams>>),
    Many(Vec<Object<SamplingParams>>),
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct SamplingParams {
    max_new_tokens: Option<i64>,
    min_new_tokens: Option<i64>,
    stop: Option<StopStrings>,
    stop_token_ids: Option<Vec<u32>>,
    ignore_eos: Option<bool>,
    skip_special_tokens: Option<bool>,
    no_stop_trim: Option<bool>,
    n: Option<u32>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    sampling_seed: Option<i64>,
    json_schema: Option<Value>,
    regex: Option<Value>,
    ebnf: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "stop: allowed is a text or a list of texts")]
enum StopStrings {
    One(String),
    Many(Vec<String>),
}

/// `POST /generate`.
pub async fn generate(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Response<Body> {
    // Not the OpenAI form of an error: that of the native endpoint.
    serve(&app, &headers, body)
        .await
        .unwrap_or_else(|error| json_response(error.status, &json!({"error": {"message": error.message}})))
}

async fn serve(app: &Arc<App>, headers: &HeaderMap, body: Body) -> Result<Response<Body>, ApiError> {
    let (asked, size): (Generate, usize) = body::sized(app, headers, body).await?;
    let many =
        matches!(asked.text, Some(OneOrMany::Many(_))) || matches!(asked.input_ids, Some(InputIds::Many(_)));
    let own = headers.clone();
    let ask = app.work_on(size, move |app| ask(app, &own, &asked)).await?;
    let listed = many || ask.choices > 1;
    let streaming = ask.streaming;
    let (mut generation, fault) = start(app, headers, ask).await?;
    if streaming {
        let chunk = move |generation: &Generation, news: &News, _: bool| {
            let choice = &generation.choices()[news.choice];
            let mut chunk = output(generation, choice, news.finish.is_some());
            if listed {
                chunk["index"] = news.index.into();
            }
            chunk
        };
        return Ok(sse::response(generation, fault, Box::new(chunk)));
    }
    generation.finish().await?;
    let mut all: Vec<Value> =
        generation.choices().iter().map(|choice| output(&generation, choice, true)).collect();
    let answer = if listed { all.into() } else { all.swap_remove(0) };
    Ok(sse::whole(json_response(StatusCode::OK, &answer), fault))
}

fn ask(app: &App, headers: &HeaderMap, asked: &Generate) -> Result<Ask, ApiError> {
    let refuse = |field: &str, what: &str| {
        let error = ApiError::new(StatusCode::NOT_IMPLEMENTED, format!("{what} cannot be simulated"));
        Err(ApiError { param: Some(field.into()), ..error })
    };
    if asked.return_logprob == Some(true) {
        return refuse("return_logprob", "log probabilities of /generate");
    }
    if asked.image_data.as_ref().is_some_and(|data| !data.is_null()) {
        return refuse("image_data", "content that is not text");
    }
    let params = match &asked.sampling_params {
        None => SamplingParams::default(),
        Some(Sampling::One(params)) => params.0.clone(),
        Some(Sampling::Many(all)) => match all.first() {
            Some(first) if all.iter().all(|params| params == first) => first.0.clone(),
            _ => return refuse("sampling_params", "different sampling parameters in one request"),
        },
    };
    if [&params.json_schema, &params.regex, &params.ebnf].into_iter().flatten().any(|value| !value.is_null())
    {
        return refuse("sampling_params", "a grammar");
    }
    let prompt = match (&asked.text, &asked.input_ids) {
        (Some(OneOrMany::One(text)), None) => Prompt::Text(text.clone()),
        (Some(OneOrMany::Many(texts)), None) => Prompt::Texts(texts.clone()),
        (None, Some(InputIds::One(tokens))) => Prompt::Tokens(tokens.clone()),
        (None, Some(InputIds::Many(lists))) => Prompt::TokenLists(lists.clone()),
        _ => return Err(ApiError::form("one of text and input_ids is needed")),
    };
    let request = OpenAiRequest { prompt: Some(prompt), ..OpenAiRequest::default() };
    let choices = params.n.unwrap_or(1);
    if !(1..=MOST_CHOICES).contains(&choices) {
        return Err(ApiError::field("n", format!("n is {choices}, allowed is 1 to {MOST_CHOICES}")));
    }
    let number = |field: &str, value: Option<i64>, (least, default): (u32, u32)| match value {
        None => Ok(default),
        Some(value) => {
            let number = u32::try_from(value).ok().filter(|number| *number >= least);
            let wrong = || ApiError::field(field, format!("{field} is {value}, allowed is {least} or more"));
            number.ok_or_else(wrong)
        }
    };
    // SGLang takes a 0, of which nothing comes.
    let max_tokens = number("max_new_tokens", params.max_new_tokens, (1, DEFAULT_NEW_TOKENS))?;
    let lora =
        match asked.lora_path.as_deref().filter(|name| !name.is_empty()) {
            None => None,
            Some(name) => {
                let lora = app.lora(Some(name));
                Some(lora.ok_or_else(|| {
                    ApiError::field("lora_path", format!("the adapter {name} is not loaded"))
                })?)
            }
        };
    let rid = match &asked.rid {
        Some(OneOrMany::One(rid)) => rid.clone(),
        Some(OneOrMany::Many(_)) => return refuse("rid", "a name for each prompt"),
        None => app.name(),
    };
    let prompts = prompts(app, &request, Kind::Completions)?;
    let rooms = RoomFields {
        host: asked.bootstrap_host.as_ref(),
        port: asked.bootstrap_port.as_ref(),
        room: asked.bootstrap_room.as_ref(),
    };
    let remotes = bootstrap::asked(app, &rooms, headers, (choices, prompts.len()))?;
    Ok(Ask {
        name: rid,
        prompts,
        choices,
        max_tokens: Some(max_tokens),
        limits: Limits {
            max_tokens: 0,
            min_tokens: number("min_new_tokens", params.min_new_tokens, (0, 0))?,
            ignore_eos: params.ignore_eos == Some(true),
            stop: match params.stop {
                None => Vec::new(),
                Some(StopStrings::One(text)) => vec![text],
                Some(StopStrings::Many(texts)) => texts,
            },
            stop_token_ids: params.stop_token_ids.unwrap_or_default(),
            include_stop: params.no_stop_trim == Some(true),
            skip_special: params.skip_special_tokens != Some(false),
        },
        streaming: asked.stream == Some(true),
        seed: params.sampling_seed.map(|seed| seed as u64),
        priority: asked.priority,
        cache_salt: asked.extra_key.clone(),
        lora,
        dp_rank: asked.routed_dp_rank,
        session: session(asked.session_id.as_deref(), headers),
        remotes,
        first: Vec::new(),
        tool_call: None,
        replay: None,
        traced: app.traces.then(|| Traced {
            parent: Parent::of(headers),
            temperature: params.temperature,
            top_p: params.top_p,
            prompt: None,
        }),
    })
}

/// What there is of a choice: its text from the beginning, and what is told of it.
fn output(generation: &Generation, choice: &Choice, ended: bool) -> Value {
    let tokens = &choice.plan.tokens[..choice.sent_tokens() as usize];
    let mut meta = json!({
        "id": choice.info().name,
        "finish_reason": null,
        "prompt_tokens": choice.info().prompt.len(),
        "weight_version": "default",
        "num_retractions": choice.times().map_or(0, |times| times.preemptions),
        "completion_tokens": tokens.len(),
        "cached_tokens": choice.cached_tokens(),
        "dp_rank": choice.rank(),
    });
    if ended {
        let eos = generation.app().tokenizer.eos();
        meta["finish_reason"] = match choice.finish() {
            // A worker that computes prompts for others counts no tokens.
            Some("length") if bootstrap::prefills(generation.app()) => json!({"type": "length", "length": 0}),
            Some("length") => json!({"type": "length", "length": tokens.len()}),
            Some("stop") => match choice.stop_reason() {
                Some(StopReason::Text(text)) => json!({"type": "stop", "matched": text}),
                Some(StopReason::Token(token)) => json!({"type": "stop", "matched": token}),
                None => json!({"type": "stop", "matched": eos}),
            },
            _ => json!({"type": "abort", "message": "Aborted", "status_code": null, "err_type": null}),
        };
        if let Some((times, last)) = choice.times().and_then(|times| Some((times, times.last_token?))) {
            meta["e2e_latency"] = last.since(times.arrival).as_seconds().into();
        }
    }
    json!({"text": choice.text(), "output_ids": tokens, "meta_info": meta})
}

/// `GET /health_generate` and `/health`: 200 when a token comes back, or when it is at work anyway.
pub async fn health(State(app): State<Arc<App>>) -> Response<Body> {
    let healthy = app.check_open().is_ok() && (app.worker.unfinished() > 0 || probe(&app).await);
    let mut response = Response::new(Body::empty());
    if !healthy {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

async fn probe(app: &Arc<App>) -> bool {
    let ask = Ask::probe(format!("HEALTH_CHECK_{}", app.name()), bootstrap::nowhere(app));
    let begun = tokio::time::timeout(HEALTH_TIMEOUT, begin(app, ask)).await;
    begun.is_ok_and(|begun| begun.is_ok())
}

/// `GET /model_info`.
pub async fn model_info(State(app): State<Arc<App>>) -> Response<Body> {
    let settings = &app.settings;
    json_response(
        StatusCode::OK,
        &json!({
            "model_path": settings.model,
            "served_model_name": settings.served_names[0],
            "tokenizer_path": settings.model,
            "is_generation": true,
            "preferred_sampling_params": null,
            "weight_version": "default",
            "load_format": "auto",
            "reasoning_parser": null,
            "tool_call_parser": null,
            "disaggregation_mode": bootstrap::mode(&app),
            "has_image_understanding": false,
            "has_audio_understanding": false,
            "model_type": null,
            "architectures": null,
        }),
    )
}

/// `GET /server_info`.
pub async fn server_info(State(app): State<Arc<App>>) -> Response<Body> {
    let settings = &app.settings;
    let stats = app.worker.stats();
    let (page_size, max_running, radix, overlap) = match app.worker.engine() {
        RankConfig::Sglang(config) => {
            (config.page_size, config.max_running_requests, config.radix_cache, config.overlap)
        }
        RankConfig::Vllm(config) => {
            (config.block_size, config.max_num_seqs, config.prefix_caching, config.async_scheduling)
        }
        RankConfig::Trtllm(config) => (config.block_size, config.max_batch_size, true, config.overlap),
    };
    let tokens = stats.first().map_or(0, |stats| u64::from(stats.usable_blocks) * u64::from(page_size));
    let states: Vec<Value> = stats
        .iter()
        .map(
            |_| json!({"max_total_num_tokens": tokens, "effective_max_running_requests_per_dp": max_running}),
        )
        .collect();
    json_response(
        StatusCode::OK,
        &json!({
            "model_path": settings.model,
            "served_model_name": settings.served_names[0],
            "tokenizer_path": settings.model,
            "context_length": settings.max_model_len,
            "tp_size": 1,
            "pp_size": 1,
            "dp_size": app.worker.ranks(),
            "page_size": page_size,
            "block_size": page_size,
            "max_running_requests": max_running,
            "max_total_num_tokens": tokens,
            "max_req_input_len": settings.max_model_len,
            "disable_radix_cache": !radix,
            "disable_overlap_schedule": !overlap,
            "disaggregation_mode": bootstrap::mode(&app),
            "disaggregation_bootstrap_port": bootstrap::port(&app),
            "kv_events": kv_events(&app, page_size),
            "internal_states": states,
            "startup_time": 0.0,
            "version": settings.version,
            "frontend": "python",
        }),
    )
}

/// `GET /v1/loads`.
pub async fn loads(State(app): State<Arc<App>>) -> Response<Body> {
    let page = match app.worker.engine() {
        RankConfig::Sglang(config) => (config.page_size, config.max_running_requests),
        RankConfig::Vllm(config) => (config.block_size, config.max_num_seqs),
        RankConfig::Trtllm(config) => (config.block_size, config.max_batch_size),
    };
    let ranks: Vec<Value> = (0u32..)
        .zip(app.worker.stats())
        .map(|(rank, stats)| {
            let used = u64::from(stats.used_blocks) * u64::from(page.0);
            let total = u64::from(stats.usable_blocks) * u64::from(page.0);
            let usage = used as f64 / total.max(1) as f64;
            let hit_rate = stats.prefix_hits as f64 / stats.prefix_queries.max(1) as f64;
            json!({
                "dp_rank": rank,
                "num_running_reqs": stats.running,
                "num_waiting_reqs": stats.waiting,
                "num_total_reqs": stats.running + stats.waiting,
                "num_used_tokens": used,
                "num_total_tokens": used,
                "max_total_num_tokens": total,
                "max_running_requests": page.1,
                "token_usage": usage,
                "cache_hit_rate": hit_rate,
                "utilization": stats.running as f64 / f64::from(page.1.max(1)),
                "disaggregation": {
                    "mode": bootstrap::mode(&app),
                    "prefill_bootstrap_queue_reqs": stats.hand_offs.bootstrapping,
                    "prefill_inflight_queue_reqs": stats.hand_offs.sending,
                    "decode_prealloc_queue_reqs": stats.hand_offs.preallocating,
                    "decode_transfer_queue_reqs": stats.hand_offs.receiving,
                    "decode_retracted_queue_reqs": stats.hand_offs.retracted,
                },
            })
        })
        .collect();
    let now = super::app::unix_seconds();
    json_response(
        StatusCode::OK,
        &json!({"timestamp": now, "version": app.settings.version, "dp_rank_count": ranks.len(), "loads": ranks}),
    )
}

/// What `/abort_request` is asked.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Abort {
    rid: Option<String>,
    abort_all: Option<bool>,
}

/// `POST /abort_request`: ends the requests whose name begins so, or all.
pub async fn abort(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Response<Body> {
    let asked: Abort = match body::json(&app, &headers, body).await {
        Ok(asked) => asked,
        Err(error) => return error.response(app.settings.dialect),
    };
    match (asked.abort_all, asked.rid.as_deref().filter(|rid| !rid.is_empty())) {
        (Some(true), _) => app.abort(""),
        (_, Some(rid)) => app.abort(rid),
        _ => return ApiError::form("one of rid and abort_all is needed").response(app.settings.dialect),
    }
    Response::new(Body::empty())
}

/// `GET` or `POST /flush_cache`: empties the prefix cache, unless something is at work.
pub async fn flush_cache(State(app): State<Arc<App>>) -> Response<Body> {
    let flushed = app.reset_cache().await;
    let mut response = Response::new(Body::from(match flushed {
        true => "Cache flushed.\n",
        false => "Flush cache failed: requests are running or waiting.\n",
    }));
    if !flushed {
        *response.status_mut() = StatusCode::BAD_REQUEST;
    }
    response
}

/// Where subscribers find the KV events of all ranks (srt/runtime_context.py `describe_kv_events_publisher`, 0.5.23):
/// the address of the first, and the ports of the others behind it.
fn kv_events(app: &App, page_size: u32) -> Value {
    let Some(first) = app.kv_event_sources.get("0") else { return Value::Null };
    let parts = |key: &str| {
        let endpoint = Endpoint::parse(first[key].as_str()?).ok()?;
        (endpoint.port != 0).then_some(endpoint)
    };
    let Some(endpoint) = parts("endpoint") else { return Value::Null };
    let mut described = json!({
        "publisher": "zmq",
        "endpoint_host": endpoint.host,
        "endpoint_port_base": endpoint.port,
        "topic": first["topic"],
        "block_size": page_size,
        "dp_size": app.kv_event_sources.len(),
    });
    if let Some(replay) = parts("replay_endpoint") {
        described["replay_endpoint_port_base"] = replay.port.into();
    }
    described
}
