//! The peer's answers (AISimulate 0.13.0, recorded on its own configurations), to the printed digit.
//!
//! Needs the traces and recorded reports in `../shared` beside the checkout; skips with a printed reason
//! where they are absent. `benches/suite.py` compares more keys and measures the time.
//!
//! Under tight KV the answers agree as well, since `aisimulate_0_13` counts the work of resumed requests
//! as the peer does (`ResumedWork::PromptAndDecode`); without that rule they do not, which the last test
//! shows. Two figures differ and are not compared there: the peer's reuse ratio counts a resumed request's
//! own output blocks beyond its prompt, ours ends at the prompt; and its committed prefill tokens are a
//! few lower (13 of 137,209,086 on the tight row of one worker).

use std::path::{Path, PathBuf};
use windtunnel_report::Report;
use windtunnel_sim::{Options, run};

/// duration, passes, mean TTFT, mean ITL, mean E2E, reuse, preemptions, as the peer reported them.
struct Row {
    name: &'static str,
    duration_ms: &'static str,
    passes: u64,
    ttft_ms: &'static str,
    itl_ms: &'static str,
    e2e_ms: &'static str,
    reuse: &'static str,
    preemptions: u64,
}

const fn row(name: &'static str, figures: [&'static str; 5], passes: u64, preemptions: u64) -> Row {
    let [duration_ms, ttft_ms, itl_ms, e2e_ms, reuse] = figures;
    Row { name, duration_ms, passes, ttft_ms, itl_ms, e2e_ms, reuse, preemptions }
}

const ROWS: &[Row] = &[
    row("conv-1w-poly-ample", ["3543261.267", "1196.719", "14.2761", "6073.69", "0.37359"], 285_402, 0),
    row("conv-1w-fixed-ample", ["3545196.000", "438.451", "15.0540", "5581.20", "0.37359"], 237_144, 0),
    row("conv-8w-poly-ample", ["3540334.791", "298.700", "6.1007", "2382.83", "0.13899"], 3_023_614, 0),
    row("conv-8w-fixed-ample", ["3544355.000", "155.227", "12.4266", "4400.39", "0.13899"], 2_059_724, 0),
    row("syn-1w-poly-ample", ["1022536.310", "524.018", "19.3636", "3392.13", "0.65114"], 87_104, 0),
    row("load-100k-poly", ["2001772.739", "60.790", "10.9806", "2860.85", "0.00000"], 1_440_568, 0),
    row("load-1M-poly", ["1000140.551", "44.596", "30.0162", "494.84", "0.00000"], 266_560, 0),
    row("conv-1w-poly-tight", ["4590602.326", "545732.721", "88.2330", "575874.79", "0.06830"], 51_999, 173),
    row("conv-1w-fixed-tight", ["3545328.000", "650.467", "17.3123", "6564.67", "0.05380"], 208_720, 0),
    row("conv-8w-poly-tight", ["3550946.720", "358.800", "14.0514", "5159.03", "0.04948"], 2_090_430, 1),
    row("conv-8w-fixed-tight", ["3544355.000", "165.963", "12.4627", "4423.47", "0.04872"], 2_054_390, 0),
    row(
        "conv-1w-sglang-poly-page64-ample",
        ["3543057.727", "1134.915", "14.3875", "6049.95", "0.37359"],
        296_974,
        0,
    ),
    row(
        "conv-1w-sglang-poly-ample102M",
        ["3543066.472", "1136.475", "14.3899", "6052.34", "0.37362"],
        296_876,
        0,
    ),
    row("syn-1w-poly-tight", ["1290607.598", "98986.730", "191.4373", "127342.22", "0.12966"], 7_213, 0),
    row("conv-4p4d-poly-ample", ["3540560.119", "467.091", "5.7566", "2433.65", "0.19557"], 2_127_850, 0),
    row("conv-4p4d-fixed-ample", ["3544283.458", "219.022", "12.0000", "4318.45", "0.19557"], 1_179_583, 0),
    row("conv-4p4d-fixed-tight", ["3544283.458", "243.169", "12.0000", "4342.60", "0.04519"], 1_182_761, 0),
    row("syn-4p4d-poly-ample", ["1022556.617", "280.860", "5.7460", "1131.95", "0.37147"], 436_976, 0),
    row("syn-4p4d-poly-tight", ["1023058.647", "427.524", "8.7057", "1717.00", "0.04571"], 375_062, 0),
    row("syn-4p4d-fixed-ample", ["1023118.765", "171.429", "12.0000", "1948.86", "0.37147"], 293_018, 0),
    row("syn-4p4d-fixed-tight", ["1023118.765", "203.173", "12.0000", "1980.60", "0.04566"], 295_901, 0),
];

fn shared() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/datasets");
    if path.is_dir() {
        return Some(path);
    }
    println!("skipped: no ../shared/datasets beside the checkout");
    None
}

fn predict(row: &Row, datasets: &Path, overrides: &[&str]) -> Report {
    let parts: Vec<&str> = row.name.split('-').collect();
    let traffic = match parts[0] {
        "load" => {
            let (requests, input, output, rate) = match parts[1] {
                "100k" => (100_000, 2048, 256, 50),
                _ => (1_000_000, 128, 16, 1000),
            };
            format!(
                "source: {{type: synthetic, input_tokens: {input}, output_tokens: {output}}}\n  \
                 load: {{type: constant_rate, requests_per_second: {rate}}}\n  stop: {{requests: {requests}}}"
            )
        }
        kind => {
            let trace = if kind == "conv" { "conversation" } else { "synthetic" };
            let file = datasets.join(format!("mooncake_{trace}_trace.jsonl.gz"));
            format!(
                "source: {{type: trace, format: mooncake, block_size: 512, paths: [{}]}}\n  \
                 load: {{type: trace_timestamps}}",
                file.display()
            )
        }
    };
    let replicas = if parts[1] == "1w" { 1 } else { 8 };
    let blocks = match (parts[0], replicas, *parts.last().unwrap()) {
        ("load", ..) => 16_384,
        // SGLang's pages are of one token, unless the name says otherwise.
        (_, _, "ample102M") => 102_400_000,
        (_, _, "ample") => 1_600_000,
        (_, 1, _) => 16_384,
        _ => 4_096,
    };
    let timing = match (row.name.contains("fixed"), parts[0]) {
        (true, _) => "{type: fixed, prefill_ms: 60, decode_ms: 12}",
        _ => "{type: polynomial}",
    };
    let (backend, block_size) = match (row.name.contains("sglang"), row.name.contains("page64")) {
        (false, _) => ("vllm", 64),
        (true, true) => ("sglang", 64),
        (true, false) => ("sglang", 1),
    };
    let role = |name: &str, replicas: u32, scheduler: &str| {
        format!(
            "    {name}:\n      parallelism: {{replicas: {replicas}}}\n      scheduler: {scheduler}\n      \
             kv_cache: {{block_size: {block_size}, capacity: {{type: fixed, blocks: {blocks}}}}}\n      \
             timing: {timing}\n"
        )
    };
    let (mode, workers) = match parts[1] {
        // 131072 bytes a token over a link of 64 GB/s for each request, the whole prompt charged.
        "4p4d" => (
            "mode: disaggregated\n  kv_transfer: {bytes_per_token: 131072, bandwidth_gb_per_second: 64, \
             timing_mode: full_prompt}",
            ["prefill", "decode"].map(|name| role(name, 4, "{max_sequences: 256}")).concat(),
        ),
        _ => ("mode: aggregated", role("aggregated", replicas, "{}")),
    };
    let text = format!(
        "traffic:\n  {traffic}\nengine:\n  {mode}\n  model: any\n  hardware: any\n  backend: {backend}\n  \
         semantics: aisimulate_0_13\n  workers:\n{workers}"
    );
    let overrides: Vec<String> = overrides.iter().map(|o| o.to_string()).collect();
    let experiment = windtunnel_config::from_str("peer.yaml", &text, &overrides).unwrap();
    run(&experiment, Options::default()).unwrap()
}

fn printed(report: &Report, key: &str, like: &str) -> String {
    let digits = like.split('.').nth(1).map_or(0, str::len);
    let value = report.summary.get(key).as_f64().unwrap();
    format!("{value:.digits$}")
}

#[test]
fn answers_equal_the_peers_to_the_printed_digit() {
    let Some(datasets) = shared() else { return };
    for row in ROWS {
        let report = predict(row, &datasets, &[]);
        for (key, theirs) in [
            ("duration_ms", row.duration_ms),
            ("mean_ttft_ms", row.ttft_ms),
            ("mean_itl_ms", row.itl_ms),
            ("mean_e2e_latency_ms", row.e2e_ms),
            ("prefix_cache_reused_ratio", row.reuse),
        ] {
            assert_eq!(printed(&report, key, theirs), theirs, "{} {key}", row.name);
        }
        for (key, theirs) in [("passes", row.passes), ("preemptions", row.preemptions)] {
            assert_eq!(report.summary.get(key).as_f64(), Some(theirs as f64), "{} {key}", row.name);
        }
    }
}

/// Native semantics run the real engine: asynchronous scheduling, one block less, and a resumed request's
/// outputs computed again at full cost. Under pressure the two part ways, and by no more than those rules.
#[test]
fn native_semantics_differ_under_pressure() {
    let Some(datasets) = shared() else { return };
    let row = ROWS.iter().find(|r| r.name == "conv-1w-poly-tight").unwrap();
    let native = predict(row, &datasets, &["engine.semantics=native"]);
    let value = |key: &str| native.summary.get(key).as_f64().unwrap();
    assert_eq!(value("completed_requests"), 12_031.0);
    let theirs: f64 = row.duration_ms.parse().unwrap();
    let difference = (value("duration_ms") - theirs) / theirs;
    assert!(difference.abs() > 1e-6 && difference.abs() < 0.05, "{difference}");
}

/// TTFT, ITL, E2E, reuse and passes of the peer's runs with its KV router, which breaks ties by chance: each is one
/// of many that it could have been.
const DRAWN: &[(&str, [f64; 5])] = &[
    ("conv-8w-fixed-ample", [130.626, 12.3526, 4350.50, 0.28053, 2_007_973.0]),
    ("conv-8w-fixed-tight", [152.293, 12.4514, 4405.92, 0.07410, 2_002_519.0]),
    ("conv-8w-poly-ample", [235.481, 6.0079, 2287.89, 0.30466, 2_953_058.0]),
    ("conv-8w-poly-tight", [349.729, 12.6144, 4659.05, 0.07371, 2_044_548.0]),
    ("syn-8w-fixed-ample", [103.631, 12.3854, 1938.14, 0.61649, 438_673.0]),
    ("syn-8w-fixed-tight", [143.448, 12.4539, 1988.10, 0.21221, 439_490.0]),
    ("syn-8w-poly-ample", [133.748, 5.9416, 1013.81, 0.62281, 533_394.0]),
    ("syn-8w-poly-tight", [266.607, 7.8673, 1431.91, 0.19720, 514_442.0]),
];

const SEEDS: u32 = 20;

/// Twenty seeds give twenty answers of ours. One more of the same kind lies outside of them with a chance of 2 in 21,
/// so of 40 figures some do (4 are expected, more than 8 come about once in 50 times), but not by more than half of
/// their spread.
#[test]
fn answers_with_the_kv_router_lie_among_those_of_other_ties() {
    let Some(datasets) = shared() else { return };
    let mut outside = 0;
    for (name, theirs) in DRAWN {
        let row = row(name, ["0", "0", "0", "0", "0"], 0, 0);
        let ours: Vec<[f64; 5]> = (0..SEEDS)
            .map(|seed| {
                let router = format!("router={{policy: kv_router, seed: {seed}}}");
                let summary = predict(&row, &datasets, &[&router]).summary;
                let keys = [
                    "mean_ttft_ms",
                    "mean_itl_ms",
                    "mean_e2e_latency_ms",
                    "prefix_cache_reused_ratio",
                    "passes",
                ];
                keys.map(|key| summary.get(key).as_f64().unwrap())
            })
            .collect();
        for (figure, &theirs) in theirs.iter().enumerate() {
            let figures = || ours.iter().map(|row| row[figure]);
            let (least, most) = (figures().fold(f64::MAX, f64::min), figures().fold(f64::MIN, f64::max));
            outside += u32::from(theirs < least || theirs > most);
            let slack = (most - least) / 2.0;
            let near = least - slack <= theirs && theirs <= most + slack;
            assert!(near, "{name}, figure {figure}: {theirs} is far from {least} to {most}");
        }
    }
    println!("{outside} of 40 figures outside of ours");
    assert!(outside <= 8, "{outside} of 40 figures outside of ours");
}
