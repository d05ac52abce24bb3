//! How long transfers take on the wall clock: each by itself, or those of one process by the interfaces that they share.
//!
//! The rules are those of `Links` in crate `config`, as in virtual time; here is who counts the time, and who is told.

use crate::clock::WallClock;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use windtunnel_config::{Cargo, KvTransfer, Links, TransferId};
use windtunnel_engine::Nanos;

/// The interfaces that the transfers between the workers of one process share.
#[derive(Clone, Debug)]
pub struct SharedLinks(UnboundedSender<Start>);

/// A transfer that starts at `at`, and who is told when it is over.
#[derive(Debug)]
struct Start {
    cargo: Cargo,
    at: Nanos,
    clock: WallClock,
    over: oneshot::Sender<Nanos>,
}

impl SharedLinks {
    /// Those of so many workers. To be called on the runtime that is to count the time.
    pub fn new(law: KvTransfer, prefill_workers: usize, decode_workers: usize) -> SharedLinks {
        let (starts, started) = unbounded_channel();
        tokio::spawn(run(Flow::new(Links::new(law, prefill_workers, decode_workers)), started));
        SharedLinks(starts)
    }
}

/// How long a transfer takes.
#[derive(Clone, Debug)]
pub(super) enum Timing {
    /// As if there were no other one.
    Alone(KvTransfer),
    /// As long as the others leave it, to this worker.
    Shared(SharedLinks, usize),
}

/// What is transferred: tokens, from a worker that has computed them in so much time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) tokens: u32,
    pub(super) from: usize,
    pub(super) computed_for: Nanos,
}

impl Timing {
    /// Waits until a transfer that starts at `at` is over; when that is.
    pub(super) async fn over(&self, load: Load, at: Nanos, clock: WallClock) -> Nanos {
        let Load { tokens, from, computed_for } = load;
        match self {
            Timing::Alone(law) => {
                let end = at + law.alone(tokens, computed_for);
                let wait = clock.until(end);
                if !wait.is_zero() {
                    tokio::time::sleep(wait).await;
                }
                end
            }
            Timing::Shared(links, to) => {
                let (over, told) = oneshot::channel();
                let cargo = Cargo { from, to: *to, tokens, computed_for };
                // Who counts ends with the runtime, and then nobody waits any more.
                let _ = links.0.send(Start { cargo, at, clock, over });
                told.await.unwrap_or(at)
            }
        }
    }
}

/// The transfers under way, in logical time.
struct Flow {
    links: Links,
    waiting: HashMap<TransferId, oneshot::Sender<Nanos>>,
    /// The instant that they have come to.
    now: Nanos,
}

impl Flow {
    fn new(links: Links) -> Flow {
        Flow { links, waiting: HashMap::new(), now: Nanos::ZERO }
    }

    fn start(&mut self, cargo: Cargo, at: Nanos, over: oneshot::Sender<Nanos>) {
        // Ranks tell of instants that others have passed.
        let at = at.max(self.now);
        self.end_by(at);
        self.now = at;
        self.waiting.insert(self.links.start(cargo, at), over);
    }

    /// Ends those that are over by `now`, each at its instant.
    fn end_by(&mut self, now: Nanos) {
        loop {
            let end = self.links.next_end();
            if end > now {
                return;
            }
            let Some(id) = self.links.take_ended(end) else { return };
            self.now = self.now.max(end);
            if let Some(over) = self.waiting.remove(&id) {
                // A request that has ended meanwhile does not wait; its KV is moved all the same.
                let _ = over.send(end);
            }
        }
    }
}

/// Counts until nobody can start a transfer any more.
async fn run(mut flow: Flow, mut starts: UnboundedReceiver<Start>) {
    let mut clock = None;
    loop {
        let next = flow.links.next_end();
        let wait = clock.map_or(Duration::ZERO, |clock: WallClock| clock.until(next));
        tokio::select! {
            biased;
            start = starts.recv() => {
                let Some(start) = start else { return };
                clock = Some(start.clock);
                flow.start(start.cargo, start.at, start.over);
            }
            () = tokio::time::sleep(wait), if next < Nanos::NEVER => flow.end_by(next),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windtunnel_config::LinkSharing;

    /// 2 bytes a nanosecond for a worker, tokens of 1000 bytes. The first transfer would take 4000 ns alone, and has half from
    /// 1000 on; the second then takes 2000 ns, and the first has 4000 bytes left at the full rate. A third, told
    /// late of an instant that the others have passed, begins where they are.
    #[test]
    fn transfers_that_share_an_interface_slow_each_other() {
        let sharing = LinkSharing::FairShare { interface: 2.0 };
        let law = KvTransfer { bytes_per_token: 1000, sharing, ..KvTransfer::default() };
        let mut flow = Flow::new(Links::new(law, 1, 2));
        let begin = |flow: &mut Flow, tokens, to, at| {
            let (over, told) = oneshot::channel();
            flow.start(Cargo { from: 0, to, tokens, computed_for: Nanos::ZERO }, Nanos(at), over);
            told
        };
        let mut first = begin(&mut flow, 8, 0, 0);
        let mut second = begin(&mut flow, 2, 1, 1000);
        flow.end_by(Nanos(2999));
        assert!(first.try_recv().is_err() && second.try_recv().is_err());
        flow.end_by(Nanos(6000));
        assert_eq!(second.try_recv(), Ok(Nanos(3000)));
        assert_eq!(first.try_recv(), Ok(Nanos(5000)));
        let mut third = begin(&mut flow, 2, 0, 10);
        flow.end_by(Nanos::NEVER);
        assert_eq!(third.try_recv(), Ok(Nanos(6000)));
    }

    /// Nobody waits for the first any more. Its KV is moved all the same, and slows the second.
    #[test]
    fn a_request_that_has_gone_leaves_its_transfer() {
        let sharing = LinkSharing::FairShare { interface: 2.0 };
        let law = KvTransfer { bytes_per_token: 1000, sharing, ..KvTransfer::default() };
        let mut flow = Flow::new(Links::new(law, 1, 1));
        let cargo = Cargo { from: 0, to: 0, tokens: 2, computed_for: Nanos::ZERO };
        flow.start(cargo, Nanos::ZERO, oneshot::channel().0);
        let (over, mut told) = oneshot::channel();
        flow.start(cargo, Nanos::ZERO, over);
        flow.end_by(Nanos::NEVER.min(Nanos(10_000)));
        assert_eq!(told.try_recv(), Ok(Nanos(2000)));
    }
}
