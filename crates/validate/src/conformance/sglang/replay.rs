//! Drives an SGLang rank exactly as the oracle drives the engine: the loops of `event_loop_normal` and
//! `event_loop_overlap` (scheduler.py, 0.5.23), the same clock, the same trace.

use super::copies::{Copies, Started};
use super::scenario::Settings;
use super::trace::{
    Batch, Decode, Effective, Extend, Header, Host, NewTokenRatio, NoBatch, Retract, Step, Summary,
};
use crate::conformance::arrivals::Arrivals;
use crate::conformance::engine::Engine;
use crate::conformance::error::ConformanceError;
use crate::conformance::scenario::{Clock, Scenario};
use crate::conformance::trace::{self, EventWriter, Media, TraceLine, rounded, rounded_ms};
use std::collections::HashSet;
use windtunnel_engine::sglang::{Mode, Rank};
use windtunnel_engine::{FinishReason, Nanos, Rejection, RequestId, Slot, Stepper};

/// Passes without a batch after which the oracle gives a scenario up.
const IDLE_LIMIT: u32 = 5;

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Pending,
    Live(Slot),
    /// Ended, and in no line's `finished` yet: it stands in that of a batch with the request in it.
    Ended(FinishReason),
    /// Ended, in a line.
    Listed,
    /// Ended outside a batch: aborted in the waiting queue, or by a retraction. No line tells of it.
    Dropped,
}

struct Progress {
    state: State,
    /// Output tokens so far.
    outputs: u32,
    was_admitted: bool,
}

/// A scheduled pass whose line is not complete yet.
struct Pass {
    line: Step,
    /// Its requests, in batch order.
    batch: Vec<usize>,
    tokens: u64,
    end_ms: f64,
}

impl Pass {
    fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }
}

struct Replay<'a> {
    scenario: &'a Scenario,
    settings: &'a Settings,
    clock: Clock,
    rank: Rank,
    arrivals: Arrivals<'a>,
    requests: Vec<Progress>,
    events: EventWriter,
    /// Where there is a host tier.
    copies: Option<Copies>,
    now_ms: f64,
    step: u64,
    /// Rounds in a row in which the engine idled.
    idle: u32,
}

/// Replays a scenario, handing out the lines of its trace in order.
pub(in crate::conformance) fn replay(
    scenario: &Scenario,
    settings: &Settings,
    stepper: Stepper,
    emit: &mut impl FnMut(TraceLine) -> Result<(), ConformanceError>,
) -> Result<(), ConformanceError> {
    let config = settings.config();
    let rank = Rank::new(config.clone(), stepper).map_err(|e| scenario.config_refused(e))?;
    let (init, min, decay) = rank.new_token_ratio_range();
    let effective = Effective::of(settings, &config, NewTokenRatio { init, min, decay });
    let (engine, version) = (Engine::Sglang, Engine::Sglang.version());
    let header = Header { engine, version, config: settings.clone(), effective };
    emit(TraceLine::Config(trace::Header::Sglang(Box::new(header))))?;
    let mut replay = Replay::new(scenario, settings, rank);
    let stuck = if config.overlap { replay.run_overlapped(emit)? } else { replay.run_in_turn(emit)? };
    emit(TraceLine::Summary(trace::Summary::Sglang(replay.summary(stuck))))
}

impl<'a> Replay<'a> {
    fn new(scenario: &'a Scenario, settings: &'a Settings, rank: Rank) -> Replay<'a> {
        let pending = || Progress { state: State::Pending, outputs: 0, was_admitted: false };
        Replay {
            scenario,
            settings,
            clock: settings.clock(),
            rank,
            arrivals: Arrivals::new(&scenario.requests),
            requests: scenario.requests.iter().map(|_| pending()).collect(),
            events: EventWriter::new(settings.page_size, Media::Sglang),
            copies: settings.hicache_write_policy.map(|_| Copies::default()),
            now_ms: 0.0,
            step: 0,
            idle: 0,
        }
    }

    /// Every pass is processed before the next one is scheduled. Returns whether the run got stuck.
    fn run_in_turn(
        &mut self,
        emit: &mut impl FnMut(TraceLine) -> Result<(), ConformanceError>,
    ) -> Result<bool, ConformanceError> {
        while self.step < self.settings.max_steps {
            let arrived = self.admit()?;
            let mut pass = self.schedule(arrived);
            self.now_ms += self.clock.pass_ms(pass.tokens);
            if let Some(copies) = self.copies.as_mut().filter(|_| !pass.is_empty()) {
                self.now_ms = copies.pass_end(self.now_ms);
            }
            self.complete(&mut pass);
            pass.line.ratio_end = Some(six_digits(self.rank.new_token_ratio()));
            let is_empty = pass.is_empty();
            self.idle = if is_empty { self.idle + 1 } else { 0 };
            // The engine publishes events when it is fully idle; a round that does nothing has no line.
            let published = self.is_fully_idle() && !self.rank.events().is_empty();
            let line = &pass.line;
            let is_line = !is_empty
                || published
                || !(line.requeued.is_empty() && line.retract.is_empty() && line.arrived.is_empty());
            if is_line {
                emit(self.finish(pass))?;
                self.step += 1;
            }
            if is_empty && let Some(stuck) = self.end() {
                return Ok(stuck);
            }
        }
        Ok(false)
    }

    /// A pass is processed after the next one was scheduled.
    fn run_overlapped(
        &mut self,
        emit: &mut impl FnMut(TraceLine) -> Result<(), ConformanceError>,
    ) -> Result<bool, ConformanceError> {
        let mut busy_until = 0.0f64;
        let mut earlier: Option<Pass> = None;
        while self.step < self.settings.max_steps {
            let arrived = self.admit()?;
            let mut pass = self.schedule(arrived);
            // Only an environment variable turns overlap off for a batch.
            pass.line.disable_overlap = Some(false);
            let is_empty = pass.is_empty();
            if !is_empty {
                let start = self.now_ms.max(busy_until);
                busy_until = start + self.clock.pass_ms(pass.tokens);
                if let Some(copies) = &mut self.copies {
                    busy_until = copies.pass_end(busy_until);
                }
                pass.end_ms = busy_until;
                pass.line.t_start_ms = Some(rounded_ms(start));
                self.step += 1;
                self.idle = 0;
            }
            match earlier.take() {
                Some(mut done) if !done.is_empty() => {
                    self.now_ms = self.now_ms.max(done.end_ms);
                    self.complete(&mut done);
                    emit(self.finish(done))?;
                    earlier = Some(pass);
                }
                // The round before gave no batch. Two such rounds, and the engine idles.
                Some(mut nothing) => {
                    self.complete(&mut nothing);
                    if is_empty {
                        self.idle_overlapped();
                    }
                    earlier = Some(pass);
                }
                // Before its first batch it idles at once.
                None if is_empty => {
                    self.complete(&mut pass);
                    self.idle_overlapped();
                }
                None => earlier = Some(pass),
            }
            if is_empty && let Some(stuck) = self.end() {
                return Ok(stuck);
            }
        }
        Ok(false)
    }

    /// Events that the engine publishes when it is fully idle belong to no pass, and so to no line.
    fn idle_overlapped(&mut self) {
        self.idle += 1;
        if self.is_fully_idle() {
            // Written all the same: their hashes take numbers.
            self.events.write(self.rank.events());
            self.rank.clear_events();
        }
    }

    /// Nothing is left to do, nor a copy to be heard of (`is_fully_idle`).
    fn is_fully_idle(&self) -> bool {
        self.rank.unfinished() == 0 && self.rank.host_transfers() == (0, 0)
    }

    /// After a round without a batch: where nothing is left, or nothing moves, time goes on to the next
    /// arrival. Without one the run ends, and the answer is whether it got stuck.
    fn end(&mut self) -> Option<bool> {
        let is_done = self.rank.unfinished() == 0;
        if !(is_done && self.idle >= 1 || self.idle >= IDLE_LIMIT) {
            return None;
        }
        if let Some(copy) = self.copies.as_ref().and_then(Copies::next_ms)
            && self
                .arrivals
                .pending()
                .next()
                .is_none_or(|next| self.scenario.requests[next].arrival_ms.unwrap_or(0.0) > copy)
        {
            self.now_ms = copy;
            return None;
        }
        let goes_on = self.arrivals.skip_to_next(&mut self.now_ms, &mut self.step);
        if goes_on { None } else { Some(!is_done) }
    }

    fn admit(&mut self) -> Result<Vec<String>, ConformanceError> {
        let mut arrived = Vec::new();
        while let Some(next) = self.arrivals.take_due(self.now_ms, self.step) {
            self.submit(next)?;
            arrived.push(self.scenario.name(next));
        }
        for aborted in self.arrivals.take_aborts(0.0, self.step) {
            let id = &self.scenario.requests[aborted].id;
            for (request, line) in self.scenario.requests.iter().enumerate() {
                let State::Live(slot) = self.requests[request].state else { continue };
                // `abort_request` (scheduler.py, 0.5.23) takes the id as a prefix.
                if line.id.starts_with(&**id) && self.rank.cancel(slot) {
                    self.requests[request].state = State::Dropped;
                }
            }
        }
        Ok(arrived)
    }

    fn submit(&mut self, i: usize) -> Result<(), ConformanceError> {
        let line = &self.scenario.requests[i];
        let arrival = Nanos::from_ms(line.arrival_ms.unwrap_or(self.now_ms)).unwrap_or(Nanos::ZERO);
        let mut request = line.clone().into_request(i as u64, arrival);
        request.output.ignore_eos.get_or_insert(self.settings.ignore_eos);
        self.requests[i].state = match self.rank.submit(request) {
            Ok(slot) => State::Live(slot),
            Err(Rejection::QueueFull { .. }) => State::Dropped,
            Err(reason) => return Err(self.scenario.request_refused(i, reason)),
        };
        Ok(())
    }

    fn ids(&self, slots: impl Iterator<Item = Slot>) -> Vec<RequestId> {
        slots.map(|slot| self.rank.id(slot)).collect()
    }

    fn schedule(&mut self, arrived: Vec<String>) -> Pass {
        let waiting_before = self.ids(self.rank.waiting());
        let mut line = Step {
            step: self.step,
            t_sched_ms: rounded_ms(self.now_ms),
            arrived,
            ratio_before: six_digits(self.rank.new_token_ratio()),
            avail_before: self.rank.available_tokens(),
            evictable_before: self.rank.evictable_tokens(),
            ..Step::default()
        };
        if let Some(copies) = &mut self.copies {
            copies.report(&mut self.rank, self.now_ms);
        }
        self.rank.schedule();
        let sched: Vec<(usize, u32)> =
            self.rank.batch().iter().map(|&(slot, tokens)| (self.rank.id(slot).0 as usize, tokens)).collect();
        let tokens = sched.iter().map(|&(_, n)| u64::from(n)).sum();
        line.batch = self.batch_keys(&sched, &waiting_before.iter().copied().collect(), tokens);
        line.waiting_before = self.scenario.names(waiting_before);
        let requeued = self.rank.requeued().iter();
        line.requeued = requeued
            .map(|&(slot, is_retracted)| (self.scenario.name(self.rank.id(slot).0 as usize), is_retracted))
            .collect();
        line.retract = self.retractions();
        line.ratio_after = six_digits(self.rank.new_token_ratio());
        line.avail_after_sched = self.rank.available_tokens();
        line.evictable_after_sched = self.rank.evictable_tokens();
        line.protected_after_sched = self.rank.protected_tokens();
        line.running = self.scenario.names(self.ids(self.rank.running()));
        line.waiting = self.scenario.names(self.ids(self.rank.waiting()));
        line.batch_is_full = self.rank.batch_is_full();
        if let Some(copies) = &mut self.copies {
            let scheduled = self.rank.scheduled();
            let started = copies.start(&scheduled.host_jobs, &scheduled.flush, self.settings);
            self.now_ms = copies.now_ms;
            self.note_host(&mut line, started);
        }
        Pass { line, batch: sched.into_iter().map(|(request, _)| request).collect(), tokens, end_ms: 0.0 }
    }

    /// What a line says of the host tier: what was started, and what is there now.
    fn note_host(&self, line: &mut Step, mut started: Vec<Started>) {
        let Some((host_free, _)) = self.rank.host_tokens() else { return };
        let (writing, loading) = self.rank.host_transfers();
        let mut copies = line.host.take().map(|host| host.copies).unwrap_or_default();
        copies.append(&mut started);
        line.host = Some(Host { copies, host_free, writing, loading });
    }

    fn batch_keys(&mut self, sched: &[(usize, u32)], waiting: &HashSet<RequestId>, total: u64) -> Batch {
        let Some(mode) = self.rank.mode() else { return Batch::None(NoBatch::default()) };
        let scenario = self.scenario;
        let named = || sched.iter().map(|&(request, n)| (scenario.name(request), n)).collect();
        let chunked_req = self.rank.chunked_req().map(|id| scenario.name(id.0 as usize));
        let seq_lens = self.rank.seq_lens();
        let mode = match mode {
            Mode::Decode => {
                let mode = "DECODE";
                return Batch::Decode(Decode { sched: named(), mode, total, chunked_req, seq_lens });
            }
            Mode::Extend => "EXTEND",
            Mode::Mixed => "MIXED",
        };
        let (extended, decoded) = sched.split_at(sched.len() - self.rank.mixed_decodes());
        let mut keys = Extend { sched: named(), mode, total, chunked_req, seq_lens, ..Extend::default() };
        keys.mixed_decode = decoded.iter().map(|&(request, _)| scenario.name(request)).collect();
        for (&(request, _), prefix) in extended.iter().zip(self.rank.prefix_lens()) {
            let name = scenario.name(request);
            keys.prefix.0.push((name.clone(), prefix));
            let progress = &mut self.requests[request];
            if !waiting.contains(&RequestId(request as u64)) {
                keys.chunk_cont.push(name);
            } else if progress.was_admitted {
                keys.resumed.push(name);
            } else {
                keys.new.push(name);
            }
            progress.was_admitted = true;
        }
        Batch::Extend(keys)
    }

    fn retractions(&mut self) -> Vec<Retract> {
        let retractions = self.rank.retractions();
        for id in retractions.iter().flat_map(|retraction| &retraction.aborted) {
            self.requests[id.0 as usize].state = State::Dropped;
        }
        let names = |ids: &[RequestId]| self.scenario.names(ids.iter().copied());
        retractions
            .iter()
            .map(|retraction| Retract {
                retracted: names(&retraction.retracted),
                new_ratio: six_digits(retraction.new_ratio),
                aborted: names(&retraction.aborted),
                avail_before: retraction.available_before,
                avail_after: retraction.available_after,
            })
            .collect()
    }

    /// Processes the oldest pass in flight, which is this one.
    fn complete(&mut self, pass: &mut Pass) {
        let batch = &pass.batch;
        let so_far = |requests: &[Progress]| -> u64 {
            batch.iter().map(|&request| u64::from(requests[request].outputs)).sum()
        };
        let before = so_far(&self.requests);
        let outcome = self.rank.complete();
        let host_jobs = outcome.host_jobs.clone();
        let given = outcome.tokens.len() as u64 + outcome.steady_tokens;
        for end in &outcome.finished {
            let progress = &mut self.requests[end.id.0 as usize];
            if progress.state != State::Dropped {
                *progress = Progress {
                    state: State::Ended(end.reason),
                    outputs: end.output_tokens,
                    was_admitted: progress.was_admitted,
                };
            }
        }
        for &request in batch {
            if let State::Live(slot) = self.requests[request].state {
                self.requests[request].outputs = self.rank.outputs(slot);
            }
        }
        assert_eq!(
            so_far(&self.requests) - before,
            given,
            "every token of the outcome is one of a request in its batch"
        );
        if let Some(copies) = &mut self.copies {
            copies.now_ms = self.now_ms;
            let started = copies.start(&host_jobs, &[], self.settings);
            self.note_host(&mut pass.line, started);
        }
    }

    /// The line of a pass that was just completed.
    fn finish(&mut self, pass: Pass) -> TraceLine {
        let Pass { mut line, batch, .. } = pass;
        for &request in &batch {
            let progress = &mut self.requests[request];
            let name = self.scenario.name(request);
            if let State::Ended(reason) = progress.state {
                progress.state = State::Listed;
                line.finished.push((name.clone(), reason.as_str()));
            }
            line.tokens_out.0.push((name, progress.outputs));
        }
        line.t_end_ms = rounded_ms(self.now_ms);
        line.avail_after = self.rank.available_tokens();
        line.evictable_after = self.rank.evictable_tokens();
        line.protected_after = self.rank.protected_tokens();
        line.events = self.events.write(self.rank.events());
        self.rank.clear_events();
        TraceLine::Step(trace::Step::Sglang(Box::new(line)))
    }

    fn summary(&self, stuck: bool) -> Summary {
        let (listed, others): (Vec<usize>, Vec<usize>) =
            (0..self.requests.len()).partition(|&request| self.requests[request].state == State::Listed);
        Summary {
            steps: self.step,
            t_ms: rounded_ms(self.now_ms),
            finished: listed.len(),
            requests: self.requests.len(),
            stuck,
            unfinished: others.into_iter().map(|request| self.scenario.name(request)).collect(),
        }
    }
}

/// Rounds as the oracle does before writing a ratio.
fn six_digits(ratio: f64) -> f64 {
    rounded(ratio, 6)
}
