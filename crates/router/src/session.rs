//! `session`: the requests of a conversation go to the worker that took its first one, where what was said before is
//! cached. New conversations, those whose worker has gone, and requests of none, go to the worker with the fewest
//! unfinished requests.

use crate::{Choice, Incoming, LeastRequests, Router, Verdict, Workers};
use std::collections::HashMap;

/// The policy at work.
#[derive(Debug)]
pub struct SessionAffinity {
    others: LeastRequests,
    workers: HashMap<Box<str>, u32>,
}

impl SessionAffinity {
    /// With the seed of the draws among equals.
    pub fn new(seed: u64) -> SessionAffinity {
        SessionAffinity { others: LeastRequests::new(seed), workers: HashMap::new() }
    }
}

impl Router for SessionAffinity {
    fn route(&mut self, incoming: &Incoming<'_>, workers: &mut dyn Workers) -> Verdict {
        if let Some(&worker) = incoming.session.and_then(|session| self.workers.get(session)) {
            return Verdict::To(Choice::worker(worker));
        }
        let worker = self.others.pick(workers);
        if let Some(session) = incoming.session {
            self.workers.insert(session.into(), worker);
        }
        Verdict::To(Choice::worker(worker))
    }

    fn left(&mut self, worker: u32) {
        self.workers.retain(|_, known| *known != worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Loads, incoming, request, sent};
    use windtunnel_engine::{Content, Nanos};

    #[test]
    fn a_conversation_stays_where_it_began() {
        let mut router = SessionAffinity::new(1);
        let asked = request(0, 8, Content::Private);
        let mut of = |session, loads: &[u64]| {
            let incoming = Incoming { session, ..incoming(&asked, Nanos::ZERO) };
            sent(&mut router, &incoming, &mut Loads::unfinished(loads)).worker
        };
        assert_eq!(of(Some("a"), &[3, 1, 2]), 1);
        assert_eq!(of(Some("b"), &[3, 9, 2]), 2);
        assert_eq!(of(Some("a"), &[0, 9, 9]), 1);
        assert_eq!(of(None, &[0, 9, 9]), 0);
        assert_eq!(of(Some("b"), &[0, 0, 9]), 2);
    }
}
