//! Prefill and decode on workers of their own: the loop of such a run.
//!
//! A request goes to a prefill worker, whose blocks it holds when it ends there; then to a decode worker, which loads
//! them; when they have been read, the source lets go of them, once. Or the decode worker makes room for them first, and
//! the prefill worker begins when there is (SGLang). Prefill groups are always looked at when they do
//! something; a decode group only while something of it is awaited elsewhere, and otherwise it lags behind.

mod hand_off;
mod pool;
mod trips;

use crate::agenda::Agenda;
use crate::error::SimError;
use crate::group::{Group, GroupOptions, Lanes, Move};
use crate::observer::Observer;
use crate::options::{Options, Watch};
use crate::reporting::{outside_of_profile, report_apart};
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
        let mut pool = |deployment: &'a Deployment, role| -> Result<PoolOf<'a>, SimError> {
            let first = groups.len();
            let group_options = GroupOptions { telling: deployment.telling(), ..group_options.clone() };
            for worker in 0..deployment.replicas.get() {
                groups.extend(groups_of_worker(role, worker, deployment, &group_options)?);
            }
            Ok(PoolOf::new(deployment, first, groups.len() - first))
        };
        let pools =
            [pool(&prefill.deployment, ROLES[PREFILL])?, pool(&experiment.deployment, ROLES[DECODE])?];
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
        let outside =
            [PREFILL, DECODE].map(|pool| outside_of_profile(&self.groups[self.pools[pool].range()]));
        let collectors = self.groups.into_iter().map(|group| group.into_collector(end));
        report_apart(self.experiment, &self.prefill.deployment, collectors, (unfinished, end), outside)
    }
}
