//! `windtunnel accuracy`: predictions beside public measurements, as tables, as JSON, and in a document.

use crate::args::Accuracy;
use crate::exit::Failure;
use crate::files::PartialFile;
use crate::models::{json, write};
use crate::signals::interrupt_flag;
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use windtunnel_validate::accuracy::points;
use windtunnel_validate::accuracy::report::PointsReport;
use windtunnel_validate::accuracy::run::{Outcome, Tried, predict};
use windtunnel_validate::accuracy::{CapacityReport, Errors, RunOutcome, RunReport, capacities, runs};
use windtunnel_validate::measured::Prompts;

/// All that was compared; what was not asked for is left out.
#[derive(Debug, Serialize)]
struct Comparison {
    #[serde(skip_serializing_if = "Option::is_none")]
    points: Option<PointsReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runs: Option<Vec<RunReport>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<CapacityReport>,
}

/// Runs the command.
pub fn run(arguments: &Accuracy) -> Result<(), Failure> {
    if arguments.points.is_none() && arguments.runs.is_none() && arguments.capacity.is_none() {
        let message = "nothing to compare with; give --points, --runs or --capacity";
        return Err(Failure::Input(message.into()));
    }
    let capacity = arguments.capacity.as_deref().map(capacities).transpose().map_err(Failure::input)?;
    let points = arguments.points.as_deref().map(|file| predicted(file, arguments)).transpose()?;
    let runs = arguments.runs.as_deref().map(|file| compared_runs(file, arguments)).transpose()?;
    let comparison = Comparison { points, runs, capacity };
    if let Some(document) = &arguments.update {
        let text = updated(document, &comparison)?;
        written("--update", document, arguments)?.fill(&text)?;
    }
    if arguments.json {
        return write(&json(&comparison)?);
    }
    let points = comparison.points.iter().map(PointsReport::table);
    let runs = comparison.runs.iter().flatten().map(run_text);
    let text: Vec<String> = points.chain(runs).chain(comparison.capacity.iter().map(capacity_text)).collect();
    write(&text.join("\n"))
}

fn compared_runs(file: &Path, arguments: &Accuracy) -> Result<Vec<RunReport>, Failure> {
    let workloads: Result<Vec<Prompts>, _> =
        arguments.workload.iter().map(|file| Prompts::read(file)).collect();
    let interrupt = interrupt_flag()?;
    let reports = runs(file, &workloads.map_err(Failure::input)?, &interrupt).map_err(Failure::input)?;
    if interrupt.load(Ordering::Relaxed) {
        return Err(Failure::Interrupted);
    }
    Ok(reports)
}

fn run_text(report: &RunReport) -> String {
    let about =
        format!("{}: {} on {}; pass times: {}", report.run, report.model, report.system, report.pass_times);
    match &report.outcome {
        RunOutcome::Compared(comparison) => {
            format!("{about}; {} requests\n{}\n", comparison.requests, crate::compare::table(comparison))
        }
        RunOutcome::Uncovered { uncovered } => format!("{about}\nnot predicted: {uncovered}\n"),
    }
}

const HEADER: [&str; 8] =
    ["System", "model", "TP", "rows", "mean abs.", "median abs.", "max abs.", "mean error"];

/// The cells of a table: one row for a partition, and one for all.
fn capacity_cells(report: &CapacityReport) -> Vec<Vec<String>> {
    let row = |names: [&str; 3], errors: &Errors| {
        let percent = |value: f64| format!("{value:.2} %");
        let mut cells: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        cells.push(errors.n.to_string());
        let values = [errors.mean_abs_pct, errors.median_abs_pct, errors.max_abs_pct];
        cells.extend(values.map(percent));
        cells.push(format!("{:+.2} %", errors.mean_signed_pct));
        cells
    };
    let mut cells: Vec<Vec<String>> = report
        .partitions
        .iter()
        .map(|part| row(["system", "model", "tensor"].map(|key| part.key[key].as_str()), &part.errors))
        .collect();
    cells.push(row(["all", "", ""], &report.overall));
    cells
}

fn capacity_text(report: &CapacityReport) -> String {
    let table = windtunnel_report::columns(&HEADER, &capacity_cells(report));
    let uncovered =
        report.uncovered.iter().map(|(reason, rows)| format!("{rows} rows not predicted: {reason}\n"));
    format!(
        "KV capacity: sequences at once, predicted against measured\n{table}\n{}",
        uncovered.collect::<String>()
    )
}

/// A file that the command writes is none of those that it reads.
fn written(option: &str, path: &Path, arguments: &Accuracy) -> Result<PartialFile, Failure> {
    let mut read = vec![
        ("--points", arguments.points.as_deref()),
        ("--runs", arguments.runs.as_deref()),
        ("--capacity", arguments.capacity.as_deref()),
    ];
    read.extend(arguments.workload.iter().map(|file| ("--workload", Some(file.as_path()))));
    if option != "--update" {
        read.push(("--update", arguments.update.as_deref()));
    }
    PartialFile::apart(option, path, &read)
}

/// Puts the tables in the place of those that a document has, between `<!-- accuracy: NAME -->` and
/// `<!-- end -->`.
fn updated(document: &Path, comparison: &Comparison) -> Result<String, Failure> {
    let failed = |cause: &dyn std::fmt::Display| Failure::Input(format!("{}: {cause}", document.display()));
    let mut text = std::fs::read_to_string(document).map_err(|cause| failed(&cause))?;
    if let Some(report) = &comparison.points {
        let order = report.order.text().map_or(String::new(), |order| format!("\n{order}.\n"));
        let table = markdown(&POINTS_HEADER, &report.rows()) + &order;
        text = replaced(&text, "points", &table).map_err(|cause| failed(&cause))?;
    }
    if let Some(reports) = &comparison.runs {
        text = replaced(&text, "runs", &runs_table(reports)).map_err(|cause| failed(&cause))?;
    }
    if let Some(report) = &comparison.capacity {
        let table = markdown(&HEADER, &capacity_cells(report));
        text = replaced(&text, "capacity", &table).map_err(|cause| failed(&cause))?;
    }
    Ok(text)
}

/// As [`PointsReport::HEADER`], without the strokes, which part cells in a document.
const POINTS_HEADER: [&str; 9] = [
    "",
    "rows",
    "told",
    "TPOT median abs.",
    "mean abs.",
    "median",
    "TTFT median abs.",
    "mean abs.",
    "median",
];

/// Runs as a table for documents: the errors of some metrics.
fn runs_table(reports: &[RunReport]) -> String {
    const METRICS: [&str; 4] = ["mean_ttft_ms", "mean_tpot_ms", "mean_e2e_latency_ms", "duration_ms"];
    let rows: Vec<Vec<String>> = reports
        .iter()
        .map(|report| {
            let mut cells = vec![report.run.clone(), report.pass_times.clone()];
            let RunOutcome::Compared(comparison) = &report.outcome else {
                return cells.into_iter().chain(["-"; 5].map(str::to_owned)).collect();
            };
            cells.push(comparison.requests.to_string());
            let error = |name: &str| comparison.get(name).and_then(|metric| metric.error_pct);
            cells
                .extend(METRICS.map(|name| error(name).map_or("-".into(), |error| format!("{error:+.2} %"))));
            cells
        })
        .collect();
    markdown(&["Run", "pass times", "requests", "mean TTFT", "mean TPOT", "mean E2E", "duration"], &rows)
}

fn replaced(text: &str, name: &str, table: &str) -> Result<String, String> {
    let begin = format!("<!-- accuracy: {name} -->\n");
    let lack = || format!("has no lines {:?} and \"<!-- end -->\" below it", begin.trim_end());
    let (before, rest) = text.split_once(&begin).ok_or_else(lack)?;
    let (_, after) = rest.split_once("<!-- end -->").ok_or_else(lack)?;
    Ok(format!("{before}{begin}{table}<!-- end -->{after}"))
}

fn markdown(header: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(header.to_vec()) + &format!("|{}\n", "---|".repeat(header.len()));
    for row in rows {
        text += &line(row.iter().map(String::as_str).collect());
    }
    text
}

/// The errors of the predictions of a file of measured deployments.
fn predicted(file: &Path, arguments: &Accuracy) -> Result<PointsReport, Failure> {
    let tried = Tried {
        pass_us: arguments.pass_us,
        sequence_us: arguments.sequence_us,
        gpu_scale: arguments.gpu_scale,
        communication_scale: arguments.communication_scale,
        allow_roofline: arguments.allow_roofline,
    };
    // Before the work: a name that cannot be written is told at once.
    let rows = arguments.rows.as_deref().map(|path| written("--rows", path, arguments)).transpose()?;
    let outcomes = outcomes(file, arguments, tried)?;
    if let Some(csv) = rows {
        let rows: String = outcomes.iter().map(|outcome| outcome.csv_row() + "\n").collect();
        csv.fill(&format!("{}\n{rows}", Outcome::CSV_HEADER))?;
    }
    Ok(PointsReport::new(&outcomes))
}

/// Predicts every measurement, on all cores; the order is that of the file.
fn outcomes(file: &Path, arguments: &Accuracy, tried: Tried) -> Result<Vec<Outcome>, Failure> {
    let mut measured = points::read(file).map_err(Failure::input)?;
    if let Some(every) = arguments.every {
        measured = measured.into_iter().step_by(every as usize).collect();
    }
    let interrupt = interrupt_flag()?;
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let threads = arguments.threads.map_or(cores, |threads| threads as usize).min(measured.len().max(1));
    let next = AtomicUsize::new(0);
    let mut done: Vec<(usize, Outcome)> = std::thread::scope(|scope| {
        let work = || {
            let mut own = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(point) = measured.get(at).filter(|_| !interrupt.load(Ordering::Relaxed)) else {
                    break;
                };
                own.push((at, predict(point, tried, interrupt.clone())));
            }
            own
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        // invariant: a prediction does not panic; if one did, its panic goes on here
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
            .collect()
    });
    if interrupt.load(Ordering::Relaxed) {
        return Err(Failure::Interrupted);
    }
    done.sort_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, outcome)| outcome).collect())
}
