//! Passes scheduled but not yet completed, oldest first. What a pass consists of is the engine's own affair.

use std::collections::VecDeque;

/// A pass that can be emptied to serve again.
pub(crate) trait Recycle: Default {
    /// Makes it as good as new, keeping its memory.
    fn clear(&mut self);
}

/// The queue of passes. Finished ones are recycled.
#[derive(Clone, Debug)]
pub(crate) struct Flight<P> {
    passes: VecDeque<P>,
    spare: Vec<P>,
}

impl<P> Default for Flight<P> {
    fn default() -> Self {
        Flight { passes: VecDeque::new(), spare: Vec::new() }
    }
}

impl<P: Recycle> Flight<P> {
    /// A cleared pass to fill.
    pub(crate) fn fresh(&mut self) -> P {
        self.spare.pop().unwrap_or_default()
    }

    pub(crate) fn push(&mut self, pass: P) {
        self.passes.push_back(pass);
    }

    pub(crate) fn pop(&mut self) -> Option<P> {
        self.passes.pop_front()
    }

    pub(crate) fn recycle(&mut self, mut pass: P) {
        pass.clear();
        self.spare.push(pass);
    }

    pub(crate) fn len(&self) -> usize {
        self.passes.len()
    }

    /// The oldest.
    pub(crate) fn front(&self) -> Option<&P> {
        self.passes.front()
    }

    /// The latest.
    pub(crate) fn back(&self) -> Option<&P> {
        self.passes.back()
    }

    pub(crate) fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut P> {
        self.passes.iter_mut()
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &P> {
        self.passes.iter()
    }
}
