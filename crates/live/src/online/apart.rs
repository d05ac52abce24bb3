//! A replay on prefill and decode workers apart: the loop of a prediction, instant by instant, with the wall clock
//! deciding when each is reached.
//!
//! A request goes to a prefill worker, whose blocks it holds when it ends there; then to a decode worker, which loads
//! them. Or both have it, the decode worker makes room, and then the prompt is computed (SGLang).

use super::side::{Place, Side};
use super::{OnlineOptions, Pacer, Replayed};
use crate::error::LiveError;
use crate::kv_transfer::{Computed, KvMove, Let, Loaded};
use crate::observer::{RequestInfo, Routed};
use crate::recorder::{Prefilled, PromptRecord};
use crate::submission::Submission;
use std::collections::HashMap;
use windtunnel_config::{Cargo, ChargedTokens, Experiment, Links, Pace, Prefill, Semantics, TransferId};
use windtunnel_engine::{HandOff, KvLoad, Nanos, RankConfig, RequestId};
use windtunnel_report::{Refusal, Role};
use windtunnel_router::{RoutingRecord, Verdict};
use windtunnel_traffic::{Arrival, Source};

/// Who comes first in a hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    PromptFirst,
    RoomFirst,
}

/// A prompt that is computed, and held.
#[derive(Clone, Copy, Debug)]
struct Held {
    place: Place,
    computed: Computed,
}

/// Room on the decode side, and what is loaded into it.
type Space = (Place, KvLoad);

pub(super) struct Apart<'a> {
    prefill: Side<'a>,
    decode: Side<'a>,
    charged: ChargedTokens,
    links: Links,
    order: Order,
    /// Requests at prefill workers, as they are submitted to a decode worker then.
    coming: HashMap<RequestId, Arrival>,
    /// What the router of the prefill workers knew, and when the request came.
    routed: HashMap<RequestId, Routed>,
    /// Requests that a prefill worker has, and for which there is no room yet on the decode side.
    asking: HashMap<RequestId, Place>,
    rooms: HashMap<RequestId, Space>,
    held: HashMap<RequestId, Held>,
    /// Who waits for the end of a transfer.
    waiting: HashMap<TransferId, (RequestId, Place)>,
    prefilled: Prefilled,
    pacer: Pacer<'a>,
    /// The instant of the last arrival.
    now: Nanos,
}

impl<'a> Apart<'a> {
    pub(super) fn new(
        experiment: &'a Experiment,
        prefill: &'a Prefill,
        options: &'a OnlineOptions,
    ) -> Result<Apart<'a>, LiveError> {
        let deployment = &experiment.deployment;
        if deployment.semantics == Semantics::Aisimulate013 {
            let message =
                "engine.semantics: with --online, workers apart for prefill and decode have native ones only";
            return Err(LiveError::Settings(message.into()));
        }
        let workers = [&prefill.deployment, deployment].map(|side| side.replicas.get() as usize);
        let prefilled = Prefilled::default();
        Ok(Apart {
            prefill: Side::new(&prefill.deployment, options.collector, Role::Prefill, &prefilled)?,
            decode: Side::new(deployment, options.collector, Role::Decode, &prefilled)?,
            charged: prefill.transfer.charged,
            links: Links::new(prefill.transfer, workers[0], workers[1]),
            order: match deployment.engine {
                RankConfig::Sglang(_) => Order::RoomFirst,
                RankConfig::Vllm(_) | RankConfig::Trtllm(_) => Order::PromptFirst,
            },
            coming: HashMap::new(),
            routed: HashMap::new(),
            asking: HashMap::new(),
            rooms: HashMap::new(),
            held: HashMap::new(),
            waiting: HashMap::new(),
            prefilled,
            pacer: Pacer::new(options),
            now: Nanos::ZERO,
        })
    }

    /// Replays a workload to its end.
    pub(super) fn run(mut self, mut source: Source, pace: Pace) -> Result<Replayed, LiveError> {
        let (mut next, seats) = match pace {
            Pace::Arrivals => (source.next().transpose()?, 0),
            Pace::Concurrency(seats) => (None, u64::from(seats.get())),
        };
        let mut source_left = seats > 0;
        loop {
            let arrival = next.as_ref().map_or(Nanos::NEVER, |arrival| arrival.at);
            // Seats that are free are given on at once.
            let free = if source_left && self.unfinished() < seats { self.now } else { Nanos::NEVER };
            let due = self.prefill.next_instant().min(self.decode.next_instant());
            let instant = arrival.min(due).min(self.links.next_end()).min(free);
            if instant == Nanos::NEVER {
                break;
            }
            self.pacer.reach(instant)?;
            self.now = self.now.max(instant);
            self.complete(instant);
            self.transfers(instant);
            while let Some(arrival) = next.take_if(|arrival| arrival.at <= instant) {
                self.send(arrival, instant);
                next = source.next().transpose()?;
            }
            while source_left && self.unfinished() < seats {
                match source.next() {
                    None => source_left = false,
                    Some(arrival) => {
                        let mut arrival = arrival?;
                        (arrival.at, arrival.request.arrival) = (instant, instant);
                        self.send(arrival, instant);
                    }
                }
            }
            self.schedule(instant)?;
        }
        let unfinished = self.unfinished();
        if unfinished > 0 {
            return Err(LiveError::Stuck(unfinished));
        }
        let end = self.prefill.now().max(self.decode.now());
        let (outside, prefill_outside) = (self.decode.outside(), self.prefill.outside());
        let mut collectors = self.prefill.finish();
        collectors.extend(self.decode.finish());
        Ok(Replayed { collectors, end, outside, prefill_outside })
    }

    /// Requests that have not ended.
    fn unfinished(&self) -> u64 {
        self.coming.len() as u64 + self.decode.unfinished()
    }

    /// Completes the passes that end at `instant`, and hands on what is computed.
    fn complete(&mut self, instant: Nanos) {
        self.prefill.complete(instant);
        self.decode.complete(instant);
        for group in 0..self.prefill.groups.len() {
            self.hear_prefill(group, instant);
        }
        for group in 0..self.decode.groups.len() {
            self.hear_decode(group, instant);
        }
    }

    /// The schedule calls of this instant.
    fn schedule(&mut self, instant: Nanos) -> Result<(), LiveError> {
        for group in 0..self.prefill.groups.len() {
            self.prefill.schedule(group, instant)?;
            self.hear_prefill(group, instant);
        }
        for group in 0..self.decode.groups.len() {
            self.decode.schedule(group, instant)?;
            self.hear_decode(group, instant);
        }
        Ok(())
    }

    /// Transfers that end, and those that this lets begin, as far as they take no time.
    fn transfers(&mut self, now: Nanos) {
        while self.links.next_end() <= now
            && let Some(ended) = self.links.take_ended(now)
        {
            let Some((id, (group, lane))) = self.waiting.remove(&ended) else { continue };
            self.decode.groups[group].load_ended(lane, id, Some(Loaded::default()), now);
            self.release(id, now);
            self.hear_decode(group, now);
        }
    }

    /// What a prefill group has done that others wait for.
    fn hear_prefill(&mut self, group: usize, now: Nanos) {
        let mut held = Vec::new();
        self.prefill.groups[group].take_moves(|lane, step| {
            if let KvMove::Held { id, computed, times, .. } = step {
                held.push((id, Held { place: (group, lane), computed }, times));
            }
        });
        for (id, prompt, times) in held {
            let routed = self.routed.remove(&id);
            self.prefilled.note(
                id,
                PromptRecord {
                    worker: self.prefill.worker_of(group),
                    arrival: routed.map_or(times.arrival, |routed| routed.came),
                    routing: routed.and_then(|routed| routed.record),
                    times,
                },
            );
            self.held.insert(id, prompt);
            match self.rooms.remove(&id) {
                Some(room) => self.load(id, room, now),
                None => self.hand_over(id, now),
            }
        }
    }

    /// The same of a decode group: it has made room for the KV of requests.
    fn hear_decode(&mut self, group: usize, now: Nanos) {
        let mut rooms = Vec::new();
        self.decode.groups[group].take_moves(|lane, step| {
            if let KvMove::Started { id, load, .. } = step {
                rooms.push((id, ((group, lane), load)));
            }
        });
        for (id, room) in rooms {
            if self.order == Order::PromptFirst {
                self.load(id, room, now);
                continue;
            }
            self.rooms.insert(id, room);
            if let Some((group, lane)) = self.asking.remove(&id) {
                self.prefill.groups[group].kv_wanted(lane, id, now);
            }
        }
    }

    /// A prompt is computed: its request goes on to a decode worker.
    fn hand_over(&mut self, id: RequestId, now: Nanos) {
        let Some(arrival) = self.coming.remove(&id) else { return };
        if !self.receive(arrival, now) {
            self.release(id, now);
        }
    }

    /// A decode worker loads a request's KV.
    fn load(&mut self, id: RequestId, (place, load): Space, now: Nanos) {
        let Some(held) = self.held.get(&id) else { return };
        let tokens = match self.charged {
            ChargedTokens::FullPrompt => held.computed.prompt_tokens,
            ChargedTokens::DestinationMissing => load.blocks * self.decode.deployment.engine.block_size(),
        };
        let cargo = Cargo {
            from: self.prefill.worker_of(held.place.0) as usize,
            to: self.decode.worker_of(place.0) as usize,
            tokens,
            computed_for: held.computed.computed_for,
        };
        let transfer = self.links.start(cargo, now);
        self.waiting.insert(transfer, (id, place));
    }

    /// The prefill worker lets go of a request's blocks.
    fn release(&mut self, id: RequestId, now: Nanos) {
        let Some(Held { place: (group, lane), .. }) = self.held.remove(&id) else { return };
        self.prefill.groups[group].send_ended(lane, id, Let::Unread, now);
    }

    /// Sends a request to the side that comes first, or to both.
    fn send(&mut self, mut arrival: Arrival, now: Nanos) {
        arrival.request.output.ignore_eos.get_or_insert(self.decode.deployment.ignore_eos);
        let mut first = arrival.clone();
        first.request.hand_off = HandOff::Hold;
        first.request.output.cut_to_first();
        arrival.request.hand_off = HandOff::Pull;
        let id = arrival.request.id;
        let Some(place) = self.prompt(first, now) else { return };
        match self.order {
            Order::PromptFirst => {
                self.coming.insert(id, arrival);
            }
            Order::RoomFirst => {
                self.asking.insert(id, place);
                if !self.receive(arrival, now) {
                    self.asking.remove(&id);
                    self.routed.remove(&id);
                    self.prefill.groups[place.0].cancel(id, now);
                }
            }
        }
    }

    /// Sends a request to a prefill worker. Where it is, if it was taken.
    fn prompt(&mut self, arrival: Arrival, now: Nanos) -> Option<Place> {
        let id = arrival.request.id;
        let came = arrival.request.arrival;
        let (place, record) = submit(&mut self.prefill, arrival, now)?;
        self.routed.insert(id, Routed { came, record });
        Some(place)
    }

    /// Sends a request to a decode worker. False if it was refused.
    fn receive(&mut self, arrival: Arrival, now: Nanos) -> bool {
        submit(&mut self.decode, arrival, now).is_some()
    }
}

/// Hands a request to a rank of a side, with what its router knew. None if it was refused.
fn submit(side: &mut Side<'_>, arrival: Arrival, now: Nanos) -> Option<(Place, Option<RoutingRecord>)> {
    side.hear(now);
    let Verdict::To(choice) = side.route(&arrival, now) else {
        // The configuration has no queue in front of workers apart.
        unreachable!("a policy without a queue holds nothing");
    };
    let Arrival { at: _, request, name, dp_rank, .. } = arrival;
    let came = request.arrival;
    let (group, lane) = match side.place(choice, dp_rank, now) {
        Ok(place) => place,
        Err(reason) => {
            side.refuse(choice, &Refusal::unplaced(&request, name, came, now, reason));
            return None;
        }
    };
    let info = RequestInfo {
        name: name.map(String::from).unwrap_or_default(),
        routed: Some(Routed { came, record: choice.record }),
        ..RequestInfo::of(&request)
    };
    let taken = side.groups[group].submit(lane, Submission::of(info, request).that_came(came), now);
    taken.then_some(((group, lane), choice.record))
}
