//! The laws that can be fitted, as lists of numbers that a search may change at will.
//!
//! The numbers are logarithms: whatever they are, the coefficients are positive, and a step is a factor.

use crate::compare::{Times, quantile};
use std::sync::Arc;
use windtunnel_perf::{Law, Linear, Table};

/// Which law is fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LawKind {
    /// Five coefficients.
    Linear,
    /// A time for each of some numbers of tokens, and three coefficients.
    Table,
}

impl LawKind {
    /// The families to fit one after the other, each from where the one before it ended. Passes have up to
    /// `tokens` tokens.
    pub(super) fn steps(self, tokens: u32) -> Vec<Family> {
        match self {
            LawKind::Linear => vec![Family::Linear],
            LawKind::Table => vec![Family::Linear, Family::Table(knots(tokens))],
        }
    }
}

/// A law with free numbers.
#[derive(Clone, Debug)]
pub(super) enum Family {
    Linear,
    /// The tokens of the table's points.
    Table(Vec<f64>),
}

/// Tokens of a table's points: powers of 4, from 1, so that the bend where a pass is no longer bound by memory lies
/// between two near ones.
fn knots(tokens: u32) -> Vec<f64> {
    let mut knots = vec![1.0, 64.0, 256.0];
    while knots[knots.len() - 1] < f64::from(tokens) && knots.len() < 7 {
        knots.push(knots[knots.len() - 1] * 4.0);
    }
    knots
}

impl Family {
    pub(super) fn linear() -> Family {
        Family::Linear
    }

    /// The law of some numbers.
    pub(super) fn law(&self, numbers: &[f64]) -> Law {
        let value = |i: usize| numbers[i].exp();
        match self {
            Family::Linear => Law::Linear(Linear {
                base_ms: value(0),
                per_new_token_ms: value(1),
                per_new_times_context_ms: value(2),
                per_sequence_ms: value(3),
                per_context_token_ms: value(4),
            }),
            Family::Table(tokens) => {
                // Each point lies above the one before it.
                let mut pass_ms = Vec::with_capacity(tokens.len());
                let mut sum = 0.0;
                for i in 0..tokens.len() {
                    sum += value(3 + i);
                    pass_ms.push(sum);
                }
                match Table::new(tokens.clone(), pass_ms, value(0), value(1), value(2), None) {
                    Ok(table) => Law::Table(Arc::new(table)),
                    // A number beyond all bounds; its run has no end, and is no candidate.
                    Err(_) => Law::Linear(Linear { base_ms: f64::MAX.sqrt(), ..Linear::default() }),
                }
            }
        }
    }

    /// Where to begin: at the law that was found, or at a guess from the measured times.
    pub(super) fn start(&self, found: Option<&Law>, measured: &[Times]) -> Vec<f64> {
        let from = match found {
            Some(Law::Linear(linear)) => *linear,
            _ => guess(measured),
        };
        let log = |x: f64| x.max(1e-12).ln();
        let slopes = [from.per_new_times_context_ms, from.per_sequence_ms, from.per_context_token_ms];
        match self {
            Family::Linear => {
                [from.base_ms, from.per_new_token_ms].into_iter().chain(slopes).map(log).collect()
            }
            Family::Table(tokens) => {
                let first = from.base_ms + from.per_new_token_ms * tokens[0];
                let rises = tokens.windows(2).map(|pair| (pair[1] - pair[0]) * from.per_new_token_ms);
                slopes.into_iter().chain([first]).chain(rises).map(log).collect()
            }
        }
    }
}

/// A first guess: half of what the fastest requests took for a token is the cost of a pass, and a prompt that came
/// soon after its arrival was computed by then.
fn guess(measured: &[Times]) -> Linear {
    let of = |value: fn(&Times) -> f64, share: f64| {
        let mut values: Vec<f64> = measured.iter().map(value).filter(|x| *x > 0.0).collect();
        values.sort_by(f64::total_cmp);
        quantile(&values, share)
    };
    let tpot = of(|times| times.decode() / f64::from(times.output_tokens.max(2) - 1), 0.1).unwrap_or(10.0);
    let base_ms = tpot * 0.5;
    let per_new_token_ms = base_ms / 200.0;
    Linear {
        base_ms,
        per_new_token_ms,
        per_new_times_context_ms: per_new_token_ms / 30_000.0,
        per_sequence_ms: base_ms / 1_000.0,
        per_context_token_ms: base_ms / 150_000.0,
    }
}
