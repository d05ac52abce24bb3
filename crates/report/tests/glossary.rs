//! docs/glossary.md defines every term once and every metric of a summary, and nothing that no summary
//! has.

use std::fs;
use windtunnel_engine::Nanos;
use windtunnel_report::{Collector, CollectorOptions, DiskRow, FleetLog, RankRow, Report, Role, RunEnd, Sla};

fn glossary() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/glossary.md");
    fs::read_to_string(path).unwrap()
}

/// First cells of the tables of one chapter.
fn first_cells<'a>(text: &'a str, chapter: &str) -> Vec<&'a str> {
    let (_, from) = text.split_once(&format!("\n## {chapter}\n")).unwrap();
    let chapter = from.split("\n## ").next().unwrap();
    chapter.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next()).map(str::trim).collect()
}

#[test]
fn every_metric_is_defined_and_every_definition_is_a_metric() {
    let text = glossary();
    let defined: Vec<&str> = first_cells(&text, "Metrics")
        .into_iter()
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    // An SLA, a price, workers that change and a disk, so that the metrics that depend on them are there.
    let options = CollectorOptions { sla: Some(Sla::E2e(Nanos(1))), capture: false };
    let run = RunEnd { price_per_gpu_hour: Some(1.0), fleet: Some(FleetLog::default()), ..RunEnd::default() };
    let mut collector = Collector::new(options);
    collector.rank(RankRow { disk: Some(DiskRow::default()), ..RankRow::new(Role::Aggregated, 0, 0, 1) });
    let report = Report::new([collector], &run);
    let metrics: Vec<&str> = report.summary.iter().map(|(name, _)| name).collect();

    let undefined: Vec<&&str> = metrics.iter().filter(|name| !defined.contains(name)).collect();
    assert!(undefined.is_empty(), "not in the glossary: {undefined:?}");
    let unknown: Vec<&&str> = defined.iter().filter(|name| !metrics.contains(name)).collect();
    assert!(unknown.is_empty(), "in no summary: {unknown:?}");
    assert_eq!(defined, metrics, "once each, in the order of the summary");
}

#[test]
fn every_term_is_defined_once() {
    let text = glossary();
    let cells = first_cells(&text, "Terms");
    for term in [
        "pass",
        "rank",
        "worker",
        "role",
        "replica",
        "block",
        "page",
        "prefix hit",
        "chunk",
        "preemption",
        "retraction",
        "hand-off",
        "session",
        "turn",
        "TTFT",
        "TTST",
        "ITL",
        "TPOT",
        "E2E",
        "ISL",
        "OSL",
        "allocate",
        "touch",
        "free",
        "promote",
        "evict",
    ] {
        let heading = format!("**{term}**");
        assert_eq!(cells.iter().filter(|cell| **cell == heading).count(), 1, "{term}");
    }
}
