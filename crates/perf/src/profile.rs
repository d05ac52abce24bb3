//! Measured pass times on a grid, as Dynamo's profiler writes them: prefill time over new tokens, decode time
//! over the fill of the KV cache and the context.
//!
//! Between points the value is linear (bilinear); beyond the last one the line goes on, which is told, since nothing
//! was measured there.

use crate::PerfError;
use crate::curve::{Curve, between, check_axis, check_count, check_numbers, place};

/// The grid.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Milliseconds by new tokens.
    prefill: Curve,
    decode_active_kv_tokens: Vec<f64>,
    decode_context_length: Vec<f64>,
    /// By active tokens, then by context.
    decode_itl_ms: Vec<f64>,
}

/// Least milliseconds of a decode, wherever the grid leads (AISimulate 0.13).
const LEAST_DECODE_MS: f64 = 1.0;

impl Profile {
    /// A checked grid, under the names of the profiler's file. `decode_itl` has a row for each number of active tokens.
    ///
    /// # Errors
    /// An axis that is empty or does not ascend, a number that is not finite or negative, and values that do not
    /// fit their axes.
    pub fn new(
        prefill_isl: Vec<f64>,
        prefill_ttft_ms: Vec<f64>,
        decode_active_kv_tokens: Vec<f64>,
        decode_context_length: Vec<f64>,
        decode_itl: Vec<Vec<f64>>,
    ) -> Result<Profile, PerfError> {
        let prefill = Curve::new("prefill_isl", prefill_isl, "prefill_ttft_ms", prefill_ttft_ms)?;
        check_axis("decode_active_kv_tokens", &decode_active_kv_tokens)?;
        check_axis("decode_context_length", &decode_context_length)?;
        let rows = decode_active_kv_tokens.len();
        check_count("decode_itl", decode_itl.len(), "decode_active_kv_tokens", rows)?;
        for row in &decode_itl {
            check_numbers("decode_itl", row)?;
            check_count("decode_itl", row.len(), "decode_context_length", decode_context_length.len())?;
        }
        Ok(Profile {
            prefill,
            decode_active_kv_tokens,
            decode_context_length,
            decode_itl_ms: decode_itl.concat(),
        })
    }

    /// Milliseconds of `new` prefill tokens, and whether the grid covers them.
    pub(crate) fn prefill_ms(&self, new: f64) -> (f64, bool) {
        let (ms, inside) = self.prefill.at(new);
        (ms.max(0.0), inside)
    }

    /// Milliseconds of a decode of requests with `active` tokens of context together and `context` on average, and
    /// whether the grid covers them.
    pub(crate) fn decode_ms(&self, active: f64, context: f64) -> (f64, bool) {
        let (row, down, rows_cover) = place(&self.decode_active_kv_tokens, active);
        let (column, right, columns_cover) = place(&self.decode_context_length, context);
        let width = self.decode_context_length.len();
        let next = (column + 1).min(width - 1);
        let on = |row: usize| {
            between(self.decode_itl_ms[row * width + column], self.decode_itl_ms[row * width + next], right)
        };
        let below = (row + 1).min(self.decode_active_kv_tokens.len() - 1);
        let ms = between(on(row), on(below), down);
        (ms.max(LEAST_DECODE_MS), rows_cover && columns_cover)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        let itl = vec![vec![5.0, 7.0], vec![10.0, 16.0]];
        Profile::new(vec![100.0, 300.0], vec![10.0, 50.0], vec![1000.0, 3000.0], vec![100.0, 500.0], itl)
            .unwrap()
    }

    #[test]
    fn points_lines_and_beyond() {
        let profile = profile();
        assert_eq!((profile.prefill_ms(100.0), profile.prefill_ms(300.0)), ((10.0, true), (50.0, true)));
        assert_eq!(profile.prefill_ms(200.0), (30.0, true));
        // 0.2 ms a token, also where nothing was measured; never below 0.
        assert_eq!((profile.prefill_ms(400.0), profile.prefill_ms(60.0)), ((70.0, false), (2.0, false)));
        assert_eq!(profile.prefill_ms(1.0), (0.0, false));
        assert_eq!(profile.decode_ms(3000.0, 500.0), (16.0, true));
        assert_eq!(profile.decode_ms(2000.0, 300.0), ((6.0 + 13.0) / 2.0, true));
        assert_eq!(profile.decode_ms(5000.0, 100.0), (15.0, false));
        assert_eq!(profile.decode_ms(1000.0, 900.0), (9.0, false));
        assert_eq!(profile.decode_ms(0.0, 100.0), (2.5, false));
    }

    #[test]
    fn a_decode_takes_a_millisecond_at_least() {
        let flat = Profile::new(vec![1.0], vec![3.0], vec![1.0], vec![1.0], vec![vec![0.25]]).unwrap();
        assert_eq!(flat.decode_ms(1.0, 1.0), (1.0, true));
        assert_eq!((flat.prefill_ms(1.0), flat.prefill_ms(900.0)), ((3.0, true), (3.0, false)));
    }

    #[test]
    fn what_is_no_grid_is_refused() {
        let with = |isl: &[f64], ttft: &[f64], itl: Vec<Vec<f64>>| {
            Profile::new(isl.to_vec(), ttft.to_vec(), vec![1.0, 2.0], vec![1.0], itl).unwrap_err().to_string()
        };
        let itl = vec![vec![1.0], vec![2.0]];
        assert_eq!(with(&[], &[], itl.clone()), "prefill_isl: no values are too few: at least 1 is needed");
        assert_eq!(
            with(&[2.0, 2.0], &[1.0, 1.0], itl.clone()),
            "prefill_isl: 2 must be above the value before (2)"
        );
        assert_eq!(
            with(&[1.0], &[1.0, 2.0], itl.clone()),
            "prefill_ttft_ms: 2 values must be 1, as many as prefill_isl has"
        );
        assert_eq!(
            with(&[1.0], &[f64::NAN], itl),
            "prefill_ttft_ms: NaN must be a finite number of at least 0"
        );
        assert_eq!(
            with(&[1.0], &[1.0], vec![vec![1.0]]),
            "decode_itl: 1 values must be 2, as many as decode_active_kv_tokens has"
        );
    }
}
