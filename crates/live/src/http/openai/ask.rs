//! From a request's fields to what the engine is asked: checks, prompts, bounds.

use super::Endpoint;
use super::request::{ChatMessage, Content, OneOrMany, OpenAiRequest, Prompt};
use super::{logprobs, tools};
use crate::http::app::App;
use crate::http::bootstrap::{self, RoomFields};
use crate::http::disaggregated::{self, Part};
use crate::http::error::{ApiError, Dialect};
use crate::http::form::Object;
use crate::http::generation::{Ask, PromptTokens};
use crate::http::kv_transfer;
use crate::kv_transfer::Remote;
use crate::text::{Chat, Limits, Message, Ordered};
use crate::traces::{Parent, Traced};
use axum::http::{HeaderMap, StatusCode};
use minijinja::value::ValueKind;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Choices of one request at most, and prompts.
const MOST_CHOICES: u32 = 128;
const MOST_PROMPTS: usize = 4096;
/// `max_tokens` of a completion that does not say.
const DEFAULT_COMPLETION: i64 = 16;

/// Checks a request and makes of it what the engine is asked.
pub fn ask(
    app: &App,
    request: &OpenAiRequest,
    headers: &HeaderMap,
    endpoint: Endpoint,
    id: &str,
) -> Result<Ask, ApiError> {
    refuse_unserved(request)?;
    check_sampling(request)?;
    logprobs::check(request, endpoint, app.settings.dialect)?;
    let choices = request.n.unwrap_or(1);
    if !(1..=MOST_CHOICES).contains(&choices) {
        return Err(ApiError::field("n", format!("n is {choices}, allowed is 1 to {MOST_CHOICES}")));
    }
    let prompts = prompts(app, request, endpoint)?;
    let max_tokens = max_tokens(app, request, endpoint)?;
    let min_tokens = whole("min_tokens", request.min_tokens.unwrap_or(0), 0)?;
    if max_tokens.is_some_and(|most| min_tokens > most) {
        let message = format!("min_tokens is {min_tokens}, more than max_tokens");
        return Err(ApiError::field("min_tokens", message));
    }
    let stop = request.stop.as_ref().map(OneOrMany::list).unwrap_or_default();
    if stop.iter().any(String::is_empty) {
        return Err(ApiError::field("stop", "a stop string is empty"));
    }
    if request.cache_salt.as_deref() == Some("") {
        return Err(ApiError::field("cache_salt", "cache_salt is empty"));
    }
    let part = disaggregated::asked(app, request.disaggregated_params.as_ref())?;
    if part == Part::Context && request.stream == Some(true) {
        return Err(ApiError::field("disaggregated_params", "what is context_only does not stream"));
    }
    let remotes = remotes(app, request, headers, (choices, prompts.len()), &part)?;
    let first = match part {
        Part::Generation(_, tokens) => tokens,
        Part::Whole | Part::Context => Vec::new(),
    };
    let tool_call = match endpoint {
        Endpoint::Chat => tools::wanted(request.tools.as_ref(), request.tool_choice.as_ref())?,
        Endpoint::Completions => None,
    };
    Ok(Ask {
        name: id.to_owned(),
        prompts,
        choices,
        max_tokens,
        limits: Limits {
            max_tokens: 0,
            min_tokens,
            ignore_eos: request.ignore_eos == Some(true),
            stop,
            stop_token_ids: request.stop_token_ids.clone().unwrap_or_default(),
            include_stop: match app.settings.dialect {
                Dialect::Sglang => request.no_stop_trim == Some(true),
                Dialect::Vllm | Dialect::Trtllm => request.include_stop_str_in_output == Some(true),
            },
            skip_special: request.skip_special_tokens != Some(false),
        },
        streaming: request.stream == Some(true),
        seed: request.seed.map(|seed| seed as u64),
        priority: request.priority,
        cache_salt: request.cache_salt.clone(),
        lora: app.lora(request.model.as_deref()),
        dp_rank: dp_rank(headers)?,
        session: session(request.session_id.as_deref(), headers),
        remotes,
        first,
        tool_call,
        replay: replay(app, request.nvext.as_ref())?,
        traced: app.traces.then(|| traced(app, request, headers, endpoint)),
    })
}

/// What each prompt has to do with the KV of other workers, as the request tells it in its engine's way.
fn remotes(
    app: &App,
    request: &OpenAiRequest,
    headers: &HeaderMap,
    (choices, prompts): (u32, usize),
    part: &Part,
) -> Result<Vec<Remote>, ApiError> {
    let rooms = RoomFields {
        host: request.bootstrap_host.as_ref(),
        port: request.bootstrap_port.as_ref(),
        room: request.bootstrap_room.as_ref(),
    };
    let remotes = bootstrap::asked(app, &rooms, headers, (choices, prompts))?;
    if !remotes.is_empty() {
        return Ok(remotes);
    }
    let (field, remote) = match part.remote() {
        Remote::None => ("kv_transfer_params", kv_transfer::asked(app, request.kv_transfer_params.as_ref())?),
        remote => ("disaggregated_params", remote),
    };
    if remote != Remote::None && (choices > 1 || prompts > 1) {
        let message = "KV of other workers is told for one prompt with one choice only";
        return Err(ApiError::field(field, message));
    }
    Ok(vec![remote])
}

fn refuse_unserved(request: &OpenAiRequest) -> Result<(), ApiError> {
    let refuse = |field: &str, what: &str| {
        let error = ApiError::new(StatusCode::NOT_IMPLEMENTED, format!("{what} cannot be simulated"));
        Err(ApiError { param: Some(field.into()), ..error })
    };
    let in_kwargs = |name: &str| {
        let given = request.chat_template_kwargs.as_ref().and_then(|kwargs| kwargs.get_attr(name).ok());
        given.is_some_and(|value| !value.is_undefined() && !value.is_none())
    };
    if request.chat_template.is_some() || in_kwargs("chat_template") {
        let message = "chat templates of requests are not trusted; --chat-template is the server's";
        return Err(ApiError::field("chat_template", message));
    }
    // vLLM 0.33: what `apply_chat_template` is told already (renderers/hf.py).
    if let Some(name) = ["messages", "conversation", "tokenize"].into_iter().find(|name| in_kwargs(name)) {
        let message = format!("chat_template_kwargs: {name} is not for requests to set");
        return Err(ApiError::field("chat_template_kwargs", message));
    }
    if request.use_beam_search == Some(true) {
        return refuse("use_beam_search", "beam search");
    }
    if request.suffix.as_deref().is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::field("suffix", "suffix is not served"));
    }
    if request.structured_outputs.as_ref().is_some_and(|value| !value.is_null()) {
        return refuse("structured_outputs", "a grammar");
    }
    let format = request.response_format.as_ref().and_then(|format| format.get("type")?.as_str());
    if format.is_some_and(|format| format != "text") {
        return refuse("response_format", "a format other than text");
    }
    Ok(())
}

fn check_sampling(request: &OpenAiRequest) -> Result<(), ApiError> {
    if let Some(temperature) = request.temperature.filter(|t| *t < 0.0 || !t.is_finite()) {
        let message = format!("temperature is {temperature}, allowed is 0 or more");
        return Err(ApiError::field("temperature", message));
    }
    if let Some(top_p) = request.top_p.filter(|p| !(*p > 0.0 && *p <= 1.0)) {
        let message = format!("top_p is {top_p}, allowed is above 0 to 1");
        return Err(ApiError::field("top_p", message));
    }
    if request.stream_options.is_some() && request.stream != Some(true) {
        return Err(ApiError::field("stream_options", "stream_options needs stream: true"));
    }
    Ok(())
}

fn max_tokens(app: &App, request: &OpenAiRequest, endpoint: Endpoint) -> Result<Option<u32>, ApiError> {
    let (field, asked) = match (endpoint, request.max_completion_tokens) {
        (Endpoint::Chat, Some(tokens)) => ("max_completion_tokens", Some(tokens)),
        (Endpoint::Chat, None) => ("max_tokens", request.max_tokens),
        (Endpoint::Completions, _) => ("max_tokens", Some(request.max_tokens.unwrap_or(DEFAULT_COMPLETION))),
    };
    let Some(asked) = asked else { return Ok(None) };
    let tokens = whole(field, asked, 1)?;
    let context = app.settings.max_model_len;
    if tokens > context {
        let message = format!("{field} is {tokens}, more than the context length of {context}");
        return Err(ApiError::field(field, message));
    }
    Ok(Some(tokens))
}

fn whole(field: &str, value: i64, least: i64) -> Result<u32, ApiError> {
    match u32::try_from(value) {
        Ok(number) if value >= least => Ok(number),
        _ => Err(ApiError::field(field, format!("{field} is {value}, allowed is {least} or more"))),
    }
}

/// The conversation that a request belongs to: its field, or what aiperf says in a header.
pub fn session(named: Option<&str>, headers: &HeaderMap) -> Option<String> {
    let header = headers.get("x-session-affinity").and_then(|value| value.to_str().ok());
    named.or(header).filter(|name| !name.is_empty()).map(str::to_owned)
}

/// What the span of a request says beside what its engine knows.
fn traced(app: &App, request: &OpenAiRequest, headers: &HeaderMap, endpoint: Endpoint) -> Traced {
    // vLLM numbers the prompts of completions.
    let numbered = app.settings.dialect == Dialect::Vllm && endpoint == Endpoint::Completions;
    // SGLang's OpenAI endpoints set what is not given.
    let usual = (app.settings.dialect == Dialect::Sglang).then_some(1.0);
    Traced {
        parent: Parent::of(headers),
        temperature: request.temperature.or(usual),
        top_p: request.top_p.or(usual),
        prompt: numbered.then_some(0),
    }
}

/// The reply of the trace that a request asks for, in Dynamo's way: `nvext.annotations` has `output_replay_id:KEY`.
fn replay(app: &App, nvext: Option<&Value>) -> Result<Option<Arc<[u32]>>, ApiError> {
    let Some(replays) = &app.settings.replays else { return Ok(None) };
    let annotations = nvext.and_then(|nvext| nvext.get("annotations")).and_then(Value::as_array);
    let mut texts = annotations.into_iter().flatten().filter_map(Value::as_str);
    let Some(key) = texts.find_map(|text| text.strip_prefix("output_replay_id:")) else { return Ok(None) };
    let found = replays.tokens(key).cloned();
    let unknown = || ApiError::field("nvext", format!("the trace has no reply with the key \"{key}\""));
    found.map(Some).ok_or_else(unknown)
}

/// The rank that a router names.
fn dp_rank(headers: &HeaderMap) -> Result<Option<u32>, ApiError> {
    let Some(value) = headers.get("x-data-parallel-rank") else { return Ok(None) };
    let rank = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    rank.map(Some).ok_or_else(|| ApiError::form("x-data-parallel-rank is not a number of a rank"))
}

/// The prompts as tokens, each with what an echo says.
pub fn prompts(
    app: &App,
    request: &OpenAiRequest,
    endpoint: Endpoint,
) -> Result<Vec<PromptTokens>, ApiError> {
    let mut prompts = match endpoint {
        Endpoint::Completions => completion_prompts(app, request)?,
        Endpoint::Chat => vec![chat_prompt(app, request)?],
    };
    if let Some(keep) = request.truncate_prompt_tokens {
        let keep = match keep {
            -1 => app.settings.max_model_len as usize - 1,
            keep => whole("truncate_prompt_tokens", keep, 1)? as usize,
        };
        for PromptTokens { tokens: prompt, .. } in &mut prompts {
            prompt.drain(..prompt.len().saturating_sub(keep));
        }
    }
    let vocabulary = app.tokenizer.vocabulary();
    for PromptTokens { tokens: prompt, .. } in &prompts {
        if prompt.is_empty() {
            return Err(ApiError::field("prompt", "the prompt is empty"));
        }
        if let Some(token) = prompt.iter().find(|token| **token >= vocabulary) {
            let message = format!("token {token} does not exist, the vocabulary has {vocabulary}");
            return Err(ApiError::field("prompt", message));
        }
    }
    Ok(prompts)
}

/// The prompts of a completion.
pub fn completion_prompts(app: &App, request: &OpenAiRequest) -> Result<Vec<PromptTokens>, ApiError> {
    let framed = request.add_special_tokens != Some(false);
    let truncated = request.truncate_prompt_tokens.is_some();
    let text = |text: &String| {
        let said = app.prompt_of(text, truncated)?;
        Ok(PromptTokens { tokens: frame(app, &said, framed), echo: said })
    };
    let tokens = |tokens: &Vec<u32>| PromptTokens { tokens: tokens.clone(), echo: tokens.clone() };
    let prompts: Vec<_> = match &request.prompt {
        None => return Err(ApiError::form("prompt is missing")),
        Some(Prompt::Text(one)) => vec![text(one)?],
        Some(Prompt::Tokens(one)) => vec![tokens(one)],
        Some(Prompt::Texts(all)) => all.iter().map(text).collect::<Result<_, ApiError>>()?,
        Some(Prompt::TokenLists(all)) => all.iter().map(tokens).collect(),
    };
    if prompts.is_empty() || prompts.len() > MOST_PROMPTS {
        let message = format!("{} prompts, allowed is 1 to {MOST_PROMPTS}", prompts.len());
        return Err(ApiError::field("prompt", message));
    }
    Ok(prompts)
}

fn chat_prompt(app: &App, request: &OpenAiRequest) -> Result<PromptTokens, ApiError> {
    let messages = messages(request.messages.as_deref())?;
    let (generate, go_on) =
        (request.add_generation_prompt != Some(false), request.continue_final_message == Some(true));
    if go_on && request.add_generation_prompt == Some(true) {
        let message = "continue_final_message and add_generation_prompt exclude each other";
        return Err(ApiError::field("continue_final_message", message));
    }
    let whole: Vec<&Ordered> = request.messages.iter().flatten().map(|message| &message.whole).collect();
    if request.chat_template_kwargs.as_ref().is_some_and(|given| !given.is_none() && !is_object(given)) {
        let message = "chat_template_kwargs is not an object";
        return Err(ApiError::field("chat_template_kwargs", message));
    }
    for (field, given) in [("documents", &request.documents), ("tools", &request.tools)] {
        if given.as_ref().is_some_and(|given| !given.is_none() && !are_objects(given)) {
            return Err(ApiError::field(field, format!("{field} is not a list of objects")));
        }
    }
    let tools = request.tools.as_ref().into_iter().filter_map(|tools| tools.try_iter().ok()).flatten();
    let mut functions = tools.filter_map(|tool| tool.get_attr("function").ok());
    if functions.any(|function| !function.is_undefined() && !is_object(&function)) {
        return Err(ApiError::field("tools", "the function of a tool is not an object"));
    }
    let chat = Chat {
        messages: &messages,
        whole: &whole,
        tools: request.tools.as_ref().filter(|tools| tools.is_true()),
        documents: request.documents.as_ref().filter(|documents| !documents.is_none()),
        kwargs: request.chat_template_kwargs.as_ref(),
        generate: generate && !go_on,
        go_on,
    };
    let prompt = app.template.render(&chat).map_err(ApiError::form)?;
    let tokens = app.prompt_of(&prompt, request.truncate_prompt_tokens.is_some())?;
    let tokens = frame(app, &tokens, request.add_special_tokens == Some(true));
    let user = messages.iter().rev().find(|message| message.role == "user").or(messages.last());
    let said = user.filter(|_| app.reply.answers()).map_or("", |message| message.content.as_str());
    // Who has the KV of a prompt knows its tokens.
    let known = request.prompt_token_ids.as_ref().filter(|_| app.settings.dialect == Dialect::Trtllm);
    let tokens = known.cloned().unwrap_or(tokens);
    Ok(PromptTokens { tokens, echo: app.tokens_of(said)? })
}

fn is_object(value: &Ordered) -> bool {
    value.kind() == ValueKind::Map
}

fn are_objects(value: &Ordered) -> bool {
    value.kind() == ValueKind::Seq && value.try_iter().is_ok_and(|mut all| all.all(|item| is_object(&item)))
}

/// Tokens with what the tokenizer puts around a prompt, if that is asked for.
pub fn frame(app: &App, tokens: &[u32], framed: bool) -> Vec<u32> {
    let (before, behind) = if framed { app.tokenizer.frame() } else { (&[][..], &[][..]) };
    [before, tokens, behind].concat()
}

/// Messages with their parts joined.
pub fn messages(messages: Option<&[ChatMessage]>) -> Result<Vec<Message>, ApiError> {
    let Some(messages) = messages else { return Err(ApiError::form("messages is missing")) };
    if messages.is_empty() {
        return Err(ApiError::field("messages", "messages is empty"));
    }
    let joined = messages.iter().enumerate().map(|(at, message)| {
        let message = &message.fields;
        let content = match &message.content {
            None => String::new(),
            Some(Content::Text(text)) => text.clone(),
            Some(Content::Parts(parts)) => {
                let mut texts = Vec::new();
                for Object(part) in parts {
                    match (part.kind.as_deref(), &part.text) {
                        (Some("text" | "input_text" | "output_text") | None, Some(text)) => {
                            texts.push(text.as_str());
                        }
                        (kind, _) => {
                            let kind = kind.unwrap_or("without a type");
                            let message = format!("messages[{at}]: a part {kind}, allowed is text");
                            return Err(ApiError::field("messages", message));
                        }
                    }
                }
                texts.join("\n")
            }
        };
        let wrong = |call: &Map<String, Value>| match call.get("function") {
            // Of the assistant's calls vLLM 0.33 takes those of functions only (renderers/chat_utils/chat_message.py).
            None => message.role == "assistant",
            Some(function) => !function.is_object(),
        };
        if message.tool_calls.as_ref().is_some_and(|calls| calls.iter().any(wrong)) {
            let message = format!("messages[{at}]: a call without a function that is an object");
            return Err(ApiError::field("messages", message));
        }
        let calls = message.tool_calls.as_ref().filter(|calls| !calls.is_empty());
        let calls =
            calls.map_or_else(String::new, |calls| format!("<tool_call>{}</tool_call>", json!(calls)));
        Ok(Message { role: message.role.clone(), content, calls })
    });
    joined.collect()
}
