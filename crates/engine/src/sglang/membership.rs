//! Joining and leaving the decode set, and a request's counters wherever they are kept.
//!
//! While a request is attached, its counters are implied by the set's; `detach` makes them explicit again,
//! so that everything else in this module may read and write them as the engine does.

use super::batch::Member;
use super::rank::Rank;
use super::sequence::State;
use crate::pass::Slot;

impl Rank {
    /// Decode passes scheduled since a member joined, and completed.
    fn implied(&self, slot: u32) -> (u64, u64) {
        let s = &self.sequences[slot as usize];
        match s.state {
            State::Attached => {
                (self.decoders.scheduled - s.joined, self.decoders.completed.saturating_sub(s.joined))
            }
            _ => (0, 0),
        }
    }

    /// By AISimulate's rules a rank that receives KV computes the last token that it knows, but takes the slot of the
    /// next one: its contexts are that much shorter than what it holds.
    pub(super) fn token_ahead(&self) -> u32 {
        u32::from(self.receives() && self.hands_over_at_once())
    }

    /// Slots of the KV cache that it has.
    pub(super) fn committed(&self, slot: u32) -> u32 {
        self.sequences[slot as usize].committed + self.implied(slot).0 as u32
    }

    /// Output tokens processed.
    pub(super) fn outputs_of(&self, slot: u32) -> u32 {
        self.sequences[slot as usize].outputs + self.implied(slot).1 as u32
    }

    /// Takes a request out of the decode set, so that its own counters tell everything: passes in flight
    /// name it from now on.
    pub(super) fn detach(&mut self, slot: u32) {
        let (scheduled, completed) = self.implied(slot);
        let s = &mut self.sequences[slot as usize];
        if s.state != State::Attached {
            return;
        }
        s.committed += scheduled as u32;
        s.planned += scheduled as u32;
        s.outputs += completed as u32;
        s.state = State::Running;
        let (joined, committed) = (s.joined, s.committed);
        let member = Member { slot, serial: s.serial, ticket: s.ticket, extend_end: None };
        self.visited += 1;
        let context = committed + 1 - self.token_ahead();
        self.decoders.members.remove(context);
        self.starts.remove(self.decoders.scheduled, committed);
        for pass in self.flight.iter_mut().filter(|pass| pass.decode_number > joined) {
            pass.uniform -= 1;
            pass.members.push(member);
        }
        if completed > 0 {
            self.parked.push(Slot(slot));
        }
    }

    /// Puts a request that was just scheduled by name in the decode set, if its end is not in sight.
    pub(super) fn attach(&mut self, slot: u32) {
        let joined = self.decoders.scheduled;
        let s = &mut self.sequences[slot as usize];
        let end = s.max_new.min(s.stop_after.unwrap_or(u32::MAX));
        // The second token is told by name.
        if s.to_finish || s.planned >= end || s.planned < 2 {
            return;
        }
        s.state = State::Attached;
        s.joined = joined;
        let due = joined + u64::from(end - s.planned);
        let (committed, ticket, serial) = (s.committed, s.ticket, s.serial);
        self.visited -= 1;
        let context = committed + 1 - self.token_ahead();
        self.decoders.members.add(context);
        self.starts.add(joined, committed);
        self.decoders.remind((due, ticket, slot, serial));
    }

    /// Takes those out of the decode set whose last token may come with the next decode pass.
    pub(super) fn detach_due(&mut self) {
        let next = self.decoders.next_pass();
        let mut taken = std::mem::take(&mut self.taken);
        self.decoders.take_due(next, &mut taken);
        for &(due, _, slot, serial) in &taken {
            let s = &self.sequences[slot as usize];
            let end = s.max_new.min(s.stop_after.unwrap_or(u32::MAX));
            // It may have left the set since, and joined again later.
            let holds = s.serial == serial
                && s.state == State::Attached
                && due == s.joined + u64::from(end.saturating_sub(s.planned));
            if holds {
                self.detach(slot);
            }
        }
        self.taken = taken;
    }
}
