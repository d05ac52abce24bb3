//! What the tests of policies have in common.

use crate::{Choice, Fleet, Incoming, Router, Verdict, WorkerLoad, Workers};
use std::num::NonZeroU32;
use windtunnel_engine::{Content, HandOff, Nanos, OutputPlan, Request, RequestId};

/// Workers of one rank.
pub(crate) fn one_rank_each(workers: NonZeroU32) -> Fleet {
    Fleet { workers, ranks: NonZeroU32::MIN }
}

/// `workers` workers of `ranks` ranks.
pub(crate) fn fleet(workers: u32, ranks: u32) -> Fleet {
    Fleet { workers: NonZeroU32::new(workers).unwrap(), ranks: NonZeroU32::new(ranks).unwrap() }
}

/// Workers with these loads.
pub(crate) struct Loads(pub(crate) Vec<WorkerLoad>);

impl Loads {
    /// Workers with so many unfinished requests.
    pub(crate) fn unfinished(loads: &[u64]) -> Loads {
        let load = |&unfinished| WorkerLoad { unfinished, ..WorkerLoad::default() };
        Loads(loads.iter().map(load).collect())
    }
}

impl Workers for Loads {
    fn count(&self) -> NonZeroU32 {
        NonZeroU32::new(self.0.len() as u32).unwrap()
    }

    fn load(&mut self, worker: u32) -> WorkerLoad {
        self.0[worker as usize]
    }
}

/// A request with this prompt, of one output token.
pub(crate) fn request(id: u64, prompt_tokens: u32, content: Content) -> Request {
    Request {
        id: RequestId(id),
        arrival: Nanos::ZERO,
        prompt_tokens,
        content,
        output: OutputPlan::of_length(1),
        priority: None,
        tie: id,
        hand_off: HandOff::None,
    }
}

/// A request that has come at `now` and names nothing.
pub(crate) fn incoming(request: &Request, now: Nanos) -> Incoming<'_> {
    Incoming { request, session: None, dp_rank: None, now }
}

/// Where a router sends a request at once.
pub(crate) fn sent(router: &mut dyn Router, incoming: &Incoming<'_>, workers: &mut dyn Workers) -> Choice {
    match router.route(incoming, workers) {
        Verdict::To(choice) => choice,
        Verdict::Held => panic!("held back"),
    }
}

/// The worker that takes a request of which a router looks at nothing.
pub(crate) fn chosen(router: &mut dyn Router, workers: &mut dyn Workers) -> u32 {
    let request = request(0, 1, Content::Private);
    sent(router, &incoming(&request, Nanos::ZERO), workers).worker
}
