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
    workers: NonZeroU32,
    now: Nanos,
}

impl<'a, L: Lanes> Snapshot<'a, L> {
    pub(crate) fn new(groups: &'a mut [Group<L>], workers: NonZeroU32, now: Nanos) -> Snapshot<'a, L> {
        Snapshot { groups, workers, now }
    }
}

impl<L: Lanes> Workers for Snapshot<'_, L> {
    fn count(&self) -> NonZeroU32 {
        self.workers
    }

    fn load(&mut self, worker: u32) -> WorkerLoad {
        let per_worker = self.groups.len() / self.workers.get() as usize;
        let first = worker as usize * per_worker;
        let mut load = WorkerLoad::default();
        for group in &mut self.groups[first..first + per_worker] {
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
    /// By worker; none are needed where a worker is one rank.
    policies: Vec<Policy>,
    /// Scratch: what the ranks have told.
    reports: Vec<LoadReport>,
}

impl Placer {
    pub(crate) fn new(deployment: &Deployment) -> Placer {
        let (ranks, barrier) = (deployment.ranks, deployment.barrier);
        let policy = || match deployment.placement {
            Placement::RoundRobin => Policy::RoundRobin(RoundRobin::new()),
            Placement::VllmBalancer => Policy::Vllm(VllmBalancer::new(ranks, barrier)),
        };
        let workers = if ranks.get() > 1 { deployment.replicas.get() } else { 0 };
        Placer {
            ranks,
            ranks_per_group: ranks_per_group(deployment),
            policies: (0..workers).map(|_| policy()).collect(),
            reports: Vec::new(),
        }
    }

    /// Parts with the first `workers` workers, which are counted from 0 in either part.
    pub(crate) fn take(&mut self, workers: u32) -> Placer {
        let policies = self.policies.drain(..(workers as usize).min(self.policies.len())).collect();
        Placer { ranks: self.ranks, ranks_per_group: self.ranks_per_group, policies, reports: Vec::new() }
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
