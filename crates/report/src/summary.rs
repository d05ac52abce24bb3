//! The metrics of a run, flat and in reading order, each under the one name that docs/glossary.md
//! defines. A metric that has no value (no sample, nothing to divide by) is null, never zero.
//!
//! Wall-clock figures are not here: the same run gives the same summary on any machine.

use crate::collector::Collector;
use crate::fleet::{FleetLog, WorkerChange};
use crate::rank::{DiskRow, HostRow, RankRow};
use crate::ratio::{part, ratio};
use crate::report::RunEnd;
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::borrow::Cow;

/// The value of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A count.
    Integer(u64),
    /// A measured or derived quantity, always finite.
    Real(f64),
    /// A word.
    Word(&'static str),
    /// Undefined in this run.
    Null,
}

impl Number {
    /// The value as a number, none if it has none.
    pub fn as_f64(self) -> Option<f64> {
        match self {
            Number::Integer(n) => Some(n as f64),
            Number::Real(x) => Some(x),
            Number::Word(_) | Number::Null => None,
        }
    }
}

impl From<u64> for Number {
    fn from(n: u64) -> Number {
        Number::Integer(n)
    }
}

impl From<f64> for Number {
    fn from(x: f64) -> Number {
        if x.is_finite() { Number::Real(x) } else { Number::Null }
    }
}

impl From<Option<u64>> for Number {
    fn from(n: Option<u64>) -> Number {
        n.map_or(Number::Null, Number::from)
    }
}

impl From<Option<f64>> for Number {
    fn from(x: Option<f64>) -> Number {
        x.map_or(Number::Null, Number::from)
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Number::Integer(n) => serializer.serialize_u64(n),
            Number::Real(x) => serializer.serialize_f64(x),
            Number::Word(word) => serializer.serialize_str(word),
            Number::Null => serializer.serialize_unit(),
        }
    }
}

/// Statistics of one distribution, in the unit of its metric.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Stats {
    pub count: u64,
    pub mean: Option<f64>,
    pub min: Option<f64>,
    pub max: Option<f64>,
    /// Of [`crate::percentile::PERCENTILES`].
    pub percentiles: [Option<f64>; 5],
    pub std: Option<f64>,
}

impl Stats {
    /// Under the first part of their metrics' names.
    fn named(&self) -> [(&'static str, Option<f64>); 9] {
        let [median, p75, p90, p95, p99] = self.percentiles;
        [
            ("mean", self.mean),
            ("min", self.min),
            ("max", self.max),
            ("median", median),
            ("p75", p75),
            ("p90", p90),
            ("p95", p95),
            ("p99", p99),
            ("std", self.std),
        ]
    }
}

/// Metric → value, in a fixed order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    entries: Vec<(Cow<'static, str>, Number)>,
}

impl Serialize for Summary {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.entries.len()))?;
        for (name, value) in &self.entries {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl Summary {
    /// The metrics in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Number)> {
        self.entries.iter().map(|(name, value)| (name.as_ref(), *value))
    }

    /// The value of a metric; null for one that is not here.
    pub fn get(&self, name: &str) -> Number {
        self.iter().find(|(known, _)| *known == name).map_or(Number::Null, |(_, value)| value)
    }

    pub(crate) fn new(all: Collector, ranks: &[RankRow], run: &RunEnd) -> Summary {
        let mut summary = Summary::default();
        summary.requests_and_rates(&all, run);
        summary.provisioning(&all, run);
        if let Some(fleet) = &run.fleet {
            summary.fleet(&all, fleet);
        }
        summary.reuse(&all, ranks);
        summary.routing(&all);
        summary.distributions(all, run);
        summary.passes(ranks);
        summary.put("percentile_method", Number::Word(run.percentiles.as_str()));
        summary
    }

    fn put(&mut self, name: &'static str, value: impl Into<Number>) {
        self.entries.push((Cow::Borrowed(name), value.into()));
    }

    fn requests_and_rates(&mut self, all: &Collector, run: &RunEnd) {
        let c = &all.counts;
        let duration = c.last_completed.unwrap_or(run.end);
        // At least 1 ns: a run in no time has no rate that could be printed.
        let per_second = |n: u64| ratio(u128::from(n) * 1_000_000_000, duration.0.max(1).into());
        self.put("num_requests", c.completed + c.rejected + c.cancelled + c.failed + run.unfinished);
        self.put("completed_requests", c.completed);
        self.put("rejected_requests", c.rejected);
        self.put("cancelled_requests", c.cancelled);
        self.put("failed_requests", c.failed);
        self.put("unfinished_requests", run.unfinished);
        self.put("total_input_tokens", c.input_tokens);
        self.put("total_output_tokens", c.output_tokens);
        self.put("duration_ms", duration.as_ms());
        self.put("request_throughput_rps", per_second(c.completed));
        self.put("input_throughput_tok_s", per_second(c.input_tokens));
        self.put("output_throughput_tok_s", per_second(c.output_tokens));
        self.put("total_throughput_tok_s", per_second(c.input_tokens + c.output_tokens));
        if all.options.sla.is_some() {
            self.put("goodput_completed_requests", c.good);
            self.put("goodput_request_throughput_rps", per_second(c.good));
            self.put("goodput_output_throughput_tok_s", per_second(c.good_output_tokens));
        }
    }

    fn provisioning(&mut self, all: &Collector, run: &RunEnd) {
        let gpu_time = |pool: crate::Pool| pool.worker_time * u128::from(pool.gpus_per_worker);
        self.put("prefill_worker_seconds", ratio(run.prefill.worker_time, 1_000_000_000));
        self.put("decode_worker_seconds", ratio(run.decode.worker_time, 1_000_000_000));
        self.put("prefill_gpus_per_worker", u64::from(run.prefill.gpus_per_worker));
        self.put("decode_gpus_per_worker", u64::from(run.decode.gpus_per_worker));
        let gpu_nanos = gpu_time(run.prefill) + gpu_time(run.decode);
        let gpu_hours = ratio(gpu_nanos, 3_600_000_000_000);
        self.put("gpu_hours", gpu_hours);
        if let Some(price) = run.price_per_gpu_hour {
            let cost = gpu_hours.map(|hours| hours * price);
            let per_million = |tokens: u64| match tokens {
                0 => None,
                _ => cost.map(|cost| cost / tokens as f64 * 1e6),
            };
            self.put("cost", cost);
            self.put("cost_per_million_output_tokens", per_million(all.counts.output_tokens));
        }
    }

    fn fleet(&mut self, all: &Collector, fleet: &FleetLog) {
        let (ups, downs) = fleet.scalings();
        self.put("scale_ups", ups);
        self.put("scale_downs", downs);
        self.put("peak_workers", u64::from(fleet.peak_workers));
        self.put("worker_crashes", fleet.count(WorkerChange::Crashed));
        self.put("retried_requests", all.counts.retried);
        self.put("request_retries", all.counts.retries);
        self.put("lost_kv_event_batches", fleet.lost_kv_event_batches);
    }

    fn reuse(&mut self, all: &Collector, ranks: &[RankRow]) {
        let c = &all.counts;
        let sum = |field: fn(&RankRow) -> u64| ranks.iter().map(field).sum::<u64>();
        self.put("committed_prefill_tokens", sum(|row| row.prefill_tokens));
        self.put("prefix_cache_reused_ratio", part(c.reused_tokens, c.input_tokens));
        self.put(
            "first_admission_prefix_cache_reused_ratio",
            part(c.first_admission_reused_tokens, c.input_tokens),
        );
        let (hits, queries) = (sum(|row| row.prefix_cache_hits), sum(|row| row.prefix_cache_queries));
        self.put("prefix_cache_hit_rate", part(hits, queries));
        let tier = |field: fn(&HostRow) -> u64| {
            ranks.iter().filter_map(|row| row.host.as_ref().map(field)).reduce(|a, b| a + b)
        };
        self.put("host_kv_hit_tokens", tier(|row| row.hit_tokens));
        self.put("host_kv_bytes_written", tier(|row| row.bytes_to_host));
        self.put("host_kv_bytes_read", tier(|row| row.bytes_from_host));
        if ranks.iter().any(|row| row.disk.is_some()) {
            let disk = |field: fn(&DiskRow) -> u64| {
                ranks.iter().filter_map(|row| row.disk.as_ref().map(field)).sum::<u64>()
            };
            self.put("disk_kv_hit_tokens", disk(|row| row.hit_tokens));
            self.put("disk_kv_bytes_written", disk(|row| row.bytes_written));
            self.put("disk_kv_bytes_read", disk(|row| row.bytes_read));
        }
    }

    fn routing(&mut self, all: &Collector) {
        let c = &all.counts;
        let [tokens, overlap, best] = c.routed;
        self.put("router_overlap_ratio", part(overlap, tokens));
        self.put("router_best_overlap_ratio", part(best, tokens));
        self.put("router_regret_ratio", part(best - overlap, tokens));
        self.put("router_held_requests", c.held);
        self.put("mean_router_wait_ms", ratio(c.held_time, u128::from(c.completed) * 1_000_000));
    }

    fn distributions(&mut self, all: Collector, run: &RunEnd) {
        let method = run.percentiles;
        let ttft = all.latencies.ttft.stats(method, 1_000_000);
        let ttst = all.latencies.ttst.stats(method, 1_000_000);
        let tpot = all.latencies.tpot.stats(method, 1_000_000_000);
        let e2e = all.latencies.e2e.stats(method, 1_000_000);
        let (itl, per_user) = all.gaps.stats(method);
        self.put("num_ttft_samples", ttft.count);
        self.put("num_ttst_samples", ttst.count);
        self.put("num_tpot_samples", tpot.count);
        self.put("num_itl_samples", itl.count);
        self.put("num_e2e_latency_samples", e2e.count);
        for (metric, stats) in [
            ("ttft_ms", ttft),
            ("ttst_ms", ttst),
            ("tpot_ms", tpot),
            ("itl_ms", itl),
            ("e2e_latency_ms", e2e),
            ("output_token_throughput_per_user", per_user),
        ] {
            for (statistic, value) in stats.named() {
                self.entries.push((Cow::Owned(format!("{statistic}_{metric}")), value.into()));
            }
        }
    }

    fn passes(&mut self, ranks: &[RankRow]) {
        let sum = |field: fn(&RankRow) -> u64| ranks.iter().map(field).sum::<u64>();
        self.put("passes", sum(|row| row.passes));
        self.put("prefill_passes", sum(|row| row.prefill_passes));
        self.put("decode_passes", sum(|row| row.decode_passes));
        self.put("preemptions", sum(|row| row.preemptions));
        self.put("evicted_blocks", sum(|row| row.evicted_blocks));
        self.put("peak_kv_usage", ranks.iter().filter_map(RankRow::peak_kv_usage).reduce(f64::max));
    }
}
