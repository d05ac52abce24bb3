//! One request inside a vLLM rank: its plan, its progress, its blocks.

use crate::identity::Keys;
use crate::nanos::Nanos;
use crate::request::{HandOff, OutputPlan, RequestId};

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No request is here.
    Vacant,
    /// Waiting, never admitted.
    Waiting,
    /// Waiting again: it lost its blocks.
    Preempted,
    /// Waiting; its blocks are being loaded.
    Loading,
    /// Waiting; its load has ended, and admission has not come to it since.
    Loaded,
    /// Running; every pass looks at it.
    Running,
    /// Running, one token in each pass; its progress is implied by the decode set's counters.
    Attached,
    /// Running, but its last token is already scheduled: passes step over it.
    Draining,
    /// Ended; its blocks are still to be read or written.
    Held,
}

/// Counters follow vLLM's `Request` (vllm/v1/request.py). While a request is attached to the decode set
/// they lag; `Rank::computed` and its siblings add what is implied.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub(super) state: State,
    /// Distinguishes requests that use the same slot one after the other.
    pub(super) serial: u32,
    /// Place in the running order: grows with every admission.
    pub(super) ticket: u64,
    pub(super) id: RequestId,
    pub(super) arrival: Nanos,
    pub(super) priority: i32,
    pub(super) tie: u64,
    pub(super) prompt: u32,
    /// `max_tokens`, cut to the context length.
    pub(super) max_tokens: u32,
    pub(super) output: OutputPlan,
    pub(super) keys: Keys,
    /// Blocks held, in order of position.
    pub(super) blocks: Vec<u32>,
    /// Those that had an identity when it was preempted last. Others may have taken them since.
    pub(super) kept: Vec<u32>,
    /// How many of the blocks held have an identity.
    pub(super) promoted: u32,
    /// `num_computed_tokens`: scheduled counts as computed.
    pub(super) computed: u32,
    /// `num_tokens`: prompt and outputs processed so far.
    pub(super) known: u32,
    /// `num_output_placeholders`: sampled in passes still in flight.
    pub(super) placeholders: u32,
    /// `num_in_flight_tokens`.
    pub(super) in_flight: u32,
    /// `num_stale_output_tokens`: tokens in flight when it was preempted.
    pub(super) stale: u32,
    /// `is_prefill_chunk`: its last scheduled chunk did not reach the last known token.
    pub(super) prefill_chunk: bool,
    pub(super) preemptions: u32,
    /// What is still to be done about its KV.
    pub(super) hand_off: HandOff,
    /// It stands in the queue of those that wait with blocks.
    pub(super) holding: bool,
    /// What lies behind `computed` could not be loaded.
    pub(super) load_failed: bool,
    /// Member of vLLM's `deferred_waiting`: passed over in the waiting queue at least once.
    pub(super) deferred: bool,
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

    /// It waits, for the first time or again.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting | State::Preempted | State::Loading | State::Loaded)
    }

    /// It waits with blocks: those that are loaded, or were.
    pub(super) fn waits_with_blocks(&self) -> bool {
        self.computed > 0 || matches!(self.state, State::Loading | State::Loaded)
    }

    /// vLLM's victim order under the priority policy: the largest goes first.
    pub(super) fn urgency(&self) -> (i32, Nanos) {
        (self.priority, self.arrival)
    }
}
