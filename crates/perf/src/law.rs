//! The laws of pass time: fixed, linear, polynomial and measured, each giving milliseconds before speedup.
//!
//! Every formula is evaluated in f64 from left to right exactly as its documentation writes it, so
//! that the same inputs give the same nanosecond on every machine. How the terms of one pass are put
//! together and rounded is not known here (see `model`).

use crate::calibrated::PassModel;
use crate::model::Outside;
use crate::{PerfError, Profile, Table};
use std::sync::Arc;
use windtunnel_engine::{DecodeSet, Shape};

/// A constant for prefill work and one for decode work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fixed {
    /// Milliseconds of a pass that has prefill work.
    pub prefill_ms: f64,
    /// Milliseconds of a pass that has decode work.
    pub decode_ms: f64,
}

/// A sum of what the pass computes and reads:
///
/// ms = base + per_new_token·N + per_new_times_context·Q + per_sequence·S + per_context_token·C
///
/// N: tokens computed (chunk tokens and one per decode). Q: Σ new·(new + before) over the prefill
/// chunks. S: sequences in the pass. C: Σ context of the decodes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Linear {
    /// Milliseconds of any pass that computes something.
    pub base_ms: f64,
    /// Milliseconds per token computed.
    pub per_new_token_ms: f64,
    /// Milliseconds per unit of new·(new + before) of a prefill chunk.
    pub per_new_times_context_ms: f64,
    /// Milliseconds per sequence in the pass.
    pub per_sequence_ms: f64,
    /// Milliseconds per token of context of a decode, the token computed in this pass included.
    pub per_context_token_ms: f64,
}

/// The polynomials of AISimulate 0.13, which depend on the KV capacity.
///
/// Prefill: 4.209989e-7·n² + 1.518344e-2·n + 16.50142 with n = b·(⌊Σ(before + new)/b⌋ − ⌊Σbefore/b⌋)
/// over b chunks, and 0 if n is 0. Decode: max(1, −25.74·x² + 54.01·x + 5.74) with
/// x = min(1, Σ context / capacity), and 0 without decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polynomial {
    /// Tokens that the KV cache of the rank holds.
    pub capacity_tokens: u64,
}

/// One of the laws.
#[derive(Clone, Debug, PartialEq)]
pub enum Law {
    /// Constants.
    Fixed(Fixed),
    /// Linear in tokens, sequences and context.
    Linear(Linear),
    /// Fitted polynomials.
    Polynomial(Polynomial),
    /// Measured on a grid. Prefill by n new tokens, counted as in the polynomial; decode by Σ context, and
    /// ⌊Σ context / sequences⌋.
    Profile(Arc<Profile>),
    /// Measured by the number of tokens, with what attention adds.
    Table(Arc<Table>),
    /// From measured times of single operations.
    Calibrated(Arc<PassModel>),
}

impl Law {
    /// Its name in configuration files.
    pub fn name(&self) -> &'static str {
        match self {
            Law::Fixed(_) => "fixed",
            Law::Linear(_) => "linear",
            Law::Polynomial(_) => "polynomial",
            Law::Profile(_) => "profile",
            Law::Table(_) => "table",
            Law::Calibrated(_) => "default",
        }
    }

    pub(crate) fn validate(&self) -> Result<(), PerfError> {
        let coefficients: &[(&'static str, f64)] = match self {
            Law::Fixed(fixed) => &[("prefill_ms", fixed.prefill_ms), ("decode_ms", fixed.decode_ms)],
            Law::Linear(linear) => &[
                ("base_ms", linear.base_ms),
                ("per_new_token_ms", linear.per_new_token_ms),
                ("per_new_times_context_ms", linear.per_new_times_context_ms),
                ("per_sequence_ms", linear.per_sequence_ms),
                ("per_context_token_ms", linear.per_context_token_ms),
            ],
            Law::Polynomial(polynomial) => {
                if polynomial.capacity_tokens == 0 {
                    return Err(PerfError::new("capacity_tokens", 0, "must be at least 1"));
                }
                &[]
            }
            Law::Profile(_) | Law::Table(_) | Law::Calibrated(_) => &[],
        };
        for &(field, value) in coefficients {
            if !(value.is_finite() && value >= 0.0) {
                return Err(PerfError::new(field, value, "must be a finite number of at least 0"));
            }
        }
        Ok(())
    }

    /// The prefill term, 0 when the pass computes no prefill token.
    pub(crate) fn prefill_ms(&self, shape: &Shape, outside: &Outside) -> f64 {
        let prefill = PrefillWork::of(shape);
        if prefill.new == 0 {
            return 0.0;
        }
        match self {
            Law::Fixed(fixed) => fixed.prefill_ms,
            Law::Linear(linear) => linear.ms(&prefill.work()),
            Law::Table(table) => {
                let (ms, inside) = table.ms(&prefill.work());
                outside.note(inside, Outside::PREFILL);
                ms
            }
            Law::Calibrated(model) => {
                let (ms, inside) = model.pass_ms(shape.prefill, &DecodeSet::default());
                outside.note(inside, Outside::PREFILL);
                ms
            }
            Law::Polynomial(_) => {
                let n = prefill.by_means() as f64;
                if n == 0.0 { 0.0 } else { 4.209989e-7 * n * n + 1.518344e-2 * n + 16.50142 }
            }
            Law::Profile(profile) => {
                let n = prefill.by_means();
                if n == 0 {
                    return 0.0;
                }
                let (ms, inside) = profile.prefill_ms(n as f64);
                outside.note(inside, Outside::PREFILL);
                ms
            }
        }
    }

    /// The decode term stays what it is while these contexts grow.
    pub(crate) fn ignores_growth(&self, decode: &DecodeSet) -> bool {
        match self {
            Law::Fixed(_) => true,
            Law::Linear(linear) => linear.per_context_token_ms == 0.0,
            Law::Table(table) => table.ignores_context(),
            Law::Profile(_) | Law::Calibrated(_) => false,
            // The share of the capacity ends at 1.
            Law::Polynomial(polynomial) => decode.sum_context >= polynomial.capacity_tokens,
        }
    }

    /// The decode term never becomes smaller while contexts grow. Of what was measured nobody can say so.
    pub(crate) fn grows(&self) -> bool {
        match self {
            Law::Fixed(_) | Law::Linear(_) | Law::Polynomial(_) => true,
            Law::Profile(_) | Law::Table(_) | Law::Calibrated(_) => false,
        }
    }

    /// The decode term, 0 when nothing decodes.
    #[inline]
    pub(crate) fn decode_ms(&self, decode: &DecodeSet, outside: &Outside) -> f64 {
        if decode.count == 0 {
            return 0.0;
        }
        match self {
            Law::Fixed(fixed) => fixed.decode_ms,
            Law::Linear(linear) => linear.ms(&Work::of_decodes(decode)),
            Law::Polynomial(polynomial) => polynomial.decode_ms(decode),
            Law::Profile(_) | Law::Table(_) | Law::Calibrated(_) => self.measured_decode_ms(decode, outside),
        }
    }

    /// The decode term of a law that looks its times up. Apart, so that the formulas are small enough to stand where
    /// they are asked for: once in every pass.
    #[inline(never)]
    fn measured_decode_ms(&self, decode: &DecodeSet, outside: &Outside) -> f64 {
        let (ms, inside) = match self {
            Law::Table(table) => table.ms(&Work::of_decodes(decode)),
            Law::Calibrated(model) => model.pass_ms(&[], decode),
            Law::Profile(profile) => {
                let mean = decode.sum_context / decode.count;
                profile.decode_ms(signed(decode.sum_context), signed(mean))
            }
            Law::Fixed(_) | Law::Linear(_) | Law::Polynomial(_) => (self.decode_ms(decode, outside), true),
        };
        outside.note(inside, Outside::DECODE);
        ms
    }
}

/// A count of tokens or requests as a float. None comes near 2^63, and a signed integer is converted in one instruction.
#[inline]
pub(crate) fn signed(count: u64) -> f64 {
    count as i64 as f64
}

impl Law {
    /// Whether a pass with prefill and decode work is one term, unless told otherwise; else it cannot be one.
    pub(crate) fn is_mixed(&self) -> bool {
        matches!(self, Law::Linear(_) | Law::Table(_) | Law::Calibrated(_))
    }

    /// The whole pass as one term: what a pass costs whatever it holds is paid once. Only with a law that
    /// [is mixed](Law::is_mixed).
    #[inline]
    pub(crate) fn mixed_ms(&self, shape: &Shape, outside: &Outside) -> f64 {
        match self {
            Law::Linear(linear) => match Work::of(shape) {
                Work { tokens: 0, .. } => 0.0,
                work => linear.ms(&work),
            },
            Law::Table(_) | Law::Calibrated(_) => self.measured_mixed_ms(shape, outside),
            Law::Fixed(_) | Law::Polynomial(_) | Law::Profile(_) => {
                self.prefill_ms(shape, outside) + self.decode_ms(&shape.decode, outside)
            }
        }
    }

    /// The whole pass of a law that looks its times up.
    #[inline(never)]
    fn measured_mixed_ms(&self, shape: &Shape, outside: &Outside) -> f64 {
        let work = Work::of(shape);
        let (prefills, (ms, inside)) = match self {
            Law::Calibrated(model) => {
                (!shape.prefill.is_empty(), model.pass_ms(shape.prefill, &shape.decode))
            }
            Law::Table(table) if work.tokens > 0 => (work.tokens > shape.decode.count, table.ms(&work)),
            _ => (false, (0.0, true)),
        };
        outside.note(inside, if prefills { Outside::PREFILL } else { Outside::DECODE });
        ms
    }
}

impl Polynomial {
    /// The decode term.
    #[inline]
    pub(crate) fn decode_ms(&self, decode: &DecodeSet) -> f64 {
        if decode.count == 0 {
            return 0.0;
        }
        let x = (signed(decode.sum_context) / self.capacity_tokens as f64).min(1.0);
        (-25.74 * x * x + 54.01 * x + 5.74).max(1.0)
    }
}

impl Linear {
    /// The formula.
    fn ms(&self, work: &Work) -> f64 {
        self.base_ms
            + self.per_new_token_ms * signed(work.tokens)
            + self.per_new_times_context_ms * work.new_times_context as f64
            + self.per_sequence_ms * signed(work.sequences)
            + self.per_context_token_ms * signed(work.context)
    }
}

/// What is computed, as sums.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Tokens; a decode computes one.
    pub tokens: u64,
    /// Σ new·(new + before) over the prefill chunks.
    pub new_times_context: u64,
    /// Chunks and decodes.
    pub sequences: u64,
    /// Σ context of the decodes.
    pub context: u64,
}

impl Work {
    fn of_decodes(decode: &DecodeSet) -> Work {
        Work {
            tokens: decode.count,
            new_times_context: 0,
            sequences: decode.count,
            context: decode.sum_context,
        }
    }

    fn of(shape: &Shape) -> Work {
        let (prefill, decode) = (PrefillWork::of(shape), &shape.decode);
        Work {
            tokens: prefill.new + decode.count,
            new_times_context: prefill.new_times_context,
            sequences: prefill.chunks + decode.count,
            context: decode.sum_context,
        }
    }
}

/// The prefill chunks of a pass as sums. Chunks without a token are no work and are not counted.
struct PrefillWork {
    chunks: u64,
    new: u64,
    before: u64,
    new_times_context: u64,
}

impl PrefillWork {
    fn work(&self) -> Work {
        Work {
            tokens: self.new,
            new_times_context: self.new_times_context,
            sequences: self.chunks,
            context: 0,
        }
    }

    /// The new tokens as AISimulate counts them: chunks times the difference of the whole means.
    fn by_means(&self) -> u64 {
        self.chunks * ((self.before + self.new) / self.chunks - self.before / self.chunks)
    }

    fn of(shape: &Shape) -> PrefillWork {
        let mut work = PrefillWork { chunks: 0, new: 0, before: 0, new_times_context: 0 };
        for chunk in shape.prefill {
            let new = u64::from(chunk.new_tokens);
            let before = u64::from(chunk.before);
            work.chunks += u64::from(new > 0);
            work.new += new;
            work.before += if new > 0 { before } else { 0 };
            work.new_times_context = work.new_times_context.saturating_add(new.saturating_mul(new + before));
        }
        work
    }
}
