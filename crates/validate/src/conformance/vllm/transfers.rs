//! The worker side of the oracle's pull connector: loads and sends as times. It is asked once a step, when the step
//! is launched, after what starts with it was started.

use super::scenario::Settings;
use super::trace::KvMoved;
use crate::conformance::scenario::Scenario;
use crate::conformance::trace::rounded_ms;
use windtunnel_engine::vllm::Rank;
use windtunnel_engine::{LoadFailure, Slot};
use windtunnel_traffic::LoadFail;

/// A transfer under way.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    done_ms: f64,
    slot: Slot,
}

/// All of them, each kind in order of its start.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    loads: Vec<Transfer>,
    sends: Vec<Transfer>,
}

impl Transfers {
    /// Launches the step scheduled last: starts its transfers and tells the rank of those that have ended.
    pub(super) fn launch(
        &mut self,
        rank: &mut Rank,
        scenario: &Scenario,
        settings: &Settings,
        now: f64,
    ) -> KvMoved {
        let line = |rank: &Rank, slot: Slot| &scenario.requests[rank.id(slot).0 as usize];
        let mut moved = KvMoved::default();
        let scheduled = rank.scheduled();
        moved.notify_only = scenario.names(scheduled.unread.iter().copied());
        for load in &scheduled.loads {
            let request = line(rank, load.slot);
            let done_ms = rounded_ms(now + request.load_ms.unwrap_or(settings.load_ms(load.tokens)));
            self.loads.push(Transfer { done_ms, slot: load.slot });
            moved.recv_start.push((request.id.to_string(), load.tokens, load.blocks, done_ms));
        }
        for &slot in &scheduled.sends {
            let request = line(rank, slot);
            let tokens = rank.computed_tokens(slot);
            let done_ms = rounded_ms(now + request.send_ms.unwrap_or(settings.send_ms(tokens)));
            self.sends.push(Transfer { done_ms, slot });
            moved.send_start.push((request.id.to_string(), tokens, done_ms));
        }
        for load in take_done(&mut self.loads, now) {
            let request = line(rank, load.slot);
            moved.recv_done.push(request.id.to_string());
            let failure = match request.load_fail {
                None => {
                    rank.kv_loaded(load.slot);
                    continue;
                }
                Some(LoadFail::FromBlock(block)) => LoadFailure::FromBlock(block),
                Some(LoadFail::Whole(_)) => LoadFailure::Whole,
            };
            moved.recv_failed.push(request.id.to_string());
            rank.kv_failed(load.slot, failure);
        }
        for send in take_done(&mut self.sends, now) {
            moved.send_done.push(line(rank, send.slot).id.to_string());
            rank.kv_sent(send.slot);
        }
        moved
    }

    /// When the next one ends.
    pub(super) fn next_ms(&self) -> Option<f64> {
        self.loads.iter().chain(&self.sends).map(|transfer| transfer.done_ms).reduce(f64::min)
    }
}

/// Takes out those that have ended, by time; those of one time in order of their start.
fn take_done(transfers: &mut Vec<Transfer>, now: f64) -> Vec<Transfer> {
    let mut done: Vec<Transfer> =
        transfers.extract_if(.., |transfer| transfer.done_ms <= now + 1e-9).collect();
    done.sort_by(|a, b| a.done_ms.total_cmp(&b.done_ms));
    done
}
