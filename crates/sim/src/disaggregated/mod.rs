//! Prefill and decode on workers of their own: the loop of such a run.
//!
//! A request goes to a prefill worker, whose blocks it holds when it ends there; then to a decode worker, which loads
//! them; when they have been read, the source lets go of them, once. Or the decode worker makes room for them first, and
//! the prefill worker begins when there is (SGLang). Prefill groups are always looked at when they do
//! something; a decode group only while something of it is awaited elsewhere, and otherwise it lags behind.

mod crash;
mod elastic;
mod hand_off;
mod pool;
mod trips;

use crate::agenda::Agenda;
use crate::error::SimError;
use crate::group::{Group, GroupOptions, Lanes, Move};
use crate::observer::Observer;
use crate::options::{Options, Watch};
use crate::reporting::{EndingApart, outside_of_profile, report_apart};
use elastic::Elastic;
use pool::{DECODE, PREFILL, PoolOf, ROLES, Turn, groups_of_worker};
use trips::Trips;
use windtunnel_config::{Deployment, Experiment, Links, Pace, Prefill, Workload};
use windtunnel_engine::{Nanos, RankConfig};
use windtunnel_report::Report;
use windtunnel_traffic::{Arrival, Source};

/// Who comes first in a hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// The prompt is computed, and then a decode worker makes room.
    PromptFirst,
    /// A decode worker makes room, and then the prompt is computed.
    RoomFirst,
}

pub(crate) struct Disaggregated<'a, L> {
    experiment: &'a Experiment,
    prefill: &'a Prefill,
    pools: [PoolOf<'a>; 2],
    /// The prefill groups, then the decode groups, each by worker and rank.
    groups: Vec<Group<L>>,
    links: Links,
    order: Order,
    /// Requests between the two sides.
    trips: Trips,
    /// Where workers come and go, or fail.
    elastic: Option<Box<Elastic>>,
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

impl<'a, L: Lanes> Disaggregated<'a, L> {
    pub(crate) fn new(
        experiment: &'a Experiment,
        prefill: &'a Prefill,
        options: Options<'a>,
    ) -> Result<Disaggregated<'a, L>, SimError> {
        let group_options = GroupOptions::new(experiment, &options);
        let mut groups = Vec::new();
        let faults = [prefill.faults.as_ref(), experiment.faults.as_ref()];
        let mut pool = |pool: usize, deployment: &'a Deployment| -> Result<PoolOf<'a>, SimError> {
            let (role, first) = (ROLES[pool], groups.len());
            let of_role = group_options.of_role(role, deployment, faults[pool]);
            for worker in 0..deployment.replicas.get() {
                groups.extend(groups_of_worker(role, worker, deployment, &of_role)?);
            }
            Ok(PoolOf::new(deployment, first, groups.len() - first, of_role))
        };
        let pools = [pool(PREFILL, &prefill.deployment)?, pool(DECODE, &experiment.deployment)?];
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
            trips: Trips::default(),
            elastic: Elastic::new(experiment, prefill, group_options.collector),
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
            0 => self.groups.iter().map(Group::now).max().unwrap_or(Nanos::ZERO).max(self.last_change()),
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
            let look = self.next_look();
            if look < now && look <= self.cutoff && (now < Nanos::NEVER || self.goes_on(look)) {
                self.look(look)?;
                continue;
            }
            if now == Nanos::NEVER || now > self.cutoff {
                return Ok(());
            }
            self.pass_ends(now);
            self.make_ready(now);
            self.transfers(now);
            while let Some(arrival) = next.take_if(|arrival| arrival.at == now) {
                self.send(arrival, now);
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

    /// The next instant at which all groups are to be looked at, or workers change.
    fn next_look(&self) -> Nanos {
        self.observer.next_instant().min(self.next_change())
    }

    /// Nothing is awaited any more, but not all has ended before `instant`.
    fn goes_on(&mut self, instant: Nanos) -> bool {
        self.groups.iter_mut().for_each(|group| group.run_until(instant, false));
        let waits = self.elastic.as_ref().is_some_and(|elastic| elastic.is_waited_for());
        waits || self.groups.iter().any(|g| g.next_instant() < Nanos::NEVER || g.now() >= instant)
    }

    /// Looks at all groups at an instant at which nothing else happens, and lets workers change.
    fn look(&mut self, instant: Nanos) -> Result<(), SimError> {
        self.groups.iter_mut().for_each(|group| group.settle(instant));
        self.make_ready(instant);
        self.schedule(instant);
        self.observer.look(&mut self.groups, instant)?;
        self.act(instant)?;
        self.watch.check(&self.groups)
    }

    /// The group whose turn it is runs by itself until another thing happens, or something with it that others wait
    /// for.
    fn run_alone(&mut self, arrival_at: Nanos) {
        if self.watch_all && self.freed > 0 {
            return;
        }
        let Some((instant, at)) = self.agenda.next(&self.groups) else { return };
        let others = self.agenda.next_but(&self.groups, at).min(arrival_at).min(self.links.next_end());
        let horizon = others.min(self.cutoff).min(self.next_look());
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

    /// Sends `seats` requests at `now`, and one more for each that is refused at once.
    fn fill(&mut self, source: &mut Source, mut seats: u64, now: Nanos) -> Result<(), SimError> {
        while seats > 0 {
            seats -= 1;
            let Some(arrival) = source.next() else { return Ok(()) };
            let mut arrival = arrival?;
            (arrival.at, arrival.request.arrival) = (now, now);
            self.send(arrival, now);
            seats += std::mem::take(&mut self.freed);
        }
        Ok(())
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
        let pool = self.pool_of(at);
        let of = &mut self.pools[pool];
        if let Turn::Routed(routing, _) = &mut of.turn {
            routing.note(&self.groups[of.first..of.first + of.count], at - of.first);
        }
    }

    /// When the workers changed last.
    fn last_change(&self) -> Nanos {
        self.elastic.as_ref().map_or(Nanos::ZERO, |elastic| elastic.last)
    }

    fn report(mut self, unfinished: u64, end: Nanos) -> Report {
        let mut outside =
            [PREFILL, DECODE].map(|pool| outside_of_profile(&self.groups[self.pools[pool].range()]));
        let (mut fleets, mut past) = (None, Vec::new());
        if let Some(gone) = self.take_fleets(end) {
            let all = outside.as_flattened_mut().iter_mut().zip(gone.outside.as_flattened());
            all.for_each(|(all, here)| *all |= here);
            (fleets, past) = (Some(gone.fleets), gone.collectors);
        }
        let collectors = self.groups.into_iter().map(|group| group.into_collector(end)).chain(past);
        let ending = EndingApart { unfinished, end, outside, fleets };
        report_apart(self.experiment, &self.prefill.deployment, collectors, ending)
    }
}
