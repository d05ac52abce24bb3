//! Passes scheduled but not yet completed, oldest first: who takes part in each, by name or as a member of
//! the decode set. What a pass decided is the engine's own affair.

use std::collections::VecDeque;

/// A request that takes part in a pass by name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) slot: u32,
    pub(crate) serial: u32,
    /// Its running order when the pass was scheduled, which is the batch order.
    pub(crate) ticket: u64,
    pub(crate) tokens: u32,
    /// Tokens computed before.
    pub(crate) before: u32,
    /// Part of a prompt (or of a resumed request's prompt and outputs), not a decode.
    pub(crate) prefill: bool,
    /// It gives an output token.
    pub(crate) samples: bool,
}

/// One pass in flight.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pass {
    pub(crate) tokens: u64,
    /// Number among the passes in which the decode set took part, 0 if it did not.
    pub(crate) decode_number: u64,
    /// Members of the decode set: one token each, not named.
    pub(crate) uniform: u64,
    /// All others.
    pub(crate) members: Vec<Member>,
    /// Members of the decode set whose token in this pass is a stop token.
    pub(crate) stops: Vec<(u32, u32)>,
}

/// The queue of passes. Finished ones are recycled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flight {
    passes: VecDeque<Pass>,
    spare: Vec<Pass>,
    non_empty: usize,
}

impl Flight {
    /// A cleared pass to fill.
    pub(crate) fn fresh(&mut self) -> Pass {
        self.spare.pop().unwrap_or_default()
    }

    pub(crate) fn push(&mut self, pass: Pass) {
        self.non_empty += usize::from(pass.tokens > 0);
        self.passes.push_back(pass);
    }

    pub(crate) fn front(&self) -> Option<&Pass> {
        self.passes.front()
    }

    pub(crate) fn pop(&mut self) -> Option<Pass> {
        let pass = self.passes.pop_front()?;
        self.non_empty -= usize::from(pass.tokens > 0);
        Some(pass)
    }

    pub(crate) fn recycle(&mut self, mut pass: Pass) {
        pass.tokens = 0;
        pass.decode_number = 0;
        pass.uniform = 0;
        pass.members.clear();
        pass.stops.clear();
        self.spare.push(pass);
    }

    pub(crate) fn len(&self) -> usize {
        self.passes.len()
    }

    /// Passes in flight that compute something.
    pub(crate) fn non_empty(&self) -> usize {
        self.non_empty
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Pass> {
        self.passes.iter_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Pass> {
        self.passes.iter()
    }
}
