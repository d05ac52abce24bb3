//! The rules of Dynamo's planner for aggregated workers, with the deployment's own timing where Dynamo fits a
//! regression to forward-pass metrics.
//!
//! After ai-dynamo/dynamo components/src/dynamo/planner/core (load_scaling.py, throughput_scaling.py,
//! perf_model/agg.py). Targets throughput and latency go by KV cache in use against fixed thresholds, one worker at a
//! time. Target sla plans for the demand of the last interval, reacts to what ranks have queued, or both: then the plan
//! is the least that the reaction may go down to.

mod roles;

pub(crate) use roles::DynamoRoles;

use super::predictor::Predictor;
use super::{Plan, Planner, RankLoad, Snapshot, Totals};
use windtunnel_config::{Deployment, DynamoPlanner, LoadPredictor, PlannerTarget, Scaling};
use windtunnel_engine::{Chunk, DecodeSet, Nanos, Shape};
use windtunnel_perf::TimingModel;
use windtunnel_report::short;

/// Thresholds of KV cache in use, to scale up above and down below (`_DECODE_*_SCALE_*`).
const THROUGHPUT: (f64, f64) = (1.0, 0.6);
const LATENCY: (f64, f64) = (0.4, 0.1);

pub(super) struct Dynamo {
    settings: DynamoPlanner,
    least: u32,
    most: u32,
    model: Model,
    next_plan: Nanos,
    next_look: Nanos,
    /// When there was a plan last, and the totals then.
    planned: (Nanos, Totals),
    /// The totals at the last look.
    looked: Totals,
    /// Fewest workers by the last plan.
    floor: u32,
    /// The part of prompts found in the cache, by the last plan.
    hit_rate: f64,
    foretold: Foretold,
}

/// What the next interval will bring: requests a second, tokens of a prompt, tokens of an output.
struct Foretold {
    demand: Predictor,
    prompt: Predictor,
    output: Predictor,
}

/// What is foretold of the next interval.
struct Forecast {
    /// Requests a second.
    demand: f64,
    /// Mean tokens of a prompt.
    prompt: f64,
    /// Mean tokens of an output.
    output: f64,
}

impl Foretold {
    fn new(kind: LoadPredictor) -> Foretold {
        let predictor = || Predictor::new(kind);
        Foretold { demand: predictor(), prompt: predictor(), output: predictor() }
    }

    /// By what happened in the interval of this length that has just ended. None if nothing did.
    fn next(&mut self, window: &Totals, length: Nanos) -> Option<Forecast> {
        if window.arrivals == 0 || window.completed == 0 {
            return None;
        }
        // Dynamo foretells the requests of an interval, not of a second: a filter's variances are of those.
        let demand = (self.demand.next(window.arrivals as f64) / length.as_seconds()).max(0.0);
        let prompt = self.prompt.next(window.arrived_tokens as f64 / window.arrivals as f64).max(1.0);
        let output = self.output.next(window.output_tokens as f64 / window.completed as f64).max(1.0);
        Some(Forecast { demand, prompt, output })
    }
}

/// How long a rank's passes take, and what it has room for.
struct Model {
    timing: TimingModel,
    /// Of a worker.
    ranks: u32,
    /// Token budget of a pass.
    pass_tokens: u32,
    seats: u64,
    /// KV tokens of a rank.
    kv_tokens: u64,
}

impl Dynamo {
    pub(super) fn new(settings: DynamoPlanner, scaling: &Scaling, deployment: &Deployment) -> Dynamo {
        Dynamo {
            next_plan: settings.throughput_interval.unwrap_or(Nanos::NEVER),
            next_look: settings.load_interval.unwrap_or(Nanos::NEVER),
            foretold: Foretold::new(settings.predictor),
            settings,
            least: scaling.least,
            most: scaling.most,
            model: Model::new(deployment),
            planned: (Nanos::ZERO, Totals::default()),
            looked: Totals::default(),
            floor: scaling.least,
            hit_rate: 0.0,
        }
    }

    /// As many workers as the demand of the last interval needs, if anything arrived.
    fn plan(&mut self, snapshot: &Snapshot) -> Option<Plan> {
        let (since, totals) = std::mem::replace(&mut self.planned, (snapshot.now, snapshot.totals));
        let window = snapshot.totals.since(&totals);
        let PlannerTarget::Sla { ttft, itl } = self.settings.target else { return None };
        let Forecast { demand, prompt, output } = self.foretold.next(&window, snapshot.now.since(since))?;
        self.hit_rate = window.hit_rate();
        let rate = self.model.best_rate(prompt, prompt * (1.0 - self.hit_rate), output, (ttft, itl));
        let workers = bounded((demand / rate).ceil(), self.least, self.most);
        let reason = format!("demand {} requests/s, {} of a worker", short(demand), short(rate));
        Some(Plan { workers, reason })
    }

    /// One worker more or less, by what the ranks have queued. Not while the number of workers is changing.
    fn look(&mut self, snapshot: &Snapshot) -> Option<Plan> {
        let window = snapshot.totals.since(&std::mem::replace(&mut self.looked, snapshot.totals));
        let workers = snapshot.workers;
        if workers.starting > 0 || workers.draining > 0 || snapshot.ranks.is_empty() {
            return None;
        }
        match self.settings.target {
            PlannerTarget::Throughput => Some(self.by_usage(snapshot, THROUGHPUT)),
            PlannerTarget::Latency => Some(self.by_usage(snapshot, LATENCY)),
            PlannerTarget::Sla { ttft, itl } => self.by_estimates(snapshot, &window, (ttft, itl)),
        }
    }

    /// Any rank above the one threshold: one more. All below the other: one less.
    fn by_usage(&self, snapshot: &Snapshot, (up, down): (f64, f64)) -> Plan {
        let usage = |rank: &RankLoad| {
            let tokens = rank.running_tokens + rank.queued_decode_tokens + rank.queued_prefill_tokens;
            tokens as f64 / self.model.kv_tokens as f64
        };
        let most = snapshot.ranks.iter().map(usage).fold(0.0, f64::max);
        let current = snapshot.workers.ready;
        let workers = if most > up {
            current + 1
        } else if current > 1 && most < down {
            current - 1
        } else {
            current
        };
        Plan { workers, reason: format!("KV usage at most {}, bounds {up} and {down}", short(most)) }
    }

    /// All ranks would give a new request its first token, or all would give tokens, later than is promised: one more.
    /// The promise would be kept with one worker less, with room to spare: one less.
    fn by_estimates(
        &self,
        snapshot: &Snapshot,
        window: &Totals,
        (ttft, itl): (Nanos, Nanos),
    ) -> Option<Plan> {
        let totals = &snapshot.totals;
        if totals.arrivals == 0 {
            return None;
        }
        let prompt = totals.arrived_tokens as f64 / totals.arrivals as f64;
        let keep = 1.0 - self.hit_rate;
        let (ttft, itl) = (ttft.as_ms(), itl.as_ms());
        let current = snapshot.workers.ready;
        let others = (current > 1).then(|| f64::from(current) / f64::from(current - 1));
        // What gaps were longer than passes that decode only is what prefill adds to them.
        let decoding = |rank: &RankLoad| self.model.pass_ms(self.model.decodes(rank, 1.0));
        let passes = snapshot.ranks.iter().map(decoding).sum::<f64>() / snapshot.ranks.len() as f64;
        let prefill = window.mean_itl_ms().map_or(0.0, |itl| (itl - passes).max(0.0));
        let (mut first, mut between) = (f64::INFINITY, f64::INFINITY);
        let mut fewer = others.is_some();
        for rank in &snapshot.ranks {
            let decodes = |scale: f64| self.model.decodes(rank, scale);
            let queued = rank.queued_prefill_tokens as f64;
            let first_token =
                |queued: f64, scale: f64| self.model.prefill_ms((queued + prompt) * keep, decodes(scale));
            first = first.min(first_token(queued, 1.0));
            between = between.min(self.model.pass_ms(decodes(1.0)) + prefill);
            let Some(scale) = others else { continue };
            let own = first_token(0.0, scale);
            let budget = (ttft - own) * self.settings.sensitivity;
            let tokens = (rank.running_tokens + rank.queued_decode_tokens) as f64 + queued;
            fewer &= budget > 0.0 && first_token(queued * scale, scale) - own < budget;
            fewer &= tokens * scale < self.model.kv_tokens as f64;
            fewer &= self.model.pass_ms(decodes(scale)) + prefill * scale < itl * self.settings.sensitivity;
        }
        let workers = if first > ttft || between > itl {
            current + 1
        } else if fewer {
            current - 1
        } else {
            current
        };
        let reason = format!("next TTFT at least {} ms, ITL {} ms", short(first), short(between));
        Some(Plan { workers, reason })
    }
}

impl Planner for Dynamo {
    fn next_tick(&self) -> Nanos {
        self.next_plan.min(self.next_look)
    }

    fn tick(&mut self, snapshot: &Snapshot) -> Option<Plan> {
        let mut decided = None;
        if self.next_plan <= snapshot.now
            && let Some(interval) = self.settings.throughput_interval
        {
            self.next_plan = snapshot.now + interval;
            if let Some(plan) = self.plan(snapshot) {
                match self.settings.load_interval {
                    Some(_) => self.floor = plan.workers,
                    None => decided = Some(plan),
                }
            }
        }
        if self.next_look <= snapshot.now
            && let Some(interval) = self.settings.load_interval
        {
            self.next_look = snapshot.now + interval;
            if let Some(plan) = self.look(snapshot) {
                let workers = plan.workers.max(self.floor).clamp(self.least, self.most);
                let reason = match workers == plan.workers {
                    true => plan.reason,
                    false => format!("{}, no fewer than {} by demand", plan.reason, self.floor),
                };
                decided = Some(Plan { workers, reason });
            }
        }
        decided
    }
}

/// A whole number of workers within the bounds.
fn bounded(workers: f64, least: u32, most: u32) -> u32 {
    // A saturating conversion.
    (workers as u32).clamp(least, most)
}

impl Model {
    fn new(deployment: &Deployment) -> Model {
        let engine = &deployment.engine;
        Model {
            timing: deployment.timing.clone(),
            ranks: deployment.ranks.get(),
            pass_tokens: engine.pass_tokens(),
            seats: engine.seats(),
            kv_tokens: u64::from(engine.usable_blocks()) * u64::from(engine.block_size()),
        }
    }

    /// Requests that a worker that only decodes serves in one second, each of `output` tokens and of `context` on average:
    /// the largest batch decides that keeps the promise, or one request if even that breaks it.
    fn decode_rate(&self, context: f64, output: f64, itl: Nanos) -> f64 {
        let room = (self.kv_tokens as f64 / context.max(1.0)) as u64;
        let (mut decode, mut best) = (DecodeSet::default(), f64::INFINITY);
        for batch in 1..=self.seats.min(room).max(1) {
            decode.add(context as u32);
            let pass = self.pass_ms(decode);
            if batch > 1 && pass > itl.as_ms() {
                break;
            }
            best = batch as f64 / (output * pass / 1000.0);
        }
        best * f64::from(self.ranks)
    }

    /// The requests of a rank as they decode, when each worker has `scale` times as many, and one more of their mean
    /// length.
    fn decodes_and_one(&self, rank: &RankLoad, scale: f64) -> DecodeSet {
        let requests = ((rank.running + rank.waiting) as f64 * scale).ceil();
        let tokens =
            (rank.running_tokens + rank.queued_decode_tokens + rank.queued_prefill_tokens) as f64 * scale;
        let mean = (tokens / requests.max(1.0)) as u32;
        let mut decode = DecodeSet::default();
        (0..(requests as u64 + 1).min(self.seats)).for_each(|_| decode.add(mean.max(1)));
        decode
    }

    /// Requests that a worker serves in one second while both promises are kept, with prompts of `prompt` tokens, of
    /// which `uncached` are to be computed, and `output` tokens: the largest batch decides, or one request if even that
    /// breaks them.
    fn best_rate(&self, prompt: f64, uncached: f64, output: f64, (ttft, itl): (Nanos, Nanos)) -> f64 {
        let context = prompt + output / 2.0;
        let room = (self.kv_tokens as f64 / context.max(1.0)) as u64;
        let mut best = None;
        for batch in 1..=self.seats.min(room).max(1) {
            let mut decode = DecodeSet::default();
            (0..batch).for_each(|_| decode.add(context as u32));
            // While a request gives its tokens, as many prompts are computed as there are requests: what that adds to
            // passes that decode only is spread over these.
            let decoding = self.pass_ms(decode);
            let first = self.prefill_ms(uncached, decode);
            let passes = (uncached / f64::from(self.pass_tokens)).ceil();
            let pass = decoding + (first - passes * decoding).max(0.0) * batch as f64 / output;
            let kept = pass <= itl.as_ms() && first <= ttft.as_ms();
            if best.is_some() && !kept {
                break;
            }
            best = Some(batch as f64 / (output * pass / 1000.0));
        }
        best.unwrap_or(f64::INFINITY) * f64::from(self.ranks)
    }

    /// The requests of a rank as they decode, when each worker has `scale` times as many.
    fn decodes(&self, rank: &RankLoad, scale: f64) -> DecodeSet {
        let requests = ((rank.running + rank.waiting) as f64 * scale).ceil().max(1.0);
        let tokens = (rank.running_tokens + rank.queued_decode_tokens) as f64 * scale;
        let context = (tokens / requests) as u32;
        let mut decode = DecodeSet::default();
        (0..(requests as u64).min(self.seats)).for_each(|_| decode.add(context.max(1)));
        decode
    }

    /// How long it takes to compute so many prompt tokens in passes that decode, too.
    fn prefill_ms(&self, tokens: f64, decode: DecodeSet) -> f64 {
        let mut left = tokens.ceil() as u64;
        let mut before = 0;
        let mut ms = 0.0;
        while left > 0 {
            let chunk = left.min(u64::from(self.pass_tokens)) as u32;
            let prefill = [Chunk { new_tokens: chunk, before }];
            let shape = Shape { prefill: &prefill, decode };
            ms += self.timing.pass_duration(&shape).as_ms();
            left -= u64::from(chunk);
            before = before.saturating_add(chunk);
        }
        ms
    }

    /// How long a pass takes that decodes these and computes no prompt.
    fn pass_ms(&self, decode: DecodeSet) -> f64 {
        self.timing.pass_duration(&Shape { prefill: &[], decode }).as_ms()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Counts;
    use super::*;
    use windtunnel_config::PlannerPolicy;

    const S: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;

    /// A pass takes 10 ms with prefill work and 2 with decode work; 8 seats, 64 tokens a pass, 100 blocks of 16.
    fn dynamo(target: PlannerTarget, throughput: Option<u64>, load: Option<u64>) -> Dynamo {
        let text = "engine: {model: m, hardware: h, workers: {aggregated: {scheduler: {max_batched_tokens: 64, \
                    max_sequences: 8}, kv_cache: {block_size: 16, capacity: {type: fixed, blocks: 101}}, timing: \
                    {type: fixed, prefill_ms: 10, decode_ms: 2}}}}";
        let experiment = windtunnel_config::from_str("test.yaml", text, &[]).unwrap();
        let settings = DynamoPlanner {
            target,
            throughput_interval: throughput.map(|seconds| Nanos(seconds * S)),
            load_interval: load.map(|seconds| Nanos(seconds * S)),
            sensitivity: 0.8,
            predictor: LoadPredictor::Constant,
            max_gpus: 8,
        };
        let scaling = Scaling { planner: PlannerPolicy::Dynamo(settings.clone()), least: 1, most: 8 };
        Dynamo::new(settings, &scaling, &experiment.deployment)
    }

    fn at(second: u64, ranks: &[RankLoad], totals: Totals) -> Snapshot {
        let workers = Counts { ready: ranks.len() as u32, starting: 0, draining: 0 };
        Snapshot { now: Nanos(second * S), workers, ranks: ranks.to_vec(), held: 0, totals }
    }

    fn using(tokens: u64) -> RankLoad {
        RankLoad { running: 4, running_tokens: tokens, ..RankLoad::default() }
    }

    /// Thresholds of load_scaling.py: throughput scales up above all of the cache (1600 tokens) on any rank, and down
    /// below 0.6 of it (960) on all; latency above 0.4 (640) and below 0.1 (160).
    #[test]
    fn easy_targets_go_by_fixed_thresholds() {
        use PlannerTarget::{Latency, Throughput};
        let cases = [
            (Throughput, [1601, 0], 3),
            (Throughput, [1600, 960], 2),
            (Throughput, [959, 100], 1),
            (Latency, [641, 0], 3),
            (Latency, [640, 160], 2),
            (Latency, [159, 0], 1),
        ];
        for (target, tokens, workers) in cases {
            let mut planner = dynamo(target, None, Some(5));
            assert_eq!(planner.next_tick(), Nanos(5 * S));
            let plan = planner.tick(&at(5, &tokens.map(using), Totals::default())).unwrap();
            assert_eq!(plan.workers, workers, "{target:?} {tokens:?}");
        }
    }

    /// While workers start or drain, it only looks on.
    #[test]
    fn nothing_is_decided_while_the_number_changes() {
        let mut planner = dynamo(PlannerTarget::Latency, None, Some(5));
        let mut snapshot = at(5, &[using(1000)], Totals::default());
        snapshot.workers.starting = 1;
        assert_eq!(planner.tick(&snapshot), None);
        assert_eq!(planner.next_tick(), Nanos(10 * S));
    }

    /// 7,200 requests came, of 64 prompt tokens; a thousand are done, of 10 outputs.
    fn busy() -> Totals {
        Totals {
            arrivals: 7200,
            arrived_tokens: 64 * 7200,
            completed: 1000,
            input_tokens: 64_000,
            output_tokens: 10_000,
            ..Totals::default()
        }
    }

    /// 64 uncached prompt tokens and 10 outputs: a pass of 8 requests takes 2 ms, and 8/10 of a prompt add 10 ms each; 8 /
    /// (10 · 0.010 s) = 80 requests in one second. 40 s of 180 requests a second need 3 workers.
    #[test]
    fn a_plan_is_demand_over_what_a_worker_serves() {
        let sla = PlannerTarget::Sla { ttft: Nanos(100 * MS), itl: Nanos(20 * MS) };
        let mut planner = dynamo(sla, Some(40), None);
        let totals = busy();
        let plan = planner.tick(&at(40, &[using(100)], totals)).unwrap();
        assert_eq!(plan.workers, 3);
        assert_eq!(plan.reason, "demand 180.00 requests/s, 80.00 of a worker");
        // An ITL of 2 ms is out of reach: one request at a time, 1 / (10 · 0.003 s).
        let mut planner =
            dynamo(PlannerTarget::Sla { ttft: Nanos(100 * MS), itl: Nanos(2 * MS) }, Some(40), None);
        let plan = planner.tick(&at(40, &[using(100)], totals)).unwrap();
        assert_eq!((plan.workers, &*plan.reason), (6, "demand 180.00 requests/s, 33.33 of a worker"));
    }

    /// 3,600 requests came in the first interval and 7,200 in the second. The filter believes in 3,600 ± √1000 with no trend
    /// ± √1000; a step on that is 3,600 ± √2001, covariance 1,000. 2001/2011 of the 3,600 more go to the level and 1000/2011 to
    /// the trend: the next interval will bring 8,972.25, 224.31 a second.
    #[test]
    fn a_filter_plans_for_what_comes_next() {
        let sla = PlannerTarget::Sla { ttft: Nanos(100 * MS), itl: Nanos(20 * MS) };
        let mut planner = dynamo(sla, Some(40), None);
        let kalman = LoadPredictor::Kalman { level: 1.0, trend: 0.1, measured: 10.0, log1p: false };
        planner.foretold = Foretold {
            demand: Predictor::new(kalman),
            prompt: Predictor::new(kalman),
            output: Predictor::new(kalman),
        };
        let times = |n: u64| Totals {
            arrivals: 3600 * n,
            arrived_tokens: 64 * 3600 * n,
            completed: 1000 * n,
            input_tokens: 64_000 * n,
            output_tokens: 10_000 * n,
            ..Totals::default()
        };
        let first = planner.tick(&at(40, &[using(100)], times(1))).unwrap();
        assert_eq!(first.reason, "demand 90.00 requests/s, 80.00 of a worker");
        let second = planner.tick(&at(80, &[using(100)], times(3))).unwrap();
        assert_eq!((second.workers, &*second.reason), (3, "demand 224.31 requests/s, 80.00 of a worker"));
    }

    /// 640 queued prompt tokens and 64 of the next request are 11 passes of 12 ms, later than 100 ms: one more. With
    /// nothing queued the next one takes 12 ms: one less of two, but none of one.
    #[test]
    fn a_look_estimates_the_next_first_token() {
        let sla = PlannerTarget::Sla { ttft: Nanos(100 * MS), itl: Nanos(20 * MS) };
        let totals = Totals { arrivals: 10, arrived_tokens: 640, ..Totals::default() };
        let queued = RankLoad { queued_prefill_tokens: 640, waiting: 10, ..using(400) };
        for (ranks, workers) in
            [(vec![queued; 2], 3), (vec![queued, using(100)], 2), (vec![using(100); 2], 1)]
        {
            let mut planner = dynamo(sla, None, Some(5));
            let plan = planner.tick(&at(5, &ranks, totals)).unwrap();
            assert_eq!(plan.workers, workers, "{ranks:?}");
        }
        let plan = dynamo(sla, None, Some(5)).tick(&at(5, &[using(100)], totals)).unwrap();
        assert_eq!((plan.workers, &*plan.reason), (1, "next TTFT at least 12.00 ms, ITL 2.00 ms"));
    }

    /// Both: the plan is the least that the look may go down to.
    #[test]
    fn a_plan_is_the_floor_of_the_looks() {
        let sla = PlannerTarget::Sla { ttft: Nanos(100 * MS), itl: Nanos(20 * MS) };
        let mut planner = dynamo(sla, Some(40), Some(5));
        let totals = busy();
        let plan = planner.tick(&at(40, &[using(100); 4], totals)).unwrap();
        assert_eq!(plan.workers, 3);
        let plan = planner.tick(&at(45, &[using(100); 3], totals)).unwrap();
        assert_eq!(plan.workers, 3);
        assert!(plan.reason.ends_with("no fewer than 3 by demand"), "{}", plan.reason);
    }
}
