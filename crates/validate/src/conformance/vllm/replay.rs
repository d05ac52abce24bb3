//! Drives a vLLM rank exactly as the oracle drives the engine: the same clock, the same loop, the same
//! trace.

use super::copies::Copies;
use super::disk::Disk;
use super::scenario::{KvRoleName, Settings};
use super::trace::{Copied, Header, KvMoved, KvQueues, Step, Summary};
use super::transfers::Transfers;
use crate::conformance::arrivals::Arrivals;
use crate::conformance::engine::Engine;
use crate::conformance::error::ConformanceError;
use crate::conformance::scenario::Scenario;
use crate::conformance::trace::{self, EventWriter, Media, Ordered, TraceLine, rounded_ms};
use std::collections::{HashMap, HashSet, VecDeque};
use windtunnel_engine::vllm::Rank;
use windtunnel_engine::{Admission, KvLoad, Nanos, Slot, Stepper};

/// Empty passes after which the oracle calls a scenario stuck (synchronous, asynchronous).
const IDLE_LIMIT: (u32, u32) = (5, 8);

/// A scheduled pass whose line is not complete yet.
struct Pending {
    step: Step,
    batch: Vec<usize>,
    sampled: Vec<usize>,
    /// When it ends; before it is launched, when it can start.
    end_ms: f64,
}

impl Pending {
    /// Nothing runs, and nothing is reported with it.
    fn is_empty(&self) -> bool {
        self.step.total == 0
            && self.step.moved.as_ref().is_none_or(KvMoved::reports_nothing)
            && self.step.copied.as_ref().is_none_or(Copied::is_nothing)
            && self.step.disk.as_ref().is_none_or(Vec::is_empty)
    }
}

struct Replay<'a> {
    scenario: &'a Scenario,
    settings: &'a Settings,
    rank: Rank,
    arrivals: Arrivals<'a>,
    /// Live requests' slots.
    slots: HashMap<usize, Slot>,
    /// Transfers under way.
    transfers: Transfers,
    copies: Copies,
    disk: Disk,
    /// Requests that were aborted with output in flight of before a preemption.
    gone_stale: HashSet<usize>,
    /// In order of addition.
    added: Vec<usize>,
    preemptions: Vec<u32>,
    finished: usize,
    events: EventWriter,
    /// Order of the ids as strings, which breaks ties of priority and arrival.
    ties: Vec<u64>,
}

/// Replays a scenario, handing out the lines of its trace in order.
pub(in crate::conformance) fn replay(
    scenario: &Scenario,
    settings: &Settings,
    stepper: Stepper,
    emit: &mut impl FnMut(TraceLine) -> Result<(), ConformanceError>,
) -> Result<(), ConformanceError> {
    let config = settings.config();
    let effective = serde_json::json!({
        "async_scheduling": config.async_scheduling,
        "enable_chunked_prefill": config.chunked_prefill,
        "enable_prefix_caching": config.prefix_caching,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_num_seqs": config.max_num_seqs,
        "block_size": config.block_size,
        "max_concurrent_batches": config.depth(),
    });
    let rank = Rank::new(config, stepper).map_err(|e| scenario.config_refused(e))?;
    let (engine, version, config) = (Engine::Vllm, Engine::Vllm.version(), settings.clone());
    let header = Header { engine, version, config, effective };
    emit(TraceLine::Config(trace::Header::Vllm(Box::new(header))))?;
    Replay::new(scenario, settings, rank).run(emit)
}

impl<'a> Replay<'a> {
    fn new(scenario: &'a Scenario, settings: &'a Settings, rank: Rank) -> Replay<'a> {
        let requests = &scenario.requests;
        let mut by_name: Vec<usize> = (0..requests.len()).collect();
        by_name.sort_by(|&a, &b| requests[a].id.cmp(&requests[b].id));
        let mut ties = vec![0; requests.len()];
        for (tie, &i) in by_name.iter().enumerate() {
            ties[i] = tie as u64;
        }
        Replay {
            scenario,
            settings,
            events: EventWriter::new(settings.block_size, Media::Vllm),
            rank,
            arrivals: Arrivals::new(requests),
            slots: HashMap::new(),
            transfers: Transfers::default(),
            copies: Copies::default(),
            disk: Disk::default(),
            gone_stale: HashSet::new(),
            added: Vec::new(),
            preemptions: vec![0; requests.len()],
            finished: 0,
            ties,
        }
    }

    /// The oracle's main loop. Synchronous is the case of a queue of one.
    fn run(
        mut self,
        emit: &mut impl FnMut(TraceLine) -> Result<(), ConformanceError>,
    ) -> Result<(), ConformanceError> {
        let (clock, max_steps) = (self.settings.clock(), self.settings.max_steps);
        let depth = self.rank.config().depth();
        let asynchronous = depth > 1;
        let idle_limit = if asynchronous { IDLE_LIMIT.1 } else { IDLE_LIMIT.0 };
        let (mut step, mut now, mut idle, mut stuck) = (0, 0.0f64, 0, false);
        let mut waited = 0;
        let mut queue: VecDeque<Pending> = VecDeque::new();
        let mut busy_until = 0.0f64;
        // The step counter of a data-parallel engine; it begins anew whenever all is done.
        let mut counter = 0;
        while step < max_steps {
            let (arrived, aborted) = self.admit(now, step)?;
            if !self.rank.has_work() && queue.is_empty() {
                counter = 0;
                if !self.arrivals.skip_to_next(&mut now, &mut step) {
                    break;
                }
                continue;
            }
            if self.rank.has_work() {
                let mut pending = self.schedule(now, step, arrived, counter);
                pending.step.aborted = aborted;
                step += 1;
                counter += 1;
                let tokens = pending.step.total;
                let ready = pending.end_ms;
                let start = if asynchronous { ready.max(busy_until) } else { ready };
                busy_until = start + clock.pass_ms(tokens);
                pending.end_ms = busy_until;
                if asynchronous {
                    pending.step.t_start_ms = Some(rounded_ms(start));
                }
                queue.push_back(pending);
                idle = if tokens == 0 { idle + 1 } else { 0 };
                if queue.len() < depth && (tokens > 0 || self.rank.has_work()) {
                    continue;
                }
            }
            let Some(pending) = queue.pop_front() else { continue };
            now = now.max(pending.end_ms);
            let nothing = pending.is_empty() && pending.step.preempted.is_empty();
            let done = self.complete(pending, now);
            let asked = done.disk.as_ref().is_some_and(|asked| !asked.is_empty());
            let quiet = nothing && !asked && done.finished.is_empty() && queue.iter().all(Pending::is_empty);
            emit(TraceLine::Step(trace::Step::Vllm(Box::new(done))))?;
            if self.settings.kv_role.is_some() {
                // The engine would step on idly; the oracle goes to what happens next.
                waited = if quiet && self.rank.has_work() { waited + 1 } else { 0 };
                if let Some(next) = self.next_event().filter(|&next| waited > 0 && next >= now) {
                    if next > now || !asynchronous {
                        waited = 0;
                    }
                    now = next;
                }
                stuck = waited >= idle_limit;
                if stuck {
                    break;
                }
            } else if idle >= idle_limit {
                match self.arrivals.next_ms() {
                    Some(ms) if !asynchronous => {
                        now = now.max(ms);
                        idle = 0;
                    }
                    _ => {
                        stuck = true;
                        break;
                    }
                }
            }
        }
        emit(TraceLine::Summary(trace::Summary::Vllm(self.summary(step, now, stuck))))
    }

    fn name(&self, request: usize) -> String {
        self.scenario.name(request)
    }

    fn request(&self, slot: Slot) -> usize {
        self.rank.id(slot).0 as usize
    }

    fn names(&self, slots: impl Iterator<Item = Slot>) -> Vec<String> {
        self.scenario.names(slots.map(|slot| self.rank.id(slot)))
    }

    /// When something happens that does not depend on the engine.
    fn next_event(&self) -> Option<f64> {
        let aborts = self.arrivals.coming_aborts().filter(|(_, request)| self.slots.contains_key(request));
        let aborts = aborts.map(|(ms, _)| ms);
        let others =
            [self.transfers.next_ms(), self.copies.next_ms(), self.disk.next_ms(), self.arrivals.next_ms()];
        aborts.chain(others.into_iter().flatten()).reduce(f64::min)
    }

    /// Lets in who arrives and takes out who is aborted.
    fn admit(&mut self, now: f64, step: u64) -> Result<(Vec<String>, Vec<String>), ConformanceError> {
        let (mut arrived, mut aborted) = (Vec::new(), Vec::new());
        while let Some(next) = self.arrivals.take_due(now, step) {
            self.submit(next, now)?;
            arrived.push(self.name(next));
        }
        for request in self.arrivals.take_aborts(now, step) {
            if let Some(slot) = self.slots.remove(&request) {
                if self.rank.has_stale_output(slot) {
                    self.gone_stale.insert(request);
                }
                self.rank.cancel(slot);
                self.finished += 1;
                if self.settings.kv_role.is_some() {
                    aborted.push(self.name(request));
                }
            }
        }
        Ok((arrived, aborted))
    }

    fn submit(&mut self, i: usize, now: f64) -> Result<(), ConformanceError> {
        let line = &self.scenario.requests[i];
        let arrival = Nanos::from_ms(line.arrival_ms.unwrap_or(now)).unwrap_or(Nanos::ZERO);
        let mut request = line.clone().into_request(i as u64, arrival);
        request.tie = self.ties[i];
        let slot = self.rank.submit(request).map_err(|reason| self.scenario.request_refused(i, reason))?;
        self.slots.insert(i, slot);
        self.added.push(i);
        Ok(())
    }

    fn schedule(&mut self, now: f64, step: u64, arrived: Vec<String>, counter: u64) -> Pending {
        let free_before = self.rank.free_blocks();
        let interval = u64::from(self.settings.dp_prefill_interval);
        let throttle = !counter.is_multiple_of(interval);
        self.disk.report(&mut self.rank, now);
        self.rank.schedule_throttled(throttle);
        let scheduled = self.rank.scheduled();
        let admitted = scheduled.admitted.clone();
        let mut preempted: Vec<usize> = scheduled.preempted.iter().map(|&slot| self.request(slot)).collect();
        let (total, lookups) = (scheduled.tokens, scheduled.lookups);
        let loads = scheduled.loads.clone();
        for &request in &preempted {
            self.preemptions[request] += 1;
        }
        preempted.sort_by_key(|request| self.added.iter().position(|a| a == request));
        preempted.dedup();
        let batch = self.rank.batch();
        let joined = |slot: Slot| admitted.iter().any(|a| a.slot == slot);
        let of = |resumed: bool| self.names(admitted.iter().filter(|a| a.resumed == resumed).map(|a| a.slot));
        let sampled: Vec<usize> = batch
            .iter()
            .filter(|&&(slot, _)| !self.rank.is_prefill_chunk(slot))
            .map(|&(slot, _)| self.request(slot))
            .collect();
        let line = Step {
            step,
            t_sched_ms: rounded_ms(now),
            arrived,
            sched: batch.iter().map(|&(s, n)| (self.name(self.request(s)), n)).collect(),
            total,
            new: of(false),
            resumed: of(true),
            preempted: preempted.iter().map(|&r| self.name(r)).collect(),
            cached: self.names(batch.iter().map(|&(s, _)| s).filter(|&s| !joined(s))),
            hits: self.hits(&admitted, &loads),
            lookups,
            computed: Ordered(
                batch
                    .iter()
                    .map(|&(s, _)| (self.name(self.request(s)), self.rank.computed_tokens(s)))
                    .collect(),
            ),
            free_before,
            free_after_sched: self.rank.free_blocks(),
            running: self.names(self.rank.running()),
            waiting: self.names(self.rank.waiting()),
            sampled: sampled.iter().map(|&r| self.name(r)).collect(),
            throttle: (interval > 1).then_some(throttle),
            capacity_bound: (interval > 1).then(|| self.rank.prefill_capacity_bound()),
            blocks: self.settings.dump_free_queue.then(|| self.blocks(batch.iter().map(|&(s, _)| s))),
            ..Step::default()
        };
        let mut line = line;
        let mut ready = now;
        if self.settings.kv_role.is_some() {
            line.queues = Some(self.kv_queues());
            line.blocks_waiting = self.settings.dump_free_queue.then(|| self.blocks(self.rank.holding()));
            if self.settings.kv_role == Some(KvRoleName::Offload) {
                let (copied, at) = self.copies.launch(&mut self.rank, self.scenario, self.settings, now);
                (line.copied, ready) = (Some(copied), at);
                if self.settings.offload_disk {
                    let jobs = &self.rank.scheduled().disk_jobs;
                    line.disk = Some(self.disk.start(jobs, self.settings, now));
                }
            } else {
                let moved = self.transfers.launch(&mut self.rank, self.scenario, self.settings, now);
                line.moved = Some(moved);
            }
        }
        let batch = batch.iter().map(|&(slot, _)| self.request(slot)).collect();
        Pending { step: line, batch, sampled, end_ms: ready }
    }

    /// What was found at look-ups that led to an admission or a load, in order.
    fn hits(&self, admitted: &[Admission], loads: &[KvLoad]) -> Vec<(String, u32, u32)> {
        let mut loads = loads.iter().peekable();
        let mut hits = Vec::new();
        let mut add = |slot, hit_tokens, known| hits.push((self.name(self.request(slot)), hit_tokens, known));
        for (before, admission) in (0..).zip(admitted.iter().map(Some).chain([None])) {
            while let Some(load) = loads.next_if(|load| load.after == before) {
                add(load.slot, load.hit_tokens, load.known_tokens);
            }
            if let Some(a) = admission.filter(|a| !a.loaded) {
                add(a.slot, a.hit_tokens, a.known_tokens);
            }
        }
        hits
    }

    fn blocks(&self, slots: impl Iterator<Item = Slot>) -> Ordered<Vec<u32>> {
        Ordered(slots.map(|s| (self.name(self.request(s)), self.rank.blocks(s).to_vec())).collect())
    }

    fn kv_queues(&self) -> KvQueues {
        let rank = &self.rank;
        let sorted = |slots: &mut dyn Iterator<Item = Slot>| {
            let mut names = self.names(slots);
            names.sort();
            names
        };
        let state = |slot: Slot| match (rank.waits_for_kv(slot), rank.preemptions(slot) > 0) {
            (true, _) => Some("WAITING_FOR_REMOTE_KVS"),
            (false, true) => Some("PREEMPTED"),
            (false, false) => None,
        };
        let waiting = rank.holding().chain(rank.waiting());
        let states = waiting.filter_map(|slot| Some((self.name(self.request(slot)), state(slot)?)));
        KvQueues {
            kv_holding: self.names(rank.holding()),
            wait_state: Ordered(states.collect()),
            deferred: sorted(&mut rank.deferred()),
            inflight_prefills: sorted(&mut rank.unfinished_prefills()),
            reserved: rank.reserved_blocks(),
            parked: (self.settings.kv_role != Some(KvRoleName::KvProducer)).then(|| rank.parked_blocks()),
            held: self.held(|_| true),
        }
    }

    /// Blocks that requests hold.
    fn held(&self, which: impl Fn(Slot) -> bool) -> Ordered<usize> {
        let holders = self.rank.holders().filter(|&slot| which(slot));
        Ordered(holders.map(|s| (self.name(self.request(s)), self.rank.blocks(s).len())).collect())
    }

    fn complete(&mut self, pending: Pending, now: f64) -> Step {
        let mut line = pending.step;
        let stale = self.stale(&pending.batch);
        let outcome = self.rank.complete();
        let named: usize = outcome.tokens.len();
        let steady = outcome.steady_tokens;
        let finished = outcome.finished.clone();
        if let Some(asked) = &mut line.disk {
            asked.extend(self.disk.start(&outcome.disk_jobs, self.settings, now));
        }
        // A request that ended before this pass did gets nothing from it, nor one whose output is dropped.
        let dropped = |request: &usize| {
            self.settings.kv_role == Some(KvRoleName::KvProducer) && stale.contains(request)
        };
        let receivers: Vec<usize> = pending
            .sampled
            .into_iter()
            .filter(|request| self.slots.contains_key(request) && !dropped(request))
            .collect();
        assert_eq!(
            receivers.len() as u64,
            named as u64 + steady,
            "every live sampled request gets one token"
        );
        line.tokens_out = Ordered(receivers.iter().map(|&r| (self.name(r), 1)).collect());
        for f in &finished {
            line.finished.push((self.name(f.id.0 as usize), f.reason.as_str()));
            self.slots.remove(&(f.id.0 as usize));
            self.finished += 1;
        }
        let stats = self.rank.stats();
        line.t_end_ms = rounded_ms(now);
        line.free_after_update = self.rank.free_blocks();
        line.n_running = stats.running;
        line.n_waiting = self.rank.waiting().count();
        line.n_preemptions_total = self.preemptions.iter().map(|&n| u64::from(n)).sum();
        line.cached_blocks = stats.cached_blocks;
        line.events = self.events.write(self.rank.events());
        self.rank.clear_events();
        if self.settings.kv_role.is_some() {
            line.stale = stale.iter().map(|&request| self.name(request)).collect();
            line.n_kv_holding = Some(self.rank.holding().count());
            line.held_finished = Some(self.held(|slot| self.rank.is_held(slot)));
        }
        line.free_queue = self.settings.dump_free_queue.then(|| self.rank.free_queue());
        line
    }

    /// Requests of a batch whose output is of before a preemption.
    fn stale(&self, batch: &[usize]) -> Vec<usize> {
        let is_stale = |request: &usize| match self.slots.get(request) {
            Some(&slot) => self.rank.has_stale_output(slot),
            None => self.gone_stale.contains(request),
        };
        batch.iter().copied().filter(is_stale).collect()
    }

    fn summary(&self, steps: u64, now: f64, stuck: bool) -> Summary {
        let live = self.added.iter().filter(|r| self.slots.contains_key(r));
        let preempted = self.added.iter().filter(|&&r| self.preemptions[r] > 0);
        Summary {
            steps,
            t_ms: rounded_ms(now),
            finished: self.finished,
            requests: self.scenario.requests.len(),
            stuck,
            preemptions: Ordered(preempted.map(|&r| (self.name(r), self.preemptions[r])).collect()),
            unfinished: live.copied().chain(self.arrivals.pending()).map(|r| self.name(r)).collect(),
            free_blocks: (self.settings.dp_prefill_interval > 1 || self.settings.kv_role.is_some())
                .then(|| self.rank.free_blocks()),
            free: self.rank.free_blocks(),
        }
    }
}
