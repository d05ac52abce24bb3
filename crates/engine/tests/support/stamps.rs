//! When tokens came. `Tokens` is the truth, entered token by token; `Stamps` is what a driver can know from
//! what a rank tells it, by the rules written at `Scheduled::parked` and in `Outcome`. A report is made from
//! the second, so both must be equal.

use std::collections::HashMap;
use windtunnel_engine::{Outcome, Scheduled, Slot};

/// First, second and last token of a request, as numbers of completed passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    first: Option<u64>,
    second: Option<u64>,
    last: Option<u64>,
}

impl Tokens {
    /// A token at `now`. Returns the gap before it, if it is not the first.
    pub fn give(&mut self, now: u64) -> Option<u64> {
        match (self.first, self.second) {
            (None, _) => self.first = Some(now),
            (Some(_), None) => self.second = Some(now),
            _ => {}
        }
        self.last.replace(now).map(|last| now - last)
    }
}

/// A driver's books.
#[derive(Default)]
pub struct Stamps {
    /// Completion of the last pass that computed something.
    last_end: u64,
    live: HashMap<Slot, Tokens>,
}

impl Stamps {
    /// A request moved in.
    pub fn begin(&mut self, slot: Slot) {
        self.live.insert(slot, Tokens::default());
    }

    /// The books of a slot.
    pub fn of(&self, slot: Slot) -> Tokens {
        self.live[&slot]
    }

    fn park(&mut self, slots: &[Slot]) {
        for slot in slots {
            self.live.get_mut(slot).expect("a request that was submitted").last = Some(self.last_end);
        }
    }

    /// A pass was scheduled.
    pub fn scheduled(&mut self, scheduled: &Scheduled) {
        self.park(&scheduled.parked);
    }

    /// A pass was completed. Returns the gaps of its tokens, in ascending order.
    pub fn completed(&mut self, outcome: &Outcome, now: u64, computed_something: bool) -> Vec<u64> {
        self.park(&outcome.parked);
        let mut gaps = vec![now - self.last_end; outcome.steady_tokens as usize];
        for token in &outcome.tokens {
            let tokens = self.live.get_mut(&token.slot).expect("a request that was submitted");
            gaps.extend(tokens.last.map(|last| now - last));
            tokens.first = tokens.first.or(Some(now));
            if token.ordinal == 2 {
                tokens.second = Some(now);
            }
            tokens.last = Some(now);
        }
        for slot in &outcome.second {
            self.live.get_mut(slot).expect("a request that was submitted").second = Some(now);
        }
        if computed_something {
            self.last_end = now;
        }
        gaps.sort_unstable();
        gaps
    }

    /// One of several steady passes taken at once was completed.
    pub fn steady(&mut self, count: u64, now: u64) -> Vec<u64> {
        let gaps = vec![now - self.last_end; count as usize];
        self.last_end = now;
        gaps
    }
}
