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
use windtunnel_live::kv_transfer::Moved;
use windtunnel_live::metrics::{
    CacheInfo, Choices, Connector, Kind, Listed, Registry, SglangInfo, SglangMetrics, VllmMetrics,
    add_sglang_engine, add_vllm_engines, sglang_registry, vllm_registry,
};
use windtunnel_live::observer::{EndReason, Ended, KvTransfer, Observers, PassObserver, RequestTimes};
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

/// The series of a worker of one rank.
fn vllm(context_length: u32, connector: Option<Connector>) -> Registry {
    let registry = vllm_registry(context_length);
    add_vllm_engines(&registry, "m", 0..1, &cache(), connector.is_some());
    registry
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
    let ours = defined(&vllm(8192, None), |_| Vec::new());
    let has_series = |metric: &Metric| metric.series.as_ref().is_some_and(|series| !series.is_empty());
    // Without a connector, nothing is told of one.
    let ours: Vec<Metric> = ours
        .into_iter()
        .filter(|metric| has_series(metric) || !metric.name.starts_with("vllm:nixl_"))
        .collect();
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
fn a_connector_has_what_nixl_s_has() {
    let theirs: Vec<Metric> = golden_lines("vllm_nixl_metrics.jsonl");
    let ours = defined(&vllm(8192, Some(Connector { tensor: 1 })), |_| Vec::new());
    let ours: Vec<Metric> = ours.into_iter().filter(|metric| metric.name.starts_with("vllm:nixl_")).collect();
    assert_eq!(ours, theirs);
}

/// What a transfer leaves behind (nixl/stats.py, 0.33.0): each of two accelerators has moved its half, in the same time. What
/// fails and what expires has counters of its own.
#[test]
fn vllm_tells_of_transfers() {
    let connector = Some(Connector { tensor: 2 });
    let registry = vllm(4096, connector);
    let mut metrics = VllmMetrics::new(registry.clone(), Choices::default(), "m", (0, connector));
    let moved = Moved { took: Nanos(30_000_000), bytes: 8_388_608 };
    metrics.kv_transfer(&KvTransfer::Read(moved));
    metrics.kv_transfer(&KvTransfer::ReadFailed);
    metrics.kv_transfer(&KvTransfer::Expired);
    metrics.kv_transfer(&KvTransfer::Expired);
    let text = registry.text();
    for line in [
        "vllm:nixl_xfer_time_seconds_bucket{engine=\"0\",le=\"0.025\",model_name=\"m\"} 0.0",
        "vllm:nixl_xfer_time_seconds_bucket{engine=\"0\",le=\"0.05\",model_name=\"m\"} 2.0",
        "vllm:nixl_xfer_time_seconds_sum{engine=\"0\",model_name=\"m\"} 0.06",
        "vllm:nixl_bytes_transferred_count{engine=\"0\",model_name=\"m\"} 2.0",
        "vllm:nixl_bytes_transferred_sum{engine=\"0\",model_name=\"m\"} 8.388608e+06",
        "vllm:nixl_num_failed_transfers_total{engine=\"0\",model_name=\"m\"} 1.0",
        "vllm:nixl_num_kv_expired_reqs_total{engine=\"0\",model_name=\"m\"} 2.0",
        "vllm:nixl_post_time_seconds_count{engine=\"0\",model_name=\"m\"} 0.0",
    ] {
        assert!(text.lines().any(|other| other == line), "{line}: {text}");
    }
}

#[test]
fn sglang_defines_what_sglang_defines() {
    let theirs: Vec<Metric> = golden_lines("sglang_metrics.jsonl");
    let info = SglangInfo {
        model: "m".into(),
        engine_type: "unified",
        ranks: 1,
        tensor: 1,
        page_size: 16,
        pages: 100,
        context_length: 8192,
    };
    let labels = |group: &str| match group {
        "Rank" => vec!["engine_type", "model_name", "moe_ep_rank", "pp_rank", "tp_rank"],
        _ => vec!["engine_type", "model_name"],
    };
    let registry = sglang_registry(info.context_length);
    add_sglang_engine(&registry, &info);
    let ours = defined(&registry, labels);
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
    let registry = vllm(4096, None);
    let shared = registry.clone();
    let mut observers = |rank| {
        let mut observers = Observers::default();
        observers.push(Box::new(VllmMetrics::new(shared.clone(), Choices::default(), "m", (rank, None))));
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
        tensor: 2,
        page_size: 1,
        pages: 100,
        context_length: 4096,
    };
    let registry = sglang_registry(info.context_length);
    add_sglang_engine(&registry, &info);
    let mut metrics = SglangMetrics::new(registry.clone(), &info, 0);
    let (worker, _) = common::worker(&deployment(FIXED, &[]), true);
    let asked = request(&worker, 10, 4);
    let hand_offs = HandOffQueues {
        bootstrapping: 1,
        sending: 2,
        preallocating: 3,
        receiving: 4,
        reserved_tokens: 25,
        retracted: 5,
    };
    let stats = RankStats { hand_offs, usable_blocks: 100, ..RankStats::default() };
    metrics.submitted(asked.info(), Nanos::ZERO, &stats);
    let reason = EndReason::Finished(FinishReason::Error);
    let computed = RequestTimes { first_token: Some(Nanos(5)), ..RequestTimes::default() };
    let room = RequestTimes { loaded_tokens: 10, ..RequestTimes::default() };
    for times in [RequestTimes::default(), computed, room] {
        metrics.ended(&Ended { info: asked.info(), times: &times, reason, at: Nanos(9) }, &stats);
    }
    // req_time_stats.py `compute_and_observe_kv_transfer_metrics`: 10 ms for 20 MiB, of which one of two accelerators has
    // moved half: 10 / 1024 GiB in 0.01 s. To nobody, KV is not transferred.
    let (took, waited) = (Nanos(10_000_000), Nanos(3_000_000));
    metrics.kv_transfer(&KvTransfer::Queued(waited));
    metrics.kv_transfer(&KvTransfer::Sent { took, bytes: Some(20 << 20), waited });
    metrics.kv_transfer(&KvTransfer::Sent { took, bytes: None, waited });
    metrics.kv_transfer(&KvTransfer::Reserved(Nanos(2_000_000)));
    let text = registry.text();
    let stages: Vec<&str> =
        text.lines().filter(|line| line.starts_with("sglang:per_stage_req_latency_seconds_sum")).collect();
    assert!(
        stages.len() == 3
            && stages[0].contains("prefill_bootstrap")
            && stages[0].ends_with(" 0.003")
            && stages[1].contains("prefill_transfer_kv_cache")
            && stages[1].ends_with(" 0.02")
            && stages[2].contains("decode_bootstrap")
            && stages[2].ends_with(" 0.002"),
        "{stages:?}"
    );
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
        ("sglang:prealloc_full_token_usage{", "0.25"),
        ("sglang:kv_transfer_latency_ms_sum{", "10.0"),
        ("sglang:kv_transfer_latency_ms_count{", "1.0"),
        ("sglang:kv_transfer_bootstrap_ms_sum{", "3.0"),
        ("sglang:kv_transfer_alloc_ms_count{", "1.0"),
        ("sglang:kv_transfer_total_mb_sum{", "10.0"),
        ("sglang:kv_transfer_speed_gb_s_sum{", "0.9765625"),
        ("sglang:num_bootstrap_failed_reqs_total{", "1.0"),
        ("sglang:num_transfer_failed_reqs_total{", "2.0"),
    ];
    for (name, expected) in values {
        assert_eq!(value(name), expected, "{name}");
    }
}
