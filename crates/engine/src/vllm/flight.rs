//! Passes scheduled but not yet completed, oldest first.

use std::collections::VecDeque;

/// A request that takes part in a pass by name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) slot: u32,
    pub(super) serial: u32,
    /// Its running order when the pass was scheduled, which is the batch order.
    pub(super) ticket: u64,
    pub(super) tokens: u32,
    /// Tokens computed before.
    pub(super) before: u32,
    /// Part of a prompt (or of a resumed request's prompt and outputs), not a decode.
    pub(super) prefill: bool,
    /// It gives an output token.
    pub(super) samples: bool,
}

/// One pass in flight.
#[derive(Clone, Debug, Default)]
pub(super) struct Pass {
    pub(super) tokens: u64,
    /// Number among the passes in which the decode set took part, 0 if it did not.
    pub(super) decode_number: u64,
    /// Members of the decode set: one token each, not named.
    pub(super) uniform: u64,
    /// All others.
    pub(super) members: Vec<Member>,
    /// Members of the decode set whose token in this pass is a stop token.
    pub(super) stops: Vec<(u32, u32)>,
}

/// The queue of passes. Finished ones are recycled.
#[derive(Clone, Debug, Default)]
pub(super) struct Flight {
    passes: VecDeque<Pass>,
    spare: Vec<Pass>,
    non_empty: usize,
}

impl Flight {
    /// A cleared pass to fill.
    pub(super) fn fresh(&mut self) -> Pass {
        self.spare.pop().unwrap_or_default()
    }

    pub(super) fn push(&mut self, pass: Pass) {
        self.non_empty += usize::from(pass.tokens > 0);
        self.passes.push_back(pass);
    }

    pub(super) fn front(&self) -> Option<&Pass> {
        self.passes.front()
    }

    pub(super) fn pop(&mut self) -> Option<Pass> {
        let pass = self.passes.pop_front()?;
        self.non_empty -= usize::from(pass.tokens > 0);
        Some(pass)
    }

    pub(super) fn recycle(&mut self, mut pass: Pass) {
        pass.tokens = 0;
        pass.decode_number = 0;
        pass.uniform = 0;
        pass.members.clear();
        pass.stops.clear();
        self.spare.push(pass);
    }

    pub(super) fn len(&self) -> usize {
        self.passes.len()
    }

    /// Passes in flight that compute something.
    pub(super) fn non_empty(&self) -> usize {
        self.non_empty
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Pass> {
        self.passes.iter_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Pass> {
        self.passes.iter()
    }
}
