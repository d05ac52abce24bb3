//! The metrics that workers define, against those that the real engines define (`tools/wire/metric_sets.py` made the
//! goldens), and their values after requests.

mod common;
mod goldens;

use common::{FIXED, block_on, deployment, request};
use goldens::golden_lines;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use windtunnel_engine::{FinishReason, HandOffQueues, Nanos, RankStats};
use windtunnel_live::metrics::{
    CacheInfo, Choices, Kind, Listed, Registry, SglangInfo, SglangMetrics, VllmMetrics, sglang_registry,
    vllm_registry,
};
use windtunnel_live::observer::{EndReason, Ended, Observers, PassObserver, RequestTimes};
use windtunnel_live::{Worker, WorkerOptions};

#[derive(Debug, Deserialize, PartialEq)]
struct Metric {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    labels: Vec<String>,
    #[serde(default)]
    buckets: Vec<f64>,
    series: Option<Vec<BTreeMap<String, String>>>,
}

fn defined(registry: &Registry, group_labels: impl Fn(&str) -> Vec<&'static str>) -> Vec<Metric> {
    let metric = |listed: Listed| {
        let Listed { definition, bounds: buckets, series } = listed;
        let mut labels: Vec<String> = match series.first() {
            Some(labels) => labels.iter().map(|(name, _)| name.clone()).collect(),
            None => {
                let group = format!("{:?}", definition.group);
                let own = definition.extra.iter().map(|&(name, _)| name);
                group_labels(&group).into_iter().chain(own).map(str::to_owned).collect()
            }
        };
        labels.sort();
        let kind = match definition.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) | Kind::UpToContext => "histogram",
        };
        let series = series.into_iter().map(|labels| labels.into_iter().collect()).collect();
        Metric { name: definition.name.into(), kind: kind.into(), labels, buckets, series: Some(series) }
    };
    registry.listing().into_iter().map(metric).collect()
}

fn cache() -> CacheInfo {
    CacheInfo {
        block_size: 16,
        num_gpu_blocks: 101,
        prefix_caching: true,
        hash_algorithm: "sha256",
        gpu_memory_utilization: 0.9,
    }
}

#[test]
fn vllm_defines_what_vllm_defines_with_all_series_at_zero() {
    let theirs: Vec<Metric> = golden_lines("vllm_metrics.jsonl");
    let ours = defined(&vllm_registry("m", 1, 8192, &cache()), |_| Vec::new());
    assert_eq!(ours.len(), theirs.len());
    for (mut ours, theirs) in ours.into_iter().zip(theirs) {
        if theirs.name == "vllm:cache_config_info" {
            // Its labels are settings.
            ours.series = Some(vec![BTreeMap::new()]);
        }
        assert_eq!(ours, theirs);
    }
}

#[test]
fn sglang_defines_what_sglang_defines() {
    let theirs: Vec<Metric> = golden_lines("sglang_metrics.jsonl");
    let info = SglangInfo {
        model: "m".into(),
        engine_type: "unified",
        ranks: 1,
        page_size: 16,
        pages: 100,
        context_length: 8192,
    };
    let labels = |group: &str| match group {
        "Rank" => vec!["engine_type", "model_name", "moe_ep_rank", "pp_rank", "tp_rank"],
        _ => vec!["engine_type", "model_name"],
    };
    let ours = defined(&sglang_registry(&info), labels);
    assert_eq!(ours.len(), theirs.len());
    for (mut ours, theirs) in ours.into_iter().zip(theirs) {
        ours.series = None;
        assert_eq!(ours, theirs);
    }
}

/// Two requests of one prompt, one after the other. H8 (llmd#544): the values are there when the client has seen the end. H9
/// (llmd#615): counters end in `_total`. H16 (vllm#6337): times are in the buckets in which clients see them.
#[test]
fn h8_h9_h16_values_tell_what_happened() {
    let registry = vllm_registry("m", 1, 4096, &cache());
    let shared = registry.clone();
    let mut observers = |rank| {
        let mut observers = Observers::default();
        observers.push(Box::new(VllmMetrics::new(shared.clone(), Choices::default(), "m", (rank, false))));
        observers
    };
    let options = WorkerOptions {
        replicas: NonZeroU32::MIN,
        no_delay: false,
        kv_events: false,
        transfers: None,
        routed: false,
        observers: &mut observers,
    };
    let worker = Worker::start(&deployment(FIXED, &[]), options).expect("a worker");
    let first = request(&worker, 40, 3);
    let prompt = first.info().prompt.clone();
    let handle = worker.submit(first, None).expect("taken");
    block_on(handle.stream().ended());
    let mut again = request(&worker, 40, 3);
    let mut info = (**again.info()).clone();
    info.prompt = prompt;
    again = common::submission(info);
    let handle = worker.submit(again, None).expect("taken");
    block_on(handle.stream().ended());

    // H8: what a client has seen, a scrape shows.
    let text = registry.text();
    let value = |series: &str| {
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{series} ")))
            .unwrap_or_else(|| panic!("{series}"));
        line.rsplit_once(' ').expect("a value").1.to_owned()
    };
    let of = |name: &str| value(&format!("{name}{{engine=\"0\",model_name=\"m\"}}"));
    assert_eq!(of("vllm:prompt_tokens_total"), "80.0");
    assert_eq!(of("vllm:generation_tokens_total"), "6.0");
    // M15: hits and queries count tokens: two of the 16-token blocks of the second prompt.
    assert_eq!(
        (of("vllm:prefix_cache_queries_total"), of("vllm:prefix_cache_hits_total")),
        ("80.0".into(), "32.0".into())
    );
    assert_eq!(of("vllm:prompt_tokens_cached_total"), "32.0");
    assert_eq!(
        value("vllm:request_success_total{engine=\"0\",finished_reason=\"length\",model_name=\"m\"}"),
        "2.0"
    );
    assert_eq!(
        (of("vllm:num_requests_running"), of("vllm:num_requests_waiting")),
        ("0.0".into(), "0.0".into())
    );
    // Gaps of 10 ms (fixed timing), two a request; first tokens after 100 ms.
    assert_eq!(of("vllm:inter_token_latency_seconds_count"), "4.0");
    assert_eq!(of("vllm:inter_token_latency_seconds_sum"), "0.04");
    assert_eq!(
        value("vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"0.08\",model_name=\"m\"}"),
        "0.0"
    );
    assert_eq!(
        value("vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"0.25\",model_name=\"m\"}"),
        "2.0"
    );
    assert_eq!(of("vllm:iteration_tokens_total_count"), "6.0");
    assert_eq!(of("vllm:iteration_tokens_total_sum"), "54.0");
    assert_eq!(of("vllm:request_params_n_sum"), "2.0");
}

/// metrics_reporter.py sets the lengths of the queues; prefill.py and decode.py count the requests whose hand-off failed,
/// before or during the transfer (0.5.23).
#[test]
fn sglang_tells_of_hand_offs() {
    let info = SglangInfo {
        model: "m".into(),
        engine_type: "prefill",
        ranks: 1,
        page_size: 1,
        pages: 100,
        context_length: 4096,
    };
    let registry = sglang_registry(&info);
    let mut metrics = SglangMetrics::new(registry.clone(), &info, 0);
    let (worker, _) = common::worker(&deployment(FIXED, &[]), true);
    let asked = request(&worker, 10, 4);
    let hand_offs =
        HandOffQueues { bootstrapping: 1, sending: 2, preallocating: 3, receiving: 4, retracted: 5 };
    let stats = RankStats { hand_offs, ..RankStats::default() };
    metrics.submitted(asked.info(), Nanos::ZERO, &stats);
    let reason = EndReason::Finished(FinishReason::Error);
    let computed = RequestTimes { first_token: Some(Nanos(5)), ..RequestTimes::default() };
    let room = RequestTimes { loaded_tokens: 10, ..RequestTimes::default() };
    for times in [RequestTimes::default(), computed, room] {
        metrics.ended(&Ended { info: asked.info(), times: &times, reason, at: Nanos(9) }, &stats);
    }
    let text = registry.text();
    let value = |name: &str| {
        let line =
            text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        assert!(line.contains("engine_type=\"prefill\""), "{line}");
        line.rsplit_once(' ').expect("a value").1.to_owned()
    };
    let values = [
        ("sglang:num_prefill_bootstrap_queue_reqs{", "1.0"),
        ("sglang:num_prefill_inflight_queue_reqs{", "2.0"),
        ("sglang:num_decode_prealloc_queue_reqs{", "3.0"),
        ("sglang:num_decode_transfer_queue_reqs{", "4.0"),
        ("sglang:num_bootstrap_failed_reqs_total{", "1.0"),
        ("sglang:num_transfer_failed_reqs_total{", "2.0"),
    ];
    for (name, expected) in values {
        assert_eq!(value(name), expected, "{name}");
    }
}
