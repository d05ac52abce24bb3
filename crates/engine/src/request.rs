//! A request as an engine sees it: the prompt's content, the plan of its output, and how it ends.
//!
//! Nothing here knows of time beyond the arrival stamp, of workers, or of files.

use crate::nanos::Nanos;
use std::fmt;

/// A request's number in its workload, from 0, in order of arrival. Unique in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What stands in a prompt. Tokens exist only where a source has them; otherwise content is known
/// by name, and equal names mean equal content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Shared with no other request.
    Private,
    /// `ids[i]` names the whole prefix that ends with tokens `i*id_tokens .. (i+1)*id_tokens`, so
    /// equal ids mean equal prefixes. The last id may cover fewer tokens. Ids should be dense: memory
    /// follows the largest ids in use.
    Prefixes {
        /// One id for each started block of the trace.
        ids: Box<[u64]>,
        /// Tokens per id (512 in Mooncake traces).
        id_tokens: u32,
    },
    /// The tokens themselves, one for each prompt position.
    Tokens(Box<[u32]>),
    /// The same inside a scope, which is what a LoRA adapter or a cache salt makes: equal tokens of different
    /// scopes, or of none, share nothing.
    Scoped {
        /// Names the scope; a hash of what makes it. Not 0.
        scope: u64,
        /// One for each prompt position.
        tokens: Box<[u32]>,
    },
}

/// What a request will generate. A plan of the request, so that no draw depends on when or where
/// the request runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputPlan {
    /// `max_tokens` of the request, at least 1: all that a scheduler may know.
    pub max_tokens: u32,
    /// Number of output tokens of which the last one is a stop token, if one comes at all. The
    /// scheduler learns of it when that token is processed, never before.
    pub stop_after: Option<u32>,
    /// The output tokens, when later prompts may contain them. `None`: shared with nobody.
    pub tokens: Option<Box<[u32]>>,
    /// The request asked not to end before `max_tokens`, if it said so or otherwise. SGLang then reserves for
    /// all of them; nothing else depends on it, and `stop_after` is not heeded there.
    pub ignore_eos: Option<bool>,
}

impl OutputPlan {
    /// `n` tokens that no later prompt contains, ended by length.
    pub fn of_length(n: u32) -> OutputPlan {
        OutputPlan { max_tokens: n, stop_after: None, tokens: None, ignore_eos: None }
    }

    /// Cuts it to the first token, which ends it by length: all that a rank gives which computes prompts for others.
    pub fn cut_to_first(&mut self) {
        self.max_tokens = self.max_tokens.min(1);
        self.stop_after = None;
    }
}

/// Where the KV of a request's prompt comes from, or who reads it afterwards: prefill and decode on ranks apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandOff {
    /// All happens here.
    #[default]
    None,
    /// The prompt was computed elsewhere: its KV is loaded before the request runs here.
    Pull,
    /// Another rank goes on with it: its blocks are held after it ends here, until they have been read.
    Hold,
}

/// One request, as submitted to a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its number in the workload.
    pub id: RequestId,
    /// When it reached the engine. Orders equal priorities; no scheduler waits for it.
    pub arrival: Nanos,
    /// Prompt length in tokens, at least 1.
    pub prompt_tokens: u32,
    /// What the prompt holds.
    pub content: Content,
    /// What will be generated.
    pub output: OutputPlan,
    /// Its priority, if it has one. Used by priority policies only. vLLM: the smaller, the more urgent, 0
    /// without one. SGLang: the larger, unless it is told otherwise; without one the least urgent of all.
    pub priority: Option<i32>,
    /// Orders requests of equal priority and arrival (vLLM compares the request ids).
    pub tie: u64,
    /// Whether its KV comes from elsewhere or goes there. Heeded by a rank that takes part in such transfers.
    pub hand_off: HandOff,
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// `max_tokens` or the model's context length was reached.
    Length,
    /// A stop token was generated.
    Stop,
    /// Given up, by the engine or from outside.
    Abort,
    /// The KV that it waited for could not be loaded.
    Error,
}

impl FinishReason {
    /// The engine's own word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::Length => "length",
            FinishReason::Stop => "stop",
            FinishReason::Abort => "abort",
            FinishReason::Error => "error",
        }
    }
}

/// Why a request was refused at submission. A value, not a panic: the run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// A prompt without tokens.
    EmptyPrompt,
    /// `max_tokens` 0, which vLLM's sampling parameters refuse.
    NoOutput,
    /// The prompt leaves no room for an output token.
    PromptTooLong {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// The model's context length.
        max_model_len: u32,
        /// Tokens of the longest prompt that the engine takes with it.
        longest: u32,
    },
    /// The prompt exceeds the token budget of a pass and may not be split (TensorRT-LLM without chunked prefill).
    PromptExceedsBudget {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// The budget.
        max_num_tokens: u32,
    },
    /// The request could never hold all its blocks at once.
    LargerThanPool {
        /// Blocks that the finished request would hold.
        needed_blocks: u64,
        /// Blocks that a request can ever get.
        usable_blocks: u64,
    },
    /// `max_num_queued_reqs` unfinished requests are here already (vLLM answers HTTP 503).
    QueueFull {
        /// The limit.
        max_num_queued_reqs: u32,
    },
    /// `max_num_queued_tokens` prompt tokens await their first output already (HTTP 503).
    QueuedTokensFull {
        /// The limit.
        max_num_queued_tokens: u64,
    },
    /// It names a data-parallel rank that its worker does not have (vLLM answers HTTP 400).
    NoSuchRank {
        /// The rank that it names.
        dp_rank: u32,
        /// Ranks of the worker.
        ranks: u32,
    },
    /// There is no worker, and none will come.
    NoWorker,
}

impl Rejection {
    /// A short name for counting.
    pub fn kind(self) -> &'static str {
        match self {
            Rejection::EmptyPrompt => "empty_prompt",
            Rejection::NoOutput => "no_output",
            Rejection::PromptTooLong { .. } => "prompt_too_long",
            Rejection::PromptExceedsBudget { .. } => "prompt_exceeds_budget",
            Rejection::LargerThanPool { .. } => "larger_than_pool",
            Rejection::QueueFull { .. } => "queue_full",
            Rejection::QueuedTokensFull { .. } => "queued_tokens_full",
            Rejection::NoSuchRank { .. } => "no_such_rank",
            Rejection::NoWorker => "no_worker",
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Rejection::EmptyPrompt => write!(f, "the prompt is empty"),
            Rejection::NoOutput => write!(f, "max_tokens is 0, at least 1 is needed"),
            Rejection::PromptTooLong { prompt_tokens, max_model_len, longest } => write!(
                f,
                "prompt of {prompt_tokens} tokens: with a context length of {max_model_len}, the longest prompt has \
                 {longest} tokens"
            ),
            Rejection::PromptExceedsBudget { prompt_tokens, max_num_tokens } => write!(
                f,
                "prompt of {prompt_tokens} tokens exceeds max_num_tokens ({max_num_tokens}) without chunked prefill"
            ),
            Rejection::LargerThanPool { needed_blocks, usable_blocks } => {
                write!(f, "needs {needed_blocks} KV blocks to finish, the pool has {usable_blocks}")
            }
            Rejection::QueueFull { max_num_queued_reqs } => {
                write!(f, "max_num_queued_reqs ({max_num_queued_reqs}) requests are unfinished")
            }
            Rejection::QueuedTokensFull { max_num_queued_tokens } => {
                write!(f, "max_num_queued_tokens ({max_num_queued_tokens}) prompt tokens are waiting")
            }
            Rejection::NoWorker => f.write_str("there is no worker, and none will come"),
            Rejection::NoSuchRank { dp_rank, ranks } => {
                write!(f, "dp_rank {dp_rank} is none of the {ranks} ranks of a worker, from 0")
            }
        }
    }
}

impl std::error::Error for Rejection {}
