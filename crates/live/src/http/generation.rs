//! One HTTP request at work: its choices, each a request of the engine, and what there is of them so far.
//!
//! Whose wire format the answer has is not known here. Dropping it ends what is unfinished.

use super::app::App;
use super::bootstrap;
use super::disaggregated;
use super::error::{ApiError, Dialect};
use super::openai::ToolCall;
use super::relay::Unread;
use super::texts::untaken;
use crate::kv_events::hash::Adapter;
use crate::kv_transfer::Remote;
use crate::observer::{EndReason, RequestInfo, RequestTimes};
use crate::stream::{TokenStream, Verdict};
use crate::submission::{Stops, Submission};
use crate::text::{Limits, Plan, StopReason};
use crate::traces::Traced;
use crate::worker::RequestHandle;
use axum::http::StatusCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::Notify;
use windtunnel_engine::FinishReason;

/// A token's text, roughly.
const BYTES_PER_TOKEN: usize = 4;

/// One prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptTokens {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// What an echo says.
    pub echo: Vec<u32>,
}

/// What all choices of one HTTP request have in common.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// Its name on the wire.
    pub name: String,
    /// Prompts.
    pub prompts: Vec<PromptTokens>,
    /// Choices for each prompt.
    pub choices: u32,
    /// `max_tokens`, if given.
    pub max_tokens: Option<u32>,
    /// The other bounds; `max_tokens` in it is not read.
    pub limits: Limits,
    /// The client reads while it goes on.
    pub streaming: bool,
    /// Seed, if given.
    pub seed: Option<u64>,
    /// Priority, if given.
    pub priority: Option<i32>,
    /// Whose cache it may share.
    pub cache_salt: Option<String>,
    /// LoRA adapter.
    pub lora: Option<Arc<Adapter>>,
    /// The rank that shall serve it.
    pub dp_rank: Option<u32>,
    /// The conversation that it belongs to, for a router that goes by it.
    pub session: Option<String>,
    /// What each choice has to do with the KV of other workers; none where that is nothing.
    pub remotes: Vec<Remote>,
    /// What another worker has sampled of the reply.
    pub first: Vec<u32>,
    /// The tool that it calls, if it has to.
    pub tool_call: Option<ToolCall>,
    /// What it says, if that is a reply of a trace.
    pub replay: Option<Arc<[u32]>>,
    /// What only its spans say, if it has any.
    pub traced: Option<Traced>,
}

/// One choice.
pub struct Choice {
    /// Its number in the answer.
    pub index: u32,
    /// What it will say.
    pub plan: Plan,
    handle: RequestHandle,
    /// Prompt tokens that the worker which computed the prompt had cached.
    cached_elsewhere: Option<u32>,
    /// Tokens that the client has.
    sent_tokens: u32,
    /// Bytes of text that the client has.
    sent_text: usize,
    /// The client knows its end.
    closed: bool,
}

/// What is new of one choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// Its number in the answer.
    pub index: u32,
    /// Which of the choices it is.
    pub choice: usize,
    /// Tokens that are new: from, to.
    pub tokens: (u32, u32),
    /// Bytes of text that are new: from, to.
    pub text: (usize, usize),
    /// Why it ended, if it did.
    pub finish: Option<&'static str>,
}

/// One HTTP request at work.
pub struct Generation {
    app: Arc<App>,
    choices: Vec<Choice>,
    news: Arc<Notify>,
    /// Choices of each prompt.
    per_prompt: u32,
    /// What goes on as long as it does.
    beside: Option<tokio::task::JoinHandle<Result<(), ApiError>>>,
    /// What was computed for it before.
    behind: Option<Unread>,
}

impl Drop for Generation {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            beside.abort();
        }
        self.app.load.fetch_sub(1, Ordering::Relaxed);
        for choice in &self.choices {
            self.app.forget(choice.info().id);
        }
    }
}

impl Ask {
    /// One token, for whoever wants to know whether any comes.
    pub fn probe(name: String, remote: Remote) -> Ask {
        let prompt = PromptTokens { tokens: vec![0], echo: vec![0] };
        let remotes = vec![remote];
        Ask { name, prompts: vec![prompt], choices: 1, max_tokens: Some(1), remotes, ..Ask::default() }
    }
}

impl Generation {
    /// Plans and hands over all choices, and waits until none of them can be refused any more: until there is a
    /// first token, or an end.
    ///
    /// # Errors
    /// What the engine refuses, of any choice.
    pub async fn start(app: &Arc<App>, ask: Ask) -> Result<Generation, ApiError> {
        let generation = Generation::begin(app, ask).await?;
        generation.wait_for_first().await?;
        Ok(generation)
    }

    /// The same without waiting for the engine: [`next`](Self::next) has what is refused later.
    ///
    /// # Errors
    /// As [`start`](Self::start), at once.
    pub async fn begin(app: &Arc<App>, ask: Ask) -> Result<Generation, ApiError> {
        app.check_open()?;
        app.load.fetch_add(1, Ordering::Relaxed);
        let mut generation = Generation {
            app: app.clone(),
            choices: Vec::new(),
            news: Arc::new(Notify::new()),
            per_prompt: ask.choices,
            beside: None,
            behind: None,
        };
        let ask = Arc::new(ask);
        let own = ask.clone();
        let plans = app.work_on(expected(app, &ask), move |app| plans(app, &own)).await?;
        for (index, plan) in (0..).zip(plans) {
            generation.add(&ask, index, plan)?;
        }
        Ok(generation)
    }

    /// What a server would refuse about lengths, before anything is begun.
    ///
    /// # Errors
    /// A prompt that has no room in the context.
    pub fn check(app: &App, ask: &Ask) -> Result<(), ApiError> {
        ask.prompts.iter().try_for_each(|prompt| {
            let length = u32::try_from(prompt.tokens.len()).unwrap_or(u32::MAX);
            max_tokens(app.settings.max_model_len, length, ask.max_tokens).map(drop)
        })
    }

    /// The same, with something that goes on as long as it does.
    pub fn beside(mut self, task: tokio::task::JoinHandle<Result<(), ApiError>>) -> Generation {
        self.beside = Some(task);
        self
    }

    /// The same, holding what was computed for it before.
    pub(super) fn behind(mut self, unread: Unread) -> Generation {
        self.behind = Some(unread);
        self
    }

    /// Ends what is unfinished, as if its client had gone.
    pub(super) fn cancel(&self) {
        self.choices
            .iter()
            .for_each(|choice| self.app.worker.cancel(choice.handle.place(), choice.info().id));
    }

    /// Waits until all its choices have ended, however.
    pub(super) async fn ended(&self) {
        while self.choices.iter().any(|choice| choice.handle.stream().progress().verdict.is_none()) {
            self.news.notified().await;
        }
    }

    fn add(&mut self, ask: &Ask, index: u32, planned: Planned) -> Result<(), ApiError> {
        let app = &self.app;
        let Planned { prompt, max_tokens, plan } = planned;
        let info = RequestInfo {
            id: app.worker.next_id(),
            name: ask.name.clone(),
            prompt,
            output: plan.tokens.as_slice().into(),
            max_tokens,
            asked_max_tokens: ask.max_tokens,
            choices: ask.choices,
            streaming: ask.streaming,
            lora: ask.lora.clone(),
            cache_salt: ask.cache_salt.as_deref().map(Into::into),
            priority: ask.priority,
            traced: ask.traced.as_ref().map(|traced| {
                let prompt = traced.prompt.map(|_| index / ask.choices);
                Arc::new(Traced { prompt, ..traced.clone() })
            }),
            routed: None,
        };
        let id = info.id;
        let mut remote = ask.remotes.get(index as usize).cloned().unwrap_or_default();
        if app.settings.dialect == Dialect::Trtllm && remote == Remote::Hold && plan.ends_with(1) {
            // Nobody goes on with it.
            remote = Remote::None;
        }
        // vLLM finds stop strings where it makes text, the others where they make tokens.
        let outside = app.settings.dialect == Dialect::Vllm;
        let stream = Arc::new(TokenStream::with_notify(Arc::new(info), self.news.clone()));
        let submission = Submission::new(
            stream,
            Stops {
                stop_after: if outside { plan.stop_after } else { plan.abort_after.or(plan.stop_after) },
                abort_after: plan.abort_after.filter(|_| outside),
                ignore_eos: ask.limits.ignore_eos && (outside || plan.abort_after.is_none()),
            },
        )
        .with_remote(remote.clone())
        .with_session(ask.session.as_deref());
        let dp_rank = ask.dp_rank.or_else(|| bootstrap::rank(app, &remote));
        let handle = app.worker.submit(submission, dp_rank).map_err(ApiError::rejected)?;
        app.note(id, &ask.name, handle.place());
        let cached_elsewhere = match &remote {
            Remote::Pull(remote) => remote.cached_tokens,
            Remote::None | Remote::Hold | Remote::Meet(_) => None,
        };
        let choice =
            Choice { index, plan, handle, cached_elsewhere, sent_tokens: 0, sent_text: 0, closed: false };
        self.choices.push(choice);
        Ok(())
    }

    pub(super) async fn wait_for_first(&self) -> Result<(), ApiError> {
        loop {
            let mut begun = false;
            for choice in &self.choices {
                let progress = choice.handle.stream().progress();
                match progress.verdict {
                    Some(Verdict::Rejected(reason)) => return Err(ApiError::rejected(reason)),
                    Some(Verdict::Ended(EndReason::Failed, _)) => return Err(self.dead()),
                    Some(Verdict::Ended(EndReason::Finished(FinishReason::Error), _)) => {
                        return Err(failed());
                    }
                    _ => begun |= progress.tokens > 0 || progress.verdict.is_some(),
                }
            }
            if begun {
                return Ok(());
            }
            self.news.notified().await;
        }
    }

    fn dead(&self) -> ApiError {
        ApiError::dead(self.app.worker.dead().unwrap_or("it cannot tell why"))
    }

    /// The server that it runs on.
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Its choices.
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// What is new, once something is; nothing when all choices have ended.
    ///
    /// # Errors
    /// The engine died, or a choice was refused after another had begun.
    pub async fn next(&mut self) -> Result<Vec<News>, ApiError> {
        loop {
            let mut news = Vec::new();
            for (at, choice) in self.choices.iter_mut().enumerate() {
                news.extend(choice.news(at)?);
            }
            if !news.is_empty() || self.choices.iter().all(|choice| choice.closed) {
                return Ok(news);
            }
            self.news.notified().await;
        }
    }

    /// Waits until all choices have ended.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn finish(&mut self) -> Result<(), ApiError> {
        while !self.next().await?.is_empty() {}
        Ok(())
    }

    /// Tokens of the prompts, each counted once.
    pub fn prompt_tokens(&self) -> u64 {
        let prompts = self.choices.iter().step_by(self.per_prompt.max(1) as usize);
        prompts.map(|choice| choice.info().prompt.len() as u64).sum()
    }

    /// Output tokens that the client has.
    pub fn completion_tokens(&self) -> u64 {
        self.choices.iter().map(|choice| u64::from(choice.sent_tokens)).sum()
    }

    /// Prompt tokens of the first choice that were cached.
    pub fn cached_tokens(&self) -> u32 {
        self.choices.first().map_or(0, Choice::cached_tokens)
    }
}

impl Choice {
    fn news(&mut self, at: usize) -> Result<Option<News>, ApiError> {
        if self.closed {
            return Ok(None);
        }
        let progress = self.handle.stream().progress();
        let finish = match progress.verdict {
            None => None,
            Some(Verdict::Rejected(reason)) => return Err(ApiError::rejected(reason)),
            Some(Verdict::Ended(EndReason::Finished(FinishReason::Stop), _)) => Some("stop"),
            Some(Verdict::Ended(EndReason::Finished(FinishReason::Length), _)) => Some("length"),
            Some(Verdict::Ended(EndReason::Finished(FinishReason::Abort) | EndReason::Cancelled, _)) => {
                Some("abort")
            }
            Some(Verdict::Ended(EndReason::Finished(FinishReason::Error), _)) => return Err(failed()),
            Some(Verdict::Ended(EndReason::Failed, _)) => {
                return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the engine died"));
            }
        };
        let given = progress.tokens.min(self.plan.len());
        if given == self.sent_tokens && finish.is_none() {
            return Ok(None);
        }
        // What was shown while more could come is not taken back.
        let shown = self.plan.shown(given, finish.is_some()).max(self.sent_text);
        let news = News {
            index: self.index,
            choice: at,
            tokens: (self.sent_tokens, given),
            text: (self.sent_text, shown),
            finish,
        };
        (self.sent_tokens, self.sent_text, self.closed) = (given, shown, finish.is_some());
        Ok(Some(news))
    }

    /// The request as the engine knows it.
    pub fn info(&self) -> &RequestInfo {
        &self.handle.stream().info
    }

    /// The rank that serves it; 0 while that is not known.
    pub fn rank(&self) -> u32 {
        self.handle.rank().unwrap_or(0)
    }

    /// Prompt tokens that were cached: where they were computed, if that was elsewhere and is known.
    pub fn cached_tokens(&self) -> u32 {
        self.cached_elsewhere.unwrap_or_else(|| self.handle.stream().cached_tokens())
    }

    /// The blocks that are held for other workers to read, once it has ended.
    pub fn held(&self) -> Option<&[u32]> {
        self.handle.stream().held()
    }

    /// Its times, once it has ended.
    pub fn times(&self) -> Option<RequestTimes> {
        match self.handle.stream().progress().verdict {
            Some(Verdict::Ended(_, times)) => Some(times),
            _ => None,
        }
    }

    /// Output tokens that the client has.
    pub fn sent_tokens(&self) -> u32 {
        self.sent_tokens
    }

    /// Its text as far as the client has it.
    pub fn text(&self) -> &str {
        self.plan.text(0, self.sent_text)
    }

    /// The end as vLLM names it.
    pub fn finish(&self) -> Option<&'static str> {
        match self.handle.stream().progress().verdict {
            Some(Verdict::Ended(EndReason::Finished(FinishReason::Stop), _)) => Some("stop"),
            Some(Verdict::Ended(EndReason::Finished(FinishReason::Length), _)) => Some("length"),
            Some(_) => Some("abort"),
            None => None,
        }
    }

    /// What stopped it, if it is stopped, and not by the end-of-sequence token.
    pub fn stop_reason(&self) -> Option<&StopReason> {
        self.plan.stop_reason.as_ref().filter(|_| self.finish() == Some("stop"))
    }
}

/// A choice before it is handed over.
struct Planned {
    prompt: Arc<[u32]>,
    max_tokens: u32,
    plan: Plan,
}

/// All choices of a request, in their order.
fn plans(app: &App, ask: &Ask) -> Result<Vec<Planned>, ApiError> {
    let mut plans = Vec::new();
    for PromptTokens { tokens, echo } in &ask.prompts {
        let prompt: Arc<[u32]> = tokens.as_slice().into();
        let length = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        let mut max_tokens = max_tokens(app.settings.max_model_len, length, ask.max_tokens)?;
        if let Some(tokens) = &ask.replay {
            max_tokens = max_tokens.min(u32::try_from(tokens.len()).unwrap_or(u32::MAX));
        }
        let limits = Limits { max_tokens, ..ask.limits.clone() };
        let tokenizer = app.tokenizer.as_ref();
        for choice in 0..ask.choices {
            let plan = match (&ask.tool_call, &ask.replay) {
                (Some(call), _) => Plan::whole(&limits, tokenizer, &call.arguments).map_err(untaken)?,
                (None, Some(tokens)) => {
                    Plan::new(&limits, tokenizer, |ordinal| tokens.get(ordinal as usize - 1).copied())
                }
                (None, None) => {
                    let own = (ask.seed, choice);
                    app.reply.plan(tokenizer, &limits, &prompt, echo, own).map_err(untaken)?
                }
            };
            disaggregated::check_first(&ask.first, &plan.tokens)?;
            plans.push(Planned { prompt: prompt.clone(), max_tokens, plan });
        }
    }
    Ok(plans)
}

/// Bytes of prompts and replies, roughly.
fn expected(app: &App, ask: &Ask) -> usize {
    let room = ask.max_tokens.unwrap_or(u32::MAX).min(app.settings.max_model_len);
    let tokens = |prompt: &PromptTokens| {
        let reply = app.reply.expected(&ask.limits, prompt.echo.len()).min(room) as usize;
        prompt.tokens.len() + reply * ask.choices as usize
    };
    BYTES_PER_TOKEN * ask.prompts.iter().map(tokens).sum::<usize>()
}

/// The engine could not go on with a request.
fn failed() -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the engine gave the request up: its KV did not come")
}

/// Most tokens that a choice may give (vLLM 0.33.0, entrypoints/serve/utils/api_utils.py, `get_max_tokens`):
/// what was asked for, and no more than the context has room for.
fn max_tokens(max_model_len: u32, prompt: u32, asked: Option<u32>) -> Result<u32, ApiError> {
    if prompt >= max_model_len {
        let message = format!(
            "the prompt has {prompt} tokens; with a context length of {max_model_len} it may have {}",
            max_model_len - 1
        );
        return Err(ApiError::field("input_tokens", message));
    }
    let room = max_model_len - prompt;
    Ok(asked.map_or(room, |asked| asked.min(room)))
}
