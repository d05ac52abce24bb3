//! Quotients of integers as the nearest `f64`: the one step from exact sums to printed numbers, so that
//! a quotient which is a short decimal prints as one and larger quotients never print smaller.

/// Bits of a shifted numerator that a quotient needs beyond the denominator's: 53 for an `f64`, one to
/// round by, and one that stands for everything below.
const SPARE_BITS: u32 = 55;

/// The `f64` nearest to `numerator / denominator`, ties to even. None for a denominator of 0.
pub(crate) fn ratio(numerator: u128, denominator: u128) -> Option<f64> {
    if denominator == 0 {
        return None;
    }
    if numerator == 0 {
        return Some(0.0);
    }
    // A denominator beyond 2^73 (no sum of a run gets there) loses its lowest bits.
    let narrow = (u128::BITS - denominator.leading_zeros()).saturating_sub(u128::BITS - SPARE_BITS);
    let denominator = denominator >> narrow;
    let shift = numerator.leading_zeros();
    let shifted = numerator << shift;
    let (quotient, rest) = (shifted / denominator, shifted % denominator);
    // A rest is less than the last bit; setting that bit keeps the rounding on the right side of a tie.
    let sticky = quotient | u128::from(rest > 0);
    Some(sticky as f64 * 2f64.powi(-((shift + narrow) as i32)))
}

/// `of / whole`, none for an empty whole.
pub(crate) fn part(of: u64, whole: u64) -> Option<f64> {
    ratio(of.into(), whole.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_short_decimal_is_one_at_any_size() {
        assert_eq!(ratio(169_136_918, 1_000_000), Some(169.136918));
        // 5847270.023353 ms in hundredths of a picosecond: more digits than an f64 holds.
        assert_eq!(ratio(584_727_002_335_300_000_000, 100_000_000_000_000), Some(5_847_270.023353));
        assert_eq!(ratio(0, 7), Some(0.0));
        assert_eq!(ratio(7, 0), None);
    }

    proptest! {
        #[test]
        fn equals_the_division_of_exact_operands(n in 0u64..1 << 53, d in 1u64..1 << 53) {
            prop_assert_eq!(ratio(n.into(), d.into()), Some(n as f64 / d as f64));
        }

        #[test]
        fn ascends_with_the_numerator(n in 0u128..1 << 90, more in 0u128..1 << 40, d in 1u128..1 << 73) {
            prop_assert!(ratio(n, d) <= ratio(n + more, d));
        }
    }
}
