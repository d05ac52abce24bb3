//! What a rank's requests have to do with other workers: KV that is loaded from them, or held for them.
//!
//! vLLM's rank hears of transfers when its next pass is launched, the others when they end. Of SGLang, a worker that
//! computes prompts answers its client when the KV has been read; the first token comes from the side that goes on.

use super::{Live, LiveRank, News, at_mut};
use crate::kv_transfer::{Computed, KvMove, Let, Loaded, Remote};
use crate::observer::{EndReason, FirstToken, KvTransfer, PassObserver};
use std::collections::{HashMap, HashSet};
use windtunnel_engine::sglang::Disaggregation;
use windtunnel_engine::{
    FinishReason, HandOff, LoadFailure, Nanos, RankConfig, Request, RequestId, Scheduled, Slot,
};

/// The part of an SGLang worker in meetings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Prefill,
    Decode,
}

/// Hand-offs of a rank that have not ended.
pub(super) struct HandOffs {
    /// Its part, if both sides have a request from the beginning.
    part: Option<Part>,
    /// Ends of requests that others wait for are told by the scheduler (vLLM).
    scheduler_tells: bool,
    /// Requests that others wait for, or that wait for others, where the scheduler does not tell.
    begun: HashSet<RequestId>,
    /// Requests that have not come to the waiting queue (SGLang): since when they are here, or since there is room for what
    /// they load.
    pub(super) apart: Vec<(RequestId, Nanos)>,
    /// Requests whose KV is being loaded.
    loading: HashMap<RequestId, Slot>,
    /// Requests whose blocks are held for others; and what their clients are told when those have been read.
    held: HashMap<RequestId, Held>,
    /// What has ended of it, and is not reported.
    loaded: Vec<(Slot, bool)>,
    sent: Vec<Slot>,
    /// Those of whose end the clients are to hear when the scheduler has.
    ending: Vec<Ending>,
}

struct Held {
    slot: Slot,
    /// Its client, if that does not know of the end.
    untold: Option<Live>,
    /// When it was computed.
    since: Nanos,
}

struct Ending {
    live: Live,
    reason: FinishReason,
    since: Nanos,
    /// What another worker has read.
    bytes: Option<u64>,
}

impl HandOffs {
    pub(super) fn new(config: &RankConfig) -> HandOffs {
        let part = match config {
            RankConfig::Sglang(config) => match config.disaggregation {
                Disaggregation::Off => None,
                Disaggregation::Prefill => Some(Part::Prefill),
                Disaggregation::Decode { .. } => Some(Part::Decode),
            },
            RankConfig::Vllm(_) | RankConfig::Trtllm(_) => None,
        };
        HandOffs {
            part,
            scheduler_tells: matches!(config, RankConfig::Vllm(_)),
            begun: HashSet::new(),
            apart: Vec::new(),
            loading: HashMap::new(),
            held: HashMap::new(),
            loaded: Vec::new(),
            sent: Vec::new(),
            ending: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.loading.is_empty() && self.held.is_empty()
    }

    /// Others compute its prompts, and it has their requests from the beginning.
    pub(super) fn goes_on(&self) -> bool {
        self.part == Some(Part::Decode)
    }

    /// A worker that computes prompts gives one token: every one of SGLang (srt/disaggregation/prefill.py `_process_req`,
    /// 0.5.23), one of TensorRT-LLM where it is asked for that. vLLM's gives what its client asks for.
    pub(super) fn shorten(&self, request: &mut Request) {
        let context_only = request.hand_off == HandOff::Hold && !self.scheduler_tells;
        if self.part == Some(Part::Prefill) || context_only {
            request.output.cut_to_first();
        }
    }

    /// What others have to do for a request that has come.
    pub(super) fn begin(&mut self, id: RequestId, remote: Remote) -> Option<KvMove> {
        let begun = match (remote, self.part) {
            (Remote::Meet(room), Some(Part::Prefill)) => Some(KvMove::Asked { id, room }),
            (remote @ Remote::Meet(_), Some(Part::Decode)) | (remote @ Remote::Pull(_), _) => {
                Some(KvMove::Awaited { id, remote })
            }
            (Remote::None | Remote::Hold | Remote::Meet(_), _) => None,
        };
        if begun.is_some() && !self.scheduler_tells {
            self.begun.insert(id);
        }
        begun
    }

    /// What they hear when it has ended before.
    pub(super) fn end(&mut self, id: RequestId) -> Option<KvMove> {
        let ended = self.begun.remove(&id);
        if ended {
            self.loading.remove(&id);
        }
        ended.then_some(KvMove::Over { id })
    }
}

impl LiveRank {
    /// The load of a request's KV has ended; without success where nothing is said of it.
    pub(crate) fn load_ended(&mut self, id: RequestId, loaded: Option<Loaded>, at: Nanos) {
        let Some(slot) = self.hand_offs.loading.remove(&id) else { return };
        let succeeded = loaded.is_some();
        let Loaded { moved, cached_tokens } = loaded.unwrap_or_default();
        match moved {
            Some(moved) => self.observers.kv_transfer(&KvTransfer::Read(moved)),
            None if !succeeded => self.observers.kv_transfer(&KvTransfer::ReadFailed),
            None => {}
        }
        self.hand_offs.begun.remove(&id);
        self.moves.push(KvMove::Over { id });
        if let (Some(tokens), Some(live)) = (cached_tokens, at_mut(&mut self.live, slot)) {
            live.stream.tell_cached_elsewhere(tokens);
        }
        match (self.rank.hears_with_passes(), succeeded) {
            (true, _) => self.hand_offs.loaded.push((slot, succeeded)),
            (false, true) => self.rank.kv_loaded(slot),
            (false, false) => self.give_up(id, at),
        }
    }

    /// Blocks that are held no longer have to be.
    pub(crate) fn send_ended(&mut self, id: RequestId, why: Let) {
        let bytes = match why {
            Let::Read { bytes } => bytes,
            Let::Unread => None,
            Let::Expired => {
                self.observers.kv_transfer(&KvTransfer::Expired);
                None
            }
        };
        self.let_go(id, FinishReason::Length, bytes);
    }

    /// Others have made room for the KV of a request.
    pub(crate) fn kv_wanted(&mut self, id: RequestId) {
        if let Some(&slot) = self.slots.get(&id) {
            self.rank.kv_wanted(slot);
        }
    }

    /// A request is given up because the other side of its hand-off is not there, or no longer.
    pub(crate) fn give_up(&mut self, id: RequestId, at: Nanos) {
        if self.hand_offs.held.contains_key(&id) {
            self.let_go(id, FinishReason::Error, None);
        } else if let Some(&slot) = self.slots.get(&id)
            && self.rank.cancel(slot)
        {
            self.take_out(slot, EndReason::Finished(FinishReason::Error), at);
        }
    }

    /// Nobody needs the blocks of a request any more.
    fn let_go(&mut self, id: RequestId, reason: FinishReason, bytes: Option<u64>) {
        let Some(Held { slot, untold, since }) = self.hand_offs.held.remove(&id) else { return };
        match self.rank.hears_with_passes() {
            true => self.hand_offs.sent.push(slot),
            false => self.rank.kv_sent(slot),
        }
        self.hand_offs.ending.extend(untold.map(|live| Ending { live, reason, since, bytes }));
    }

    /// What of KV starts to move with a pass, and what has ended by it.
    pub(super) fn transfers(&mut self, scheduled: &Scheduled, at: Nanos) {
        for &load in &scheduled.loads {
            let Some(live) = at_mut(&mut self.live, load.slot) else { continue };
            let id = live.stream.info.id;
            (live.times.cached_tokens, live.times.loaded_tokens) = (load.hit_tokens, load.tokens);
            self.observers.kv_transfer(&KvTransfer::Reserved(at.since(live.times.arrival)));
            if let Some((_, since)) = self.hand_offs.apart.iter_mut().find(|(other, _)| *other == id) {
                *since = at;
            }
            self.hand_offs.loading.insert(id, load.slot);
            self.moves.push(KvMove::Started { id, load, at });
        }
        self.moves.extend(scheduled.unread.iter().map(|&id| KvMove::Over { id }));
        // The worker is asked when a pass is launched.
        for (slot, succeeded) in self.hand_offs.loaded.drain(..) {
            match succeeded {
                true => self.rank.kv_loaded(slot),
                false => self.rank.kv_failed(slot, LoadFailure::Whole),
            }
        }
        self.hand_offs.sent.drain(..).for_each(|slot| self.rank.kv_sent(slot));
    }

    /// Notes who has come to the waiting queue with the schedule call of `now`.
    pub(super) fn note_queued(&mut self, now: Nanos) {
        let LiveRank { hand_offs, slots, rank, live, observers, .. } = self;
        hand_offs.apart.retain(|&(id, since)| {
            let Some(&slot) = slots.get(&id) else { return false };
            if rank.awaits_hand_off(slot) {
                return true;
            }
            if let Some(live) = at_mut(live, slot) {
                live.times.queued = Some(now);
                observers.kv_transfer(&KvTransfer::Queued(now.since(since)));
            }
            false
        });
    }

    /// Tokens that come with a schedule call: other workers have sampled them. Some requests end with them.
    pub(super) fn give(&mut self, scheduled: &Scheduled, now: Nanos) {
        for token in &scheduled.given {
            let Some(live) = at_mut(&mut self.live, token.slot) else { continue };
            let times = &mut live.times;
            (times.first_token, times.last_token) = (Some(now), Some(now));
            times.output_tokens = token.ordinal;
            let (stream, times) = (live.stream.clone(), live.times);
            if let Some(book) = &mut self.book {
                book.first_token(now, stream.info.id);
            }
            self.observers.handed_over(&FirstToken { info: &stream.info, times: &times }, now);
            self.news.push((stream, News::Tokens(token.ordinal, times.known_tokens())));
        }
        for finished in &scheduled.finished {
            self.take_out(finished.slot, EndReason::Finished(finished.reason), now);
        }
    }

    /// Notes that the blocks of a request that has ended are held for others. True if its client hears of the end when
    /// they have been read.
    pub(super) fn hold(&mut self, slot: Slot, now: Nanos) -> bool {
        let Some(live) = at_mut(&mut self.live, slot) else { return false };
        let (info, times) = (&live.stream.info, &live.times);
        let computed = Computed {
            prompt_tokens: u32::try_from(info.prompt.len()).unwrap_or(u32::MAX),
            cached_tokens: times.cached_tokens,
            computed_for: times.first_admit.map_or(Nanos::ZERO, |admitted| now.since(admitted)),
        };
        let (id, name) = (info.id, info.name.clone());
        live.stream.hold(self.rank.blocks(slot));
        let times = *times;
        self.moves.push(KvMove::Held { id, name, computed, times });
        self.hand_offs.begun.remove(&id);
        let later = self.hand_offs.part == Some(Part::Prefill);
        let untold = if later { self.forget(slot).filter(|live| !live.told) } else { None };
        if untold.is_some() {
            self.note_end(now, id);
        }
        self.hand_offs.held.insert(id, Held { slot, untold, since: now });
        later
    }

    /// The scheduler has heard of what was read: the clients are told.
    pub(super) fn end_sent(&mut self, now: Nanos) {
        for Ending { live, reason, since, bytes } in std::mem::take(&mut self.hand_offs.ending) {
            if reason == FinishReason::Length {
                let waited = live.times.queued.map_or(Nanos::ZERO, |at| at.since(live.times.arrival));
                let took = now.since(since);
                self.observers.kv_transfer(&KvTransfer::Sent { took, bytes, waited });
                self.observers.handed_over(&FirstToken { info: &live.stream.info, times: &live.times }, now);
            }
            self.say_end(&live, EndReason::Finished(reason), now);
        }
    }

    /// The engine died with blocks held.
    pub(super) fn fail_held(&mut self, at: Nanos) {
        let held = self.hand_offs.held.drain().filter_map(|(_, held)| held.untold);
        let mut untold: Vec<Live> =
            held.chain(self.hand_offs.ending.drain(..).map(|ending| ending.live)).collect();
        untold.sort_by_key(|live| live.stream.info.id.0);
        for live in untold {
            self.say_end(&live, EndReason::Failed, at);
        }
    }
}
