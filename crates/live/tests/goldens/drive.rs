//! Drives a rank through the requests of a wire golden as the oracles drive the engines, by step numbers instead
//! of time, and collects what its event stream publishes.

use serde::Deserialize;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use windtunnel_engine::{
    FinishReason, HandOff, Nanos, OutputPlan, Rank, Request, RequestId, Scheduled, Slot,
};
use windtunnel_live::kv_events::hash::{Adapter, Multimodal, Namespace};
use windtunnel_live::kv_events::{EventStream, Source};

#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub num_blocks: Option<u32>,
    pub block_size: Option<u32>,
    pub max_num_seqs: Option<u32>,
    pub max_num_batched_tokens: Option<u32>,
    #[serde(default)]
    pub async_scheduling: bool,
    pub enable_prefix_caching: Option<bool>,
    pub max_total_tokens: Option<u32>,
    pub page_size: Option<u32>,
    pub chunked_prefill_size: Option<u32>,
    #[serde(default)]
    pub enable_mixed_chunk: bool,
    pub disable_overlap: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Lora {
    pub name: String,
    pub path: String,
    pub id: u32,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Medium {
    pub identifier: String,
    pub offset: u32,
    pub length: u32,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Line {
    pub arrival_step: u64,
    pub prompt_token_ids: Vec<u32>,
    pub output_token_ids: Vec<u32>,
    pub max_tokens: u32,
    pub abort_step: Option<u64>,
    pub cache_salt: Option<String>,
    pub lora: Option<Lora>,
    #[serde(default)]
    pub media: Vec<Medium>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Case {
    pub name: String,
    pub settings: Settings,
    pub requests: Vec<Line>,
    pub batches: Vec<String>,
}

/// A pass in flight: whether it computes prefill, and decodes.
type Flown = (bool, bool);

pub struct Driver<'a> {
    case: &'a Case,
    rank: Rank,
    stream: EventStream,
    slots: HashMap<usize, Slot>,
    next: usize,
    payloads: Vec<String>,
}

impl<'a> Driver<'a> {
    pub fn new(case: &'a Case, rank: Rank, stream: EventStream) -> Driver<'a> {
        Driver { case, rank, stream, slots: HashMap::new(), next: 0, payloads: Vec::new() }
    }

    /// All payloads in hexadecimal, in order.
    pub fn run(mut self) -> Vec<String> {
        match self.rank {
            Rank::Vllm(_) => self.run_vllm(),
            Rank::Sglang(_) => self.run_sglang(),
            Rank::Trtllm(_) => unreachable!("it publishes nothing"),
        }
        assert_eq!(self.rank.unfinished(), 0, "{}: all requests end", self.case.name);
        self.payloads
    }

    fn run_vllm(&mut self) {
        let depth = if self.case.settings.async_scheduling { 2 } else { 1 };
        let (mut step, mut queue) = (0, VecDeque::new());
        loop {
            self.admit(step);
            if !self.rank.has_work() && queue.is_empty() {
                match self.next_arrival() {
                    Some(arrival) => step = step.max(arrival),
                    None => return,
                }
                continue;
            }
            if self.rank.has_work() {
                let scheduled = self.rank.schedule();
                let tokens = scheduled.tokens;
                queue.push_back(flown(scheduled));
                step += 1;
                if queue.len() < depth && (tokens > 0 || self.rank.has_work()) {
                    continue;
                }
            }
            if let Some(flown) = queue.pop_front() {
                self.complete(flown);
            }
        }
    }

    /// `event_loop_normal`, or `event_loop_overlap` where a pass is processed behind the schedule call of the next.
    fn run_sglang(&mut self) {
        let overlap = self.case.settings.disable_overlap == Some(false);
        let (mut step, mut earlier) = (0, None);
        loop {
            self.admit(step);
            let scheduled = self.rank.schedule();
            let (is_empty, now) = (scheduled.tokens == 0, flown(scheduled));
            let done = if overlap { earlier.replace((is_empty, now)) } else { Some((is_empty, now)) };
            if !is_empty {
                step += 1;
            }
            match done {
                Some((false, flown)) => self.complete(flown),
                Some((true, _)) => {
                    self.rank.complete();
                }
                None => {}
            }
            // An engine without a batch, and without one to process, idles.
            if is_empty && done.is_none_or(|(was_empty, _)| was_empty) {
                self.publish_idle();
                if self.rank.unfinished() == 0 {
                    match self.next_arrival() {
                        Some(arrival) => step = step.max(arrival),
                        None => return,
                    }
                }
            }
        }
    }

    fn publish_idle(&mut self) {
        self.stream.reset(self.rank.events());
        self.rank.clear_events();
        let payload = self.stream.publish_idle(0.0);
        self.payloads.extend(payload.map(hex));
    }

    fn complete(&mut self, (prefill, decode): Flown) {
        let finished = self.rank.complete().finished.clone();
        for ended in &finished {
            self.slots.remove(&(ended.id.0 as usize));
            self.stream.ended(ended.id);
            assert_ne!(ended.reason, FinishReason::Stop);
        }
        let payload = self.stream.pass(self.rank.events(), prefill, decode, false, 0.0);
        self.rank.clear_events();
        self.payloads.extend(payload.map(hex));
    }

    fn next_arrival(&self) -> Option<u64> {
        self.case.requests.get(self.next).map(|line| line.arrival_step)
    }

    fn admit(&mut self, step: u64) {
        while let Some(line) = self.case.requests.get(self.next)
            && line.arrival_step <= step
        {
            self.submit(line);
            self.next += 1;
        }
        for (number, line) in self.case.requests.iter().enumerate() {
            if line.abort_step.is_some_and(|at| at <= step)
                && let Some(&slot) = self.slots.get(&number)
                && self.rank.cancel(slot)
            {
                self.slots.remove(&number);
                self.stream.ended(RequestId(number as u64));
            }
        }
    }

    fn submit(&mut self, line: &Line) {
        let id = RequestId(self.next as u64);
        let source = source(line);
        let request = Request {
            id,
            arrival: Nanos::ZERO,
            prompt_tokens: line.prompt_token_ids.len() as u32,
            content: source.content(),
            output: OutputPlan {
                tokens: Some(line.output_token_ids.clone().into()),
                ..OutputPlan::of_length(line.max_tokens)
            },
            priority: None,
            tie: id.0,
            hand_off: HandOff::None,
        };
        self.stream.submitted(id, source);
        self.slots.insert(self.next, self.rank.submit(request).unwrap());
    }
}

fn flown(scheduled: &Scheduled) -> Flown {
    (!scheduled.prefill.is_empty(), scheduled.decode.count > 0)
}

fn source(line: &Line) -> Source {
    let adapter = |lora: &Lora| Adapter { name: lora.name.clone(), path: lora.path.clone(), id: lora.id };
    let medium =
        |m: &Medium| Multimodal { identifier: m.identifier.clone(), offset: m.offset, length: m.length };
    Source {
        prompt: line.prompt_token_ids.as_slice().into(),
        output: line.output_token_ids.as_slice().into(),
        namespace: Arc::new(Namespace {
            adapter: line.lora.as_ref().map(adapter),
            cache_salt: line.cache_salt.clone(),
            media: line.media.iter().map(medium).collect(),
        }),
    }
}

fn hex(bytes: Vec<u8>) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
