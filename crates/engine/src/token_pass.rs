//! A pass in flight of the engines whose scheduler deals out tokens (vLLM, TensorRT-LLM): who takes part in
//! it, by name or as a member of the decode set.

use crate::flight::Recycle;

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

/// What went wrong with a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadFailure {
    /// All of it is lost (as NIXL's worker reports it).
    Whole,
    /// What was to be read into the blocks from this one on is lost, counted from the first block that is loaded.
    FromBlock(u32),
}

/// What the worker reports with a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// A load has ended, well or not.
    Loaded { slot: u32, failure: Option<LoadFailure> },
    /// Held blocks have been read.
    Sent { slot: u32 },
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
    /// Read when the pass is processed.
    pub(crate) reports: Vec<Report>,
    /// Copies from and to the host that are reported with it.
    pub(crate) jobs_done: Vec<u64>,
}

impl Recycle for Pass {
    fn clear(&mut self) {
        self.tokens = 0;
        self.decode_number = 0;
        self.uniform = 0;
        self.members.clear();
        self.stops.clear();
        self.reports.clear();
        self.jobs_done.clear();
    }
}
