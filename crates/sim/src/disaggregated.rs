//! Prefill and decode on workers of their own: the loop of such a run.
//!
//! A request goes to a prefill worker, whose blocks it holds when it ends there; then to a decode worker, which loads
//! them; when they have been read, the source lets go of them, once. Or the decode worker makes room for them first, and
//! the prefill worker begins when there is (SGLang). Prefill groups are always looked at when they do
//! something; a decode group only while something of it is awaited elsewhere, and otherwise it lags behind.

use crate::agenda::Agenda;
use crate::error::SimError;
use crate::group::{Group, GroupOptions, Lanes, Move};
use crate::lane::Sending;
use crate::observer::Observer;
use crate::options::{Options, PROGRESS_STEP, Progress, Watch};
use crate::placement::{Placer, ranks_per_group};
use crate::reporting::{outside_of_profile, report_apart};
use crate::routing::Routing;
use crate::run::refusal;
use std::collections::HashMap;
use windtunnel_config::{
    Cargo, ChargedTokens, Deployment, Experiment, Links, Pace, Prefill, Semantics, TransferId, Workload,
};
use windtunnel_engine::{HandOff, KvLoad, Nanos, RankConfig, Rejection, RequestId, Slot};
use windtunnel_report::{Report, RequestRecord, Role, Routing as KnownOverlap};
use windtunnel_router::{Choice, Policy, RoundRobin};
use windtunnel_traffic::{Arrival, Source};

/// Where a request's blocks are held, and what is charged for them.
#[derive(Clone, Copy, Debug)]
struct Held {
    group: usize,
    lane: usize,
    slot: Slot,
    prompt_tokens: u32,
    computed_for: Nanos,
}

/// Who waits for the end of a transfer.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    id: RequestId,
    group: usize,
    lane: usize,
    slot: Slot,
}

/// Who comes first in a hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// The prompt is computed, and then a decode worker makes room.
    PromptFirst,
    /// A decode worker makes room, and then the prompt is computed.
    RoomFirst,
}

/// How the requests of a pool find their rank.
enum Turn {
    /// The workers in turn, and then as a worker places among its ranks.
    Workers(RoundRobin, Placer),
    /// All ranks of all workers in turn (AISimulate).
    Ranks(RoundRobin),
    /// As the role's router says, and where it names no rank as the worker places among its ranks.
    Routed(Box<Routing>, Placer),
}

/// Where a request of a pool goes: the group, the lane in it, and what the router knew of its prompt.
type Place = (usize, usize, Option<KnownOverlap>);

/// The groups of one role: a part of all groups.
struct PoolOf<'a> {
    deployment: &'a Deployment,
    first: usize,
    count: usize,
    turn: Turn,
}

pub(crate) struct Disaggregated<'a, L> {
    experiment: &'a Experiment,
    prefill: &'a Prefill,
    pools: [PoolOf<'a>; 2],
    /// The prefill groups, then the decode groups, each by worker and rank.
    groups: Vec<Group<L>>,
    links: Links,
    order: Order,
    /// Requests on their way to the side that comes second, as they are submitted there.
    coming: HashMap<RequestId, Arrival>,
    /// Requests that a prefill worker has, and for which there is no room yet on the decode side.
    asking: HashMap<RequestId, (usize, usize, Slot)>,
    /// Room on the decode side for prompts that are not computed yet, with what is loaded into it.
    rooms: HashMap<RequestId, (usize, usize, KvLoad)>,
    held: HashMap<RequestId, Held>,
    waiting: HashMap<TransferId, Waiting>,
    /// When groups that are looked at next do something.
    agenda: Agenda,
    /// Decode groups are looked at always: somebody waits for the ends of requests.
    watch_all: bool,
    observer: Observer<'a>,
    watch: Watch<'a>,
    sent: u64,
    ended: u64,
    /// Requests that ended, and whose seats were not given on: of a closed loop.
    freed: u64,
    /// When the last of them ended.
    freed_at: Nanos,
    cutoff: Nanos,
    /// Scratch: groups with something to do at this instant.
    touched: Vec<usize>,
    moves: Vec<Move>,
}

const PREFILL: usize = 0;
const DECODE: usize = 1;

impl<'a, L: Lanes> Disaggregated<'a, L> {
    pub(crate) fn new(
        experiment: &'a Experiment,
        prefill: &'a Prefill,
        options: Options<'a>,
    ) -> Result<Disaggregated<'a, L>, SimError> {
        let group_options = GroupOptions::new(experiment, &options);
        let mut groups = Vec::new();
        let mut pool = |deployment: &'a Deployment, role| -> Result<PoolOf<'a>, SimError> {
            let (first, ranks) = (groups.len(), ranks_per_group(deployment));
            let group_options = GroupOptions { telling: deployment.telling(), ..group_options.clone() };
            for worker in 0..deployment.replicas.get() {
                for rank in (0..deployment.ranks.get()).step_by(ranks as usize) {
                    groups.push(Group::new(role, worker, rank, ranks, deployment, &group_options)?);
                }
            }
            let count = groups.len() - first;
            let turn = match (&deployment.router, deployment.semantics) {
                (Policy::RoundRobin, Semantics::Aisimulate013) => Turn::Ranks(RoundRobin::new()),
                (Policy::RoundRobin, Semantics::Native) => {
                    Turn::Workers(RoundRobin::new(), Placer::new(deployment))
                }
                _ => Turn::Routed(Box::new(Routing::new(deployment, count)), Placer::new(deployment)),
            };
            Ok(PoolOf { deployment, first, count, turn })
        };
        let pools = [pool(&prefill.deployment, Role::Prefill)?, pool(&experiment.deployment, Role::Decode)?];
        let workers = [&prefill.deployment, &experiment.deployment].map(|d| d.replicas.get() as usize);
        let (observer, watch) = options.watchers();
        Ok(Disaggregated {
            experiment,
            prefill,
            pools,
            groups,
            links: Links::new(prefill.transfer, workers[PREFILL], workers[DECODE]),
            order: match experiment.deployment.engine {
                RankConfig::Sglang(_) => Order::RoomFirst,
                RankConfig::Vllm(_) | RankConfig::Trtllm(_) => Order::PromptFirst,
            },
            coming: HashMap::new(),
            asking: HashMap::new(),
            rooms: HashMap::new(),
            held: HashMap::new(),
            waiting: HashMap::new(),
            agenda: Agenda::default(),
            watch_all: false,
            observer,
            watch,
            sent: 0,
            ended: 0,
            freed: 0,
            freed_at: Nanos::NEVER,
            cutoff: experiment.workload.max_virtual_time.unwrap_or(Nanos::NEVER),
            touched: Vec::new(),
            moves: Vec::new(),
        })
    }

    pub(crate) fn run(mut self, workload: &Workload) -> Result<Report, SimError> {
        let mut source = workload.open()?;
        match workload.pace {
            Pace::Arrivals => {
                let next = source.next().transpose()?;
                self.drive(&mut source, next)?;
            }
            Pace::Concurrency(seats) => {
                self.watch_all = true;
                self.fill(&mut source, u64::from(seats.get()), Nanos::ZERO)?;
                self.schedule(Nanos::ZERO);
                self.drive(&mut source, None)?;
            }
        }
        let cutoff = self.cutoff;
        for group in &mut self.groups {
            group.run_until(cutoff, false);
            self.ended += group.take_ended();
        }
        self.watch.check(&self.groups)?;
        let unfinished = self.sent - self.ended;
        if unfinished > 0 && self.cutoff == Nanos::NEVER {
            let stuck = self.groups.iter().find_map(|g| Some((g.worker(), g.stuck()?)));
            if let Some((worker, (rank, requests))) = stuck {
                let engine = self.prefill.deployment.engine.engine().0;
                return Err(SimError::Stuck { engine, worker, rank, requests });
            }
        }
        let end = match unfinished {
            0 => self.groups.iter().map(Group::now).max().unwrap_or(Nanos::ZERO),
            _ => self.cutoff,
        };
        self.observer.finish(&mut self.groups, end)?;
        Ok(self.report(unfinished, end))
    }

    /// Goes from instant to instant. At each: pass ends, transfers, arrivals, schedule calls.
    fn drive(&mut self, source: &mut Source, mut next: Option<Arrival>) -> Result<(), SimError> {
        loop {
            let arrival_at = next.as_ref().map_or(Nanos::NEVER, |arrival| arrival.at);
            self.run_alone(arrival_at);
            let due = self.agenda.next(&self.groups).map_or(Nanos::NEVER, |(instant, _)| instant);
            // Seats that were freed with a schedule call are given on at its instant.
            let freed_at = if self.watch_all && self.freed > 0 { self.freed_at } else { Nanos::NEVER };
            let now = arrival_at.min(due).min(self.links.next_end()).min(freed_at);
            if now == Nanos::NEVER || now > self.cutoff {
                return Ok(());
            }
            self.observe_before(now)?;
            self.pass_ends(now);
            self.transfers(now);
            while let Some(arrival) = next.take_if(|arrival| arrival.at == now) {
                self.send(arrival, now)?;
                next = source.next().transpose()?;
            }
            if self.watch_all {
                let seats = std::mem::take(&mut self.freed);
                self.fill(source, seats, now)?;
            }
            self.schedule(now);
            self.watch.check(&self.groups)?;
        }
    }

    /// The group whose turn it is runs by itself until another thing happens, or something with it that others wait
    /// for.
    fn run_alone(&mut self, arrival_at: Nanos) {
        if self.watch_all && self.freed > 0 {
            return;
        }
        let Some((instant, at)) = self.agenda.next(&self.groups) else { return };
        let others = self.agenda.next_but(&self.groups, at).min(arrival_at).min(self.links.next_end());
        let horizon = others.min(self.cutoff).min(self.observer.next_instant());
        // What ends at the instant of others has its turn among them.
        if horizon.0 > instant.0 + 1 {
            self.groups[at].run_until(Nanos(horizon.0 - 1), true);
        }
        self.note_due(at);
        let now = self.groups[at].now();
        self.tell(at, now);
        self.touched.clear();
    }

    fn pass_ends(&mut self, now: Nanos) {
        self.touched.clear();
        self.agenda.take_due(&self.groups, now, &mut self.touched);
        for i in 0..self.touched.len() {
            let at = self.touched[i];
            self.groups[at].run_until(now, true);
            self.tell(at, now);
        }
    }

    /// Transfers that end, and those that this lets begin, as far as they take no time.
    fn transfers(&mut self, now: Nanos) {
        while self.links.next_end() <= now {
            let Some(ended) = self.links.take_ended(now) else { return };
            let Some(Waiting { id, group, lane, slot }) = self.waiting.remove(&ended) else { continue };
            self.groups[group].run_until(now, false);
            self.groups[group].load_ended(lane, slot, now);
            self.touched.push(group);
            if self.prefill.deployment.semantics == Semantics::Native {
                self.release(id, now);
            }
            self.tell(group, now);
        }
    }

    /// What a group has done that others wait for.
    fn tell(&mut self, at: usize, now: Nanos) {
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
                Move::Handed { lane, slot, record } => self.hand_over(at, lane, slot, *record, now),
                Move::Started { lane, load } => self.start(at, lane, load, now),
                Move::Activated { id } => self.release(id, now),
            }
        }
        self.moves = moves;
    }

    /// A prompt is computed, and its blocks are held: the request goes on to a decode worker, or that loads it into the
    /// room that it has made.
    fn hand_over(&mut self, group: usize, lane: usize, slot: Slot, record: RequestRecord, now: Nanos) {
        let id = record.id;
        let computed_for = record.first_admit.map_or(Nanos::ZERO, |admitted| now.since(admitted));
        let held = Held { group, lane, slot, prompt_tokens: record.input_tokens, computed_for };
        if let Some((to, to_lane, load)) = self.rooms.remove(&id) {
            self.groups[to].note_prefill(to_lane, load.slot, &record);
            self.held.insert(id, held);
            return self.load(to, to_lane, (id, load), now);
        }
        let Some(arrival) = self.coming.remove(&id) else { return };
        self.held.insert(id, held);
        let (to, to_lane, _) = match self.place(DECODE, &arrival, now) {
            Ok(place) => place,
            Err((to, reason)) => {
                self.refuse(to, arrival, now, reason);
                return self.release(id, now);
            }
        };
        self.groups[to].run_until(now, false);
        let record = RequestRecord { prefill_worker: Some(record.worker), ..record };
        if !self.groups[to].hand_over(to_lane, arrival, record, now) {
            self.release(id, now);
        }
        self.touched.push(to);
        self.tell(to, now);
        self.note_due(to);
    }

    /// A decode worker has made room for a request's KV: loads it, or has the prompt computed first.
    fn start(&mut self, group: usize, lane: usize, (id, load): (RequestId, KvLoad), now: Nanos) {
        if self.order == Order::PromptFirst {
            return self.load(group, lane, (id, load), now);
        }
        self.rooms.insert(id, (group, lane, load));
        if let Some((at, at_lane, slot)) = self.asking.remove(&id) {
            self.groups[at].run_until(now, true);
            self.groups[at].kv_wanted(at_lane, slot, now);
            self.touched.push(at);
            self.note_due(at);
        } else if let Some(arrival) = self.coming.remove(&id)
            && self.prefill(arrival, now).is_none()
        {
            self.rooms.remove(&id);
            self.groups[group].withdraw(lane, load.slot, now);
            self.note_due(group);
        }
    }

    /// A decode worker loads a request's KV.
    fn load(&mut self, group: usize, lane: usize, (id, load): (RequestId, KvLoad), now: Nanos) {
        let Some(held) = self.held.get(&id) else { return };
        let tokens = match self.prefill.transfer.charged {
            ChargedTokens::FullPrompt => held.prompt_tokens,
            // AISimulate counts SGLang's tokens, and vLLM's blocks.
            ChargedTokens::DestinationMissing if self.counts_tokens() => load.tokens,
            ChargedTokens::DestinationMissing => {
                load.blocks * self.pools[DECODE].deployment.engine.block_size()
            }
        };
        let from = self.groups[held.group].worker() as usize;
        let to = self.groups[group].worker() as usize;
        let computed_for = held.computed_for;
        let transfer = self.links.start(Cargo { from, to, tokens, computed_for }, now);
        self.waiting.insert(transfer, Waiting { id, group, lane, slot: load.slot });
    }

    /// The source lets go of a request's blocks.
    fn release(&mut self, id: RequestId, now: Nanos) {
        let Some(Held { group, lane, slot, .. }) = self.held.remove(&id) else { return };
        self.groups[group].run_until(now, true);
        self.groups[group].send_ended(lane, slot, now);
        self.touched.push(group);
        self.note_due(group);
    }

    fn counts_tokens(&self) -> bool {
        self.order == Order::RoomFirst && self.prefill.deployment.semantics == Semantics::Aisimulate013
    }

    /// Sends a request to the side that comes first, or to both.
    fn send(&mut self, mut arrival: Arrival, now: Nanos) -> Result<(), SimError> {
        let ignore_eos = self.pools[DECODE].deployment.ignore_eos;
        arrival.request.output.ignore_eos.get_or_insert(ignore_eos);
        self.sent += 1;
        if self.sent.is_multiple_of(PROGRESS_STEP) {
            self.watch.tell(Progress { sent: self.sent, now });
        }
        let mut first = arrival.clone();
        first.request.hand_off = HandOff::Hold;
        first.request.output.cut_to_first();
        arrival.request.hand_off = HandOff::Pull;
        let id = arrival.request.id;
        match (self.order, self.prefill.deployment.semantics) {
            (Order::PromptFirst, _) => {
                self.coming.insert(id, arrival);
                if self.prefill(first, now).is_none() {
                    self.coming.remove(&id);
                }
            }
            // Both sides have it from the beginning, and one waits for the other.
            (Order::RoomFirst, Semantics::Native) => {
                let Some(place) = self.prefill(first, now) else { return Ok(()) };
                self.asking.insert(id, place);
                if !self.receive(arrival, now) {
                    self.asking.remove(&id);
                    let (at, lane, slot) = place;
                    self.groups[at].withdraw(lane, slot, now);
                    self.note_due(at);
                }
            }
            (Order::RoomFirst, Semantics::Aisimulate013) => {
                self.coming.insert(id, first);
                if !self.receive(arrival, now) {
                    self.coming.remove(&id);
                }
            }
        }
        Ok(())
    }

    /// Sends a request to a prefill worker, with one token to give there. Where it stands, if it was taken.
    fn prefill(&mut self, arrival: Arrival, now: Nanos) -> Option<(usize, usize, Slot)> {
        let (at, lane, routing) = match self.place(PREFILL, &arrival, now) {
            Ok(place) => place,
            Err((at, reason)) => {
                self.refuse(at, arrival, now, reason);
                return None;
            }
        };
        self.groups[at].run_until(now, true);
        let sending = Sending { routing, ..Sending::unrouted(arrival) };
        let taken = self.groups[at].submit(lane, sending, now);
        self.tell(at, now);
        self.touched.push(at);
        self.note_due(at);
        taken.map(|slot| (at, lane, slot))
    }

    /// Sends a request to a decode worker, which is to make room for it. False if it was refused.
    fn receive(&mut self, arrival: Arrival, now: Nanos) -> bool {
        let (to, lane, _) = match self.place(DECODE, &arrival, now) {
            Ok(place) => place,
            Err((to, reason)) => {
                self.refuse(to, arrival, now, reason);
                return false;
            }
        };
        self.groups[to].run_until(now, false);
        let taken = self.groups[to].receive(lane, Sending::unrouted(arrival), now).is_some();
        self.touched.push(to);
        self.tell(to, now);
        self.note_due(to);
        taken
    }

    /// Refuses a request that none of the ranks is asked to take.
    fn refuse(&mut self, at: usize, arrival: Arrival, now: Nanos, reason: Rejection) {
        self.groups[at].run_until(now, at < self.pools[DECODE].first);
        self.groups[at].refuse(&refusal(Sending::unrouted(arrival), now, reason));
        self.tell(at, now);
    }

    /// Sends `seats` requests at `now`, and one more for each that is refused at once.
    fn fill(&mut self, source: &mut Source, mut seats: u64, now: Nanos) -> Result<(), SimError> {
        while seats > 0 {
            seats -= 1;
            let Some(arrival) = source.next() else { return Ok(()) };
            let mut arrival = arrival?;
            (arrival.at, arrival.request.arrival) = (now, now);
            self.send(arrival, now)?;
            seats += std::mem::take(&mut self.freed);
        }
        Ok(())
    }

    /// The group and the lane in it that take a request of a pool.
    fn place(&mut self, pool: usize, arrival: &Arrival, now: Nanos) -> Result<Place, (usize, Rejection)> {
        let (named, mut known) = (arrival.dp_rank, None);
        let PoolOf { deployment, first, count, turn } = &mut self.pools[pool];
        let groups = &mut self.groups[*first..*first + *count];
        let found = match turn {
            Turn::Workers(workers, placer) => {
                let worker = workers.next_of(deployment.replicas);
                placer.place(worker, named, now, groups)
            }
            Turn::Routed(routing, placer) => {
                let Choice { worker, rank, record } = routing.choose(groups, arrival, now);
                known = record.map(|record| KnownOverlap {
                    overlap: record.overlap_tokens,
                    best_overlap: record.best_overlap_tokens,
                });
                placer.place(worker, named.or(rank), now, groups)
            }
            Turn::Ranks(ranks) => {
                let all = deployment.replicas.saturating_mul(deployment.ranks);
                let (place, per_group) = (ranks.next_of(all), ranks_per_group(deployment));
                let per_worker = deployment.ranks.get();
                let (worker, rank) = (place / per_worker, named.unwrap_or(place % per_worker));
                let at = (worker * (per_worker / per_group)) as usize;
                match rank < per_worker {
                    true => Ok((at + (rank / per_group) as usize, (rank % per_group) as usize)),
                    false => Err((at, Rejection::NoSuchRank { dp_rank: rank, ranks: per_worker })),
                }
            }
        };
        let first = *first;
        found.map(|(at, lane)| (first + at, lane, known)).map_err(|(at, reason)| (first + at, reason))
    }

    /// The schedule calls of this instant.
    fn schedule(&mut self, now: Nanos) {
        self.touched.sort_unstable();
        self.touched.dedup();
        for i in 0..self.touched.len() {
            let at = self.touched[i];
            self.groups[at].schedule_at(now);
            self.tell(at, now);
            self.note_due(at);
        }
        self.touched.clear();
    }

    /// Enters when a group that is looked at next does something.
    fn note_due(&mut self, at: usize) {
        let looked_at = at < self.pools[DECODE].first || self.watch_all || self.groups[at].is_awaited();
        if looked_at {
            self.agenda.note(&self.groups, at);
        }
        let of = &mut self.pools[usize::from(at >= self.pools[DECODE].first)];
        if let Turn::Routed(routing, _) = &mut of.turn {
            routing.note(&self.groups[of.first..of.first + of.count], at - of.first);
        }
    }

    /// Lets the observer look at all instants before `now`.
    fn observe_before(&mut self, now: Nanos) -> Result<(), SimError> {
        loop {
            let instant = self.observer.next_instant();
            if instant >= now {
                return Ok(());
            }
            for group in &mut self.groups {
                group.settle(instant);
            }
            self.observer.look(&mut self.groups, instant)?;
            self.watch.check(&self.groups)?;
        }
    }

    fn report(self, unfinished: u64, end: Nanos) -> Report {
        let outside = [PREFILL, DECODE].map(|pool| {
            let PoolOf { first, count, .. } = &self.pools[pool];
            outside_of_profile(&self.groups[*first..first + count])
        });
        let collectors = self.groups.into_iter().map(|group| group.into_collector(end));
        report_apart(self.experiment, &self.prefill.deployment, collectors, (unfinished, end), outside)
    }
}
