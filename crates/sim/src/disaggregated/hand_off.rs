//! The way of a request through the two sides: what each waits for, and what follows when it has come.

use super::elastic::{Staff, Task};
use super::pool::{DECODE, PREFILL};
use super::trips::{Computed, Site};
use super::{Disaggregated, Order};
use crate::group::{Lanes, Move};
use crate::lane::{Loading, Sending};
use crate::options::{PROGRESS_STEP, Progress};
use crate::run::refusal;
use windtunnel_config::{Cargo, ChargedTokens, Semantics};
use windtunnel_engine::{HandOff, KvLoad, Nanos, Rejection, RequestId};
use windtunnel_report::RequestRecord;
use windtunnel_traffic::Arrival;

impl<L: Lanes> Disaggregated<'_, L> {
    /// A request has come.
    pub(super) fn send(&mut self, mut arrival: Arrival, now: Nanos) {
        let ignore_eos = self.pools[DECODE].deployment.ignore_eos;
        arrival.request.output.ignore_eos.get_or_insert(ignore_eos);
        self.sent += 1;
        if self.sent.is_multiple_of(PROGRESS_STEP) {
            self.watch.tell(Progress { sent: self.sent, now });
        }
        match &mut self.elastic {
            None => self.begin(arrival, now),
            Some(elastic) => {
                elastic.arrived(&arrival);
                self.dispatch(arrival, now);
            }
        }
    }

    /// Sends a request to the side that comes first, or to both.
    pub(super) fn begin(&mut self, mut arrival: Arrival, now: Nanos) {
        let mut first = arrival.clone();
        first.request.hand_off = HandOff::Hold;
        first.request.output.cut_to_first();
        arrival.request.hand_off = HandOff::Pull;
        let id = arrival.request.id;
        match (self.order, self.prefill.deployment.semantics) {
            (Order::PromptFirst, _) => {
                self.trips.begin(id, Some(arrival));
                self.prefill(first, now);
            }
            // Both sides have it from the beginning, and one waits for the other.
            (Order::RoomFirst, Semantics::Native) => {
                self.trips.begin(id, None);
                let Some(site) = self.prefill(first, now) else { return };
                if !self.receive(arrival, now) {
                    self.take_back(site, Loading::Nothing, now);
                }
            }
            (Order::RoomFirst, Semantics::Aisimulate013) => {
                self.trips.begin(id, Some(first));
                self.receive(arrival, now);
            }
        }
    }

    /// Takes a request back that a group has, which does not run there yet.
    fn take_back(&mut self, Site { group, lane, slot }: Site, loading: Loading, now: Nanos) {
        self.groups[group].withdraw(lane, slot, loading, now);
        self.groups[group].go_on(now);
        self.touched.push(group);
        self.tell(group, now);
        self.note_due(group);
    }

    /// A request on its way to a rank.
    fn sending(&self, arrival: Arrival) -> Sending {
        let retries = self.retries(arrival.request.id);
        Sending { came: arrival.at, retries, ..Sending::unrouted(arrival) }
    }

    /// Sends a request to a prefill worker, with one token to give there. Where it stands, if it was taken.
    pub(super) fn prefill(&mut self, arrival: Arrival, now: Nanos) -> Option<Site> {
        let id = arrival.request.id;
        let (group, lane, routing) = match self.place(PREFILL, &arrival, now) {
            Ok(place) => place,
            Err((at, reason)) => {
                self.trips.end(id);
                self.refuse(at, arrival, now, reason);
                return None;
            }
        };
        self.groups[group].run_until(now, true);
        let sending = Sending { routing, ..self.sending(arrival) };
        let taken = self.groups[group].submit(lane, sending, now);
        let site = taken.map(|slot| Site { group, lane, slot });
        match (site, self.trips.get(id)) {
            (Some(_), Some(trip)) => trip.prefill = site,
            _ => drop(self.trips.end(id)),
        }
        self.tell(group, now);
        self.touched.push(group);
        self.note_due(group);
        site
    }

    /// Sends a request to a decode worker, which is to make room for it. False if it was refused.
    fn receive(&mut self, arrival: Arrival, now: Nanos) -> bool {
        let id = arrival.request.id;
        let (group, lane, _) = match self.place(DECODE, &arrival, now) {
            Ok(place) => place,
            Err((to, reason)) => {
                self.trips.end(id);
                self.refuse(to, arrival, now, reason);
                return false;
            }
        };
        self.groups[group].run_until(now, false);
        let sending = self.sending(arrival);
        let taken = self.groups[group].receive(lane, sending, now);
        match (taken, self.trips.get(id)) {
            (Some(slot), Some(trip)) => trip.decode = Some(Site { group, lane, slot }),
            _ => drop(self.trips.end(id)),
        }
        self.touched.push(group);
        self.tell(group, now);
        self.note_due(group);
        taken.is_some()
    }

    /// Refuses a request that none of the ranks is asked to take.
    fn refuse(&mut self, at: usize, arrival: Arrival, now: Nanos, reason: Rejection) {
        self.groups[at].run_until(now, at < self.pools[DECODE].first);
        let sending = self.sending(arrival);
        self.groups[at].refuse(&refusal(sending, now, reason));
        self.tell(at, now);
    }

    /// What a group has done that others wait for.
    pub(super) fn tell(&mut self, at: usize, now: Nanos) {
        let ended = self.groups[at].take_ended();
        self.ended += ended;
        if ended > 0 {
            self.freed += ended;
            self.freed_at = now;
        }
        let mut moves = std::mem::take(&mut self.moves);
        self.groups[at].take_moves(&mut moves);
        for moved in moves.drain(..) {
            match moved {
                Move::Handed { lane, slot, record } => {
                    self.hand_over(Site { group: at, lane, slot }, *record, now);
                }
                Move::Started { id, load } => self.start(id, load, now),
                Move::Activated { lane, slot, id } => {
                    if self.trips.is_at(id, Site { group: at, lane, slot }) {
                        self.release(id, now);
                    }
                }
            }
        }
        self.moves = moves;
    }

    /// A prompt is computed, and its blocks are held: the request goes on to a decode worker, or that loads it into the
    /// room that it has made.
    fn hand_over(&mut self, from: Site, record: RequestRecord, now: Nanos) {
        let id = record.id;
        let Some(trip) = self.trips.get(id) else {
            // It was lost on the other side meanwhile, and nobody reads it.
            return self.let_go(from, now);
        };
        let took = record.first_admit.map_or(Nanos::ZERO, |admitted| now.since(admitted));
        trip.prefill = Some(from);
        trip.computed = Some(Computed { prompt_tokens: record.input_tokens, took });
        if let (Some(load), Some(to)) = (trip.room.take(), trip.decode) {
            self.groups[to.group].note_prefill(to.lane, to.slot, &record);
            return self.load(id, load, now);
        }
        if let Some(arrival) = trip.second.take() {
            self.go_on(*arrival, record, now);
        }
    }

    /// Sends a request whose prompt is computed to a decode worker.
    pub(super) fn go_on(&mut self, arrival: Arrival, record: RequestRecord, now: Nanos) {
        let id = record.id;
        match self.staff(DECODE) {
            Staff::Ready => {}
            Staff::Awaited => return self.wait(Task::GoOn(arrival, Box::new(record))),
            Staff::Gone => {
                self.refuse_without_worker(arrival, now);
                return self.release(id, now);
            }
        }
        let (group, lane, _) = match self.place(DECODE, &arrival, now) {
            Ok(place) => place,
            Err((to, reason)) => {
                self.refuse(to, arrival, now, reason);
                return self.release(id, now);
            }
        };
        self.groups[group].run_until(now, false);
        let record = RequestRecord { prefill_worker: Some(record.worker), ..record };
        match (self.groups[group].hand_over(lane, arrival, record, now), self.trips.get(id)) {
            (Some(slot), Some(trip)) => trip.decode = Some(Site { group, lane, slot }),
            _ => self.release(id, now),
        }
        self.touched.push(group);
        self.tell(group, now);
        self.note_due(group);
    }

    /// A decode worker has made room for a request's KV: loads it, or has the prompt computed first.
    fn start(&mut self, id: RequestId, load: KvLoad, now: Nanos) {
        if self.order == Order::PromptFirst {
            return self.load(id, load, now);
        }
        let Some(trip) = self.trips.get(id) else { return };
        trip.room = Some(load);
        if let Some(Site { group: at, lane: at_lane, slot }) = trip.prefill {
            self.groups[at].run_until(now, true);
            self.groups[at].kv_wanted(at_lane, slot, now);
            self.touched.push(at);
            self.note_due(at);
        } else if let Some(arrival) = trip.second.take() {
            self.compute(*arrival, now);
        }
    }

    /// Sends a request to a prefill worker for which a decode worker has made room.
    pub(super) fn compute(&mut self, arrival: Arrival, now: Nanos) {
        let Some(room) = self.trips.get(arrival.request.id).and_then(|trip| trip.decode) else { return };
        let taken = match self.staff(PREFILL) {
            Staff::Ready => self.prefill(arrival, now).is_some(),
            Staff::Awaited => return self.wait(Task::Compute(arrival)),
            Staff::Gone => {
                self.trips.end(arrival.request.id);
                self.refuse_without_worker(arrival, now);
                false
            }
        };
        if !taken {
            self.take_back(room, Loading::Begun, now);
        }
    }

    /// A decode worker loads a request's KV.
    fn load(&mut self, id: RequestId, load: KvLoad, now: Nanos) {
        let counts_tokens = self.counts_tokens();
        let Some(trip) = self.trips.get(id) else { return };
        let (Some(from), Some(to), Some(computed)) = (trip.prefill, trip.decode, trip.computed) else {
            return;
        };
        let tokens = match self.prefill.transfer.charged {
            ChargedTokens::FullPrompt => computed.prompt_tokens,
            // AISimulate counts SGLang's tokens, and vLLM's blocks.
            ChargedTokens::DestinationMissing if counts_tokens => load.tokens,
            ChargedTokens::DestinationMissing => {
                load.blocks * self.pools[DECODE].deployment.engine.block_size()
            }
        };
        let [from, to] = [from, to].map(|site| self.groups[site.group].worker() as usize);
        let transfer = self.links.start(Cargo { from, to, tokens, computed_for: computed.took }, now);
        self.trips.moves(id, transfer);
    }

    /// Transfers that end, and those that this lets begin, as far as they take no time.
    pub(super) fn transfers(&mut self, now: Nanos) {
        while self.links.next_end() <= now {
            let Some(ended) = self.links.take_ended(now) else { return };
            let Some((id, Site { group, lane, slot })) = self.trips.arrived(ended) else { continue };
            self.groups[group].run_until(now, false);
            self.groups[group].load_ended(lane, slot, now);
            self.touched.push(group);
            if self.prefill.deployment.semantics == Semantics::Native {
                self.release(id, now);
            }
            self.tell(group, now);
        }
    }

    /// The source lets go of a request's blocks.
    pub(super) fn release(&mut self, id: RequestId, now: Nanos) {
        let Some(trip) = self.trips.end(id) else { return };
        if let (Some(site), Some(_)) = (trip.prefill, trip.computed) {
            self.let_go(site, now);
        }
    }

    /// A prefill worker lets go of blocks that it holds.
    pub(super) fn let_go(&mut self, Site { group, lane, slot }: Site, now: Nanos) {
        self.groups[group].run_until(now, true);
        self.groups[group].send_ended(lane, slot, now);
        self.touched.push(group);
        self.note_due(group);
    }

    fn counts_tokens(&self) -> bool {
        self.order == Order::RoomFirst && self.prefill.deployment.semantics == Semantics::Aisimulate013
    }
}
