//! Passes scheduled but not yet completed, oldest first.

use super::view::Mode;
use std::collections::VecDeque;

/// A request that takes part in a pass by name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) slot: u32,
    pub(super) serial: u32,
    /// Its place in the batch.
    pub(super) ticket: u64,
    /// It computes part of its prompt, up to here; else it decodes.
    pub(super) extend_end: Option<u32>,
}

/// One pass in flight.
#[derive(Clone, Debug, Default)]
pub(super) struct Pass {
    /// None: the scheduler found nothing to do.
    pub(super) mode: Option<Mode>,
    /// Number among the decode passes, 0 if nothing decodes in it.
    pub(super) decode_number: u64,
    /// Members of the decode set: one token each, not named.
    pub(super) uniform: u64,
    /// All others, in batch order once sorted.
    pub(super) members: Vec<Member>,
}

/// The queue of passes. Finished ones are recycled.
#[derive(Debug, Default)]
pub(super) struct Flight {
    passes: VecDeque<Pass>,
    spare: Vec<Pass>,
}

impl Flight {
    /// A cleared pass to fill.
    pub(super) fn fresh(&mut self) -> Pass {
        self.spare.pop().unwrap_or_default()
    }

    pub(super) fn push(&mut self, pass: Pass) {
        self.passes.push_back(pass);
    }

    pub(super) fn pop(&mut self) -> Option<Pass> {
        self.passes.pop_front()
    }

    pub(super) fn recycle(&mut self, mut pass: Pass) {
        pass.mode = None;
        pass.decode_number = 0;
        pass.uniform = 0;
        pass.members.clear();
        self.spare.push(pass);
    }

    pub(super) fn len(&self) -> usize {
        self.passes.len()
    }

    pub(super) fn front(&self) -> Option<&Pass> {
        self.passes.front()
    }

    pub(super) fn back(&self) -> Option<&Pass> {
        self.passes.back()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Pass> {
        self.passes.iter_mut()
    }
}
