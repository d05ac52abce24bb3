//! Transfers of KV between workers in logical time: when each of them ends, by the law of their configuration.
//!
//! A transfer has a link of its own, or shares the network interfaces of the two workers with the others that use
//! them. What is moved, and what follows from its end, is not known here.

use crate::experiment::{KvTransfer, LinkSharing};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use windtunnel_engine::Nanos;

/// A transfer under way, by its number in order of start.
pub type TransferId = usize;

/// What is moved, from one worker to another.
#[derive(Clone, Copy, Debug)]
pub struct Cargo {
    /// The worker that is read from.
    pub from: usize,
    /// The worker that reads.
    pub to: usize,
    /// Tokens whose KV is moved.
    pub tokens: u32,
    /// How long the computation took that the transfer may overlap with, layer by layer.
    pub computed_for: Nanos,
}

/// One that shares interfaces.
#[derive(Clone, Copy, Debug)]
struct Sharer {
    id: TransferId,
    from: usize,
    to: usize,
    /// Bytes left.
    left: f64,
    /// Bytes per nanosecond.
    rate: f64,
}

/// All transfers of a run.
pub struct Links {
    transfer: KvTransfer,
    started: TransferId,
    /// Ends that are certain.
    ends: BinaryHeap<Reverse<(Nanos, TransferId)>>,
    /// Those that share interfaces, in order of start.
    sharers: Vec<Sharer>,
    /// Up to when `left` is counted.
    counted: Nanos,
    /// Transfers that use the interface of each worker: those read from, those that read.
    users: [Vec<u32>; 2],
}

impl Links {
    /// None under way, between so many workers.
    pub fn new(transfer: KvTransfer, prefill_workers: usize, decode_workers: usize) -> Links {
        Links {
            transfer,
            started: 0,
            ends: BinaryHeap::new(),
            sharers: Vec::new(),
            counted: Nanos::ZERO,
            users: [vec![0; prefill_workers], vec![0; decode_workers]],
        }
    }

    /// A transfer starts at `now`. Transfers that are told to end by then must have been taken.
    pub fn start(&mut self, cargo: Cargo, now: Nanos) -> TransferId {
        let id = self.started;
        self.started += 1;
        match self.transfer.sharing {
            LinkSharing::PerRequest => {
                let time = self.transfer.alone(cargo.tokens, cargo.computed_for);
                self.ends.push(Reverse((now + time, id)));
            }
            LinkSharing::FairShare { .. } => {
                let bytes = f64::from(cargo.tokens) * self.transfer.bytes_per_token as f64;
                self.count_up_to(now);
                self.sharers.push(Sharer { id, from: cargo.from, to: cargo.to, left: bytes, rate: 0.0 });
                for (users, worker) in self.users.iter_mut().zip([cargo.from, cargo.to]) {
                    users.resize(users.len().max(worker + 1), 0);
                    users[worker] += 1;
                }
                self.share();
            }
        }
        id
    }

    /// One that is under way at `now` is given up, and does not end. Transfers that are told to end by then must have
    /// been taken.
    pub fn cancel(&mut self, id: TransferId, now: Nanos) {
        self.ends.retain(|Reverse((_, other))| *other != id);
        if let Some(at) = self.sharers.iter().position(|sharer| sharer.id == id) {
            self.leave(at, now);
        }
    }

    /// One that shares interfaces leaves them to the others.
    fn leave(&mut self, at: usize, now: Nanos) {
        self.count_up_to(now);
        let gone = self.sharers.remove(at);
        self.users[0][gone.from] -= 1;
        self.users[1][gone.to] -= 1;
        self.share();
    }

    /// When the next one ends.
    pub fn next_end(&self) -> Nanos {
        let certain = self.ends.peek().map_or(Nanos::NEVER, |Reverse((end, _))| *end);
        let shared = self.sharers.iter().map(|sharer| self.counted + time_for(sharer)).min();
        certain.min(shared.unwrap_or(Nanos::NEVER))
    }

    /// Takes one that has ended by `now`, the instant told.
    pub fn take_ended(&mut self, now: Nanos) -> Option<TransferId> {
        if self.ends.peek().is_some_and(|Reverse((end, _))| *end <= now) {
            return self.ends.pop().map(|Reverse((_, id))| id);
        }
        if self.sharers.is_empty() {
            return None;
        }
        let at = self.sharers.iter().position(|sharer| self.counted + time_for(sharer) <= now)?;
        let id = self.sharers[at].id;
        self.leave(at, now);
        Some(id)
    }

    /// Counts what was moved until `now`.
    fn count_up_to(&mut self, now: Nanos) {
        let passed = now.since(self.counted).0 as f64;
        for sharer in &mut self.sharers {
            sharer.left = (sharer.left - passed * sharer.rate).max(0.0);
        }
        self.counted = now;
    }

    /// Each interface divides itself evenly among its transfers; one gets the smaller of its two parts.
    fn share(&mut self) {
        let LinkSharing::FairShare { interface } = self.transfer.sharing else { return };
        for sharer in &mut self.sharers {
            let part = |users: u32| interface / f64::from(users.max(1));
            let parts = part(self.users[0][sharer.from]).min(part(self.users[1][sharer.to]));
            sharer.rate = self.transfer.bandwidth.map_or(parts, |own| own.min(parts));
        }
    }
}

/// How long the rest of a transfer takes at its rate.
fn time_for(sharer: &Sharer) -> Nanos {
    if sharer.left <= 0.0 {
        return Nanos::ZERO;
    }
    // A rate is above zero: bandwidths are, and so is the number of users.
    Nanos((sharer.left / sharer.rate).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(sharing: LinkSharing, bandwidth: Option<f64>) -> KvTransfer {
        KvTransfer { bytes_per_token: 1000, bandwidth, sharing, ..KvTransfer::default() }
    }

    fn cargo(from: usize, to: usize, tokens: u32) -> Cargo {
        Cargo { from, to, tokens, computed_for: Nanos::ZERO }
    }

    /// The ends of all transfers, in order.
    fn ends(links: &mut Links) -> Vec<(u64, TransferId)> {
        let mut ends = Vec::new();
        while links.next_end() < Nanos::NEVER {
            let now = links.next_end();
            while let Some(id) = links.take_ended(now) {
                ends.push((now.0, id));
            }
        }
        ends
    }

    #[test]
    fn a_link_of_its_own_is_not_slowed_by_others() {
        // 8 tokens of 1000 bytes at 2 GB/s, that is 2 bytes a nanosecond.
        let mut links = Links::new(transfer(LinkSharing::PerRequest, Some(2.0)), 1, 1);
        links.start(cargo(0, 0, 8), Nanos(10));
        links.start(cargo(0, 0, 2), Nanos(10));
        assert_eq!(ends(&mut links), [(1010, 1), (4010, 0)]);
    }

    #[test]
    fn without_a_bandwidth_nothing_takes_time() {
        let mut links = Links::new(transfer(LinkSharing::PerRequest, None), 1, 1);
        links.start(cargo(0, 0, 8), Nanos(7));
        assert_eq!(ends(&mut links), [(7, 0)]);
    }

    #[test]
    fn two_that_leave_one_worker_get_half_each() {
        // Interface 2 bytes/ns. Alone the first would take 4000 ns; from 1000 on it has half of it.
        let mut links = Links::new(transfer(LinkSharing::FairShare { interface: 2.0 }, None), 1, 2);
        links.start(cargo(0, 0, 8), Nanos(0));
        links.start(cargo(0, 1, 2), Nanos(1000));
        // The second: 2000 bytes at 1 byte/ns. The first then has 8000 - 2000 - 2000 left, at 2.
        assert_eq!(ends(&mut links), [(3000, 1), (5000, 0)]);
    }

    /// 8000 bytes at half of 2 bytes/ns until 1000, when the other is given up, and then at all of it: 1000 + 3500.
    #[test]
    fn one_that_is_given_up_leaves_its_share_to_the_others() {
        let mut links = Links::new(transfer(LinkSharing::FairShare { interface: 2.0 }, None), 1, 1);
        links.start(cargo(0, 0, 8), Nanos(0));
        // A worker that has come later.
        let other = links.start(cargo(0, 3, 8), Nanos(0));
        links.cancel(other, Nanos(1000));
        assert_eq!(ends(&mut links), [(4500, 0)]);
        let mut alone = Links::new(transfer(LinkSharing::PerRequest, Some(2.0)), 1, 1);
        let first = alone.start(cargo(0, 0, 8), Nanos(10));
        alone.start(cargo(0, 0, 2), Nanos(10));
        alone.cancel(first, Nanos(20));
        assert_eq!(ends(&mut alone), [(1010, 1)]);
    }

    #[test]
    fn other_workers_are_not_slowed_and_a_bandwidth_of_its_own_still_bounds() {
        let mut links = Links::new(transfer(LinkSharing::FairShare { interface: 4.0 }, Some(1.0)), 2, 2);
        links.start(cargo(0, 0, 4), Nanos(0));
        links.start(cargo(1, 1, 4), Nanos(0));
        assert_eq!(ends(&mut links), [(4000, 0), (4000, 1)]);
    }

    #[test]
    fn layers_are_sent_while_others_are_computed() {
        let ms = |n: u64| Nanos(n * 1_000_000);
        // 100,000 tokens of 1000 bytes at 1 byte a nanosecond: 100 ms.
        let link =
            |layers| KvTransfer { overlap_layers: layers, ..transfer(LinkSharing::PerRequest, Some(1.0)) };
        // 40 ms of computation, 4 layers: 30 ms of it are covered.
        assert_eq!(link(Some(4)).alone(100_000, ms(40)), ms(70));
        // A long computation covers all but the last layer.
        assert_eq!(link(Some(4)).alone(100_000, ms(4000)), ms(25));
        assert_eq!(link(None).alone(100_000, ms(4000)), ms(100));
    }
}
