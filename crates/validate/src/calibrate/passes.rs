//! Pass times from measured passes: the forward-pass metrics that an engine publishes under Dynamo, as JSON lines
//! (`wall_time` in seconds and `scheduled_requests` with its sums).
//!
//! A pass time is a sum of known amounts times unknown costs that are not negative, so the costs are found without a
//! simulation, by least squares of the relative errors.

use super::family::LawKind;
use crate::measured::MeasuredError;
use serde::Deserialize;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;
use windtunnel_perf::{Law, Linear, Table};

/// One measured pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredPass {
    /// How long it took.
    pub ms: f64,
    /// Tokens that it computed; a decode computes one.
    pub tokens: f64,
    /// Σ new·(new + before) over its prefill chunks.
    pub new_times_context: f64,
    /// Chunks and decodes.
    pub sequences: f64,
    /// Σ context of its decodes.
    pub context: f64,
}

/// A law fitted to passes.
#[derive(Clone, Debug)]
pub struct PassFit {
    /// The law with its numbers.
    pub law: Law,
    /// Passes that were fitted: every other one.
    pub fitted: PassErrors,
    /// The others.
    pub held_out: PassErrors,
}

/// How far off pass times are, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PassErrors {
    /// Passes.
    pub passes: usize,
    /// Median of |error|.
    pub median_abs_pct: f64,
    /// 90th percentile of |error|.
    pub p90_abs_pct: f64,
    /// Of the sum of all times, with its sign.
    pub total_pct: f64,
}

#[derive(Deserialize)]
struct Line {
    wall_time: f64,
    scheduled_requests: Scheduled,
}

/// Names of Dynamo's ForwardPassMetrics, version 1.
#[derive(Deserialize)]
struct Scheduled {
    num_prefill_requests: f64,
    sum_prefill_tokens: f64,
    #[serde(default)]
    var_prefill_length: f64,
    #[serde(default)]
    sum_prefill_kv_tokens: f64,
    num_decode_requests: f64,
    sum_decode_kv_tokens: f64,
}

/// Reads the passes of a file. Heartbeats of an idle engine, and passes without a time, are left out.
///
/// # Errors
/// A file that cannot be read, a line that is none of the kind, numbers without meaning, and no pass at all.
pub fn read_passes(path: &Path) -> Result<Vec<MeasuredPass>, MeasuredError> {
    let io = |source| MeasuredError::Io { path: path.into(), source };
    let mut passes = Vec::new();
    for (number, line) in BufReader::new(std::fs::File::open(path).map_err(io)?).lines().enumerate() {
        let line = line.map_err(io)?;
        if line.trim().is_empty() {
            continue;
        }
        let wrong = |reason: String| MeasuredError::Format { path: path.into(), line: number + 1, reason };
        let line: Line = serde_json::from_str(&line).map_err(|error| wrong(error.to_string()))?;
        let s = &line.scheduled_requests;
        let all = [
            ("wall_time", line.wall_time),
            ("num_prefill_requests", s.num_prefill_requests),
            ("sum_prefill_tokens", s.sum_prefill_tokens),
            ("var_prefill_length", s.var_prefill_length),
            ("sum_prefill_kv_tokens", s.sum_prefill_kv_tokens),
            ("num_decode_requests", s.num_decode_requests),
            ("sum_decode_kv_tokens", s.sum_decode_kv_tokens),
        ];
        if let Some((key, value)) = all.into_iter().find(|(_, value)| !(value.is_finite() && *value >= 0.0)) {
            return Err(wrong(format!("{key}: got {value}; allowed is a number of at least 0")));
        }
        let tokens = s.sum_prefill_tokens + s.num_decode_requests;
        if tokens > 0.0 && line.wall_time > 0.0 {
            passes.push(MeasuredPass {
                ms: line.wall_time * 1e3,
                tokens,
                new_times_context: s.new_times_context(),
                sequences: s.num_prefill_requests + s.num_decode_requests,
                context: s.sum_decode_kv_tokens,
            });
        }
    }
    if passes.len() < 2 {
        let reason = format!("holds {} passes with a time; at least 2 are needed", passes.len());
        return Err(MeasuredError::File { path: path.into(), reason });
    }
    Ok(passes)
}

impl Scheduled {
    /// Σ new² + Σ new·before over n chunks, of which sums and a variance are known: exact for one chunk, and for
    /// several whose lengths have nothing to do with what lies before them.
    fn new_times_context(&self) -> f64 {
        let n = self.num_prefill_requests;
        if n == 0.0 {
            return 0.0;
        }
        let mean = self.sum_prefill_tokens / n;
        n * (mean * mean + self.var_prefill_length) + mean * self.sum_prefill_kv_tokens
    }
}

/// Fits a law to every other pass, and looks how well it does on the rest.
pub fn fit_passes(passes: &[MeasuredPass], kind: LawKind) -> PassFit {
    let every_other =
        |rest: usize| -> Vec<MeasuredPass> { passes.iter().skip(rest).step_by(2).copied().collect() };
    let (fitted, held_out) = (every_other(0), every_other(1));
    let knots = match kind {
        LawKind::Linear => None,
        LawKind::Table => Some(knots(&fitted)),
    };
    let rows: Vec<Vec<f64>> = fitted.iter().map(|pass| amounts(pass, knots.as_deref())).collect();
    let costs = least_squares(&rows, &fitted);
    let slopes = &costs[costs.len() - 3..];
    let law = match &knots {
        None => Law::Linear(Linear {
            base_ms: costs[0],
            per_new_token_ms: costs[1],
            per_new_times_context_ms: slopes[0],
            per_sequence_ms: slopes[1],
            per_context_token_ms: slopes[2],
        }),
        Some(knots) => {
            let pass_ms = costs[..knots.len()].to_vec();
            match Table::new(knots.clone(), pass_ms, slopes[0], slopes[1], slopes[2], None) {
                Ok(table) => Law::Table(Arc::new(table)),
                // invariant: knots ascend and costs are finite and not negative
                Err(_) => Law::Linear(Linear::default()),
            }
        }
    };
    let errors = |of: &[MeasuredPass]| {
        errors(of, |pass| amounts(pass, knots.as_deref()).iter().zip(&costs).map(|(a, c)| a * c).sum())
    };
    PassFit { fitted: errors(&fitted), held_out: errors(&held_out), law }
}

/// The points of a table: tokens between which as many passes lie, at most 8.
fn knots(passes: &[MeasuredPass]) -> Vec<f64> {
    let mut tokens: Vec<f64> = passes.iter().map(|pass| pass.tokens).collect();
    tokens.sort_by(f64::total_cmp);
    tokens.dedup();
    let last = tokens.len() - 1;
    let points = last.min(7);
    let mut knots: Vec<f64> = (0..=points).map(|i| tokens[last * i / points.max(1)]).collect();
    knots.dedup();
    knots
}

/// What the costs of a law are multiplied with.
fn amounts(pass: &MeasuredPass, knots: Option<&[f64]>) -> Vec<f64> {
    let mut amounts = match knots {
        None => vec![1.0, pass.tokens],
        Some(knots) => hats(pass.tokens, knots),
    };
    amounts.extend([pass.new_times_context, pass.sequences, pass.context]);
    amounts
}

/// The shares of a line's points in its value at `x`. Beyond the ends the nearest point has all.
fn hats(x: f64, knots: &[f64]) -> Vec<f64> {
    let mut shares = vec![0.0; knots.len()];
    let above = knots.partition_point(|&knot| knot <= x);
    if above == 0 || above == knots.len() {
        shares[above.saturating_sub(1)] = 1.0;
    } else {
        let share = (x - knots[above - 1]) / (knots[above] - knots[above - 1]);
        shares[above - 1] = 1.0 - share;
        shares[above] = share;
    }
    shares
}

/// Costs of at least 0 with the least sum of squared relative errors, by descent along one cost after the other; the
/// sum is convex, so this ends at its least value.
fn least_squares(rows: &[Vec<f64>], passes: &[MeasuredPass]) -> Vec<f64> {
    let n = rows.first().map_or(0, Vec::len);
    // Relative: every row is divided by its time, so that all should come to 1. Columns are scaled alike.
    let scale: Vec<f64> = (0..n)
        .map(|j| rows.iter().zip(passes).map(|(row, pass)| (row[j] / pass.ms).powi(2)).sum::<f64>().sqrt())
        .map(|norm| if norm > 0.0 { norm } else { 1.0 })
        .collect();
    let mut gram = vec![vec![0.0; n]; n];
    let mut aim = vec![0.0; n];
    for (row, pass) in rows.iter().zip(passes) {
        let scaled: Vec<f64> = row.iter().zip(&scale).map(|(x, s)| x / pass.ms / s).collect();
        for i in 0..n {
            aim[i] += scaled[i];
            for j in 0..n {
                gram[i][j] += scaled[i] * scaled[j];
            }
        }
    }
    let mut costs = vec![0.0_f64; n];
    for _ in 0..100_000 {
        let mut moved = 0.0_f64;
        for i in 0..n {
            if gram[i][i] > 0.0 {
                let rest: f64 = (0..n).filter(|&j| j != i).map(|j| gram[i][j] * costs[j]).sum();
                let next = ((aim[i] - rest) / gram[i][i]).max(0.0);
                moved = moved.max((next - costs[i]).abs());
                costs[i] = next;
            }
        }
        if moved < 1e-12 {
            break;
        }
    }
    costs.iter().zip(&scale).map(|(cost, scale)| cost / scale).collect()
}

fn errors(passes: &[MeasuredPass], predicted: impl Fn(&MeasuredPass) -> f64) -> PassErrors {
    let mut off: Vec<f64> =
        passes.iter().map(|pass| (predicted(pass) - pass.ms).abs() / pass.ms * 100.0).collect();
    off.sort_by(f64::total_cmp);
    let (total, measured) = passes.iter().fold((0.0, 0.0), |(p, m), pass| (p + predicted(pass), m + pass.ms));
    let at = |share| crate::compare::quantile(&off, share).unwrap_or(0.0);
    PassErrors {
        passes: passes.len(),
        median_abs_pct: at(0.5),
        p90_abs_pct: at(0.9),
        total_pct: if measured > 0.0 { (total - measured) / measured * 100.0 } else { 0.0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(ms: impl Fn(f64, f64) -> f64) -> Vec<MeasuredPass> {
        let mut passes = Vec::new();
        for i in 0..400_u32 {
            let tokens = f64::from(1 + (i * 37) % 600);
            let context = f64::from((i * 7919) % 40_000);
            let sequences = f64::from(1 + i % 50);
            let new_times_context = f64::from((i * 31) % 97) * 5_000.0;
            let ms = ms(tokens, context) + 1e-6 * new_times_context + 0.01 * sequences;
            passes.push(MeasuredPass { ms, tokens, new_times_context, sequences, context });
        }
        passes
    }

    #[test]
    fn the_costs_that_made_the_passes_are_found() {
        let fit =
            fit_passes(&passes(|tokens, context| 5.0 + 0.03 * tokens + 1e-4 * context), LawKind::Linear);
        let Law::Linear(linear) = fit.law else { panic!("{:?}", fit.law) };
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-3;
        assert!(near(linear.base_ms, 5.0) && near(linear.per_new_token_ms, 0.03), "{linear:?}");
        assert!(near(linear.per_context_token_ms, 1e-4) && near(linear.per_sequence_ms, 0.01), "{linear:?}");
        assert!(near(linear.per_new_times_context_ms, 1e-6), "{linear:?}");
        assert!(fit.held_out.p90_abs_pct < 0.01 && fit.held_out.passes == 200, "{:?}", fit.held_out);
    }

    #[test]
    fn a_table_follows_a_bend_that_a_line_cannot() {
        let bent = passes(|tokens, _| 6.0 + 0.05 * (tokens - 200.0).max(0.0));
        let [line, table] = [LawKind::Linear, LawKind::Table].map(|kind| fit_passes(&bent, kind).held_out);
        assert!(
            table.median_abs_pct < 1.5 && table.median_abs_pct * 5.0 < line.median_abs_pct,
            "{table:?} {line:?}"
        );
    }

    #[test]
    fn a_pass_has_the_square_of_its_chunks() {
        let of = |n, sum, var, before| Scheduled {
            num_prefill_requests: n,
            sum_prefill_tokens: sum,
            var_prefill_length: var,
            sum_prefill_kv_tokens: before,
            num_decode_requests: 0.0,
            sum_decode_kv_tokens: 0.0,
        };
        // One chunk of 100 behind 50; two of 100 and 300, variance 10,000.
        assert_eq!(of(1.0, 100.0, 0.0, 50.0).new_times_context(), 15_000.0);
        assert_eq!(of(2.0, 400.0, 10_000.0, 0.0).new_times_context(), 100_000.0);
    }
}
