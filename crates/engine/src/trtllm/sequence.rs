//! One request inside a TensorRT-LLM rank: its plan, its progress, its blocks.

use crate::identity::Keys;
use crate::request::{HandOff, OutputPlan, RequestId};

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No request is here.
    Vacant,
    /// In the queue outside the scheduler (`waiting_queue`).
    Queued,
    /// Active, its prompt not computed to the end (`CONTEXT_INIT`). It holds blocks once it has started.
    Context,
    /// Active, one token in each pass (`GENERATION_IN_PROGRESS`).
    Generating,
    /// The same; its progress is implied by the decode set's counters.
    Attached,
    /// Active, but its last token is already scheduled (`GENERATION_TO_COMPLETE`).
    Draining,
    /// Active, its prompt's KV on its way from another rank.
    Loading,
    /// It has ended, and another rank reads its blocks.
    Held,
}

/// What the reuse tree holds of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Whole blocks that it will share.
    pub(super) hits: u32,
    /// Of those, blocks that somebody owns now: sharing them costs nothing.
    pub(super) owned: u32,
    /// Tokens that need not be computed.
    pub(super) hit_tokens: u32,
    /// Identity of the first full block that is not there.
    pub(super) first_new: Option<crate::identity::BlockKey>,
}

/// Counters follow the engine's `LlmRequest`. While a request is attached to the decode set they lag;
/// `Rank::computed` and its siblings add what is implied.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub(super) state: State,
    /// Distinguishes requests that use the same slot one after the other.
    pub(super) serial: u32,
    /// Place among the active requests, kept for life, also through a pause.
    pub(super) ticket: u64,
    pub(super) id: RequestId,
    pub(super) prompt: u32,
    /// `max_tokens`, cut to what the context length (and, if so set, the pool) can hold.
    pub(super) max_tokens: u32,
    pub(super) output: OutputPlan,
    pub(super) hand_off: HandOff,
    pub(super) keys: Keys,
    /// Blocks held, in order of position.
    pub(super) blocks: Vec<u32>,
    /// It holds blocks: its first chunk was scheduled.
    pub(super) started: bool,
    /// Tokens in the KV cache; scheduled counts as computed.
    pub(super) computed: u32,
    /// Prompt and outputs processed so far.
    pub(super) known: u32,
    /// Tokens sampled in passes still in flight.
    pub(super) placeholders: u32,
    /// Times it was paused.
    pub(super) pauses: u32,
    /// The last look-up, and the period of the tree in which it holds.
    pub(super) found: Option<(u64, Found)>,
    /// Number of the decode pass before its first one as a member of the decode set.
    pub(super) joined: u64,
    /// Number of the next decode pass in which something is due.
    pub(super) due: u64,
}

impl Sequence {
    /// Output tokens processed.
    pub(super) fn outputs(&self) -> u32 {
        self.known - self.prompt
    }

    /// Blocks that prompt and longest output need (`getRemainingBlocksToCompletion`: the last output
    /// token counts, although it is never computed).
    pub(super) fn total_blocks(&self, block_size: u32) -> u32 {
        (u64::from(self.prompt) + u64::from(self.max_tokens)).div_ceil(u64::from(block_size)) as u32
    }

    /// It computes its prompt, and has begun (not `is_first_context_chunk`).
    pub(super) fn is_mid_context(&self) -> bool {
        self.state == State::Context && self.started
    }

    /// It has its prompt, or the blocks for it.
    pub(super) fn is_generation(&self) -> bool {
        matches!(self.state, State::Generating | State::Attached | State::Draining | State::Loading)
    }
}
