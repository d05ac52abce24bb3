//! Which worker takes a request, and which of its ranks: the one that it names, or one that a policy picks.
//!
//! The policies live in the router. Here is what connects them with virtual time: how the ranks of a worker
//! lie in rank groups, what they have to do when a request arrives, and what the balancer is told of them.

use crate::group::{Group, Lanes};
use std::num::NonZeroU32;
use windtunnel_config::{Deployment, Placement};
use windtunnel_engine::{Nanos, Rejection};
use windtunnel_router::{LoadReport, RoundRobin, VllmBalancer, WorkerLoad, Workers};

/// The policy of one worker.
enum Policy {
    RoundRobin(RoundRobin),
    Vllm(VllmBalancer),
}

/// Ranks that step together.
pub(crate) fn ranks_per_group(deployment: &Deployment) -> u32 {
    if deployment.barrier { deployment.ranks.get() } else { 1 }
}

/// The workers as they are when a request arrives: their passes that end by then have ended, and those that
/// begin then have not. A group is brought there when its worker is asked for its load, which costs nothing
/// if it has nothing to do before.
pub(crate) struct Snapshot<'a, L> {
    /// By worker and rank.
    groups: &'a mut [Group<L>],
    per_worker: usize,
    /// Those that take requests.
    workers: &'a [u32],
    now: Nanos,
}

impl<'a, L: Lanes> Snapshot<'a, L> {
    pub(crate) fn new(
        groups: &'a mut [Group<L>],
        per_worker: usize,
        workers: &'a [u32],
        now: Nanos,
    ) -> Snapshot<'a, L> {
        Snapshot { groups, per_worker, workers, now }
    }
}

impl<L: Lanes> Workers for Snapshot<'_, L> {
    fn count(&self) -> NonZeroU32 {
        // Nobody is asked where to send a request while there is no worker.
        NonZeroU32::new(self.workers.len() as u32).unwrap_or(NonZeroU32::MIN)
    }

    fn number(&self, place: u32) -> u32 {
        self.workers[place as usize]
    }

    fn load(&mut self, place: u32) -> WorkerLoad {
        let first = self.number(place) as usize * self.per_worker;
        let mut load = WorkerLoad::default();
        for group in &mut self.groups[first..first + self.per_worker] {
            group.run_until(self.now, false);
            group.lanes().iter().for_each(|lane| lane.add_to(&mut load));
        }
        load
    }
}

/// Places requests on the ranks of their worker.
pub(crate) struct Placer {
    /// Of each worker.
    ranks: NonZeroU32,
    ranks_per_group: u32,
    placement: Placement,
    barrier: bool,
    /// By worker; none are needed where a worker is one rank.
    policies: Vec<Policy>,
    /// Scratch: what the ranks have told.
    reports: Vec<LoadReport>,
}

impl Placer {
    pub(crate) fn new(deployment: &Deployment) -> Placer {
        let (ranks, barrier) = (deployment.ranks, deployment.barrier);
        let workers = if ranks.get() > 1 { deployment.replicas.get() } else { 0 };
        let mut placer = Placer {
            ranks,
            ranks_per_group: ranks_per_group(deployment),
            placement: deployment.placement,
            barrier,
            policies: Vec::new(),
            reports: Vec::new(),
        };
        (0..workers).for_each(|worker| placer.renew(worker));
        placer
    }

    /// A worker begins anew, or is the next one.
    pub(crate) fn renew(&mut self, worker: u32) {
        if self.ranks.get() == 1 {
            return;
        }
        let policy = match self.placement {
            Placement::RoundRobin => Policy::RoundRobin(RoundRobin::new()),
            Placement::VllmBalancer => Policy::Vllm(VllmBalancer::new(self.ranks, self.barrier)),
        };
        match self.policies.get_mut(worker as usize) {
            Some(old) => *old = policy,
            None => self.policies.push(policy),
        }
    }

    /// Parts with the first `workers` workers, which are counted from 0 in either part.
    pub(crate) fn take(&mut self, workers: u32) -> Placer {
        let policies = self.policies.drain(..(workers as usize).min(self.policies.len())).collect();
        Placer { policies, reports: Vec::new(), ..*self }
    }

    /// Where in `groups`, and in which lane of its group, the rank of `worker` stands that takes a request at
    /// `now`. Or the worker's first group, and why none takes it.
    pub(crate) fn place(
        &mut self,
        worker: u32,
        named: Option<u32>,
        now: Nanos,
        groups: &mut [Group<impl Lanes>],
    ) -> Result<(usize, usize), (usize, Rejection)> {
        let ranks = self.ranks.get();
        let first = worker as usize * (ranks / self.ranks_per_group) as usize;
        let rank = match named {
            Some(dp_rank) if dp_rank >= ranks => {
                return Err((first, Rejection::NoSuchRank { dp_rank, ranks }));
            }
            Some(dp_rank) => dp_rank,
            None if ranks == 1 => 0,
            None => {
                let count = (ranks / self.ranks_per_group) as usize;
                self.pick(worker, now, &mut groups[first..first + count])
            }
        };
        let (group, lane) = (rank / self.ranks_per_group, rank % self.ranks_per_group);
        Ok((first + group as usize, lane as usize))
    }

    /// Asks the worker's policy. `groups` are those of the worker.
    fn pick(&mut self, worker: u32, now: Nanos, groups: &mut [Group<impl Lanes>]) -> u32 {
        match &mut self.policies[worker as usize] {
            Policy::RoundRobin(turn) => turn.next_of(self.ranks),
            Policy::Vllm(balancer) => {
                self.reports.clear();
                for group in &mut *groups {
                    group.run_until(now, false);
                    self.reports.extend(group.take_reports());
                }
                // Stable: what a group tells at one instant keeps its order.
                self.reports.sort_by_key(|report| report.time);
                self.reports.iter().for_each(|report| balancer.report(report));
                let per_group = self.ranks_per_group;
                balancer.pick(now, |rank| {
                    groups[(rank / per_group) as usize].unfinished_of((rank % per_group) as usize) as u64
                })
            }
        }
    }
}
