//! The workers of one role in a replay: their rank groups, their router, and how a request finds its rank.

use super::Loads;
use crate::error::LiveError;
use crate::group::{GroupSettings, RankGroup};
use crate::observer::Observers;
use crate::placement::Placement;
use crate::rank::LiveRank;
use crate::recorder::{Prefilled, Recorder};
use std::sync::{Arc, Mutex, PoisonError};
use windtunnel_config::Deployment;
use windtunnel_engine::{Nanos, Rank, Rejection, RequestId, Stepper};
use windtunnel_report::{Collector, CollectorOptions, Refusal, Role};
use windtunnel_router::{Choice, Fleet, Incoming, News, Router, Verdict};
use windtunnel_traffic::Arrival;

/// A rank: its group, and its place in that.
pub(super) type Place = (usize, usize);

pub(super) struct Side<'a> {
    pub(super) deployment: &'a Deployment,
    pub(super) groups: Vec<RankGroup>,
    /// By group, shared with its recorders.
    collectors: Vec<Arc<Mutex<Collector>>>,
    groups_per_worker: usize,
    ranks_per_group: u32,
    router: Box<dyn Router>,
    /// By worker.
    placements: Vec<Placement>,
}

impl<'a> Side<'a> {
    /// Workers at rest. `prefilled`: what others have done for their requests.
    pub(super) fn new(
        deployment: &'a Deployment,
        collected: CollectorOptions,
        role: Role,
        prefilled: &Prefilled,
    ) -> Result<Side<'a>, LiveError> {
        let ranks = deployment.ranks.get();
        let ranks_per_group = if deployment.barrier { ranks } else { 1 };
        let mut settings = GroupSettings::new(deployment, 1.0);
        let telling = deployment.telling();
        let (scope, tokens) = telling.scope(settings.engine.block_size());
        settings.engine.set_kv_events(scope, tokens);
        let (mut groups, mut collectors) = (Vec::new(), Vec::new());
        for worker in 0..deployment.replicas.get() {
            for first in (0..ranks).step_by(ranks_per_group as usize) {
                let collector = Arc::new(Mutex::new(Collector::new(collected)));
                let lanes = (first..first + ranks_per_group).map(|rank| {
                    let scheduler = Rank::new(settings.engine.clone(), Stepper::Plain)?;
                    let usable = u64::from(settings.engine.usable_blocks());
                    let mut observers = Observers::default();
                    let recorder = Recorder::new(collector.clone(), (role, worker, rank), usable, prefilled);
                    observers.push(Box::new(recorder));
                    Ok(LiveRank::new(settings.engine.clone(), scheduler, observers, telling.book()))
                });
                let lanes = lanes.collect::<Result<Vec<_>, LiveError>>()?;
                groups.push(RankGroup::new(first, lanes, settings.clone()));
                collectors.push(collector);
            }
        }
        Ok(Side {
            deployment,
            groups,
            collectors,
            groups_per_worker: (ranks / ranks_per_group) as usize,
            ranks_per_group,
            router: deployment.router.router(
                Fleet { workers: deployment.replicas, ranks: deployment.ranks },
                Some(deployment.prefill_time()),
            ),
            placements: (0..deployment.replicas.get()).map(|_| Placement::new(deployment)).collect(),
        })
    }

    pub(super) fn next_instant(&self) -> Nanos {
        self.groups.iter().map(RankGroup::next_instant).min().unwrap_or(Nanos::NEVER)
    }

    /// Completes every pass that ends at `instant`.
    pub(super) fn complete(&mut self, instant: Nanos) {
        for group in &mut self.groups {
            while !group.is_due() && group.next_instant() <= instant {
                group.advance(instant);
                group.deliver();
            }
        }
    }

    /// Takes every schedule call of a group that is due at `instant`.
    pub(super) fn schedule(&mut self, group: usize, instant: Nanos) -> Result<(), LiveError> {
        let group = &mut self.groups[group];
        while group.is_due() && group.next_instant() <= instant {
            group.advance(instant);
            group.deliver();
        }
        group.dead().map_or(Ok(()), |words| Err(LiveError::Dead(words)))
    }

    /// Requests that its ranks have.
    pub(super) fn unfinished(&self) -> u64 {
        self.groups.iter().map(RankGroup::unfinished).sum()
    }

    /// The worker of a group.
    pub(super) fn worker_of(&self, group: usize) -> u32 {
        (group / self.groups_per_worker) as u32
    }

    /// Tells the router what is known by `now`. True if requests have got on.
    pub(super) fn hear(&mut self, now: Nanos) -> bool {
        let mut told = false;
        for (group, first) in self.groups.iter_mut().zip((0..).step_by(self.ranks_per_group as usize)) {
            told |= group.tell(first, now, self.router.as_mut());
        }
        told
    }

    /// Asks the router where a request goes.
    pub(super) fn route(&mut self, arrival: &Arrival, now: Nanos) -> Verdict {
        let Arrival { request, dp_rank, session, .. } = arrival;
        let incoming = Incoming { request, session: session.as_deref(), dp_rank: *dp_rank, now };
        let workers = self.deployment.replicas;
        let mut workers = Loads { groups: &self.groups, per_worker: self.groups_per_worker, workers };
        self.router.route(&incoming, &mut workers)
    }

    /// A request that the router held back, and whose turn it is.
    pub(super) fn release(&mut self, now: Nanos) -> Option<(RequestId, Choice)> {
        self.router.release(now)
    }

    /// A request that was routed has ended without having come to a rank.
    pub(super) fn lost(&mut self, choice: Choice, id: RequestId, now: Nanos) {
        let number = choice.worker * self.deployment.ranks.get();
        self.router.tell(number, now, News::Ended(id));
    }

    /// The rank of a worker that takes a request.
    ///
    /// # Errors
    /// It names a rank that the worker does not have.
    pub(super) fn place(
        &mut self,
        choice: Choice,
        named: Option<u32>,
        now: Nanos,
    ) -> Result<Place, Rejection> {
        let worker = choice.worker as usize;
        let ranks = self.deployment.ranks.get();
        let rank = match named.or(choice.rank) {
            Some(dp_rank) if dp_rank >= ranks => return Err(Rejection::NoSuchRank { dp_rank, ranks }),
            Some(dp_rank) => dp_rank,
            None if ranks == 1 => 0,
            None => self.pick(worker, now),
        };
        let (group, lane) = ((rank / self.ranks_per_group) as usize, (rank % self.ranks_per_group) as usize);
        Ok((worker * self.groups_per_worker + group, lane))
    }

    /// Enters a request that was refused before it came to a rank.
    pub(super) fn refuse(&self, choice: Choice, refusal: &Refusal) {
        let first = choice.worker as usize * self.groups_per_worker;
        self.collectors[first].lock().unwrap_or_else(PoisonError::into_inner).rejected(refusal);
    }

    /// Asks the policy of a worker.
    fn pick(&mut self, worker: usize, now: Nanos) -> u32 {
        let groups = worker * self.groups_per_worker..(worker + 1) * self.groups_per_worker;
        let mut reports: Vec<_> =
            self.groups[groups.clone()].iter_mut().flat_map(RankGroup::take_reports).collect();
        // Stable: what a group tells at one instant keeps its order.
        reports.sort_by_key(|report| report.time);
        let placement = &mut self.placements[worker];
        reports.iter().for_each(|report| placement.report(report));
        let unfinished: Vec<u64> =
            self.groups[groups].iter().flat_map(RankGroup::unfinished_by_rank).collect();
        placement.pick(now, |rank| unfinished[rank as usize])
    }

    /// The last instant that one of its groups has come to.
    pub(super) fn now(&self) -> Nanos {
        self.groups.iter().map(RankGroup::now).max().unwrap_or(Nanos::ZERO)
    }

    /// Whether prefills, and decodes, lay outside of what their timing was measured for.
    pub(super) fn outside(&self) -> [bool; 2] {
        let outside = self.groups.iter().map(RankGroup::outside_of_profile);
        outside.fold([false; 2], |[p, d], [more_p, more_d]| [p | more_p, d | more_d])
    }

    /// What was collected, by group.
    pub(super) fn finish(self) -> Vec<Collector> {
        // The recorders hand over their counters when their ranks go.
        drop(self.groups);
        let collectors = self.collectors.into_iter().map(|collector| {
            let mut collector = collector.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *collector)
        });
        collectors.collect()
    }
}
