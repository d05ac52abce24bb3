//! Measured pass times by the number of tokens, with what attention adds: what a calibration writes.
//!
//! A graphics processor takes as long for 1 token as for 100, and from some number on as long as the tokens are many.
//! A straight line has no such bend, so the time without attention is a line through measured points.

use crate::PerfError;
use crate::curve::Curve;
use crate::law::{Work, signed};

/// The table.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Milliseconds by the tokens that a pass computes (a decode computes one), without attention.
    curve: Curve,
    /// Milliseconds per unit of new·(new + before) of a prefill chunk.
    per_new_times_context_ms: f64,
    /// Milliseconds per sequence in the pass.
    per_sequence_ms: f64,
    /// Milliseconds per token of context of a decode.
    per_context_token_ms: f64,
    about: Option<Box<str>>,
}

impl Table {
    /// A checked table: `pass_ms[i]` for `tokens[i]`, and the terms that are added. `about` says what was measured.
    ///
    /// # Errors
    /// No tokens, tokens that do not ascend, other counts of tokens and times, and numbers that are not finite or
    /// negative.
    pub fn new(
        tokens: Vec<f64>,
        pass_ms: Vec<f64>,
        per_new_times_context_ms: f64,
        per_sequence_ms: f64,
        per_context_token_ms: f64,
        about: Option<Box<str>>,
    ) -> Result<Table, PerfError> {
        let curve = Curve::new("tokens", tokens, "pass_ms", pass_ms)?;
        for (field, value) in [
            ("per_new_times_context_ms", per_new_times_context_ms),
            ("per_sequence_ms", per_sequence_ms),
            ("per_context_token_ms", per_context_token_ms),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(PerfError::new(field, value, "must be a finite number of at least 0"));
            }
        }
        Ok(Table { curve, per_new_times_context_ms, per_sequence_ms, per_context_token_ms, about })
    }

    /// What was measured, if it was said.
    pub fn about(&self) -> Option<&str> {
        self.about.as_deref()
    }

    /// Its tokens, and the milliseconds of each.
    pub fn points(&self) -> (&[f64], &[f64]) {
        self.curve.points()
    }

    /// Milliseconds per unit of new·(new + before), per sequence, and per token of context.
    pub fn slopes(&self) -> [f64; 3] {
        [self.per_new_times_context_ms, self.per_sequence_ms, self.per_context_token_ms]
    }

    /// The time stays what it is while the contexts of the decodes grow.
    pub(crate) fn ignores_context(&self) -> bool {
        self.per_context_token_ms == 0.0
    }

    /// Milliseconds of some work, and whether as many tokens were measured. Fewer tokens than the first point take
    /// as long as the first.
    pub(crate) fn ms(&self, work: &Work) -> (f64, bool) {
        let tokens = signed(work.tokens).max(self.curve.first());
        let (without_attention, inside) = self.curve.at(tokens);
        let ms = without_attention.max(0.0)
            + self.per_new_times_context_ms * work.new_times_context as f64
            + self.per_sequence_ms * signed(work.sequences)
            + self.per_context_token_ms * signed(work.context);
        (ms, inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        Table::new(vec![1.0, 100.0, 300.0], vec![5.0, 6.0, 16.0], 0.5, 0.25, 0.125, None).unwrap()
    }

    #[test]
    fn a_line_through_points_and_the_terms_of_attention() {
        let ms = |tokens, new_times_context, sequences, context| {
            table().ms(&Work { tokens, new_times_context, sequences, context })
        };
        assert_eq!(ms(100, 0, 0, 0), (6.0, true));
        assert_eq!(ms(200, 0, 0, 0), (11.0, true));
        // Beyond the last point the line goes on, at 0.05 ms a token.
        assert_eq!(ms(400, 0, 0, 0), (21.0, false));
        assert_eq!(ms(200, 4, 8, 16), (11.0 + 2.0 + 2.0 + 2.0, true));
    }

    #[test]
    fn few_tokens_take_as_long_as_the_fewest_measured() {
        let table = Table::new(vec![8.0, 16.0], vec![5.0, 6.0], 0.0, 0.0, 0.0, None).unwrap();
        assert_eq!(table.ms(&Work { tokens: 1, ..Work::default() }), (5.0, true));
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let with = |tokens: &[f64], ms: &[f64], term| {
            Table::new(tokens.into(), ms.into(), term, 0.0, 0.0, None).unwrap_err().to_string()
        };
        assert_eq!(with(&[], &[], 0.0), "tokens: no values are too few: at least 1 is needed");
        assert_eq!(with(&[3.0, 2.0], &[1.0, 1.0], 0.0), "tokens: 2 must be above the value before (3)");
        assert_eq!(with(&[1.0], &[], 0.0), "pass_ms: 0 values must be 1, as many as tokens has");
        assert_eq!(with(&[1.0], &[-1.0], 0.0), "pass_ms: -1 must be a finite number of at least 0");
        assert_eq!(
            with(&[1.0], &[1.0], f64::INFINITY),
            "per_new_times_context_ms: inf must be a finite number of at least 0"
        );
    }
}
