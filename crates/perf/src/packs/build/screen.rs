//! What is wrong in the public times of matrix products, and what stands in its place. Three rules:
//!
//! 1. More than three times what another engine's kernel takes for the same block-scaled product: such rows
//!    measured the launch by the host. The other engine's time takes the place.
//! 2. A product of fewer rows that takes one and a half times as long as one of more rows: it could be padded
//!    to that one, whose time it gets.
//! 3. Less than the accelerator's peak allows: the least possible time takes the place.

use super::merge::Lines;
use super::{PackName, Tables};
use crate::packs::Gpu;
use std::collections::BTreeMap;

/// Times of one engine and type that one rule replaced.
#[derive(Clone, Debug, PartialEq)]
pub struct Screened {
    /// The pack.
    pub name: PackName,
    /// Type of the operands.
    pub dtype: String,
    /// What was wrong.
    pub rule: &'static str,
    /// Times replaced.
    pub points: usize,
    /// Times of this type.
    pub of: usize,
    /// Largest factor between what stood there and what stands there now.
    pub largest: f64,
}

const HOST_BOUND: &str = "over three times another engine's time";
const NOT_MONOTONE: &str = "over one and a half times that of more rows";
const ABOVE_PEAK: &str = "below the least possible time";

const TIMES_ANOTHER: f64 = 3.0;
const TIMES_MORE_ROWS: f64 = 1.5;

/// Screens all engines of one accelerator.
pub(super) fn gemm(packs: &mut [(PackName, Tables)], gpu: &Gpu) -> Vec<Screened> {
    let mut found: BTreeMap<(usize, String, &'static str), (usize, f64)> = BTreeMap::new();
    let mut note = |pack: usize, key: &str, rule: &'static str, factor: f64| {
        let entry = found.entry((pack, dtype(key).to_owned(), rule)).or_default();
        *entry = (entry.0 + 1, entry.1.max(factor));
    };
    for pack in 0..packs.len() {
        for (key, at, us, label) in host_bound(packs, pack) {
            let Some(lines) = packs[pack].1.get_mut("gemm") else { continue };
            let origin = lines.origin(&label);
            if let Some(line) = lines.lines.get_mut(&key) {
                line.origin = origin;
                if let Some(old) = line.points.insert(at, us) {
                    note(pack, &key, HOST_BOUND, old / us);
                }
            }
        }
        let Some(lines) = packs[pack].1.get_mut("gemm") else { continue };
        for (key, line) in &mut lines.lines {
            let mut least = f64::INFINITY;
            for (&m, us) in line.points.iter_mut().rev() {
                let peak = least_us(key, m, gpu);
                if *us < peak {
                    note(pack, key, ABOVE_PEAK, peak / *us);
                    *us = peak;
                }
                if *us > TIMES_MORE_ROWS * least {
                    note(pack, key, NOT_MONOTONE, *us / least);
                    *us = least;
                }
                least = least.min(*us);
            }
        }
    }
    let totals = |pack: usize, kind: &str| {
        let lines = packs[pack].1.get("gemm").map(|lines| &lines.lines);
        let of_kind = lines.into_iter().flatten().filter(|(key, _)| dtype(key) == kind);
        of_kind.map(|(_, line)| line.points.len()).sum()
    };
    let screened = found.into_iter().map(|((pack, kind, rule), (points, largest))| Screened {
        name: packs[pack].0.clone(),
        of: totals(pack, &kind),
        dtype: kind,
        rule,
        points,
        largest,
    });
    screened.collect()
}

/// Key, rows, time and origin of what takes the place of host-bound times.
fn host_bound(packs: &[(PackName, Tables)], pack: usize) -> Vec<(String, u64, f64, String)> {
    let tables = |index: usize| packs[index].1.get("gemm");
    let Some(own) = tables(pack) else { return Vec::new() };
    let others: Vec<(&PackName, &Lines)> = (0..packs.len())
        .filter(|other| *other != pack)
        .filter_map(|other| Some((&packs[other].0, tables(other)?)))
        .collect();
    let mut found = Vec::new();
    for (key, line) in own.lines.iter().filter(|(key, _)| dtype(key) == "fp8_block") {
        for (&m, &us) in &line.points {
            let times = others
                .iter()
                .filter_map(|(name, other)| Some((other.lines.get(key)?.points.get(&m).copied()?, *name)));
            let fastest = times.min_by(|a, b| a.0.total_cmp(&b.0));
            if let Some((other, name)) = fastest.filter(|(other, _)| us > TIMES_ANOTHER * other) {
                let label = format!("{} {} in place of host-bound times", name.backend, name.version);
                found.push((key.clone(), m, other, label));
            }
        }
    }
    found
}

fn dtype(key: &str) -> &str {
    key.split(',').next().unwrap_or_default()
}

/// Microseconds at the peak of the accelerator: by its arithmetic, or by moving operands and result.
fn least_us(key: &str, m: u64, gpu: &Gpu) -> f64 {
    let mut fields = key.split(',').skip(1).map(|text| text.parse::<f64>().unwrap_or(0.0));
    let (n, k) = (fields.next().unwrap_or(0.0), fields.next().unwrap_or(0.0));
    let m = m as f64;
    let (bits, bytes) = match dtype(key) {
        "fp8" | "fp8_block" => (8, 1.0),
        "nvfp4" => (4, 0.5625),
        "bfloat16" => (16, 2.0),
        // Operands of two types: how much is moved depends on the kernel.
        _ => return 0.0,
    };
    let arithmetic = 2.0 * m * n * k / gpu.flops(bits);
    let moving = bytes * (m * n + m * k + n * k) / gpu.memory_bandwidth;
    arithmetic.max(moving) * 1e6
}
