//! A batch in flight: who takes part in it, by name or as a member of the decode set.

use super::view::Mode;
use crate::flight::Recycle;

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

/// One batch in flight.
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

impl Recycle for Pass {
    fn clear(&mut self) {
        self.mode = None;
        self.decode_number = 0;
        self.uniform = 0;
        self.members.clear();
    }
}
