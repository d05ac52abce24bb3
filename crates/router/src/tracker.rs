//! What a router believes that its requests cost the ranks: prompt tokens still to be computed, blocks in use,
//! requests. It knows only what it has sent where, that a first token came, and that a request has ended; of output
//! blocks it knows nothing (the reference's default).
//!
//! After dynamo-kv-router 1.6.1 (sequences/prefill_tracker.rs, block_tracker.rs).

use crate::holders::{Holders, Overlaps};
use std::collections::{HashMap, VecDeque};
use windtunnel_engine::{KeyRun, Nanos, RequestId};

/// The prompt of a request that is to be placed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prompt {
    pub(crate) tokens: u32,
    /// Whole blocks.
    pub(crate) blocks: u32,
    /// The keys of those that other requests may have, too.
    pub(crate) keys: Vec<KeyRun>,
}

/// Prompt tokens that a rank is thought to have to compute for a request, and how long that is thought to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrefillLoad {
    pub(crate) tokens: u64,
    /// None: they count in full until the first token comes.
    pub(crate) time: Option<Nanos>,
}

struct Tracked {
    rank: u32,
    blocks: u32,
    /// Nothing once its first token has come.
    prefill: Option<PrefillLoad>,
    keys: Vec<KeyRun>,
}

/// Prefills of one rank that are expected to take a known time. What has passed of it since the oldest one began is
/// taken from the sum of all.
#[derive(Clone, Debug, Default)]
struct Expected {
    order: VecDeque<(RequestId, PrefillLoad)>,
    since: Nanos,
}

impl Expected {
    fn done(&self, now: Nanos) -> u64 {
        let Some((_, PrefillLoad { tokens, time: Some(time) })) = self.order.front() else { return 0 };
        if *time == Nanos::ZERO {
            return *tokens;
        }
        let part = u128::from(*tokens) * u128::from(now.since(self.since).0) / u128::from(time.0);
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    fn add(&mut self, id: RequestId, load: PrefillLoad, now: Nanos) {
        if self.order.is_empty() {
            self.since = now;
        }
        self.order.push_back((id, load));
    }

    fn remove(&mut self, id: RequestId, now: Nanos) {
        let Some(at) = self.order.iter().position(|&(other, _)| other == id) else { return };
        if at == 0 {
            self.order.pop_front();
            self.since = now;
        } else if let Some((_, PrefillLoad { time: Some(time), .. })) = self.order.remove(at) {
            // The time went into this one, not into the oldest.
            self.since = (self.since + time).min(now);
        }
    }
}

/// The books.
pub(crate) struct Tracker {
    /// Blocks of prompts whose requests have not ended.
    active: Holders,
    /// Blocks that no other request can have, or of policies that do not look into prompts.
    private: Vec<u64>,
    prefill_tokens: Vec<u64>,
    requests: Vec<u64>,
    /// By rank; none where prefills count in full.
    expected: Option<Vec<Expected>>,
    tracked: HashMap<RequestId, Tracked>,
    spare: Vec<Vec<KeyRun>>,
    shared: Overlaps,
}

impl Tracker {
    pub(crate) fn new(ranks: u32, expects_times: bool) -> Tracker {
        let count = ranks as usize;
        Tracker {
            active: Holders::new(ranks),
            private: vec![0; count],
            prefill_tokens: vec![0; count],
            requests: vec![0; count],
            expected: expects_times.then(|| vec![Expected::default(); count]),
            tracked: HashMap::new(),
            spare: Vec::new(),
            shared: Overlaps::default(),
        }
    }

    /// There are `ranks` ranks from now on, no fewer than before.
    pub(crate) fn grow(&mut self, ranks: u32) {
        let count = ranks as usize;
        self.active.grow(ranks);
        self.private.resize(count, 0);
        self.prefill_tokens.resize(count, 0);
        self.requests.resize(count, 0);
        if let Some(expected) = &mut self.expected {
            expected.resize(count, Expected::default());
        }
    }

    /// Looks up which blocks of a prompt the ranks have in use already.
    pub(crate) fn look_up(&mut self, prompt: &Prompt) {
        self.active.overlaps(&prompt.keys, &mut self.shared);
    }

    /// Blocks in use with those of the prompt that was looked up last.
    #[inline]
    pub(crate) fn blocks_with(&self, rank: u32, prompt_blocks: u32) -> u64 {
        self.blocks(rank) + u64::from(prompt_blocks - self.shared.of(rank))
    }

    /// Blocks in use.
    #[inline]
    pub(crate) fn blocks(&self, rank: u32) -> u64 {
        self.active.held(rank) + self.private[rank as usize]
    }

    /// Prompt tokens to be computed.
    #[inline]
    pub(crate) fn prefill_tokens(&self, rank: u32, now: Nanos) -> u64 {
        let sum = self.prefill_tokens[rank as usize];
        match &self.expected {
            Some(expected) => sum.saturating_sub(expected[rank as usize].done(now)),
            None => sum,
        }
    }

    /// Requests that have not ended.
    #[inline]
    pub(crate) fn requests(&self, rank: u32) -> u64 {
        self.requests[rank as usize]
    }

    /// A request goes to a rank.
    pub(crate) fn add(
        &mut self,
        id: RequestId,
        rank: u32,
        prompt: &Prompt,
        prefill: Option<PrefillLoad>,
        now: Nanos,
    ) {
        let mut keys = self.spare.pop().unwrap_or_default();
        keys.clone_from(&prompt.keys);
        let mut shareable = 0;
        for run in &keys {
            self.active.add(rank, *run);
            shareable += run.count;
        }
        let at = rank as usize;
        self.private[at] += u64::from(prompt.blocks - shareable);
        self.requests[at] += 1;
        if let Some(load) = prefill {
            self.prefill_tokens[at] += load.tokens;
            if let Some(expected) = &mut self.expected {
                expected[at].add(id, load, now);
            }
        }
        self.tracked.insert(id, Tracked { rank, blocks: prompt.blocks, prefill, keys });
    }

    /// Its prompt is computed.
    pub(crate) fn first_token(&mut self, id: RequestId, now: Nanos) {
        let Some(tracked) = self.tracked.get_mut(&id) else { return };
        let (rank, prefill) = (tracked.rank as usize, tracked.prefill.take());
        self.end_prefill(id, rank, prefill, now);
    }

    fn end_prefill(&mut self, id: RequestId, rank: usize, prefill: Option<PrefillLoad>, now: Nanos) {
        if let Some(load) = prefill {
            self.prefill_tokens[rank] -= load.tokens;
            if let Some(expected) = &mut self.expected {
                expected[rank].remove(id, now);
            }
        }
    }

    /// It has ended: it costs nothing any more. Of one that is not known nothing is to be forgotten.
    pub(crate) fn end(&mut self, id: RequestId, now: Nanos) {
        let Some(Tracked { rank, blocks, prefill, keys }) = self.tracked.remove(&id) else { return };
        let mut shareable = 0;
        for run in &keys {
            self.active.remove(rank, *run);
            shareable += run.count;
        }
        let at = rank as usize;
        self.private[at] -= u64::from(blocks - shareable);
        self.requests[at] -= 1;
        self.end_prefill(id, at, prefill, now);
        self.spare.push(keys);
    }
}
