//! What a random case is made of: the settings of a rank, and a list of things that happen to it.
//!
//! Sizes are small so that pools run dry, seats run out and prefixes meet. Content comes from a few
//! families: requests of one family are equal up to a point of their own and unlike anything after it.

use proptest::prelude::*;
use windtunnel_engine::vllm::{Config, Policy, PreemptionMode, ResumedWork};
use windtunnel_engine::{Content, HandOff, KvEventScope, Nanos, OutputPlan, Request, RequestId};

/// A request as the tests think of it.
#[derive(Clone, Debug)]
pub struct Plan {
    pub prompt: u32,
    pub max_tokens: u32,
    pub stop_after: Option<u32>,
    pub content: ContentPlan,
    /// Its output tokens have an identity (matters to `ContentPlan::Tokens` only).
    pub known_outputs: bool,
    pub priority: i32,
    /// Its arrival stamp is that of the request before it.
    pub same_arrival: bool,
}

/// Where a request's content comes from, and up to where it is its family's.
#[derive(Clone, Copy, Debug)]
pub enum ContentPlan {
    Private,
    Prefixes { family: u32, shared_ids: u32 },
    Tokens { family: u32, shared_tokens: u32 },
}

/// What a full block stands for. Blocks must have equal keys exactly if their meanings are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Meaning {
    /// The prefix of a family that ends here, told by ids.
    IdPrefix { family: u32, end: u32 },
    /// The prefix of a family that ends here, told by tokens.
    TokenPrefix { family: u32, end: u32 },
    /// A block that only its own request can hold.
    Own { request: usize, index: u32 },
}

impl Plan {
    /// The request with this number.
    pub fn request(&self, number: usize, arrival: Nanos, id_tokens: u32) -> Request {
        let content = match self.content {
            ContentPlan::Private => Content::Private,
            ContentPlan::Prefixes { family, shared_ids } => {
                let id = |i: u32| match i < shared_ids {
                    true => u64::from(family * 256 + i),
                    false => (8 + number as u64) * 256 + u64::from(i),
                };
                Content::Prefixes { ids: (0..self.prompt.div_ceil(id_tokens)).map(id).collect(), id_tokens }
            }
            ContentPlan::Tokens { .. } => {
                Content::Tokens((0..self.prompt).map(|at| self.token(number, at)).collect())
            }
        };
        let outputs = self.prompt..self.prompt + self.max_tokens;
        Request {
            id: RequestId(number as u64),
            arrival,
            prompt_tokens: self.prompt,
            content,
            output: OutputPlan {
                max_tokens: self.max_tokens,
                stop_after: self.stop_after,
                tokens: self.known_outputs.then(|| outputs.map(|at| self.token(number, at)).collect()),
                ignore_eos: None,
            },
            priority: Some(self.priority),
            tie: number as u64,
            hand_off: HandOff::None,
        }
    }

    /// The token at a position of prompt and output.
    fn token(&self, number: usize, at: u32) -> u32 {
        match self.content {
            ContentPlan::Tokens { family, shared_tokens } if at < shared_tokens => family * 10_000 + at,
            _ => (1 + number as u32) * 100_000 + at,
        }
    }

    /// What its block `index` stands for.
    pub fn meaning(&self, number: usize, index: u32, block_size: u32, id_tokens: u32) -> Meaning {
        let end = (index + 1) * block_size;
        let in_prompt = end <= self.prompt;
        match self.content {
            ContentPlan::Prefixes { family, shared_ids }
                if in_prompt && (end - 1) / id_tokens < shared_ids =>
            {
                Meaning::IdPrefix { family, end }
            }
            ContentPlan::Tokens { family, shared_tokens }
                if (in_prompt || self.known_outputs) && end <= shared_tokens =>
            {
                Meaning::TokenPrefix { family, end }
            }
            _ => Meaning::Own { request: number, index },
        }
    }

    /// Output tokens that it gives if nobody cancels it.
    pub fn outputs(&self, max_model_len: u32) -> u32 {
        self.max_tokens.min(max_model_len - self.prompt).min(self.stop_after.unwrap_or(u32::MAX))
    }
}

/// One thing that happens to a rank.
#[derive(Clone, Debug)]
pub enum Event {
    Submit(Plan),
    /// Of the live requests, the one at this place (counted round).
    Cancel(u16),
    /// So many calls of `schedule` or `complete`, by the rank's protocol: a pass is scheduled whenever one
    /// may be, and completed otherwise.
    Work(u16),
}

/// Settings, what happens, and after how many steady passes to look again.
#[derive(Clone, Debug)]
pub struct Case {
    pub config: Config,
    pub id_tokens: u32,
    pub events: Vec<Event>,
    /// Steady passes to take at once, one number for each chance; 0 leaves the chance.
    pub leaps: Vec<u8>,
    /// The rank that leaps keeps no KV events. Nothing else may differ.
    pub leaper_is_silent: bool,
}

/// Any case: half of them of every kind, half of the kind that preempts.
pub fn case() -> impl Strategy<Value = Case> {
    prop_oneof![config().prop_flat_map(any_load), pressed_config().prop_flat_map(pressing_load)]
}

fn any_load(config: Config) -> impl Strategy<Value = Case> {
    let (pool, model) = (config.usable_blocks() * config.block_size, config.max_model_len);
    // Now and then too long for the pool or the context, so that refusals occur.
    let longest = (pool + pool / 8).min(model + 2).clamp(2, 120);
    let prompt = prop_oneof![1..=longest.div_ceil(4), 1..=longest].boxed();
    let outputs = prop_oneof![1u32..4, 1u32..30, 1..=longest].boxed();
    let event = prop_oneof![
        5 => plan(prompt, outputs).prop_map(Event::Submit),
        1 => any::<u16>().prop_map(Event::Cancel),
        5 => prop_oneof![3 => 1u16..8, 1 => 8u16..60].prop_map(Event::Work),
    ];
    with_events(config, prop::collection::vec(event, 1..60).boxed())
}

/// Several requests that fit at first and then grow.
fn pressing_load(config: Config) -> impl Strategy<Value = Case> {
    let pool = config.usable_blocks() * config.block_size;
    let prompt = prop_oneof![1..=pool.div_ceil(4), 1..=pool.div_ceil(2)].boxed();
    let outputs = (1..=pool.div_ceil(4) * 3).boxed();
    let event = prop_oneof![
        8 => plan(prompt, outputs).prop_map(Event::Submit),
        1 => any::<u16>().prop_map(Event::Cancel),
        3 => (1u16..6).prop_map(Event::Work),
    ];
    with_events(config, prop::collection::vec(event, 2..30).boxed())
}

fn with_events(config: Config, events: BoxedStrategy<Vec<Event>>) -> impl Strategy<Value = Case> {
    let id_tokens = prop::sample::select(vec![1u32, 2, 3, 4, 8, 12, 16]);
    let leaps = prop::collection::vec(prop_oneof![2 => 1u8..4, 1 => Just(0u8), 2 => 4u8..=255], 1..12);
    (id_tokens, events, leaps, any::<bool>()).prop_map(move |(id_tokens, events, leaps, silent)| Case {
        config: config.clone(),
        id_tokens,
        events,
        leaps,
        leaper_is_silent: silent,
    })
}

pub fn plan(prompt: BoxedStrategy<u32>, outputs: BoxedStrategy<u32>) -> impl Strategy<Value = Plan> {
    let stop = prop_oneof![2 => Just(None), 1 => (1u32..20).prop_map(Some)];
    let content = prop_oneof![
        Just(ContentPlan::Private),
        (0u32..2, 0u32..12).prop_map(|(family, shared_ids)| ContentPlan::Prefixes { family, shared_ids }),
        (0u32..2, 0u32..160)
            .prop_map(|(family, shared_tokens)| ContentPlan::Tokens { family, shared_tokens }),
    ];
    let priority = prop_oneof![Just(0), -2i32..3];
    (prompt, outputs, stop, content, any::<bool>(), priority, prop::bool::weighted(0.2)).prop_map(
        |(prompt, max_tokens, stop_after, content, known_outputs, priority, same_arrival)| Plan {
            prompt,
            max_tokens,
            stop_after,
            content,
            known_outputs,
            priority,
            same_arrival,
        },
    )
}

fn config() -> impl Strategy<Value = Config> {
    let pool = (
        prop::sample::select(vec![1u32, 2, 3, 4, 5, 8, 16]),
        prop_oneof![3 => 2u32..16, 1 => 16u32..80],
        prop_oneof![Just(1000u32), 4u32..80],
    );
    let limits = (1u32..12, 0u32..64, prop::option::weighted(0.1, 1u32..12));
    let queue = (prop::option::weighted(0.1, 1u32..6), prop::option::weighted(0.1, 1u64..200));
    (pool, limits, rules(), switches(), queue).prop_map(assemble)
}

/// A small pool, seats for several, and a budget that prompts do not fill for long.
fn pressed_config() -> impl Strategy<Value = Config> {
    let pool = (prop::sample::select(vec![1u32, 2, 3, 4, 8]), 3u32..12, Just(1000u32));
    let limits = (3u32..10, prop_oneof![0u32..8, 8u32..64], Just(None));
    (pool, limits, rules(), switches(), Just((None, None))).prop_map(assemble)
}

type Rules = (u32, bool, f64, bool, u32, Policy, PreemptionMode);

fn rules() -> impl Strategy<Value = Rules> {
    (
        prop_oneof![4 => Just(0u32), 1 => 1u32..20],
        prop::bool::weighted(0.3),
        prop_oneof![4 => Just(0.0), 1 => 0.05f64..0.5],
        prop::bool::weighted(0.8),
        prop_oneof![4 => Just(1u32), 1 => 2u32..5],
        prop_oneof![3 => Just(Policy::Fcfs), 2 => Just(Policy::Priority)],
        prop_oneof![3 => Just(PreemptionMode::Lifo), 1 => Just(PreemptionMode::Fifo)],
    )
}

/// Asynchronous, prefix caching, chunked prefill, AISimulate's counting.
fn switches() -> impl Strategy<Value = (bool, bool, bool, bool)> {
    (any::<bool>(), prop::bool::weighted(0.8), prop::bool::weighted(0.9), any::<bool>())
}

type Parts =
    ((u32, u32, u32), (u32, u32, Option<u32>), Rules, (bool, bool, bool, bool), (Option<u32>, Option<u64>));

fn assemble((pool, limits, rules, switches, queue): Parts) -> Config {
    let (block_size, usable, max_model_len) = pool;
    let (max_num_seqs, more, active) = limits;
    let (threshold, adaptive, watermark, reserve_full_isl, interval, policy, preemption_mode) = rules;
    let (async_scheduling, prefix_caching, chunked_prefill, as_reference) = switches;
    let max_num_batched_tokens = match chunked_prefill {
        true => max_num_seqs + more,
        false => max_num_seqs.max(max_model_len) + more,
    };
    Config {
        prefix_caching,
        chunked_prefill,
        max_num_batched_tokens,
        max_num_seqs,
        max_num_active_seqs: active.map(|n| n.min(max_num_seqs)),
        policy,
        preemption_mode,
        long_prefill_token_threshold: threshold.min(max_model_len),
        long_prefill_token_threshold_adaptive: adaptive,
        async_scheduling,
        watermark,
        reserve_full_isl,
        prefill_schedule_interval: interval,
        max_num_queued_reqs: queue.0,
        max_num_queued_tokens: queue.1,
        kv_events: KvEventScope::All,
        resumed_work: if as_reference { ResumedWork::PromptAndDecode } else { ResumedWork::Prefill },
        ..Config::new(usable + 1, block_size, max_model_len)
    }
}
