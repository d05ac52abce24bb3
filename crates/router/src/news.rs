//! What a rank has to tell the router: first tokens, ends, and changes of its prefix cache. For whoever drives ranks.
//!
//! A rank runs ahead of the router's questions, so what it has to tell waits here until somebody asks. Changes of
//! the cache may be on their way for a while before the router can know them.

use crate::{Needs, News, Router};
use std::collections::VecDeque;
use windtunnel_engine::{KvEventScope, KvEvents, Nanos, RequestId};

/// What the ranks of a run have to tell.
#[derive(Clone, Copy, Debug, Default)]
pub struct Telling {
    progress: bool,
    /// Tokens of a block.
    cache: Option<u32>,
    lag: Nanos,
}

impl Telling {
    /// What a policy with these needs has to be told, changes of caches so much later.
    pub fn new(needs: Needs, lag: Nanos) -> Telling {
        Telling { progress: needs.progress, cache: needs.cache, lag }
    }

    /// Which events a rank has to keep for it, and in blocks of how many tokens.
    pub fn scope(&self, block_size: u32) -> (KvEventScope, u32) {
        match self.cache {
            None => (KvEventScope::Off, block_size),
            Some(tokens) => (KvEventScope::Shared { timed: self.lag > Nanos::ZERO }, tokens),
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

/// What one rank has not yet told.
#[derive(Default)]
pub struct NewsBook {
    telling: Telling,
    progress: Vec<(Nanos, Progress)>,
    /// Changes that take no time to be known.
    cache: KvEvents,
    /// Changes on their way, with the instant at which they are known.
    on_the_way: VecDeque<(Nanos, KvEvents)>,
}

impl NewsBook {
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
        if self.telling.lag == Nanos::ZERO {
            self.cache.append(events);
        } else {
            self.on_the_way.push_back((now + self.telling.lag, events.clone()));
        }
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
