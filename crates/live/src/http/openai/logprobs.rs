//! Log probabilities: made up, but each token's is always the same, the chosen one is the likeliest, and their
//! form is the engine's.

use super::Endpoint;
use super::request::OpenAiRequest;
use crate::http::error::ApiError;
use crate::text::Tokenizer;
use serde_json::{Value, json};

/// Alternatives at most (vLLM `max_logprobs`).
const MOST: i64 = 20;

/// Checks the fields.
pub fn check(request: &OpenAiRequest, endpoint: Endpoint) -> Result<(), ApiError> {
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

/// The likeliest tokens in place of `token`, itself the first, each with its text.
fn alternatives(tokenizer: &dyn Tokenizer, token: u32, count: u32) -> Vec<(String, f64)> {
    let vocabulary = tokenizer.vocabulary();
    let others = (1..count.max(1)).map(|step| (token + step * 97) % vocabulary);
    let tokens = std::iter::once(token).chain(others);
    let spread = f64::from(token % 50) / 100.0;
    tokens
        .zip(0u32..)
        .map(|(other, rank)| (tokenizer.decode(&[other], false), -0.01 - spread - 2.5 * f64::from(rank)))
        .collect()
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

/// For a completion: lists by token. `offset` is where the text of the first begins.
pub fn completion(tokenizer: &dyn Tokenizer, tokens: &[u32], count: u32, mut offset: usize) -> Value {
    let (mut texts, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for &token in tokens {
        let all = alternatives(tokenizer, token, count);
        offsets.push(offset);
        offset += all[0].0.chars().count();
        texts.push(all[0].0.clone());
        logprobs.push(all[0].1);
        let top = all.iter().map(|(text, logprob)| (text.clone(), json!(logprob)));
        tops.push(Value::Object(top.collect()));
    }
    json!({"text_offset": offsets, "token_logprobs": logprobs, "tokens": texts, "top_logprobs": tops})
}
