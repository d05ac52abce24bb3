//! One request inside an SGLang rank: its plan, its progress, what it holds.

use crate::identity::Keys;
use crate::kv::{NodeId, ROOT, Text};
use crate::request::RequestId;
use std::sync::Arc;

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No request is here.
    Vacant,
    /// In the waiting queue.
    Waiting,
    /// In the last prefill batch, or its prompt is being computed in chunks.
    Prefilling,
    /// In the running batch; every decode pass looks at it.
    Running,
    /// In the running batch, one token in each decode pass; its progress is implied by the decode set's
    /// counters.
    Attached,
    /// Its last token is in flight; no batch holds it any more.
    Draining,
    /// Its prompt may be computed when the rank that goes on with it has room for its KV (bootstrap queue).
    Bootstrapping,
    /// Its prompt is computed, and its KV is being read (inflight queue).
    Sending,
    /// It waits for room for its KV (prealloc queue), or to be brought back after a retraction (retracted queue).
    Preallocating,
    /// Its KV is on its way (transfer queue).
    Receiving,
}

/// Counters follow SGLang's `Req` (managers/schedule_batch.py). While a request is attached to the decode
/// set they lag; `Rank::committed` and its siblings add what is implied.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) state: State,
    /// Distinguishes requests that use the same slot one after the other.
    pub(super) serial: u32,
    /// Place in the running batch: grows along it.
    pub(super) ticket: u64,
    pub(super) id: RequestId,
    /// Larger is more urgent, unless low values come first.
    pub(super) priority: i64,
    /// When it entered the waiting queue last (`wait_queue_entry_time`, as a count).
    pub(super) entered: u64,
    /// `len(origin_input_ids)`.
    pub(super) prompt: u32,
    /// `max_new_tokens`, cut to context and pool.
    pub(super) max_new: u32,
    /// Output tokens up to the stop token, if one comes and is heeded.
    pub(super) stop_after: Option<u32>,
    pub(super) ignore_eos: bool,
    pub(super) text: Arc<Text>,
    /// Names its pages, if events are kept.
    pub(super) keys: Option<Box<Keys>>,
    /// Output tokens processed (`len(output_ids)`).
    pub(super) outputs: u32,
    /// Output tokens processed or in flight.
    pub(super) planned: u32,
    /// `len(full_untruncated_fill_ids)` as refreshed last.
    pub(super) fill_len: u32,
    /// Tokens in the KV cache before those of its next prefill.
    pub(super) prefix_len: u32,
    /// Where its prefill ends.
    pub(super) extend_end: u32,
    /// `kv_committed_len`: tokens with a slot.
    pub(super) committed: u32,
    /// `cache_protected_len`: of these, tokens that the tree holds.
    pub(super) protected_len: u32,
    /// `cache_inserted_len`: tokens that it has entered in the tree, which count as used by it.
    pub(super) entered_len: u32,
    /// End of its matched or entered prefix.
    pub(super) last_node: NodeId,
    /// Where its matched prefix ends on the host (`best_match_node`),
    pub(super) best_node: NodeId,
    /// and how many tokens of it are only there (`host_hit_length`).
    pub(super) host_len: u32,
    /// The path it holds.
    pub(super) lock: Option<NodeId>,
    /// `num_matched_prefix_tokens`, by which queues are sorted.
    pub(super) matched: u32,
    /// Chunks in flight that leave part of its prompt.
    pub(super) middle_chunks: u32,
    /// Retracted and not admitted again (`is_retracted`).
    pub(super) retracted: bool,
    /// Retracted once (`retracted_stain`).
    pub(super) stained: bool,
    /// It is aborted when its next result is processed (`to_finish`).
    pub(super) to_finish: bool,
    /// Number of the decode pass before its first one as a member of the decode set.
    pub(super) joined: u64,
    /// The other side of its hand-off has done what it is waited for: made room, read, or sent.
    pub(super) answered: bool,
}

impl Sequence {
    /// Prompt and outputs processed.
    pub(super) fn known(&self) -> u32 {
        self.prompt + self.outputs
    }

    /// Forgets all progress but the outputs (`reset_for_retract`).
    pub(super) fn reset_for_retract(&mut self) {
        self.prefix_len = 0;
        self.protected_len = 0;
        self.entered_len = 0;
        self.last_node = ROOT;
        self.matched = 0;
        self.lock = None;
        self.extend_end = 0;
        self.committed = 0;
        self.middle_chunks = 0;
        self.retracted = true;
        self.stained = true;
        self.planned = self.outputs;
    }

    /// The place at which its next output token is the last that the scheduler can foresee.
    pub(super) fn ends_after(&self, outputs: u32) -> bool {
        outputs >= self.max_new
    }
}
