//! Several threads for workers that know nothing of each other.
//!
//! In an open loop whose requests take turns, what a worker does depends on its own requests alone. So one
//! thread reads the workload and says whose turn it is, and others run the workers, each its share of them.
//! What comes out is what one thread computes, to the byte: collectors are merged by worker, whoever filled
//! them.

use crate::group::{Group, Lanes};
use crate::lane::Sending;
use crate::placement::Placer;
use crate::run::send_to;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use windtunnel_engine::Nanos;
use windtunnel_traffic::Arrival;

/// Requests handed over at once, so that handing over costs little.
const BATCH: usize = 256;
/// Batches that may wait for a thread: memory stays small however far ahead the reader could be.
const WAITING: usize = 8;

/// Requests with the place of their worker in its thread's share.
type Batch = Vec<(u32, Arrival)>;

/// Where the threads get their requests from.
pub(crate) struct Hands {
    share: u32,
    senders: Vec<SyncSender<Batch>>,
    filling: Vec<Batch>,
}

impl Hands {
    /// Gives a request to the thread of `worker`. False if that thread has stopped.
    pub(crate) fn give(&mut self, worker: u32, arrival: Arrival) -> bool {
        let thread = (worker / self.share) as usize;
        let batch = &mut self.filling[thread];
        batch.push((worker % self.share, arrival));
        batch.len() < BATCH || self.hand_over(thread)
    }

    fn hand_over(&mut self, thread: usize) -> bool {
        let batch = std::mem::replace(&mut self.filling[thread], Vec::with_capacity(BATCH));
        self.senders[thread].send(batch).is_ok()
    }

    /// No more requests come.
    fn finish(mut self) {
        for thread in 0..self.senders.len() {
            self.hand_over(thread);
        }
    }
}

/// Runs `groups`, those of `workers` workers, on at most `threads` threads beside this one, which `read` uses to
/// give them their requests; then all up to `cutoff`.
pub(crate) fn run<L: Lanes + Send, T>(
    groups: &mut [Group<L>],
    placer: &mut Placer,
    (workers, threads): (u32, u32),
    ignore_eos: bool,
    cutoff: Nanos,
    read: impl FnOnce(&mut Hands) -> T,
) -> T {
    let share = workers.div_ceil(threads);
    let groups_per_worker = groups.len() / workers as usize;
    std::thread::scope(|scope| {
        let mut hands = Hands { share, senders: Vec::new(), filling: Vec::new() };
        for mine in groups.chunks_mut(share as usize * groups_per_worker) {
            let (sender, receiver) = sync_channel(WAITING);
            let placer = placer.take((mine.len() / groups_per_worker) as u32);
            scope.spawn(move || work(mine, placer, receiver, ignore_eos, cutoff));
            hands.senders.push(sender);
            hands.filling.push(Vec::with_capacity(BATCH));
        }
        let outcome = read(&mut hands);
        hands.finish();
        outcome
    })
}

fn work<L: Lanes>(
    groups: &mut [Group<L>],
    mut placer: Placer,
    requests: Receiver<Batch>,
    ignore_eos: bool,
    cutoff: Nanos,
) {
    for batch in requests {
        for (worker, arrival) in batch {
            let now = arrival.at;
            let sending = Sending::unrouted(arrival);
            send_to(groups, &mut placer, ignore_eos, worker, sending, now);
        }
    }
    groups.iter_mut().for_each(|group| group.run_until(cutoff, false));
}
