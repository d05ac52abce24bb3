//! Log probabilities: made up, but each token's is always the same, the chosen one is the likeliest, and their
//! form is the engine's.

use super::Endpoint;
use super::request::OpenAiRequest;
use crate::http::error::{ApiError, Dialect};
use crate::text::Tokenizer;
use serde_json::{Value, json};

/// Alternatives at most (vLLM `max_logprobs`).
const MOST: i64 = 20;

/// Checks the fields.
pub fn check(request: &OpenAiRequest, endpoint: Endpoint, dialect: Dialect) -> Result<(), ApiError> {
    // The others do not know the field.
    match request.prompt_logprobs.filter(|_| dialect == Dialect::Vllm) {
        None | Some(0) => {}
        Some(1..=MOST) if request.stream != Some(true) => {}
        Some(1..=MOST) => {
            return Err(ApiError::field("prompt_logprobs", "prompt_logprobs are not there in a stream"));
        }
        Some(number) => {
            let message = format!("prompt_logprobs is {number}, allowed is 0 to {MOST}");
            return Err(ApiError::field("prompt_logprobs", message));
        }
    }
    let (field, asked) = match endpoint {
        Endpoint::Completions => match &request.logprobs {
            None | Some(Value::Null) => return Ok(()),
            Some(value) => ("logprobs", value.as_i64()),
        },
        Endpoint::Chat => {
            if !matches!(request.logprobs, None | Some(Value::Null | Value::Bool(_))) {
                return Err(ApiError::form("logprobs is not true or false"));
            }
            let Some(asked) = request.top_logprobs else { return Ok(()) };
            if asked > 0 && request.logprobs != Some(Value::Bool(true)) {
                return Err(ApiError::field("top_logprobs", "top_logprobs needs logprobs: true"));
            }
            ("top_logprobs", Some(asked))
        }
    };
    match asked {
        Some(number) if (0..=MOST).contains(&number) => Ok(()),
        _ => Err(ApiError::field(field, format!("{field} must be a number from 0 to {MOST}"))),
    }
}

/// Alternatives that a request wants, if it wants any logprobs.
pub fn wanted(request: &OpenAiRequest, endpoint: Endpoint) -> Option<u32> {
    let number = match (endpoint, &request.logprobs) {
        (Endpoint::Completions, Some(value)) => value.as_i64()?,
        (Endpoint::Chat, Some(Value::Bool(true))) => request.top_logprobs.unwrap_or(0),
        _ => return None,
    };
    u32::try_from(number).ok()
}

/// The same of its prompt, of vLLM: what it says, or with `echo` those of the reply.
pub fn wanted_of_prompt(request: &OpenAiRequest, endpoint: Endpoint, dialect: Dialect) -> Option<u32> {
    if dialect != Dialect::Vllm {
        return None;
    }
    let echoed = || match endpoint {
        Endpoint::Completions => wanted(request, endpoint),
        Endpoint::Chat => request.top_logprobs.and_then(|number| u32::try_from(number).ok()),
    };
    match request.prompt_logprobs {
        Some(number) => u32::try_from(number).ok(),
        None if request.echo == Some(true) => echoed(),
        None => None,
    }
}

/// The likeliest tokens in place of `token`, itself the first.
fn numbers(tokenizer: &dyn Tokenizer, token: u32, count: u32) -> impl Iterator<Item = u32> {
    let vocabulary = u64::from(tokenizer.vocabulary());
    // Below the number of tokens, which is a `u32`.
    let other = move |step: u32| ((u64::from(token) + u64::from(step) * 97) % vocabulary) as u32;
    std::iter::once(token).chain((1..count.max(1)).map(other))
}

/// The same, each with its text.
fn alternatives(tokenizer: &dyn Tokenizer, token: u32, count: u32) -> Vec<(String, f64)> {
    let spread = f64::from(token % 50) / 100.0;
    numbers(tokenizer, token, count)
        .zip(0u32..)
        .map(|(other, rank)| (tokenizer.decode(&[other], false), -0.01 - spread - 2.5 * f64::from(rank)))
        .collect()
}

/// Of a prompt: for each token but the first those that could stand there, by their number (vLLM 0.33.0, logprobs.py).
pub fn prompt(tokenizer: &dyn Tokenizer, tokens: &[u32], count: u32) -> Value {
    let entry = |&token: &u32| {
        let numbers = numbers(tokenizer, token, count);
        let all = numbers.zip(alternatives(tokenizer, token, count)).zip(1_u32..);
        let by_number = all.map(|((number, (text, logprob)), rank)| {
            (number.to_string(), json!({"logprob": logprob, "rank": rank, "decoded_token": text}))
        });
        Value::Object(by_number.collect())
    };
    let others = tokens.iter().skip(1).map(entry);
    std::iter::once(Value::Null).chain(others).collect::<Vec<_>>().into()
}

/// For a chat: one entry for each token.
pub fn chat(tokenizer: &dyn Tokenizer, tokens: &[u32], count: u32) -> Value {
    let entry = |(text, logprob): &(String, f64)| json!({"token": text, "logprob": logprob, "bytes": text.as_bytes()});
    let content = tokens.iter().map(|&token| {
        let all = alternatives(tokenizer, token, count);
        let mut own = entry(&all[0]);
        let top: Vec<Value> = all.iter().take(count as usize).map(entry).collect();
        own["top_logprobs"] = top.into();
        own
    });
    json!({"content": content.collect::<Vec<_>>()})
}

/// For a completion: lists by token of its prompt, if that is told, and of its reply. `offset` is where the text of the
/// first begins, and then where that of the last ends (vLLM 0.33.0, entrypoints/openai/completion/serving.py).
pub fn completion(
    tokenizer: &dyn Tokenizer,
    (prompt, reply): (&[u32], &[u32]),
    count: u32,
    offset: &mut usize,
) -> Value {
    let (mut texts, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for (at, &token) in prompt.iter().chain(reply).enumerate() {
        let all = alternatives(tokenizer, token, count);
        offsets.push(*offset);
        *offset += all[0].0.chars().count();
        texts.push(all[0].0.clone());
        // Before the first token of a prompt there is nothing that it could be likely after.
        if at == 0 && !prompt.is_empty() {
            logprobs.push(Value::Null);
            tops.push(Value::Null);
            continue;
        }
        logprobs.push(all[0].1.into());
        let top = all.iter().map(|(text, logprob)| (text.clone(), json!(logprob)));
        tops.push(Value::Object(top.collect()));
    }
    json!({"text_offset": offsets, "token_logprobs": logprobs, "tokens": texts, "top_logprobs": tops})
}
