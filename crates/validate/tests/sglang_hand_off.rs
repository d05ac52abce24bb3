//! SGLang's prefill and decode sides against its own scheduler: traces of tools/oracle/oracle_sglang_pd.py, turn by turn,
//! in both steppers. HAND_OFF_TRACES names another folder of such traces. Compared are the rooms made, the tokens given without a pass, retractions, batches in order with
//! lengths and prefixes, waiting requests, free tokens before and after each pass, and ends.

use serde::Deserialize;
use std::collections::HashMap;
use std::path::Path;
use windtunnel_engine::sglang::{Config, Disaggregation, Policy, Rank};
use windtunnel_engine::{
    Content, FinishReason, Finished, HandOff, Nanos, OutputPlan, Request, RequestId, Slot, Stepper,
};

#[derive(Deserialize)]
struct Scenario {
    name: String,
    side: String,
    config: Settings,
    requests: Vec<Asked>,
    turns: Vec<Turn>,
}

#[derive(Deserialize)]
struct Settings {
    page_size: u32,
    max_total_tokens: u32,
    max_running_requests: u32,
    disable_overlap: bool,
    context_length: u32,
    chunked_prefill_size: u32,
    disable_radix_cache: bool,
    schedule_policy: Option<String>,
    num_reserved_decode_tokens: Option<u32>,
    disaggregation_decode_extra_slots: Option<u32>,
}

#[derive(Deserialize)]
struct Asked {
    id: String,
    arrival_ms: f64,
    prompt_token_ids: Vec<u32>,
    max_tokens: u32,
    stop_after: Option<u32>,
    kv_ms: Option<f64>,
    room_ms: Option<f64>,
    send_ms: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
struct Turn {
    t_ms: f64,
    rooms: Vec<(String, u32)>,
    #[serde(default)]
    given: Vec<String>,
    #[serde(default)]
    ended_at_once: Vec<String>,
    #[serde(default)]
    retracted: Vec<String>,
    batch: Vec<(String, u32)>,
    #[serde(default)]
    prefix: Vec<u32>,
    waiting: Vec<String>,
    free: u32,
    finished: Vec<(String, String, u32)>,
    free_after: Option<u32>,
}

impl Turn {
    fn is_line(&self) -> bool {
        !(self.batch.is_empty()
            && self.rooms.is_empty()
            && self.given.is_empty()
            && self.retracted.is_empty()
            && self.finished.is_empty())
    }
}

/// What is awaited from the other side of a request.
#[derive(Clone, Copy)]
struct Awaited {
    at: f64,
    slot: Slot,
    what: What,
}

#[derive(Clone, Copy, PartialEq)]
enum What {
    Wanted,
    Loaded,
    Sent,
}

struct Replay<'a> {
    scenario: &'a Scenario,
    rank: Rank,
    now: f64,
    next: usize,
    awaited: Vec<Awaited>,
    turns: Vec<Turn>,
    /// Who stood in a slot when it was filled.
    names: HashMap<u32, usize>,
}

const TINY: f64 = 1e-9;

impl<'a> Replay<'a> {
    fn new(scenario: &'a Scenario, stepper: Stepper) -> Replay<'a> {
        let settings = &scenario.config;
        let config = Config {
            max_running_requests: settings.max_running_requests,
            chunked_prefill_size: Some(settings.chunked_prefill_size),
            schedule_policy: match settings.schedule_policy.as_deref() {
                Some("lpm") => Policy::Lpm,
                _ => Policy::Fcfs,
            },
            radix_cache: !settings.disable_radix_cache,
            overlap: !settings.disable_overlap,
            disaggregation: match scenario.side.as_str() {
                "prefill" => Disaggregation::Prefill,
                _ => Disaggregation::Decode {
                    reserved_tokens: settings.num_reserved_decode_tokens.unwrap(),
                    extra_slots: settings.disaggregation_decode_extra_slots.unwrap(),
                },
            },
            refuse_unservable: false,
            ..Config::new(settings.max_total_tokens, settings.page_size, settings.context_length)
        };
        let rank = Rank::new(config, stepper).unwrap();
        let (awaited, turns, names) = (Vec::new(), Vec::new(), HashMap::new());
        Replay { scenario, rank, now: 0.0, next: 0, awaited, turns, names }
    }

    fn is_prefill(&self) -> bool {
        self.scenario.side == "prefill"
    }

    fn name(&self, slot: Slot) -> String {
        self.scenario.requests[self.names[&slot.0]].id.clone()
    }

    fn admit(&mut self) {
        let mut order: Vec<usize> = (0..self.scenario.requests.len()).collect();
        order.sort_by(|&a, &b| {
            let at = |i: usize| self.scenario.requests[i].arrival_ms;
            at(a).total_cmp(&at(b))
        });
        while let Some(&at) = order.get(self.next)
            && self.scenario.requests[at].arrival_ms <= self.now + TINY
        {
            self.next += 1;
            let asked = &self.scenario.requests[at];
            let prefill = self.is_prefill();
            let slot = self
                .rank
                .submit(Request {
                    id: RequestId(at as u64),
                    arrival: Nanos::ZERO,
                    prompt_tokens: asked.prompt_token_ids.len() as u32,
                    content: Content::Tokens(asked.prompt_token_ids.clone().into()),
                    output: OutputPlan {
                        max_tokens: if prefill { 1 } else { asked.max_tokens },
                        stop_after: asked.stop_after.filter(|_| !prefill),
                        tokens: None,
                        ignore_eos: None,
                    },
                    priority: None,
                    tie: at as u64,
                    hand_off: if prefill { HandOff::Hold } else { HandOff::Pull },
                })
                .unwrap();
            self.names.insert(slot.0, at);
            if let Some(room) = asked.room_ms {
                // The sender is made when the request comes to the engine, in this turn.
                self.awaited.push(Awaited { at: self.now + room, slot, what: What::Wanted });
            }
        }
    }

    /// Tells what has happened on the other side by now.
    fn report(&mut self) {
        let now = self.now;
        for Awaited { slot, what, .. } in self.awaited.extract_if(.., |awaited| awaited.at <= now + TINY) {
            match what {
                What::Wanted => self.rank.kv_wanted(slot),
                What::Loaded => self.rank.kv_loaded(slot),
                What::Sent => self.rank.kv_sent(slot),
            }
        }
    }

    fn schedule(&mut self) -> Turn {
        self.admit();
        self.report();
        let scheduled = self.rank.schedule().clone();
        let mut turn = Turn { t_ms: self.now, free: self.rank.available_tokens(), ..Turn::default() };
        for load in &scheduled.loads {
            turn.rooms.push((self.name(load.slot), load.blocks));
            let kv = self.scenario.requests[self.names[&load.slot.0]].kv_ms.unwrap();
            self.awaited.push(Awaited { at: self.now + kv, slot: load.slot, what: What::Loaded });
        }
        turn.given = scheduled.given.iter().map(|token| self.name(token.slot)).collect();
        turn.ended_at_once = scheduled.finished.iter().map(|ended| self.name(ended.slot)).collect();
        let name = |id: &RequestId| self.scenario.requests[id.0 as usize].id.clone();
        turn.retracted = self.rank.retractions().iter().flat_map(|r| r.retracted.iter().map(name)).collect();
        let batch = self.rank.batch();
        if self.is_prefill() {
            turn.batch = batch.iter().map(|&(slot, tokens)| (self.name(slot), tokens)).collect();
            turn.prefix = self.rank.prefix_lens();
        } else {
            let lengths = self.rank.seq_lens();
            turn.batch = batch.iter().zip(lengths).map(|(&(slot, _), len)| (self.name(slot), len)).collect();
        }
        turn.waiting = self.rank.waiting().map(|slot| self.name(slot)).collect();
        turn
    }

    fn complete(&mut self, turn: &mut Turn) {
        self.report_sent();
        let finished: Vec<Finished> = self.rank.complete().finished.clone();
        for ended in finished {
            let name = self.name(ended.slot);
            if ended.held {
                let send = self.scenario.requests[self.names[&ended.slot.0]].send_ms.unwrap();
                self.awaited.push(Awaited { at: self.now + send, slot: ended.slot, what: What::Sent });
            } else if ended.reason != FinishReason::Abort {
                // What the engine gives up, for want of memory, it does not stream.
                let reason = if ended.reason == FinishReason::Stop { "stop" } else { "length" };
                turn.finished.push((name, reason.to_owned(), ended.output_tokens));
            }
        }
        turn.free_after = Some(self.rank.available_tokens());
    }

    /// The prefill side asks what was read after it has processed a pass.
    fn report_sent(&mut self) {
        let now = self.now;
        let sent = |awaited: &mut Awaited| awaited.what == What::Sent && awaited.at <= now + TINY;
        for Awaited { slot, .. } in self.awaited.extract_if(.., sent) {
            self.rank.kv_sent(slot);
        }
    }

    fn duration(&self, turn: &Turn) -> f64 {
        let tokens = match self.is_prefill() {
            true => turn.batch.iter().map(|&(_, tokens)| tokens).sum(),
            false => turn.batch.len() as u32,
        };
        if tokens > 0 { 10.0 + 0.05 * f64::from(tokens) } else { 0.0 }
    }

    fn keep(&mut self, turn: Turn) {
        if turn.is_line() {
            self.turns.push(turn);
        }
    }

    fn run(mut self) -> Vec<Turn> {
        let overlap = !self.scenario.config.disable_overlap;
        let (mut idle, mut busy_until) = (0, 0.0f64);
        let mut earlier: Option<(usize, Turn, f64)> = None;
        let mut lines: Vec<Turn> = Vec::new();
        while lines.len() < 4000 {
            let mut turn = self.schedule();
            let empty = turn.batch.is_empty();
            if !overlap {
                self.now += self.duration(&turn);
                self.complete(&mut turn);
                self.keep(turn);
            } else {
                let at = lines.len();
                let start = self.now.max(busy_until);
                if !empty {
                    busy_until = start + self.duration(&turn);
                }
                lines.push(turn.clone());
                match earlier.take() {
                    Some((done, mut of, end)) if !of.batch.is_empty() => {
                        self.now = self.now.max(end);
                        self.complete(&mut of);
                        (lines[done].finished, lines[done].free_after) = (of.finished, of.free_after);
                        earlier = Some((at, turn, busy_until));
                    }
                    // The engine looks at an empty turn once, when it comes.
                    Some((_, mut of, _)) => {
                        self.complete(&mut of);
                        lines[at].free_after = of.free_after;
                        earlier = Some((at, turn, busy_until));
                    }
                    None if empty => {
                        self.complete(&mut turn);
                        lines[at].free_after = turn.free_after;
                    }
                    None => {
                        lines[at].free_after = None;
                        earlier = Some((at, turn, busy_until));
                    }
                }
            }
            let flying = earlier.as_ref().is_some_and(|(_, turn, _)| !turn.batch.is_empty());
            idle = if empty && !flying { idle + 1 } else { 0 };
            if idle >= 3 {
                let arrival = self.scenario.requests.iter().map(|r| r.arrival_ms);
                let outside = arrival.chain(self.awaited.iter().map(|awaited| awaited.at));
                let next = outside.filter(|&at| at > self.now + TINY).fold(f64::INFINITY, f64::min);
                if next == f64::INFINITY {
                    break;
                }
                (self.now, idle) = (next, 0);
            }
        }
        if overlap {
            self.turns = lines.into_iter().filter(Turn::is_line).collect();
        }
        self.turns
    }
}

fn check(path: &Path) -> usize {
    let mut scenario: Scenario = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    if scenario.side == "prefill" {
        // There a request ends when it was read, which free tokens show.
        scenario.turns.iter_mut().for_each(|turn| turn.finished.clear());
        scenario.turns.retain(Turn::is_line);
    }
    for stepper in [Stepper::Plain, Stepper::Fast] {
        let ours = Replay::new(&scenario, stepper).run();
        for (at, theirs) in scenario.turns.iter().enumerate() {
            let theirs = theirs.clone();
            let Some(ours) = ours.get(at) else {
                panic!("{} {stepper:?}: no turn {at}: {theirs:?}", scenario.name)
            };
            assert!(
                (ours.t_ms - theirs.t_ms).abs() < 1e-3,
                "{} {stepper:?} {at}: {ours:?} {theirs:?}",
                scenario.name
            );
            let ours = Turn { t_ms: theirs.t_ms, ..ours.clone() };
            let free = theirs.free_after;
            let after = theirs.free_after.is_none() || theirs.free_after == ours.free_after;
            let theirs = Turn { free_after: ours.free_after, ..theirs };
            assert!(after, "{} {stepper:?} {at}: free {:?}, not {free:?}", scenario.name, ours.free_after);
            assert!(ours == theirs, "{} {stepper:?} {at}:\n{ours:?}\n{theirs:?}", scenario.name);
        }
    }
    scenario.turns.len()
}

#[test]
fn turns_are_those_of_the_real_scheduler() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/hand_off/sglang");
    let folder = std::env::var_os("HAND_OFF_TRACES").map_or(folder, Into::into);
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let turns: usize = files.iter().map(|file| check(file)).sum();
    println!("{} scenarios, {turns} turns", files.len());
    assert!(files.len() >= 10);
}
