//! The router in virtual time: what it is told and when, and the requests that it holds back.
//!
//! Rank groups are advanced only when they may have something to tell: each says from when on that is, and a heap
//! finds those whose time has come. A group in the middle of a long decode costs nothing.

use crate::group::{Group, Lanes};
use crate::placement::Snapshot;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::num::NonZeroU32;
use windtunnel_config::Deployment;
use windtunnel_engine::{Nanos, RequestId};
use windtunnel_router::{Choice, Fleet, Incoming, Needs, Router, RoutingRecord, Verdict};
use windtunnel_traffic::Arrival;

pub(crate) struct Routing {
    router: Box<dyn Router>,
    needs: Needs,
    /// Those of the start.
    workers: NonZeroU32,
    /// Those that take requests.
    ready: Vec<u32>,
    groups_per_worker: usize,
    ranks: u32,
    /// No group has anything to tell before its instant here.
    quiet_until: Vec<Nanos>,
    /// The same, in order. An entry that no longer holds is dropped when seen.
    watch: BinaryHeap<Reverse<(Nanos, usize)>>,
    held: HashMap<RequestId, Arrival>,
    /// Requests have got on since the router was last asked whom it lets go.
    told: bool,
}

impl Routing {
    pub(crate) fn new(deployment: &Deployment, groups: usize) -> Routing {
        let fleet = Fleet { workers: deployment.replicas, ranks: deployment.ranks };
        let needs = deployment.router.needs();
        Routing {
            router: deployment.router.router(fleet, Some(deployment.prefill_time())),
            needs,
            workers: deployment.replicas,
            ready: (0..deployment.replicas.get()).collect(),
            groups_per_worker: groups / deployment.replicas.get() as usize,
            ranks: deployment.ranks.get(),
            quiet_until: vec![Nanos::NEVER; if needs.news() { groups } else { 0 }],
            watch: BinaryHeap::new(),
            held: HashMap::new(),
            told: false,
        }
    }

    /// The worker for a request, of a policy that needs to know nothing.
    pub(crate) fn pick_unseen(&mut self, arrival: &Arrival, now: Nanos) -> u32 {
        match self.router.route(&incoming(arrival, now), &mut self.workers) {
            Verdict::To(choice) => choice.worker,
            // Who holds requests back needs to know when to let them go.
            Verdict::Held => unreachable!("a policy without needs holds nothing"),
        }
    }

    /// Where a request goes that comes at `now`, with which the router has caught up; None if it is held back.
    pub(crate) fn route<L: Lanes>(
        &mut self,
        groups: &mut [Group<L>],
        arrival: Arrival,
        now: Nanos,
    ) -> Option<(Arrival, Choice)> {
        let mut workers = Snapshot::new(groups, self.groups_per_worker, &self.ready, now);
        match self.router.route(&incoming(&arrival, now), &mut workers) {
            Verdict::To(choice) => Some((arrival, choice)),
            Verdict::Held => {
                self.held.insert(arrival.request.id, arrival);
                None
            }
        }
    }

    /// Where a request goes that comes at `now`, by a policy that holds nothing back. The router hears before what is
    /// known by then.
    pub(crate) fn choose<L: Lanes>(
        &mut self,
        groups: &mut [Group<L>],
        arrival: &Arrival,
        now: Nanos,
    ) -> Choice {
        self.catch_up(groups, now);
        let mut workers = Snapshot::new(groups, self.groups_per_worker, &self.ready, now);
        match self.router.route(&incoming(arrival, now), &mut workers) {
            Verdict::To(choice) => choice,
            Verdict::Held => unreachable!("a policy without a queue holds nothing"),
        }
    }

    /// A request that was held back and goes at `now`.
    pub(crate) fn release(&mut self, now: Nanos) -> Option<(Arrival, Choice)> {
        if !self.needs.holds {
            return None;
        }
        let (id, choice) = self.router.release(now)?;
        // A router names requests that it holds, each once.
        let arrival = self.held.remove(&id)?;
        Some((arrival, choice))
    }

    /// A worker takes requests from now on.
    pub(crate) fn joined(&mut self, worker: u32) {
        self.router.joined(worker);
    }

    /// A worker takes no more requests.
    pub(crate) fn left(&mut self, worker: u32) {
        self.router.left(worker);
    }

    /// These workers take requests, in order.
    pub(crate) fn set_ready(&mut self, workers: &[u32]) {
        self.ready.clear();
        self.ready.extend_from_slice(workers);
    }

    /// Another group is in the place of a group: it has nothing to tell.
    pub(crate) fn renewed(&mut self, group: usize) {
        if self.needs.news() {
            self.quiet_until.resize(self.quiet_until.len().max(group + 1), Nanos::NEVER);
            self.quiet_until[group] = Nanos::NEVER;
        }
    }

    /// The router is told all that a group can tell by `now`, to which it has been advanced.
    pub(crate) fn hear_all<L: Lanes>(&mut self, groups: &mut [Group<L>], group: usize, now: Nanos) {
        self.told |= self.hear(groups, group, now);
    }

    /// Requests that are held back, in order of their numbers, which are so no more. Nobody will ever take them.
    pub(crate) fn take_held(&mut self) -> Vec<Arrival> {
        let mut held: Vec<Arrival> = self.held.drain().map(|(_, arrival)| arrival).collect();
        held.sort_by_key(|arrival| arrival.request.id);
        held
    }

    /// Requests that are held back.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Tells the router everything that is known by `now`. True if requests have got on, so that others may be let
    /// go.
    pub(crate) fn catch_up<L: Lanes>(&mut self, groups: &mut [Group<L>], now: Nanos) -> bool {
        let mut told = std::mem::take(&mut self.told);
        while let Some((instant, group)) = self.next()
            && instant <= now
        {
            self.watch.pop();
            groups[group].run_until(now, false);
            told |= self.hear(groups, group, now);
            self.note(groups, group);
            if self.quiet_until[group] <= now {
                // A pass begins at this instant, once everything has come that comes now.
                self.later(group, now);
            }
        }
        told
    }

    /// A group that is to be asked again after `now`, unless it is noted before: who lets it begin its pass does.
    fn later(&mut self, group: usize, now: Nanos) {
        let instant = Nanos(now.0 + 1);
        self.quiet_until[group] = instant;
        self.watch.push(Reverse((instant, group)));
    }

    /// The next instant at which a group may have something to tell, and the groups of that instant, advanced to it.
    pub(crate) fn advance<L: Lanes>(
        &mut self,
        groups: &mut [Group<L>],
        before: Nanos,
        into: &mut Vec<usize>,
    ) -> Option<Nanos> {
        into.clear();
        let (now, _) = self.next().filter(|&(instant, _)| instant < before)?;
        while let Some((instant, group)) = self.next()
            && instant <= now
        {
            self.watch.pop();
            self.quiet_until[group] = Nanos::NEVER;
            groups[group].run_until(now, false);
            self.told |= self.hear(groups, group, now);
            into.push(group);
        }
        Some(now)
    }

    /// Something has happened to a group: from when on may it have something to tell?
    pub(crate) fn note<L: Lanes>(&mut self, groups: &[Group<L>], group: usize) {
        if !self.needs.news() {
            return;
        }
        let instant = groups[group].next_news();
        self.quiet_until[group] = instant;
        if instant < Nanos::NEVER {
            self.watch.push(Reverse((instant, group)));
        }
    }

    fn hear<L: Lanes>(&mut self, groups: &mut [Group<L>], group: usize, now: Nanos) -> bool {
        let mut told = false;
        for lane in groups[group].lanes_mut() {
            let rank = lane.row().worker * self.ranks + lane.row().rank;
            if let Some(news) = lane.news() {
                told |= news.has_progress();
                news.tell(rank, now, self.router.as_mut());
            }
        }
        told
    }

    fn next(&mut self) -> Option<(Nanos, usize)> {
        while let Some(&Reverse((instant, group))) = self.watch.peek() {
            if self.quiet_until[group] == instant {
                return Some((instant, group));
            }
            self.watch.pop();
        }
        None
    }
}

/// What is kept of a placement with the request.
pub(crate) fn known(record: RoutingRecord) -> windtunnel_report::Routing {
    windtunnel_report::Routing {
        overlap: record.overlap_tokens,
        best_overlap: record.best_overlap_tokens,
        below: record.below.map(|below| (below.host, below.disk)),
    }
}

fn incoming(arrival: &Arrival, now: Nanos) -> Incoming<'_> {
    Incoming { request: &arrival.request, session: arrival.session.as_deref(), dp_rank: arrival.dp_rank, now }
}
