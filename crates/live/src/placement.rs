//! Which rank of its worker takes a request that names none: the policies of crate `router`, told by the
//! threads of the ranks.

use std::num::NonZeroU32;
use windtunnel_config::{Deployment, Placement as Policy};
use windtunnel_engine::Nanos;
use windtunnel_router::{LoadReport, RoundRobin, VllmBalancer};

/// The policy of one worker.
pub(crate) struct Placement {
    ranks: NonZeroU32,
    policy: Chooser,
    /// The latest report: threads tell of instants that others have passed.
    told: Nanos,
}

enum Chooser {
    RoundRobin(RoundRobin),
    Vllm(VllmBalancer),
}

impl Placement {
    pub(crate) fn new(deployment: &Deployment) -> Placement {
        let ranks = deployment.ranks;
        let policy = match deployment.placement {
            Policy::RoundRobin => Chooser::RoundRobin(RoundRobin::new()),
            Policy::VllmBalancer => Chooser::Vllm(VllmBalancer::new(ranks, deployment.barrier)),
        };
        Placement { ranks, policy, told: Nanos::ZERO }
    }

    /// A rank tells its load.
    pub(crate) fn report(&mut self, report: &LoadReport) {
        if let Chooser::Vllm(balancer) = &mut self.policy {
            self.told = self.told.max(report.time);
            balancer.report(&LoadReport { time: self.told, ..*report });
        }
    }

    /// The rank of a request that arrives at `now`.
    pub(crate) fn pick(&mut self, now: Nanos, unfinished: impl Fn(u32) -> u64) -> u32 {
        match &mut self.policy {
            Chooser::RoundRobin(turn) => turn.next_of(self.ranks),
            Chooser::Vllm(balancer) => balancer.pick(now, unfinished),
        }
    }
}
