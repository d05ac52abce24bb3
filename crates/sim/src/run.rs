//! The loop of a run: arrivals meet rank groups.
//!
//! A rank group is what has a clock of its own: a worker whose ranks step together is one, and so is each
//! rank of another worker.

mod elastic;

use crate::agenda::Agenda;
use crate::disaggregated::Disaggregated;
use crate::error::SimError;
use crate::group::{Group, GroupOptions, Lanes};
use crate::lane::{Lane, Sending};
use crate::observer::Observer;
use crate::options::{Options, PROGRESS_STEP, Progress, Watch};
use crate::placement::{Placer, ranks_per_group};
use crate::reporting::{Ending, outside_of_profile, report};
use crate::routing::{Routing, known};
use crate::steering::Steering;
use crate::threads::{self, Hands};
use std::sync::atomic::Ordering;
use windtunnel_config::{Deployment, Experiment, Pace, Workload};
use windtunnel_engine::{ConfigError, Nanos, Rejection};
use windtunnel_report::{Refusal, Report, Role};
use windtunnel_router::Choice;
use windtunnel_traffic::{Arrival, Source};

/// Runs a workload through a deployment.
///
/// # Errors
/// A bad line of the workload, a destination that cannot be written, an interruption, or requests that
/// nothing will wake.
pub fn run<'a>(experiment: &'a Experiment, mut options: Options<'a>) -> Result<Report, SimError> {
    let observed = options.events.is_some() || options.telemetry.is_some();
    let threads = worker_threads(experiment, observed, options.threads);
    if threads > 1 {
        let plain = Options { threads, interrupt: options.interrupt.clone(), ..Options::of(&options) };
        let progress = options.progress.as_mut().map(|told| told as &mut dyn FnMut(Progress));
        let several = Options { progress, ..plain };
        match run_once(experiment, several) {
            // Which of several faults comes first depends on how fast the threads are. One thread knows.
            Err(
                SimError::Traffic(_)
                | SimError::EngineFault { .. }
                | SimError::Endless { .. }
                | SimError::Livelock { .. },
            ) => options.interrupt.store(false, Ordering::Relaxed),
            done => return done,
        }
    }
    run_once(experiment, Options { threads: 1, ..options })
}

fn run_once<'a>(experiment: &'a Experiment, options: Options<'a>) -> Result<Report, SimError> {
    if let Some(prefill) = &experiment.prefill {
        let ranks = ranks_per_group(&experiment.deployment).max(ranks_per_group(&prefill.deployment));
        return match ranks {
            1 => Disaggregated::<[Lane; 1]>::new(experiment, prefill, options)?.run(&experiment.workload),
            _ => Disaggregated::<Vec<Lane>>::new(experiment, prefill, options)?.run(&experiment.workload),
        };
    }
    match ranks_per_group(&experiment.deployment) {
        1 => Run::<[Lane; 1]>::new(experiment, options)?.run(&experiment.workload),
        _ => Run::<Vec<Lane>>::new(experiment, options)?.run(&experiment.workload),
    }
}

/// Threads that run workers, of `allowed` ones: workers have to be independent of each other between arrivals,
/// and nobody may look at all of them at once.
pub fn worker_threads(experiment: &Experiment, observed: bool, allowed: u32) -> u32 {
    let open = experiment.workload.pace == Pace::Arrivals && experiment.prefill.is_none();
    let apart = experiment.deployment.router.needs().is_nothing() && !experiment.is_elastic();
    if open && apart && !observed { allowed.clamp(1, experiment.deployment.replicas.get()) } else { 1 }
}

struct Run<'a, L> {
    experiment: &'a Experiment,
    deployment: &'a Deployment,
    /// By worker and rank.
    groups: Vec<Group<L>>,
    groups_per_worker: usize,
    group_options: GroupOptions,
    /// Where workers come and go, or fail.
    steering: Option<Box<Steering>>,
    routing: Routing,
    placer: Placer,
    observer: Observer<'a>,
    watch: Watch<'a>,
    threads: u32,
    sent: u64,
    cutoff: Nanos,
    /// Requests come at times of their own.
    open: bool,
    /// Groups that were given requests since this was last looked at.
    placed: Vec<usize>,
    /// Closed loop: when groups next do something.
    agenda: Agenda,
}

impl<'a, L: Lanes + Send> Run<'a, L> {
    fn new(experiment: &'a Experiment, options: Options<'a>) -> Result<Run<'a, L>, SimError> {
        let deployment = &experiment.deployment;
        let group_options = GroupOptions::new(experiment, &options).of_role(
            Role::Aggregated,
            deployment,
            experiment.faults.as_ref(),
        );
        let engine = deployment.engine.block_size();
        if let Some(router) = deployment.router.needs().cache
            && options.events.is_some()
            && router != engine
        {
            return Err(SimError::EventBlocks { engine, router });
        }
        let (placer, collector) = (Placer::new(deployment), group_options.collector);
        let mut groups = Vec::new();
        for worker in 0..deployment.replicas.get() {
            groups.extend(groups_of_worker(worker, deployment, &group_options)?);
        }
        let threads = options.threads;
        let (observer, watch) = options.watchers();
        Ok(Run {
            experiment,
            deployment,
            groups_per_worker: (deployment.ranks.get() / ranks_per_group(deployment)) as usize,
            group_options,
            steering: Steering::new(experiment, collector),
            routing: Routing::new(deployment, groups.len()),
            groups,
            placer,
            observer,
            watch,
            threads,
            sent: 0,
            agenda: Agenda::default(),
            open: experiment.workload.pace == Pace::Arrivals,
            placed: Vec::new(),
            cutoff: experiment.workload.max_virtual_time.unwrap_or(Nanos::NEVER),
        })
    }

    fn run(mut self, workload: &Workload) -> Result<Report, SimError> {
        let mut source = workload.open()?;
        match workload.pace {
            Pace::Arrivals if self.threads > 1 => self.side_by_side(&mut source)?,
            Pace::Arrivals => self.open_loop(&mut source)?,
            Pace::Concurrency(seats) => self.closed_loop(&mut source, u64::from(seats.get()))?,
        }
        self.check_interrupt()?;
        let in_groups: u64 = self.groups.iter().map(|g| g.unfinished() as u64).sum();
        let unfinished = in_groups + self.routing.held() as u64 + self.waiting_for_workers();
        if unfinished > 0 && self.cutoff == Nanos::NEVER {
            let stuck = self.groups.iter().find_map(|g| Some((g.worker(), g.stuck()?)));
            if let Some((worker, (rank, requests))) = stuck {
                return Err(SimError::Stuck {
                    engine: self.deployment.engine.engine().0,
                    worker,
                    rank,
                    requests,
                });
            }
        }
        // A run that was cut off lasted until then; any other one until its last pass or arrival.
        let end = match unfinished {
            0 => self.groups.iter().map(Group::now).max().unwrap_or(Nanos::ZERO).max(self.last_change()),
            _ => self.cutoff,
        };
        self.observer.finish(&mut self.groups, end)?;
        Ok(self.report(unfinished, end))
    }

    /// Requests come at the times of their source, whatever becomes of those before them.
    fn open_loop(&mut self, source: &mut Source) -> Result<(), SimError> {
        for arrival in source {
            let arrival = arrival?;
            let now = arrival.at;
            if now > self.cutoff {
                break;
            }
            self.watch_before(now)?;
            self.let_go_before(now)?;
            self.make_ready(now);
            self.send(arrival, now)?;
            self.placed.clear();
        }
        let cutoff = self.cutoff;
        while self.busy() || self.waiting_for_workers() > 0 {
            let next = self.next_watch();
            if next == Nanos::NEVER || next > cutoff {
                break;
            }
            self.let_go_before(next)?;
            if self.routing.held() == 0 && self.waiting_for_workers() == 0 {
                // Whatever is to happen at that instant, it does not if all has ended before.
                self.groups.iter_mut().for_each(|group| group.run_until(next, false));
                if !self.busy() && self.groups.iter().all(|g| g.now() < next) {
                    break;
                }
            }
            self.settle_at(next)?;
            self.look(next)?;
        }
        self.let_go_before(Nanos(cutoff.0.saturating_add(1)))?;
        for at in 0..self.groups.len() {
            self.groups[at].run_until(cutoff, false);
            self.tick(cutoff)?;
        }
        Ok(())
    }

    /// The same, with the workers on several threads.
    fn side_by_side(&mut self, source: &mut Source) -> Result<(), SimError> {
        let (groups, placer) = (&mut self.groups, &mut self.placer);
        let (routing, deployment, cutoff) = (&mut self.routing, self.deployment, self.cutoff);
        let (watch, sent) = (&mut self.watch, &mut self.sent);
        let workers = (deployment.replicas.get(), self.threads);
        let read = |hands: &mut Hands| {
            for arrival in source {
                let arrival = arrival?;
                let now = arrival.at;
                if now > cutoff {
                    break;
                }
                let worker = routing.pick_unseen(&arrival, now);
                if !hands.give(worker, arrival) {
                    break;
                }
                *sent += 1;
                if sent.is_multiple_of(PROGRESS_STEP) {
                    watch.tell(Progress { sent: *sent, now });
                    if watch.is_interrupted() {
                        break;
                    }
                }
            }
            Ok(())
        };
        threads::run(groups, placer, workers, deployment.ignore_eos, cutoff, read)
    }

    /// A number of requests is kept in flight; the next is sent when one ends.
    fn closed_loop(&mut self, source: &mut Source, seats: u64) -> Result<(), SimError> {
        self.fill(source, seats, Nanos::ZERO)?;
        loop {
            let due = self.agenda.next(&self.groups);
            let (now, watch) = (due.map_or(Nanos::NEVER, |(instant, _)| instant), self.next_watch());
            if watch < now && (due.is_some() || self.waiting_for_workers() > 0) {
                if watch > self.cutoff {
                    break;
                }
                self.settle_at(watch)?;
                self.look(watch)?;
                self.fill(source, 0, watch)?;
                continue;
            }
            let Some((_, at)) = due.filter(|_| now <= self.cutoff) else { break };
            self.make_ready(now);
            let others = self.agenda.next_but(&self.groups, at);
            let mut ended_at = now;
            let mut due = vec![at];
            if others > now {
                // Alone until another group does something, unless a request ends.
                let horizon = others.min(self.cutoff).min(watch);
                self.groups[at].run_until(horizon, true);
                ended_at = self.groups[at].now();
            }
            // Pass ends of one instant come before what follows from any of them.
            self.agenda.take_due(&self.groups, ended_at, &mut due);
            for &group in &due {
                self.groups[group].run_until(ended_at, false);
            }
            due.iter().for_each(|&group| self.routing.note(&self.groups, group));
            self.make_ready(ended_at);
            self.let_go(ended_at);
            let ended: u64 = due.iter().map(|&group| self.groups[group].take_ended()).sum();
            if ended == 0 && self.placed.is_empty() {
                for &group in &due {
                    self.groups[group].schedule_at(now);
                    self.routing.note(&self.groups, group);
                }
            }
            due.into_iter().for_each(|group| self.agenda.note(&self.groups, group));
            self.fill(source, ended, ended_at)?;
            self.check_interrupt()?;
        }
        Ok(())
    }

    /// Sends `seats` requests at `now`, and one more for each that is refused at once.
    fn fill(&mut self, source: &mut Source, mut seats: u64, now: Nanos) -> Result<(), SimError> {
        loop {
            // Also those that the router has let go.
            while let Some(group) = self.placed.pop() {
                seats += self.groups[group].take_ended();
                self.agenda.note(&self.groups, group);
            }
            seats += self.take_ended_by_change();
            if seats == 0 {
                return Ok(());
            }
            seats -= 1;
            let Some(arrival) = source.next() else { return Ok(()) };
            let mut arrival = arrival?;
            arrival.request.arrival = now;
            self.send(arrival, now)?;
        }
    }

    /// Places a request on a rank, unless the router holds it back, after those that it lets go now.
    fn send(&mut self, arrival: Arrival, now: Nanos) -> Result<(), SimError> {
        self.let_go(now);
        match &mut self.steering {
            None => self.route(arrival, now),
            Some(steering) => {
                steering.arrived(&arrival);
                self.dispatch(arrival, now);
                self.sort_out();
            }
        }
        self.sent += 1;
        if self.sent.is_multiple_of(PROGRESS_STEP) {
            self.tick(now)?;
        }
        Ok(())
    }

    fn route(&mut self, arrival: Arrival, now: Nanos) {
        if let Some((arrival, choice)) = self.routing.route(&mut self.groups, arrival, now) {
            self.place(arrival, choice, now);
        }
    }

    fn place(&mut self, mut arrival: Arrival, choice: Choice, now: Nanos) {
        let retries = self.steering.as_mut().map_or(0, |steering| steering.tries.sends(&arrival));
        let came = std::mem::replace(&mut arrival.request.arrival, now);
        arrival.dp_rank = arrival.dp_rank.or(choice.rank);
        let sending = Sending { arrival, came, routing: choice.record.map(known), retries };
        let ignore_eos = self.deployment.ignore_eos;
        let at = send_to(&mut self.groups, &mut self.placer, ignore_eos, choice.worker, sending, now);
        self.routing.note(&self.groups, at);
        self.placed.push(at);
    }

    /// Tells the router what is known by `now`, and places the requests that it lets go for that.
    fn let_go(&mut self, now: Nanos) {
        while self.routing.catch_up(&mut self.groups, now) {
            while let Some((arrival, choice)) = self.routing.release(now) {
                self.place(arrival, choice, now);
            }
        }
    }

    /// While the router holds requests back: lets time pass up to the instant before `before`, from one to the next
    /// at which somebody has something to tell, and places those whose turn it is then.
    fn let_go_before(&mut self, before: Nanos) -> Result<(), SimError> {
        let mut groups = Vec::new();
        while self.routing.held() > 0 {
            let Some(now) = self.routing.advance(&mut self.groups, before, &mut groups) else { break };
            self.let_go(now);
            self.placed.clear();
            for &group in &groups {
                self.groups[group].schedule_at(now);
                self.routing.note(&self.groups, group);
            }
            self.check_interrupt()?;
        }
        Ok(())
    }

    fn busy(&self) -> bool {
        self.groups.iter().any(|g| g.next_instant() < Nanos::NEVER)
    }

    /// The next instant at which all groups are to be looked at, or workers change.
    fn next_watch(&self) -> Nanos {
        self.observer.next_instant().min(self.next_change())
    }

    /// Lets all instants before `now` have their looks.
    fn watch_before(&mut self, now: Nanos) -> Result<(), SimError> {
        while self.next_watch() < now {
            let instant = self.next_watch();
            self.settle_at(instant)?;
            self.look(instant)?;
            self.placed.clear();
        }
        Ok(())
    }

    /// Lets every group do all that it does up to and at `instant`, the next one at which all are looked at.
    fn settle_at(&mut self, instant: Nanos) -> Result<(), SimError> {
        if self.open {
            if self.steering.is_some() {
                self.let_go_before(instant)?;
            }
            self.make_ready(instant);
            self.let_go_before(Nanos(instant.0 + 1))?;
        } else {
            self.make_ready(instant);
        }
        self.groups.iter_mut().for_each(|group| group.settle(instant));
        Ok(())
    }

    /// Looks at all groups, which have settled at `instant`, and lets workers change.
    fn look(&mut self, instant: Nanos) -> Result<(), SimError> {
        self.observer.look(&mut self.groups, instant)?;
        self.act(instant)?;
        self.check_interrupt()
    }

    fn tick(&mut self, now: Nanos) -> Result<(), SimError> {
        self.watch.tell(Progress { sent: self.sent, now });
        self.check_interrupt()
    }

    fn check_interrupt(&self) -> Result<(), SimError> {
        self.watch.check(&self.groups)
    }

    fn report(mut self, unfinished: u64, end: Nanos) -> Report {
        let mut outside = outside_of_profile(&self.groups);
        let fleet = self.take_fleet(end);
        let past = self.steering.map(|steering| {
            let crew = steering.crew;
            outside = [outside[0] | crew.outside[0], outside[1] | crew.outside[1]];
            crew.past
        });
        let collectors = self.groups.into_iter().map(|g| g.into_collector(end)).chain(past);
        report(self.experiment, collectors, Ending { unfinished, end, outside, fleet })
    }
}

/// The groups of a worker in which nothing has happened.
fn groups_of_worker<L: Lanes>(
    worker: u32,
    deployment: &Deployment,
    options: &GroupOptions,
) -> Result<Vec<Group<L>>, ConfigError> {
    let ranks = ranks_per_group(deployment);
    let firsts = (0..deployment.ranks.get()).step_by(ranks as usize);
    firsts.map(|first| Group::new(Role::Aggregated, worker, first, ranks, deployment, options)).collect()
}

/// Sends a request to `worker` at `now`, to which `groups`, among which are its groups, need not have come yet.
/// Tells which of them it went to.
pub(crate) fn send_to<L: Lanes>(
    groups: &mut [Group<L>],
    placer: &mut Placer,
    ignore_eos: bool,
    worker: u32,
    mut sending: Sending,
    now: Nanos,
) -> usize {
    let arrival = &mut sending.arrival;
    arrival.request.output.ignore_eos.get_or_insert(ignore_eos);
    match placer.place(worker, arrival.dp_rank, now, groups) {
        Ok((at, lane)) => {
            let group = &mut groups[at];
            group.run_until(now, false);
            group.submit(lane, sending, now);
            at
        }
        Err((at, reason)) => {
            let group = &mut groups[at];
            group.run_until(now, false);
            group.refuse(&refusal(sending, now, reason));
            at
        }
    }
}

/// A request that is refused before a rank is asked to take it.
pub(crate) fn refusal(sending: Sending, now: Nanos, reason: Rejection) -> Refusal {
    let Sending { arrival: Arrival { at: _, request, name, .. }, came, .. } = sending;
    Refusal::unplaced(&request, name, came, now, reason)
}
