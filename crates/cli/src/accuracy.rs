//! `windtunnel accuracy`: predictions beside public measurements, as tables, as JSON, and in a document.

use crate::args::Accuracy;
use crate::exit::Failure;
use crate::models::{json, write};
use serde::Serialize;
use std::path::Path;
use windtunnel_validate::accuracy::{CapacityReport, Errors, capacities};

/// All that was compared; what was not asked for is left out.
#[derive(Debug, Serialize)]
struct Comparison {
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<CapacityReport>,
}

/// Runs the command.
pub fn run(arguments: &Accuracy) -> Result<(), Failure> {
    let capacity = arguments.capacity.as_deref().map(capacities).transpose().map_err(Failure::input)?;
    let comparison = Comparison { capacity };
    if let Some(document) = &arguments.update {
        update(document, &comparison)?;
    }
    if arguments.json {
        return write(&json(&comparison)?);
    }
    let text: Vec<String> = comparison.capacity.iter().map(capacity_text).collect();
    write(&text.join("\n"))
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

/// Puts the tables in the place of those that a document has, between `<!-- accuracy: NAME -->` and
/// `<!-- end -->`.
fn update(document: &Path, comparison: &Comparison) -> Result<(), Failure> {
    let failed = |cause: &dyn std::fmt::Display| Failure::Input(format!("{}: {cause}", document.display()));
    let mut text = std::fs::read_to_string(document).map_err(|cause| failed(&cause))?;
    if let Some(report) = &comparison.capacity {
        let table = markdown(&HEADER, &capacity_cells(report));
        text = replaced(&text, "capacity", &table).map_err(|cause| failed(&cause))?;
    }
    std::fs::write(document, text).map_err(|cause| failed(&cause))
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
