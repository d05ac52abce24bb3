//! What a rank has to tell the router: first tokens, ends, and changes of its prefix cache. For whoever drives ranks.
//!
//! A rank runs ahead of the router's questions, so what it has to tell waits here until somebody asks. Changes of
//! the cache may be on their way for a while before the router can know them.

use crate::draw::unit;
use crate::{Needs, News, Router};
use std::collections::VecDeque;
use windtunnel_engine::{BlockKey, KeySpace, KvEvent, KvEventScope, KvEvents, Nanos, RequestId};

/// What the ranks of a run have to tell.
#[derive(Clone, Copy, Debug, Default)]
pub struct Telling {
    progress: bool,
    /// Tokens of a block.
    cache: Option<u32>,
    lag: Nanos,
    loss: Option<EventLoss>,
}

impl Telling {
    /// What a policy with these needs has to be told, changes of caches so much later.
    pub fn new(needs: Needs, lag: Nanos) -> Telling {
        Telling { progress: needs.progress, cache: needs.cache, lag, loss: None }
    }

    /// The same when changes of caches are lost.
    pub fn losing(self, loss: Option<EventLoss>) -> Telling {
        Telling { loss, ..self }
    }

    /// Which events a rank has to keep for it, and in blocks of how many tokens.
    pub fn scope(&self, block_size: u32) -> (KvEventScope, u32) {
        match self.cache {
            None => (KvEventScope::Off, block_size),
            Some(tokens) => {
                (KvEventScope::Shared { timed: self.lag > Nanos::ZERO || self.loss.is_some() }, tokens)
            }
        }
    }

    /// A book for a rank, if it has anything to tell.
    pub fn book(self) -> Option<NewsBook> {
        let tells = self.progress || self.cache.is_some();
        tells.then(|| NewsBook { telling: self, ..NewsBook::default() })
    }
}

#[derive(Clone, Copy, Debug)]
enum Progress {
    FirstToken(RequestId),
    Ended(RequestId),
}

/// Which batches of changes of the caches are lost on their way to the router, and which are is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EventLoss {
    /// The part of them.
    pub rate: f64,
    /// Of the draws.
    pub seed: u64,
}

impl EventLoss {
    /// Whether the batch of that number of a rank of a worker is.
    fn loses(&self, (worker, rank): (u32, u32), batch: u64) -> bool {
        unit(self.seed, u64::from(worker) << 32 | u64::from(rank), batch) < self.rate
    }
}

/// What one rank has not yet told.
#[derive(Default)]
pub struct NewsBook {
    telling: Telling,
    /// Worker and rank.
    place: (u32, u32),
    /// Batches of changes so far, and how many of them were lost: of each pass that made some.
    batches: u64,
    lost: u64,
    progress: Vec<(Nanos, Progress)>,
    /// Changes that take no time to be known.
    cache: KvEvents,
    /// Changes on their way, with the instant at which they are known.
    on_the_way: VecDeque<(Nanos, KvEvents)>,
}

impl NewsBook {
    /// The book of this rank of this worker: which of its changes are lost is its own.
    pub fn of(self, worker: u32, rank: u32) -> NewsBook {
        NewsBook { place: (worker, rank), ..self }
    }

    /// A request has its first token.
    pub fn first_token(&mut self, now: Nanos, id: RequestId) {
        if self.telling.progress {
            self.progress.push((now, Progress::FirstToken(id)));
        }
    }

    /// A request has ended, or was refused.
    pub fn ended(&mut self, now: Nanos, id: RequestId) {
        if self.telling.progress {
            self.progress.push((now, Progress::Ended(id)));
        }
    }

    /// The prefix cache has changed.
    pub fn cache_changed(&mut self, now: Nanos, events: &KvEvents) {
        if events.is_empty() || self.telling.cache.is_none() {
            return;
        }
        if let Some(loss) = self.telling.loss
            && is_shared(events)
        {
            self.batches += 1;
            if loss.loses(self.place, self.batches) {
                self.lost += 1;
                return;
            }
        }
        if self.telling.lag == Nanos::ZERO {
            self.cache.append(events);
        } else {
            self.on_the_way.push_back((now + self.telling.lag, events.clone()));
        }
    }

    /// Batches of changes that were lost.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// When something is known that is on its way.
    pub fn next_known(&self) -> Nanos {
        self.on_the_way.front().map_or(Nanos::NEVER, |&(known, _)| known)
    }

    /// Requests have got on, and the router does not know.
    pub fn has_progress(&self) -> bool {
        !self.progress.is_empty()
    }

    /// The router could know more than it does.
    pub fn has_untold(&self) -> bool {
        self.has_progress() || !self.cache.is_empty()
    }

    /// Tells what is known by `now`. `rank` is the rank's number among all.
    pub fn tell(&mut self, rank: u32, now: Nanos, router: &mut dyn Router) {
        for (time, progress) in self.progress.drain(..) {
            let news = match progress {
                Progress::FirstToken(id) => News::FirstToken(id),
                Progress::Ended(id) => News::Ended(id),
            };
            router.tell(rank, time, news);
        }
        if !self.cache.is_empty() {
            router.tell(rank, now, News::Cache(&self.cache));
            self.cache.clear();
        }
        while let Some((known, events)) = self.on_the_way.pop_front_if(|(known, _)| *known <= now) {
            router.tell(rank, known, News::Cache(&events));
        }
    }
}

/// Some of the changes are of identities that several requests can have. Where an event log is kept, others stand beside
/// them, which no router is told of.
fn is_shared(events: &KvEvents) -> bool {
    let shared = |blocks: &[BlockKey]| blocks.iter().any(|key| key.space() != KeySpace::Private);
    events.iter().any(|event| match event {
        KvEvent::Stored { blocks, .. } | KvEvent::Removed { blocks, .. } => shared(blocks),
        KvEvent::Cleared => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_batches_is_lost() {
        let loss = EventLoss { rate: 0.25, seed: 3 };
        let lost = (0..10_000).filter(|&batch| loss.loses((4, 0), batch)).count();
        // Five standard deviations.
        assert!(lost.abs_diff(2500) < 217, "{lost}");
        let of = |rank| (0..64).map(|batch| loss.loses((0, rank), batch)).collect::<Vec<_>>();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }
}
