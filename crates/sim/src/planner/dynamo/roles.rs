//! The rules of Dynamo's planner for prefill and decode workers apart: one planner for both, because they share its budget
//! of accelerators.
//!
//! After ai-dynamo/dynamo components/src/dynamo/planner/core (throughput_scaling.py, load_scaling.py, budget.py,
//! perf_model/prefill.py and decode.py). A plan has as many prefill workers as compute the prompts that come, and as many
//! decode workers as give the tokens in time; a look goes by the prompts that wait on the one side and by the KV cache on the
//! other. What both want together beyond the budget is cut down in proportion.

use super::super::{Plan, RankLoad, Snapshot, Totals};
use super::{Forecast, Foretold, LATENCY, Model, THROUGHPUT};
use windtunnel_config::{Deployment, DynamoPlanner, PlannerTarget, Scaling};
use windtunnel_engine::{DecodeSet, Nanos};
use windtunnel_report::short;

/// Prompt tokens that wait on a prefill rank, as a part of the context length, to scale up from and down below
/// (`_PREFILL_*_SCALE_*`).
const QUEUED_THROUGHPUT: (f64, f64) = (1.0, 0.1);
const QUEUED_LATENCY: (f64, f64) = (0.1, 0.0);

/// What is known of a role.
struct Side {
    model: Model,
    gpus: u32,
    least: u32,
    context_length: u32,
}

pub(crate) struct DynamoRoles {
    settings: DynamoPlanner,
    /// Prefill and decode.
    sides: [Side; 2],
    next_plan: Nanos,
    next_look: Nanos,
    /// When there was a plan last, and the totals then.
    planned: (Nanos, Totals),
    /// Fewest workers by the last plan.
    floor: [u32; 2],
    /// The part of prompts found in the cache, by the last plan.
    hit_rate: f64,
    foretold: Foretold,
}

impl DynamoRoles {
    pub(in crate::planner) fn new(
        settings: DynamoPlanner,
        roles: [(&Scaling, &Deployment); 2],
    ) -> DynamoRoles {
        DynamoRoles {
            next_plan: settings.throughput_interval.unwrap_or(Nanos::NEVER),
            next_look: settings.load_interval.unwrap_or(Nanos::NEVER),
            foretold: Foretold::new(settings.predictor),
            settings,
            floor: roles.map(|(scaling, _)| scaling.least),
            sides: roles.map(|(scaling, deployment)| Side {
                model: Model::new(deployment),
                gpus: deployment.gpus_per_worker,
                least: scaling.least,
                context_length: deployment.context_length(),
            }),
            planned: (Nanos::ZERO, Totals::default()),
            hit_rate: 0.0,
        }
    }

    pub(in crate::planner) fn next_tick(&self) -> Nanos {
        self.next_plan.min(self.next_look)
    }

    pub(in crate::planner) fn tick(&mut self, snapshots: &[Snapshot; 2]) -> [Option<Plan>; 2] {
        let now = snapshots[0].now;
        let mut decided = [None, None];
        if self.next_plan <= now
            && let Some(interval) = self.settings.throughput_interval
        {
            self.next_plan = now + interval;
            if let Some(plans) = self.plan(&snapshots[1]) {
                match self.settings.load_interval {
                    Some(_) => self.floor = plans.each_ref().map(|plan| plan.workers),
                    None => decided = self.within_budget(plans).map(Some),
                }
            }
        }
        if self.next_look <= now
            && let Some(interval) = self.settings.load_interval
        {
            self.next_look = now + interval;
            if let Some(plans) = self.look(snapshots) {
                decided = self.within_budget(plans).map(Some);
            }
        }
        decided
    }

    /// As many workers of each role as the demand of the last interval needs, if anything arrived.
    fn plan(&mut self, snapshot: &Snapshot) -> Option<[Plan; 2]> {
        let (since, totals) = std::mem::replace(&mut self.planned, (snapshot.now, snapshot.totals));
        let window = snapshot.totals.since(&totals);
        let PlannerTarget::Sla { ttft, itl } = self.settings.target else { return None };
        let Forecast { demand, prompt, output } = self.foretold.next(&window, snapshot.now.since(since))?;
        self.hit_rate = window.hit_rate();
        let [prefill, decode] = &self.sides;
        let first = prefill.model.prefill_ms(prompt * (1.0 - self.hit_rate), DecodeSet::default());
        let served = f64::from(prefill.model.ranks) * 1000.0 / first;
        // Where one prompt alone takes longer than is promised, as many times more workers as it does.
        let late = if first > ttft.as_ms() { (first / ttft.as_ms()).ceil() } else { 0.0 };
        let given = decode.model.decode_rate(prompt + output / 2.0, output, itl);
        let of = |side: &Side, workers: f64, rate: f64| Plan {
            // A saturating conversion.
            workers: (workers as u32).max(side.least),
            reason: format!("demand {} requests/s, {} of a worker", short(demand), short(rate)),
        };
        let computing = (demand / served).ceil().max(late);
        Some([of(prefill, computing, served), of(decode, (demand / given).ceil(), given)])
    }

    /// One worker of each role more or less, by what its ranks have to do. Not while a number is changing.
    fn look(&self, snapshots: &[Snapshot; 2]) -> Option<[Plan; 2]> {
        let changes = |snapshot: &Snapshot| snapshot.workers.starting > 0 || snapshot.workers.draining > 0;
        if snapshots.iter().any(|snapshot| changes(snapshot) || snapshot.ranks.is_empty()) {
            return None;
        }
        let [prefill, decode] = snapshots;
        let mut plans = match self.settings.target {
            PlannerTarget::Throughput => {
                [self.by_queues(prefill, QUEUED_THROUGHPUT), self.by_usage(decode, THROUGHPUT)]
            }
            PlannerTarget::Latency => {
                [self.by_queues(prefill, QUEUED_LATENCY), self.by_usage(decode, LATENCY)]
            }
            PlannerTarget::Sla { ttft, itl } => {
                if decode.totals.arrivals == 0 {
                    return None;
                }
                [self.by_first_token(prefill, &decode.totals, ttft), self.by_gap(decode, itl)]
            }
        };
        for ((plan, side), floor) in plans.iter_mut().zip(&self.sides).zip(self.floor) {
            let least = floor.max(side.least);
            if plan.workers < least {
                plan.reason.push_str(&format!(", no fewer than {least} by demand"));
                plan.workers = least;
            }
        }
        Some(plans)
    }

    /// Prompts wait on any rank from the one part of the context length on: one more. On all below the other: one less.
    fn by_queues(&self, snapshot: &Snapshot, (up, down): (f64, f64)) -> Plan {
        let length = f64::from(self.sides[0].context_length);
        let most =
            snapshot.ranks.iter().map(|rank| rank.queued_prefill_tokens).max().unwrap_or(0) as f64 / length;
        let current = snapshot.workers.ready;
        // Nothing is below nothing: there the queues have to be empty.
        let empty = most < down || (down == 0.0 && most == 0.0);
        let workers = step(current, most >= up, empty);
        Plan { workers, reason: format!("queued prompts at most {}, bounds {up} and {down}", short(most)) }
    }

    /// The KV cache of any rank in use above the one threshold: one more. Of all below the other: one less.
    fn by_usage(&self, snapshot: &Snapshot, (up, down): (f64, f64)) -> Plan {
        let usage = |rank: &RankLoad| tokens(rank) as f64 / self.sides[1].model.kv_tokens as f64;
        let most = snapshot.ranks.iter().map(usage).fold(0.0, f64::max);
        let workers = step(snapshot.workers.ready, most > up, most < down);
        Plan { workers, reason: format!("KV usage at most {}, bounds {up} and {down}", short(most)) }
    }

    /// All ranks would compute a new prompt later than is promised: one more. With one worker less, what waits would leave
    /// the promise room to spare: one less.
    fn by_first_token(&self, snapshot: &Snapshot, totals: &Totals, ttft: Nanos) -> Plan {
        let prompt = totals.arrived_tokens as f64 / totals.arrivals as f64;
        let first_token = |queued: f64| {
            let tokens = (queued + prompt) * (1.0 - self.hit_rate);
            self.sides[0].model.prefill_ms(tokens, DecodeSet::default())
        };
        let current = snapshot.workers.ready;
        let (own, scale) = (first_token(0.0), others(current));
        let budget = (ttft.as_ms() - own) * self.settings.sensitivity;
        let queued = snapshot.ranks.iter().map(|rank| rank.queued_prefill_tokens as f64);
        let least = queued.clone().map(first_token).fold(f64::INFINITY, f64::min);
        let fewer = budget > 0.0 && queued.clone().all(|queued| first_token(queued * scale) - own < budget);
        let workers = step(current, least > ttft.as_ms(), fewer);
        Plan { workers, reason: format!("next TTFT at least {} ms", short(least)) }
    }

    /// All ranks would give tokens further apart than is promised with one request more: one more. With one worker less the
    /// promise would be kept with room to spare, and in the KV cache: one less.
    fn by_gap(&self, snapshot: &Snapshot, itl: Nanos) -> Plan {
        let model = &self.sides[1].model;
        let gap = |rank: &RankLoad, scale: f64| model.pass_ms(model.decodes_and_one(rank, scale));
        let current = snapshot.workers.ready;
        let scale = others(current);
        let ranks = &snapshot.ranks;
        let least = ranks.iter().map(|rank| gap(rank, 1.0)).fold(f64::INFINITY, f64::min);
        let bound = itl.as_ms() * self.settings.sensitivity;
        let fits = |rank: &RankLoad| tokens(rank) as f64 * scale < model.kv_tokens as f64;
        let fewer = ranks.iter().all(|rank| fits(rank) && gap(rank, scale) < bound);
        let workers = step(current, least > itl.as_ms(), fewer);
        Plan { workers, reason: format!("next ITL at least {} ms", short(least)) }
    }

    /// No more than the budget has accelerators for: prefill workers in proportion, and what is left decodes
    /// (`_apply_global_budget`).
    fn within_budget(&self, mut plans: [Plan; 2]) -> [Plan; 2] {
        let [prefill, decode] = &self.sides;
        let budget = u64::from(self.settings.max_gpus);
        let (per_prefill, per_decode) = (u64::from(prefill.gpus), u64::from(decode.gpus));
        let [p, d] = [&plans[0], &plans[1]].map(|plan| u64::from(plan.workers));
        let wanted = p * per_prefill + d * per_decode;
        if wanted <= budget {
            return plans;
        }
        let most = budget.saturating_sub(u64::from(decode.least) * per_decode) / per_prefill;
        let p = (p * budget / wanted).min(most).max(prefill.least.into());
        let d = (budget.saturating_sub(p * per_prefill) / per_decode).max(decode.least.into());
        for (plan, workers) in plans.iter_mut().zip([p, d]) {
            if u64::from(plan.workers) != workers {
                plan.reason.push_str(&format!(", {wanted} GPUs of {budget}"));
                // No more than the budget has.
                plan.workers = workers as u32;
            }
        }
        plans
    }
}

/// Tokens that a rank has or is to have in its KV cache.
fn tokens(rank: &RankLoad) -> u64 {
    rank.running_tokens + rank.queued_decode_tokens + rank.queued_prefill_tokens
}

/// One more, one less if there are several, or as many.
fn step(current: u32, more: bool, fewer: bool) -> u32 {
    if more {
        current + 1
    } else if fewer && current > 1 {
        current - 1
    } else {
        current
    }
}

/// How many times its own load each has when one of so many goes.
fn others(workers: u32) -> f64 {
    if workers > 1 { f64::from(workers) / f64::from(workers - 1) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::super::super::Counts;
    use super::*;
    use windtunnel_config::{LoadPredictor, PlannerPolicy};

    const S: u64 = 1_000_000_000;

    /// A prefill pass takes 10 ms and a decode pass 2; 8 seats, 64 tokens a pass, 100 blocks of 16, a context of 640 tokens.
    /// Prefill workers have two GPUs each, decode workers one.
    fn planner(target: PlannerTarget, seconds: [Option<u64>; 2], gpus: u32) -> DynamoRoles {
        let worker = "{scheduler: {max_batched_tokens: 64, max_sequences: 8}, timing: {type: fixed, prefill_ms: 10, \
                      decode_ms: 2}, kv_cache: {block_size: 16, capacity: {type: fixed, blocks: 101}}";
        let text = format!(
            "engine: {{mode: disaggregated, model: m, hardware: h, context_length: 640, workers: {{prefill: {worker}, \
             parallelism: {{tensor: 2}}}}, decode: {worker}}}}}}}"
        );
        let experiment = windtunnel_config::from_str("test.yaml", &text, &[]).unwrap();
        let [throughput_interval, load_interval] = seconds.map(|of| of.map(|seconds| Nanos(seconds * S)));
        let predictor = LoadPredictor::Constant;
        let settings = DynamoPlanner {
            target,
            throughput_interval,
            load_interval,
            sensitivity: 0.8,
            predictor,
            max_gpus: gpus,
        };
        let scaling = Scaling { planner: PlannerPolicy::Dynamo(settings.clone()), least: 1, most: 100 };
        let prefill = &experiment.prefill.as_ref().unwrap().deployment;
        DynamoRoles::new(settings, [(&scaling, prefill), (&scaling, &experiment.deployment)])
    }

    fn sla(ttft: u64, itl: u64) -> PlannerTarget {
        PlannerTarget::Sla { ttft: Nanos(ttft * 1_000_000), itl: Nanos(itl * 1_000_000) }
    }

    fn at(second: u64, ranks: [&[RankLoad]; 2], totals: Totals) -> [Snapshot; 2] {
        ranks.map(|ranks| Snapshot {
            now: Nanos(second * S),
            workers: Counts { ready: ranks.len() as u32, starting: 0, draining: 0 },
            ranks: ranks.to_vec(),
            held: 0,
            totals,
        })
    }

    fn queued(tokens: u64) -> RankLoad {
        RankLoad { waiting: 1, queued_prefill_tokens: tokens, ..RankLoad::default() }
    }

    fn running(tokens: u64) -> RankLoad {
        RankLoad { running: 4, running_tokens: tokens, ..RankLoad::default() }
    }

    fn workers(plans: &[Option<Plan>; 2]) -> [u32; 2] {
        plans.each_ref().map(|plan| plan.as_ref().unwrap().workers)
    }

    /// 180 requests a second came, of 128 prompt tokens, none cached: 20 ms each, 50 a second of a worker, so 4. A decode
    /// worker gives 8 requests their 10 tokens in 10 passes of 2 ms: 400 a second, so 1.
    fn busy() -> Totals {
        Totals {
            arrivals: 7200,
            arrived_tokens: 128 * 7200,
            completed: 1000,
            input_tokens: 128_000,
            output_tokens: 10_000,
            ..Totals::default()
        }
    }

    #[test]
    fn a_plan_is_demand_over_what_a_worker_of_each_role_serves() {
        let none: [&[RankLoad]; 2] = [&[], &[]];
        let plans = planner(sla(100, 20), [Some(40), None], 100).tick(&at(40, none, busy()));
        assert_eq!(workers(&plans), [4, 1]);
        assert_eq!(plans[0].as_ref().unwrap().reason, "demand 180.00 requests/s, 50.00 of a worker");
        assert_eq!(plans[1].as_ref().unwrap().reason, "demand 180.00 requests/s, 400.00 of a worker");
        // Half of each prompt is cached: 64 tokens, 10 ms, 100 a second.
        let cached = Totals { reused_tokens: 64_000, ..busy() };
        assert_eq!(
            workers(&planner(sla(100, 20), [Some(40), None], 100).tick(&at(40, none, cached))),
            [2, 1]
        );
        // A prompt alone takes 20 ms of 3: seven times as many, ⌈20 / 3⌉. An ITL of 1 ms is out of reach: one request at a
        // time, 50 a second.
        assert_eq!(workers(&planner(sla(3, 1), [Some(40), None], 100).tick(&at(40, none, busy()))), [7, 4]);
    }

    /// 4 prefill workers of two GPUs and 1 decode worker: 9. Of 6 GPUs prefill gets ⌊4 · 6/9⌋ = 2 workers, and decode the
    /// other 2 GPUs.
    #[test]
    fn both_roles_share_the_budget() {
        let plans = planner(sla(100, 20), [Some(40), None], 6).tick(&at(40, [&[], &[]], busy()));
        assert_eq!(workers(&plans), [2, 2]);
        assert!(plans[0].as_ref().unwrap().reason.ends_with(", 9 GPUs of 6"));
    }

    /// Thresholds of load_scaling.py: prompts that wait, as a part of 640 tokens, from 1 on (latency: 0.1) and below 0.1 (none);
    /// KV in use, as a part of 1600 tokens, above 1 (0.4) and below 0.6 (0.1).
    #[test]
    fn easy_targets_go_by_queues_on_the_one_side_and_caches_on_the_other() {
        use PlannerTarget::{Latency, Throughput};
        let cases = [
            (Throughput, [640, 0], [1601, 0], [3, 3]),
            (Throughput, [639, 64], [1600, 960], [2, 2]),
            (Throughput, [63, 0], [959, 0], [1, 1]),
            (Latency, [64, 0], [641, 0], [3, 3]),
            (Latency, [63, 1], [640, 160], [2, 2]),
            (Latency, [0, 0], [159, 0], [1, 1]),
        ];
        for (target, prompts, caches, expected) in cases {
            let ranks = [&prompts.map(queued)[..], &caches.map(running)[..]];
            let plans = planner(target, [None, Some(5)], 100).tick(&at(5, ranks, Totals::default()));
            assert_eq!(workers(&plans), expected, "{target:?} {prompts:?} {caches:?}");
        }
    }

    /// 640 prompt tokens that wait and 64 of the next request are 11 passes of 10 ms. With nothing waiting one pass is far from
    /// 100 ms: one less of two. A pass of 5 requests takes 2 ms.
    #[test]
    fn a_look_goes_by_the_promise_of_each_role() {
        let totals = Totals { arrivals: 10, arrived_tokens: 640, ..Totals::default() };
        let of = |target, prompts: [u64; 2]| {
            let ranks = [&prompts.map(queued)[..], &[running(400); 2][..]];
            workers(&planner(target, [None, Some(5)], 100).tick(&at(5, ranks, totals)))
        };
        assert_eq!(of(sla(100, 20), [640, 640]), [3, 1]);
        assert_eq!(of(sla(100, 20), [640, 0]), [2, 1]);
        assert_eq!(of(sla(100, 1), [0, 0]), [1, 3]);
        // 2 ms are no less than 0.8 · 2.
        assert_eq!(of(sla(100, 2), [0, 0]), [1, 2]);
    }

    /// While workers of one role start, nothing is decided for either; a plan is what a look goes down to.
    #[test]
    fn looks_wait_for_both_and_keep_to_the_plan() {
        let mut planner = planner(sla(100, 20), [Some(40), Some(5)], 100);
        let idle: [&[RankLoad]; 2] = [&[queued(0); 5], &[running(4); 2]];
        let mut snapshots = at(40, idle, busy());
        snapshots[1].workers.starting = 1;
        assert_eq!(planner.tick(&snapshots), [None, None]);
        let plans = planner.tick(&at(45, idle, busy()));
        assert_eq!(workers(&plans), [4, 1]);
        let plans = planner.tick(&at(50, [&[queued(0); 4], &[running(4); 2]], busy()));
        assert_eq!(workers(&plans), [4, 1]);
        assert!(plans[0].as_ref().unwrap().reason.ends_with(", no fewer than 4 by demand"));
    }
}
