//! The chunks of both OpenAI endpoints: who speaks, tokens, usage if it was asked for.
//!
//! The usual chunk, a token of text and nothing else, is written without a tree of values: at fifty thousand
//! tokens a second that is most of the work.

use super::Endpoint;
use super::answer::Shape;
use crate::http::generation::{Generation, News};
use crate::http::sse::{Frames, event};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::HashMap;

/// Chunks of one answer.
pub struct Chunks {
    shape: Shape,
    /// What stands before and behind the text of a plain chunk of choice 0.
    plain: Option<(String, String)>,
    /// Where the texts of the tokens end whose log probabilities were told, by choice.
    offsets: RefCell<HashMap<u32, usize>>,
}

impl Chunks {
    /// Those of an answer of this shape.
    pub fn new(shape: Shape) -> Chunks {
        let plain = plain(&shape);
        Chunks { shape, plain, offsets: RefCell::default() }
    }
}

impl Frames for Chunks {
    /// The chunk that says who speaks, for every choice of a chat.
    fn opening(&self, generation: &Generation, out: &mut String) {
        if self.shape.endpoint != Endpoint::Chat {
            return;
        }
        for choice in generation.choices() {
            let before = self.shape.before(choice);
            let first = json!({
                "index": choice.index, "delta": {"role": "assistant", "content": ""}, "logprobs": null,
                "finish_reason": null,
            });
            let usage = (choice.info().prompt.len() as u64, 0);
            let mut chunk = self.shape.frame(vec![first], Some(usage));
            if self.shape.token_ids {
                chunk["prompt_token_ids"] = choice.info().prompt.to_vec().into();
            }
            event(out, &chunk);
            if let Some(call) = &self.shape.tool_call {
                let called = json!({
                    "index": choice.index, "delta": {"tool_calls": [{
                        "index": 0, "id": call.id(&self.shape.id, choice.index), "type": "function",
                        "function": {"name": call.name, "arguments": ""},
                    }]}, "logprobs": null, "finish_reason": null,
                });
                event(out, &self.shape.frame(vec![called], Some(usage)));
            }
            if let Some(before) = before.filter(|before| !before.is_empty()) {
                let echo = json!({
                    "index": choice.index, "delta": {"content": before}, "logprobs": null, "finish_reason": null,
                });
                event(out, &self.shape.frame(vec![echo], Some(usage)));
            }
        }
    }

    fn chunk(&self, generation: &Generation, news: &News, first: bool, out: &mut String) {
        let choice = &generation.choices()[news.choice];
        match &self.plain {
            Some((before, behind))
                if news.finish.is_none()
                    && news.index == 0
                    && !first
                    && news.text.0 >= choice.plan.thought() =>
            {
                out.push_str(before);
                push_json(out, choice.plan.text(news.text.0, news.text.1));
                out.push_str(behind);
            }
            _ => {
                let mut offsets = self.offsets.borrow_mut();
                let offset = offsets.entry(news.index).or_default();
                event(out, &self.shape.chunk(generation, news, (first, offset)));
            }
        }
    }

    fn closing(&self, generation: &Generation, out: &mut String) {
        if self.shape.include_usage {
            let mut last = self.shape.frame(Vec::new(), None);
            last["usage"] = self.shape.whole_usage(generation);
            event(out, &last);
        }
    }
}

/// What stands before and behind the text of a chunk, where chunks differ in nothing else.
fn plain(shape: &Shape) -> Option<(String, String)> {
    if shape.continuous_usage || shape.token_ids || shape.logprobs.is_some() || shape.tool_call.is_some() {
        return None;
    }
    let choice = match shape.endpoint {
        Endpoint::Chat => {
            json!({"index": 0, "delta": {"content": "?"}, "logprobs": null, "finish_reason": null})
        }
        Endpoint::Completions => json!({"index": 0, "text": "?", "logprobs": null, "finish_reason": null}),
    };
    let mut text = String::new();
    event(&mut text, &shape.frame(vec![choice], None));
    // Quotes inside of names are escaped, so that this occurs once.
    let key = if shape.endpoint == Endpoint::Chat { "\"content\":" } else { "\"text\":" };
    let (before, behind) = text.split_once(&format!("{key}\"?\""))?;
    Some((format!("{before}{key}"), behind.to_owned()))
}

/// Appends a text as JSON.
fn push_json(out: &mut String, text: &str) {
    if text.bytes().all(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\') {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        out.push_str(&Value::from(text).to_string());
    }
}
