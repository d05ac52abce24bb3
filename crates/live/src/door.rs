//! The router in front of live workers: whom it picks for a request, what the ranks' threads tell it, and the requests
//! that it holds back.
//!
//! The policies are those of crate `router`, as in virtual time; only who calls them is not one loop.

use crate::submission::Submission;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use windtunnel_config::Deployment;
use windtunnel_engine::{KvEvents, Nanos, RequestId};
use windtunnel_router::{Choice, Fleet, Incoming, News, Router, Telling, Verdict, Workers};

/// The rank that a request has gone to, counted through all workers; none while the router holds it back.
pub(crate) type Place = Arc<OnceLock<u32>>;

/// A request that is held back.
pub(crate) struct Held {
    pub(crate) submission: Submission,
    pub(crate) dp_rank: Option<u32>,
    pub(crate) place: Place,
}

/// A request whose turn it is.
pub(crate) struct Released {
    pub(crate) held: Held,
    pub(crate) choice: Choice,
}

pub(crate) struct Door {
    inside: Mutex<Inside>,
    /// Ranks tell what they have to at once; it is known so much later.
    lag: Nanos,
    /// Of each worker.
    ranks: u32,
}

struct Inside {
    router: Box<dyn Router>,
    held: HashMap<RequestId, Held>,
    /// Changes of prefix caches on their way: when they are known, and whose they are.
    on_the_way: Vec<(Nanos, u32, KvEvents)>,
}

impl Door {
    pub(crate) fn new(deployment: &Deployment) -> Door {
        let fleet = Fleet { workers: deployment.replicas, ranks: deployment.ranks };
        Door {
            inside: Mutex::new(Inside {
                router: deployment.router.router(fleet, Some(deployment.prefill_time())),
                held: HashMap::new(),
                on_the_way: Vec::new(),
            }),
            lag: deployment.kv_event_lag,
            ranks: deployment.ranks.get(),
        }
    }

    /// What the ranks have to tell, at once.
    pub(crate) fn telling(deployment: &Deployment) -> Telling {
        Telling::new(deployment.router.needs(), Nanos::ZERO)
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a request goes that comes at `now`; none if it is held back. `place` will show it.
    pub(crate) fn route(
        &self,
        submission: Submission,
        dp_rank: Option<u32>,
        now: Nanos,
        place: &Place,
        workers: &mut dyn Workers,
    ) -> Option<(Submission, Choice)> {
        let mut inside = self.inside();
        inside.catch_up(now);
        let session = submission.session.as_deref();
        let incoming = Incoming { request: &submission.request, session, dp_rank, now };
        match inside.router.route(&incoming, workers) {
            Verdict::To(choice) => Some((submission, choice)),
            Verdict::Held => {
                let id = submission.request.id;
                inside.held.insert(id, Held { submission, dp_rank, place: place.clone() });
                None
            }
        }
    }

    /// Lets `tell` tell the router what has happened by `now`, true if requests have got on. Those whose turn it is
    /// then go to `place`, which is called with the door shut.
    pub(crate) fn hear(
        &self,
        now: Nanos,
        tell: impl FnOnce(&mut dyn Router) -> bool,
        mut place: impl FnMut(Released),
    ) {
        let mut inside = self.inside();
        let Inside { router, on_the_way, .. } = &mut *inside;
        let told = match self.lag {
            Nanos::ZERO => tell(router.as_mut()),
            lag => tell(&mut Late { router: router.as_mut(), on_the_way, lag }),
        };
        if !told {
            return;
        }
        inside.catch_up(now);
        while let Some((id, choice)) = inside.router.release(now) {
            match inside.held.remove(&id) {
                Some(held) => place(Released { held, choice }),
                // Its client is gone.
                None => inside.router.tell(choice.worker * self.ranks, now, News::Ended(id)),
            }
        }
    }

    /// Takes out a request that is no longer wanted, if it was held back.
    pub(crate) fn forget(&self, id: RequestId) -> Option<Held> {
        self.inside().held.remove(&id)
    }
}

impl Inside {
    /// Tells the router the changes that are known by `now`.
    fn catch_up(&mut self, now: Nanos) {
        let Inside { router, on_the_way, .. } = self;
        // Those of one rank stay in order.
        on_the_way.retain(|(known, rank, events)| {
            let is_known = *known <= now;
            if is_known {
                router.tell(*rank, *known, News::Cache(events));
            }
            !is_known
        });
    }
}

/// A router that hears of caches later.
struct Late<'a> {
    router: &'a mut dyn Router,
    on_the_way: &'a mut Vec<(Nanos, u32, KvEvents)>,
    lag: Nanos,
}

impl Router for Late<'_> {
    fn route(&mut self, incoming: &Incoming<'_>, workers: &mut dyn Workers) -> Verdict {
        self.router.route(incoming, workers)
    }

    fn tell(&mut self, rank: u32, time: Nanos, news: News<'_>) {
        match news {
            News::Cache(events) => self.on_the_way.push((time + self.lag, rank, events.clone())),
            News::FirstToken(_) | News::Ended(_) => self.router.tell(rank, time, news),
        }
    }
}
