//! What a pass looks like from outside: its shape for the timing source, what the scheduler decided,
//! and what its completion made visible.
//!
//! A pass (vLLM: engine step) has three instants: it is scheduled, it starts, it ends. The engine
//! knows none of them; the driver does.

use crate::request::{FinishReason, RequestId};

/// A live request's place in its rank's tables. Given by `submit`, reused after the request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// The part of a prompt (or of a preempted request's prompt and output) computed in one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Tokens computed in this pass.
    pub new_tokens: u32,
    /// Tokens of the same request that stand in the KV cache before them.
    pub before: u32,
}

/// The requests of a pass that decode: one token each. Their contexts as sums, so that a steady
/// pass costs O(1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeSet {
    /// Number of requests.
    pub count: u64,
    /// Σ context: tokens that each one attends to, the one computed in this pass included.
    pub sum_context: u64,
    /// Σ context².
    pub sum_context_squared: u128,
}

impl DecodeSet {
    /// One request more.
    pub fn add(&mut self, context: u32) {
        let context = u64::from(context);
        self.count += 1;
        self.sum_context += context;
        self.sum_context_squared += u128::from(context) * u128::from(context);
    }

    /// One request, of this context, less.
    pub(crate) fn remove(&mut self, context: u32) {
        let context = u64::from(context);
        self.count -= 1;
        self.sum_context -= context;
        self.sum_context_squared -= u128::from(context) * u128::from(context);
    }

    /// The set one pass later: every context is one token longer.
    #[inline]
    pub fn grow(&mut self) {
        self.sum_context_squared += 2 * u128::from(self.sum_context) + u128::from(self.count);
        self.sum_context += self.count;
    }

    /// The set `passes` passes later.
    #[inline]
    pub fn grow_by(&mut self, passes: u64) {
        // Σ(c+k)² = Σc² + 2kΣc + nk²
        let (n, k) = (u128::from(self.count), u128::from(passes));
        self.sum_context_squared += 2 * k * u128::from(self.sum_context) + n * k * k;
        self.sum_context += self.count * passes;
    }
}

/// What a timing source may know of a pass.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// Every prefill chunk, in batch order.
    pub prefill: &'a [Chunk],
    /// The decoding requests.
    pub decode: DecodeSet,
}

impl Shape<'_> {
    /// Tokens computed in the pass.
    pub fn tokens(&self) -> u64 {
        self.prefill.iter().map(|c| u64::from(c.new_tokens)).sum::<u64>() + self.decode.count
    }
}

/// A request that joined the running list in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The request.
    pub slot: Slot,
    /// Tokens found in the prefix cache, those on the host included.
    pub hit_tokens: u32,
    /// Of those, tokens that are loaded from the host with the pass (SGLang).
    pub host_tokens: u32,
    /// Tokens known at admission: the prompt, and for a resumed request its outputs.
    pub known_tokens: u32,
    /// It had been preempted before.
    pub resumed: bool,
    /// Its KV was loaded, so nothing was looked up.
    pub loaded: bool,
}

/// KV that a pass starts to load for a waiting request. The driver reports its end (`kv_loaded`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLoad {
    /// The request.
    pub slot: Slot,
    /// Tokens found in the prefix cache, which are not loaded.
    pub hit_tokens: u32,
    /// Tokens known: the prompt, and for a preempted request its outputs.
    pub known_tokens: u32,
    /// Tokens loaded.
    pub tokens: u32,
    /// Blocks that they are loaded into.
    pub blocks: u32,
    /// Admissions of the pass that were decided before it.
    pub after: u32,
}

/// Blocks that are copied between the accelerator and the host's memory. The driver reports its end (`job_done`), but
/// for those that the engine waits for itself (SGLang's in [`Scheduled::flush`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostJob {
    /// Its number.
    pub job: u64,
    /// The request whose blocks they are, where they are those of one (vLLM).
    pub request: Option<RequestId>,
    /// From the host, otherwise to it.
    pub load: bool,
    /// Tokens of the blocks.
    pub tokens: u32,
    /// The accelerator's blocks, where they are told by number (vLLM).
    pub blocks: Vec<u32>,
    /// The host's, one for each.
    pub chunks: Vec<u32>,
}

/// What is asked of a disk behind the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskWork {
    /// Blocks are written from the host's memory.
    Write,
    /// Blocks are read into the host's memory.
    Read,
    /// Which of some blocks are there.
    LookUp,
}

/// Something that a disk behind the host is asked to do. The driver reports its end before the next `schedule`
/// ([`vllm::Rank::disk_done`](crate::vllm::Rank::disk_done)), in order of these ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskJob {
    /// Its number.
    pub job: u64,
    /// What it is.
    pub work: DiskWork,
    /// Tokens of the blocks.
    pub tokens: u32,
    /// Of those, tokens that are moved: what is on the disk is not written again.
    pub moved: u32,
}

/// What one call of `schedule` decided. Buffers are reused from pass to pass.
#[derive(Clone, Debug, Default)]
pub struct Scheduled {
    /// Tokens computed; 0 is a pass that only flushes finished requests and takes no time.
    pub tokens: u64,
    /// Of those, tokens of prompts and of preempted requests' outputs; the rest are decodes.
    pub prefill_tokens: u64,
    /// Prefill chunks in batch order.
    pub prefill: Vec<Chunk>,
    /// The decoding requests.
    pub decode: DecodeSet,
    /// Requests that joined, in order.
    pub admitted: Vec<Admission>,
    /// Requests that lost their blocks, in the order in which they were hit.
    pub preempted: Vec<Slot>,
    /// Requests that stopped taking part in every beat; their last token so far, if any, came with the
    /// beat completed last. Their later tokens come one by one in [`Outcome::tokens`].
    pub parked: Vec<Slot>,
    /// Prefix-cache lookups made, also for requests that were then not admitted.
    pub lookups: u32,
    /// Loads that start with the pass, in order.
    pub loads: Vec<KvLoad>,
    /// Ended requests whose blocks can be read from this pass on, and are held until the driver says that they
    /// were (`kv_sent`).
    pub sends: Vec<Slot>,
    /// Requests that ended before their load was asked for, so that nobody will read what is held for them.
    pub unread: Vec<RequestId>,
    /// Copies from and to the host. vLLM: a load starts with the pass, a store when the next one is launched. SGLang:
    /// they are handed over in this order while the pass is scheduled.
    pub host_jobs: Vec<HostJob>,
    /// Copies that must have ended before the pass starts, in order of their numbers.
    pub flush: Vec<u64>,
    /// What a disk behind the host is asked to do from now on (vLLM).
    pub disk_jobs: Vec<DiskJob>,
    /// Tokens that are given with this call, and not with the end of its pass: first tokens that another rank sampled.
    pub given: Vec<Token>,
    /// Requests that end with the last of these.
    pub finished: Vec<Finished>,
}

impl Scheduled {
    /// The shape of this pass.
    pub fn shape(&self) -> Shape<'_> {
        Shape { prefill: &self.prefill, decode: self.decode }
    }

    pub(crate) fn clear(&mut self) {
        self.tokens = 0;
        self.prefill_tokens = 0;
        self.prefill.clear();
        self.decode = DecodeSet::default();
        self.admitted.clear();
        self.preempted.clear();
        self.parked.clear();
        self.lookups = 0;
        self.loads.clear();
        self.sends.clear();
        self.unread.clear();
        self.host_jobs.clear();
        self.flush.clear();
        self.disk_jobs.clear();
        self.given.clear();
        self.finished.clear();
    }
}

/// A token given out one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// The request.
    pub slot: Slot,
    /// Its number among the request's output tokens, from 1.
    pub ordinal: u32,
}

/// A request that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Where it stood; free for the next request, unless blocks are held there.
    pub slot: Slot,
    /// The request.
    pub id: RequestId,
    /// Why it ended.
    pub reason: FinishReason,
    /// Output tokens it gave.
    pub output_tokens: u32,
    /// Its blocks stay where they are, for another rank to read, until the driver says that they were (`kv_sent`).
    pub held: bool,
}

/// What the completion of one pass made visible. Buffers are reused from pass to pass.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The pass is a beat: one in which whoever is steady takes part. vLLM: every pass with tokens.
    /// SGLang, whose prefill passes hold the decodes up: every pass in which running requests decode.
    pub beat: bool,
    /// Number of requests that gave a token in this pass, a beat, *and* in the beat completed before it,
    /// and that are not listed in `tokens`: their gap is the distance of the two pass ends.
    pub steady_tokens: u64,
    /// Every other token, in batch order.
    pub tokens: Vec<Token>,
    /// Requests that stopped taking part in every beat: their last token before those in `tokens`, if
    /// any, came with the beat completed before this pass.
    pub parked: Vec<Slot>,
    /// Those among the steady ones that gave their second token.
    pub second: Vec<Slot>,
    /// Requests that ended with this pass, in batch order. The last token of each is in `tokens`.
    pub finished: Vec<Finished>,
    /// Copies to the host that are handed over now (SGLang).
    pub host_jobs: Vec<HostJob>,
    /// What a disk behind the host is asked to do from now on (vLLM).
    pub disk_jobs: Vec<DiskJob>,
}

impl Outcome {
    pub(crate) fn clear(&mut self) {
        self.beat = false;
        self.steady_tokens = 0;
        self.tokens.clear();
        self.parked.clear();
        self.second.clear();
        self.finished.clear();
        self.host_jobs.clear();
        self.disk_jobs.clear();
    }
}
