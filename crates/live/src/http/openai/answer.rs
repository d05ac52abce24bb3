//! The answers of both endpoints, whole and in chunks (vLLM 0.33.0, entrypoints/openai/{completion,
//! chat_completion}/serving.py).

use super::Endpoint;
use super::request::OpenAiRequest;
use super::{ToolCall, logprobs, tools};
use crate::http::app::{App, unix_seconds};
use crate::http::error::{ApiError, Dialect};
use crate::http::form::Object;
use crate::http::generation::{Ask, Choice, Generation, News};
use crate::http::{disaggregated, kv_transfer};
use crate::text::StopReason;
use serde_json::{Map, Value, json};

/// What an answer looks like.
#[derive(Clone, Debug)]
pub struct Shape {
    pub(super) endpoint: Endpoint,
    pub(super) id: String,
    pub(super) model: String,
    pub(super) created: u64,
    pub(super) include_usage: bool,
    pub(super) continuous_usage: bool,
    pub(super) token_ids: bool,
    pub(super) logprobs: Option<u32>,
    cached_in_usage: bool,
    /// What thoughts are called in a message, if they are shown.
    reasoning: Option<&'static str>,
    /// The call that the reply is.
    pub(super) tool_call: Option<ToolCall>,
    /// What stands before the replies: of each prompt that, or the message that is continued.
    echo: Vec<String>,
    /// Log probabilities of the prompts.
    prompt_logprobs: Option<u32>,
    /// Choices of a prompt.
    per_prompt: u32,
}

impl Shape {
    /// The shape of the answer to a request.
    ///
    /// # Errors
    /// What is wrong with its messages.
    pub fn new(
        app: &App,
        request: &OpenAiRequest,
        ask: &Ask,
        (endpoint, id, model): (Endpoint, String, String),
    ) -> Result<Shape, ApiError> {
        let Object(options) = request.stream_options.unwrap_or_default();
        let include_usage = options.include_usage == Some(true);
        let echo = match endpoint {
            _ if request.echo != Some(true) => Vec::new(),
            Endpoint::Completions => {
                ask.prompts.iter().map(|prompt| app.tokenizer.decode(&prompt.tokens, false)).collect()
            }
            Endpoint::Chat => {
                let last = super::ask::messages(request.messages.as_deref())?.pop();
                last.into_iter().filter(|last| last.role == "assistant").map(|last| last.content).collect()
            }
        };
        Ok(Shape {
            endpoint,
            id,
            model,
            created: unix_seconds(),
            include_usage,
            continuous_usage: include_usage && options.continuous_usage_stats == Some(true),
            token_ids: request.return_token_ids == Some(true),
            logprobs: logprobs::wanted(request, endpoint),
            cached_in_usage: app.settings.cached_in_usage,
            // H17: vLLM has renamed it, SGLang has not.
            reasoning: match app.settings.dialect {
                _ if request.include_reasoning == Some(false) => None,
                Dialect::Vllm => Some("reasoning"),
                Dialect::Sglang | Dialect::Trtllm => Some("reasoning_content"),
            },
            // Asked for in the same words before.
            tool_call: match endpoint {
                Endpoint::Chat => {
                    tools::wanted(request.tools.as_ref(), request.tool_choice.as_ref()).ok().flatten()
                }
                Endpoint::Completions => None,
            },
            echo,
            prompt_logprobs: logprobs::wanted_of_prompt(request, endpoint, app.settings.dialect),
            per_prompt: ask.choices,
        })
    }

    /// Bytes of the whole answer, roughly.
    pub fn expected(&self, generation: &Generation) -> usize {
        let (prompt, reply) = (generation.prompt_tokens(), generation.completion_tokens());
        let told = if self.prompt_logprobs.is_some() { prompt + reply } else { reply };
        let alternatives = self.logprobs.max(self.prompt_logprobs).map_or(0, |count| u64::from(count) + 1);
        let echo: usize = self.echo.iter().map(String::len).sum();
        usize::try_from(told * (4 + 32 * alternatives)).unwrap_or(usize::MAX).saturating_add(echo)
    }

    /// What stands before the text of a choice.
    pub(super) fn before(&self, choice: &Choice) -> Option<&str> {
        let prompt = match self.endpoint {
            Endpoint::Completions => choice.index / self.per_prompt.max(1),
            Endpoint::Chat => 0,
        };
        self.echo.get(prompt as usize).map(String::as_str)
    }

    /// Of what is new of a choice, and of its prompt if that is told with its first tokens. `offset` is where the texts of
    /// the tokens end that were told before.
    pub(super) fn logprobs(
        &self,
        generation: &Generation,
        choice: &Choice,
        news: (u32, u32),
        (first, offset): (bool, &mut usize),
    ) -> Value {
        let Some(count) = self.logprobs else { return Value::Null };
        let tokenizer = generation.app().tokenizer.as_ref();
        let tokens = &choice.plan.tokens[news.0 as usize..news.1 as usize];
        match self.endpoint {
            Endpoint::Chat => logprobs::chat(tokenizer, tokens, count),
            Endpoint::Completions => {
                let echoed = first && !self.echo.is_empty();
                let prompt = if echoed { &choice.info().prompt[..] } else { &[] };
                logprobs::completion(tokenizer, (prompt, tokens), count, offset)
            }
        }
    }

    /// Of the prompt of a choice.
    fn prompt_logprobs(&self, generation: &Generation, choice: &Choice) -> Value {
        let tokenizer = generation.app().tokenizer.as_ref();
        let count = self.prompt_logprobs;
        count.map_or(Value::Null, |count| logprobs::prompt(tokenizer, &choice.info().prompt, count))
    }

    /// `usage` of so many tokens.
    pub(super) fn usage(&self, prompt: u64, completion: u64, cached: Option<u32>) -> Value {
        let cached = cached.filter(|_| self.cached_in_usage);
        json!({
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": cached.map(|cached| json!({"cached_tokens": cached})),
        })
    }

    /// `usage` of the whole request.
    pub(super) fn whole_usage(&self, generation: &Generation) -> Value {
        let (prompt, completion) = (generation.prompt_tokens(), generation.completion_tokens());
        let mut usage = self.usage(prompt, completion, Some(generation.cached_tokens()));
        let thoughts: u64 =
            generation.choices().iter().map(|c| u64::from(c.plan.thinking().min(c.sent_tokens()))).sum();
        if thoughts > 0 {
            usage["completion_tokens_details"] = json!({"reasoning_tokens": thoughts});
        }
        usage
    }

    /// A piece of a reply as the fields of a message or a delta: what of it is thought, and what is said.
    fn said(&self, choice: &Choice, from: usize, to: usize) -> Map<String, Value> {
        let cut = choice.plan.thought().clamp(from, to);
        let mut fields = Map::new();
        if let Some(name) = self.reasoning.filter(|_| cut > from) {
            fields.insert(name.into(), choice.plan.text(from, cut).into());
        }
        if cut < to || cut == from {
            fields.insert("content".into(), choice.plan.text(cut, to).into());
        }
        fields
    }

    /// The end as the client is told: that a tool is called, where one is (vLLM: not where the client named it).
    fn finish(
        &self,
        choice: &Choice,
        finish: Option<&'static str>,
        dialect: Dialect,
    ) -> Option<&'static str> {
        let calls = self.tool_call.as_ref().is_some_and(|call| !(call.named && dialect == Dialect::Vllm));
        let ended = choice.stop_reason().is_none() && finish == Some("stop");
        if calls && ended { Some("tool_calls") } else { finish }
    }

    /// The answer in one.
    pub fn whole(&self, generation: &Generation) -> Value {
        let choices: Vec<Value> =
            generation.choices().iter().map(|choice| self.whole_choice(generation, choice)).collect();
        let mut answer = json!({
            "id": self.id,
            "object": match self.endpoint {
                Endpoint::Completions => "text_completion",
                Endpoint::Chat => "chat.completion",
            },
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "service_tier": null,
            "system_fingerprint": null,
            "usage": self.whole_usage(generation),
            "kv_transfer_params": kv_transfer::answered(generation),
        });
        if let Some(params) = disaggregated::answered(generation) {
            answer["choices"][0]["disaggregated_params"] = params;
            answer["prompt_token_ids"] = generation.choices()[0].info().prompt.to_vec().into();
            return answer;
        }
        if self.endpoint == Endpoint::Chat {
            let first = generation.choices().first();
            answer["prompt_logprobs"] =
                first.map_or(Value::Null, |choice| self.prompt_logprobs(generation, choice));
            answer["prompt_token_ids"] = match generation.choices().first().filter(|_| self.token_ids) {
                Some(choice) => choice.info().prompt.to_vec().into(),
                None => Value::Null,
            };
        }
        answer
    }

    fn whole_choice(&self, generation: &Generation, choice: &Choice) -> Value {
        let mut text = self.before(choice).unwrap_or_default().to_owned();
        text.push_str(choice.text());
        let given = &choice.plan.tokens[..choice.sent_tokens() as usize];
        let ids: Value = if self.token_ids { given.to_vec().into() } else { Value::Null };
        let mut answer = json!({
            "index": choice.index,
            "logprobs": self.logprobs(generation, choice, (0, choice.sent_tokens()), (true, &mut 0)),
            "finish_reason": self.finish(choice, choice.finish(), generation.app().settings.dialect),
            "stop_reason": stop_reason(choice),
            "token_ids": ids,
        });
        match self.endpoint {
            Endpoint::Chat => {
                let mut message = json!({
                    "role": "assistant", "content": null, "refusal": null, "annotations": null, "audio": null,
                    "function_call": null, "reasoning": null,
                });
                match &self.tool_call {
                    Some(call) => {
                        message["content"] = "".into();
                        message["tool_calls"] = json!([{
                            "id": call.id(&self.id, choice.index),
                            "type": "function",
                            "function": {"name": call.name, "arguments": text},
                        }]);
                    }
                    None => {
                        let before = text.len() - choice.text().len();
                        for (name, value) in self.said(choice, 0, choice.text().len()) {
                            message[name] = value;
                        }
                        if let Some(echo) = text.get(..before).filter(|echo| !echo.is_empty()) {
                            message["content"] =
                                format!("{echo}{}", message["content"].as_str().unwrap_or("")).into();
                        }
                    }
                }
                answer["message"] = message;
            }
            Endpoint::Completions => {
                answer["text"] = text.into();
                answer["prompt_logprobs"] = self.prompt_logprobs(generation, choice);
                answer["prompt_token_ids"] =
                    if self.token_ids { choice.info().prompt.to_vec().into() } else { Value::Null };
            }
        }
        answer
    }

    /// One chunk of a stream: what is new of one choice. `offset` is as for [`logprobs`](Self::logprobs).
    pub(super) fn chunk(
        &self,
        generation: &Generation,
        news: &News,
        (first, offset): (bool, &mut usize),
    ) -> Value {
        let choice = &generation.choices()[news.choice];
        let mut text = choice.plan.text(news.text.0, news.text.1).to_owned();
        if first && self.endpoint == Endpoint::Completions {
            text.insert_str(0, self.before(choice).unwrap_or_default());
        }
        let mut fields = Map::new();
        fields.insert("index".into(), news.index.into());
        match self.endpoint {
            Endpoint::Chat => {
                // The end may bring no text: then the delta is empty, as OpenAI's is.
                let silent = text.is_empty() && news.finish.is_some();
                let delta = match &self.tool_call {
                    _ if silent => json!({}),
                    Some(_) => json!({"tool_calls": [{"index": 0, "function": {"arguments": text}}]}),
                    None => self.said(choice, news.text.0, news.text.1).into(),
                };
                fields.insert("delta".into(), delta);
            }
            Endpoint::Completions => {
                fields.insert("text".into(), text.into());
            }
        }
        let logprobs = self.logprobs(generation, choice, news.tokens, (first, offset));
        fields.insert("logprobs".into(), logprobs);
        let finish = self.finish(choice, news.finish, generation.app().settings.dialect);
        fields.insert("finish_reason".into(), finish.into());
        if news.finish.is_some() {
            fields.insert("stop_reason".into(), stop_reason(choice));
        }
        if self.token_ids {
            let tokens = &choice.plan.tokens[news.tokens.0 as usize..news.tokens.1 as usize];
            fields.insert("token_ids".into(), tokens.to_vec().into());
            if first && self.endpoint == Endpoint::Completions {
                fields.insert("prompt_token_ids".into(), choice.info().prompt.to_vec().into());
            }
        }
        let usage = (choice.info().prompt.len() as u64, u64::from(news.tokens.1));
        let mut chunk = self.frame(vec![Value::Object(fields)], Some(usage));
        if news.finish.is_some() && choice.held().is_some() {
            chunk["kv_transfer_params"] = kv_transfer::answered(generation);
        }
        chunk
    }

    /// What stands around the choices of a chunk. `tokens` are those of the prompt and the reply so far.
    pub(super) fn frame(&self, choices: Vec<Value>, tokens: Option<(u64, u64)>) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": match self.endpoint {
                Endpoint::Completions => "text_completion",
                Endpoint::Chat => "chat.completion.chunk",
            },
            "created": self.created,
            "model": self.model,
            "choices": choices,
        });
        if self.include_usage {
            chunk["usage"] = match tokens.filter(|_| self.continuous_usage) {
                Some((prompt, completion)) => self.usage(prompt, completion, None),
                None => Value::Null,
            };
        }
        chunk
    }
}

fn stop_reason(choice: &Choice) -> Value {
    match choice.stop_reason() {
        Some(StopReason::Text(text)) => text.as_str().into(),
        Some(StopReason::Token(token)) => (*token).into(),
        None => Value::Null,
    }
}
