//! Drives a rank exactly as the oracle drives the engine: the same clock, the same loop, the same trace.

use super::error::ConformanceError;
use super::scenario::Scenario;
use super::trace::{Event, Ordered, Step, Summary, TraceLine, four_digits};
use std::collections::{HashMap, VecDeque};
use windtunnel_engine::vllm::Rank;
use windtunnel_engine::{BlockKey, KvEvent, Nanos, Slot, Stepper};
use windtunnel_traffic::RequestLine;

/// The engine version whose behaviour the rank reproduces.
pub const VLLM_VERSION: &str = "0.33.0";

/// Empty passes after which the oracle calls a scenario stuck (synchronous, asynchronous).
const IDLE_LIMIT: (u32, u32) = (5, 8);

/// A scheduled pass whose line is not complete yet.
struct Pending {
    step: Step,
    sampled: Vec<usize>,
    end_ms: f64,
}

struct Replay<'a> {
    scenario: &'a Scenario,
    rank: Rank,
    /// Indices of requests not yet added, by arrival.
    pending: VecDeque<usize>,
    aborts: Vec<(u64, usize)>,
    /// Live requests' slots.
    slots: HashMap<usize, Slot>,
    /// In order of addition.
    added: Vec<usize>,
    preemptions: Vec<u32>,
    finished: usize,
    hash_numbers: HashMap<BlockKey, u32>,
    /// Order of the ids as strings, which breaks ties of priority and arrival.
    ties: Vec<u64>,
}

/// Replays a scenario, handing out the lines of its trace in order.
pub fn replay(
    scenario: &Scenario,
    stepper: Stepper,
    mut emit: impl FnMut(TraceLine) -> Result<(), ConformanceError>,
) -> Result<(), ConformanceError> {
    let config = scenario.settings.config();
    let effective = serde_json::json!({
        "async_scheduling": config.async_scheduling,
        "enable_chunked_prefill": config.chunked_prefill,
        "enable_prefix_caching": config.prefix_caching,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_num_seqs": config.max_num_seqs,
        "block_size": config.block_size,
        "max_concurrent_batches": config.depth(),
    });
    let rank = Rank::new(config, stepper).map_err(|e| ConformanceError::Unsupported {
        path: scenario.config_file.clone(),
        reason: e.to_string(),
    })?;
    emit(TraceLine::Config {
        engine: "vllm",
        version: VLLM_VERSION,
        config: scenario.settings.clone(),
        effective,
    })?;
    Replay::new(scenario, rank).run(&mut emit)
}

impl<'a> Replay<'a> {
    fn new(scenario: &'a Scenario, rank: Rank) -> Replay<'a> {
        let requests = &scenario.requests;
        let mut pending: Vec<usize> = (0..requests.len()).collect();
        pending.sort_by(|&a, &b| {
            let key =
                |i: usize| (requests[i].arrival_ms.unwrap_or(0.0), requests[i].arrival_step.unwrap_or(0));
            key(a).partial_cmp(&key(b)).unwrap_or(std::cmp::Ordering::Equal)
        });
        let mut by_name: Vec<usize> = (0..requests.len()).collect();
        by_name.sort_by(|&a, &b| requests[a].id.cmp(&requests[b].id));
        let mut ties = vec![0; requests.len()];
        for (tie, &i) in by_name.iter().enumerate() {
            ties[i] = tie as u64;
        }
        let aborts =
            requests.iter().enumerate().filter_map(|(i, r)| r.abort_step.map(|step| (step, i))).collect();
        Replay {
            scenario,
            rank,
            pending: pending.into(),
            aborts,
            slots: HashMap::new(),
            added: Vec::new(),
            preemptions: vec![0; requests.len()],
            finished: 0,
            hash_numbers: HashMap::new(),
            ties,
        }
    }

    /// The oracle's main loop. Synchronous is the case of a queue of one.
    fn run(
        mut self,
        emit: &mut impl FnMut(TraceLine) -> Result<(), ConformanceError>,
    ) -> Result<(), ConformanceError> {
        let settings = &self.scenario.settings;
        let depth = self.rank.config().depth();
        let asynchronous = depth > 1;
        let idle_limit = if asynchronous { IDLE_LIMIT.1 } else { IDLE_LIMIT.0 };
        let (mut step, mut now, mut idle, mut stuck) = (0, 0.0f64, 0, false);
        let mut queue: VecDeque<Pending> = VecDeque::new();
        let mut busy_until = 0.0f64;
        while step < settings.max_steps {
            let arrived = self.admit(now, step)?;
            if !self.rank.has_work() && queue.is_empty() {
                let Some(&next) = self.pending.front() else { break };
                let next = &self.scenario.requests[next];
                match next.arrival_ms {
                    Some(ms) => now = now.max(ms),
                    None => step = step.max(next.arrival_step.unwrap_or(0)),
                }
                continue;
            }
            if self.rank.has_work() {
                let mut pending = self.schedule(now, step, arrived);
                step += 1;
                let tokens = pending.step.total;
                let start = if asynchronous { now.max(busy_until) } else { now };
                let duration = match tokens {
                    0 => 0.0,
                    n => settings.step_ms_base + settings.step_ms_per_token * n as f64,
                };
                busy_until = start + duration;
                pending.end_ms = busy_until;
                if asynchronous {
                    pending.step.t_start_ms = Some(four_digits(start));
                }
                queue.push_back(pending);
                idle = if tokens == 0 { idle + 1 } else { 0 };
                if queue.len() < depth && (tokens > 0 || self.rank.has_work()) {
                    continue;
                }
            }
            let Some(pending) = queue.pop_front() else { continue };
            now = now.max(pending.end_ms);
            let done = self.complete(pending, now);
            emit(TraceLine::Step(Box::new(done)))?;
            if idle >= idle_limit {
                match self.pending.front().and_then(|&i| self.scenario.requests[i].arrival_ms) {
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
        emit(TraceLine::Summary(self.summary(step, now, stuck)))
    }

    fn name(&self, request: usize) -> String {
        self.scenario.requests[request].id.to_string()
    }

    fn request(&self, slot: Slot) -> usize {
        self.rank.id(slot).0 as usize
    }

    fn names(&self, slots: impl Iterator<Item = Slot>) -> Vec<String> {
        slots.map(|slot| self.name(self.request(slot))).collect()
    }

    fn admit(&mut self, now: f64, step: u64) -> Result<Vec<String>, ConformanceError> {
        let mut arrived = Vec::new();
        while let Some(&next) = self.pending.front() {
            let r = &self.scenario.requests[next];
            let due = match (r.arrival_ms, r.arrival_step) {
                (None, Some(at)) => at <= step,
                (ms, _) => ms.unwrap_or(0.0) <= now + 1e-9,
            };
            if !due {
                break;
            }
            self.pending.pop_front();
            self.submit(next, r, r.arrival_ms.unwrap_or(now))?;
            arrived.push(r.id.to_string());
        }
        let due: Vec<(u64, usize)> = self.aborts.iter().copied().filter(|&(at, _)| step >= at).collect();
        for (at, request) in due {
            if self.added.contains(&request) {
                if let Some(slot) = self.slots.remove(&request) {
                    self.rank.cancel(slot);
                    self.finished += 1;
                }
                self.aborts.retain(|&abort| abort != (at, request));
            }
        }
        Ok(arrived)
    }

    fn submit(&mut self, i: usize, r: &RequestLine, arrival_ms: f64) -> Result<(), ConformanceError> {
        let arrival = Nanos::from_ms(arrival_ms).unwrap_or(Nanos::ZERO);
        let mut request = r.clone().into_request(i as u64, arrival);
        request.tie = self.ties[i];
        let slot = self.rank.submit(request).map_err(|reason| ConformanceError::Unsupported {
            path: self.scenario.requests_file.clone(),
            reason: format!("request {}: {reason}", r.id),
        })?;
        self.slots.insert(i, slot);
        self.added.push(i);
        Ok(())
    }

    fn schedule(&mut self, now: f64, step: u64, arrived: Vec<String>) -> Pending {
        let free_before = self.rank.free_blocks();
        self.rank.schedule();
        let scheduled = self.rank.scheduled();
        let admitted = scheduled.admitted.clone();
        let mut preempted: Vec<usize> = scheduled.preempted.iter().map(|&slot| self.request(slot)).collect();
        let (total, lookups) = (scheduled.tokens, scheduled.lookups);
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
            t_sched_ms: four_digits(now),
            arrived,
            sched: batch.iter().map(|&(s, n)| (self.name(self.request(s)), n)).collect(),
            total,
            new: of(false),
            resumed: of(true),
            preempted: preempted.iter().map(|&r| self.name(r)).collect(),
            cached: self.names(batch.iter().map(|&(s, _)| s).filter(|&s| !joined(s))),
            hits: admitted
                .iter()
                .map(|a| (self.name(self.request(a.slot)), a.hit_tokens, a.known_tokens))
                .collect(),
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
            blocks: self.scenario.settings.dump_free_queue.then(|| {
                Ordered(
                    batch
                        .iter()
                        .map(|&(s, _)| (self.name(self.request(s)), self.rank.blocks(s).to_vec()))
                        .collect(),
                )
            }),
            ..Step::default()
        };
        Pending { step: line, sampled, end_ms: 0.0 }
    }

    fn complete(&mut self, pending: Pending, now: f64) -> Step {
        let mut line = pending.step;
        let outcome = self.rank.complete();
        let named: usize = outcome.tokens.len();
        let steady = outcome.steady_tokens;
        let finished = outcome.finished.clone();
        // A request that ended before this pass did gets nothing from it.
        let receivers: Vec<usize> =
            pending.sampled.into_iter().filter(|request| self.slots.contains_key(request)).collect();
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
        line.t_end_ms = four_digits(now);
        line.free_after_update = self.rank.free_blocks();
        line.n_running = stats.running;
        line.n_waiting = stats.waiting;
        line.n_preemptions_total = self.preemptions.iter().map(|&n| u64::from(n)).sum();
        line.cached_blocks = stats.cached_blocks;
        line.events = self.take_events();
        line.free_queue = self.scenario.settings.dump_free_queue.then(|| self.rank.free_queue());
        line
    }

    fn take_events(&mut self) -> Vec<Event> {
        let numbers = &mut self.hash_numbers;
        let mut number = |key: BlockKey| {
            let next = numbers.len() as u32;
            *numbers.entry(key).or_insert(next)
        };
        let block_size = self.rank.config().block_size;
        let events = self
            .rank
            .events()
            .iter()
            .map(|event| match event {
                KvEvent::Stored { parent, blocks, .. } => Event::Stored {
                    parent: parent.map(&mut number),
                    hashes: blocks.iter().map(|&key| number(key)).collect(),
                    n_tokens: blocks.len() as u32 * block_size,
                    block_size,
                },
                KvEvent::Removed { blocks } => {
                    Event::Removed { hashes: blocks.iter().map(|&key| number(key)).collect() }
                }
                KvEvent::Cleared => unreachable!("vLLM publishes no such event"),
            })
            .collect();
        self.rank.clear_events();
        events
    }

    fn summary(&self, steps: u64, now: f64, stuck: bool) -> Summary {
        let live = self.added.iter().filter(|r| self.slots.contains_key(r));
        let preempted = self.added.iter().filter(|&&r| self.preemptions[r] > 0);
        Summary {
            steps,
            t_ms: four_digits(now),
            finished: self.finished,
            requests: self.scenario.requests.len(),
            stuck,
            preemptions: Ordered(preempted.map(|&r| (self.name(r), self.preemptions[r])).collect()),
            unfinished: live.chain(&self.pending).map(|&r| self.name(r)).collect(),
        }
    }
}
