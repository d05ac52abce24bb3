//! The workers of one role, and how a request finds its rank among them.

use super::Disaggregated;
use crate::group::{Group, GroupOptions, Lanes};
use crate::placement::{Placer, ranks_per_group};
use crate::routing::{Routing, known};
use std::num::NonZeroU32;
use std::ops::Range;
use windtunnel_config::{Deployment, Semantics};
use windtunnel_engine::{ConfigError, Nanos, Rejection};
use windtunnel_report::{Role, Routing as KnownOverlap};
use windtunnel_router::{Choice, Policy, RoundRobin};
use windtunnel_traffic::Arrival;

pub(super) const PREFILL: usize = 0;
pub(super) const DECODE: usize = 1;
pub(super) const ROLES: [Role; 2] = [Role::Prefill, Role::Decode];

/// How the requests of a pool find their rank.
pub(super) enum Turn {
    /// The workers in turn, and then as a worker places among its ranks.
    Workers(RoundRobin, Placer),
    /// All ranks of all workers in turn (AISimulate).
    Ranks(RoundRobin),
    /// As the role's router says, and where it names no rank as the worker places among its ranks.
    Routed(Box<Routing>, Placer),
}

/// Where a request of a pool goes: the group, the lane in it, and what the router knew of its prompt.
pub(super) type Place = (usize, usize, Option<KnownOverlap>);

/// The groups of one role: a part of all groups.
pub(super) struct PoolOf<'a> {
    pub(super) deployment: &'a Deployment,
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) turn: Turn,
    pub(super) options: GroupOptions,
    /// The workers that take requests, in order.
    ready: Vec<u32>,
}

impl<'a> PoolOf<'a> {
    pub(super) fn new(
        deployment: &'a Deployment,
        first: usize,
        count: usize,
        options: GroupOptions,
    ) -> PoolOf<'a> {
        let turn = match (&deployment.router, deployment.semantics) {
            (Policy::RoundRobin, Semantics::Aisimulate013) => Turn::Ranks(RoundRobin::new()),
            (Policy::RoundRobin, Semantics::Native) => {
                Turn::Workers(RoundRobin::new(), Placer::new(deployment))
            }
            _ => Turn::Routed(Box::new(Routing::new(deployment, count)), Placer::new(deployment)),
        };
        let ready = (0..deployment.replicas.get()).collect();
        PoolOf { deployment, first, count, turn, options, ready }
    }

    pub(super) fn range(&self) -> Range<usize> {
        self.first..self.first + self.count
    }

    /// The groups of a worker.
    pub(super) fn groups_of(&self, worker: u32) -> Range<usize> {
        let per_worker = (self.deployment.ranks.get() / ranks_per_group(self.deployment)) as usize;
        let first = self.first + worker as usize * per_worker;
        first..first + per_worker
    }

    /// Somebody takes requests.
    pub(super) fn is_staffed(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A worker takes requests from now on, with empty caches.
    pub(super) fn join(&mut self, worker: u32) {
        match &mut self.turn {
            Turn::Workers(_, placer) => placer.renew(worker),
            Turn::Ranks(_) => {}
            Turn::Routed(routing, placer) => {
                placer.renew(worker);
                routing.joined(worker);
            }
        }
    }

    /// A worker takes no more requests.
    pub(super) fn leave(&mut self, worker: u32) {
        if let Turn::Routed(routing, _) = &mut self.turn {
            routing.left(worker);
        }
    }

    /// Empty groups for a worker.
    pub(super) fn fresh<L: Lanes>(&self, role: Role, worker: u32) -> Result<Vec<Group<L>>, ConfigError> {
        groups_of_worker(role, worker, self.deployment, &self.options)
    }

    /// Another group is in the place of a group: it has nothing to tell.
    pub(super) fn renewed(&mut self, at: usize) {
        if let Turn::Routed(routing, _) = &mut self.turn {
            routing.renewed(at - self.first);
        }
    }

    /// The router is told all that a group can tell by `now`, to which it has been advanced.
    pub(super) fn hear_all<L: Lanes>(&mut self, groups: &mut [Group<L>], at: usize, now: Nanos) {
        let range = self.range();
        if let Turn::Routed(routing, _) = &mut self.turn {
            routing.hear_all(&mut groups[range], at - self.first, now);
        }
    }

    /// These workers take requests, in order.
    pub(super) fn set_ready(&mut self, workers: &[u32]) {
        self.ready.clear();
        self.ready.extend_from_slice(workers);
        if let Turn::Routed(routing, _) = &mut self.turn {
            routing.set_ready(workers);
        }
    }
}

/// The groups of a worker in which nothing has happened.
pub(super) fn groups_of_worker<L: Lanes>(
    role: Role,
    worker: u32,
    deployment: &Deployment,
    options: &GroupOptions,
) -> Result<Vec<Group<L>>, ConfigError> {
    let ranks = ranks_per_group(deployment);
    let firsts = (0..deployment.ranks.get()).step_by(ranks as usize);
    firsts.map(|first| Group::new(role, worker, first, ranks, deployment, options)).collect()
}

impl<L: Lanes> Disaggregated<'_, L> {
    /// The pool that a group belongs to.
    pub(super) fn pool_of(&self, at: usize) -> usize {
        usize::from(at >= self.pools[DECODE].first)
    }

    /// The group and the lane in it that take a request of a pool.
    pub(super) fn place(
        &mut self,
        pool: usize,
        arrival: &Arrival,
        now: Nanos,
    ) -> Result<Place, (usize, Rejection)> {
        let (named, mut overlap) = (arrival.dp_rank, None);
        let PoolOf { deployment, first, count, turn, ready, .. } = &mut self.pools[pool];
        let groups = &mut self.groups[*first..*first + *count];
        // Nobody is asked where to send a request while there is no worker.
        let number = NonZeroU32::new(ready.len() as u32).unwrap_or(NonZeroU32::MIN);
        let found = match turn {
            Turn::Workers(workers, placer) => {
                let worker = ready[workers.next_of(number) as usize];
                placer.place(worker, named, now, groups)
            }
            Turn::Routed(routing, placer) => {
                let Choice { worker, rank, record } = routing.choose(groups, arrival, now);
                overlap = record.map(known);
                placer.place(worker, named.or(rank), now, groups)
            }
            Turn::Ranks(ranks) => {
                let all = number.saturating_mul(deployment.ranks);
                let (place, per_group) = (ranks.next_of(all), ranks_per_group(deployment));
                let per_worker = deployment.ranks.get();
                let worker = ready[(place / per_worker) as usize];
                let rank = named.unwrap_or(place % per_worker);
                let at = (worker * (per_worker / per_group)) as usize;
                match rank < per_worker {
                    true => Ok((at + (rank / per_group) as usize, (rank % per_group) as usize)),
                    false => Err((at, Rejection::NoSuchRank { dp_rank: rank, ranks: per_worker })),
                }
            }
        };
        let first = *first;
        found.map(|(at, lane)| (first + at, lane, overlap)).map_err(|(at, reason)| (first + at, reason))
    }
}
