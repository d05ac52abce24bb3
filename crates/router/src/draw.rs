//! What a policy leaves to chance: draws from a seeded generator, whose stream is specified and the same on
//! every machine.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A stream of draws.
#[derive(Clone, Debug)]
pub(crate) struct Draw(Box<ChaCha8Rng>);

impl Draw {
    pub(crate) fn new(seed: u64) -> Draw {
        Draw(Box::new(ChaCha8Rng::seed_from_u64(seed)))
    }

    /// A number from 0 to below 1: 53 random bits.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number below `count`, each as likely as the others (to one part in 2^32). Of one there is nothing to
    /// draw.
    pub(crate) fn below(&mut self, count: u32) -> u32 {
        if count <= 1 {
            return 0;
        }
        let product = u128::from(self.0.next_u64()) * u128::from(count);
        (product >> 64) as u32
    }
}

/// A number from 0 to below 1 that depends on these three alone, and not on what was drawn before (the finalizer of
/// splitmix64).
pub fn unit(seed: u64, stream: u64, ordinal: u64) -> f64 {
    let mixed = |number: u64| {
        let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    };
    (mixed(mixed(mixed(seed) ^ stream) ^ ordinal) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 60,000 draws of six: each number 10,000 times, give or take five standard deviations,
    /// 5 · √(60,000 · 1/6 · 5/6) = 456.
    #[test]
    fn every_number_is_as_likely() {
        let mut draw = Draw::new(7);
        let mut counts = [0u32; 6];
        (0..60_000).for_each(|_| counts[draw.below(6) as usize] += 1);
        assert!(counts.iter().all(|&count| count.abs_diff(10_000) < 456), "{counts:?}");
    }

    #[test]
    fn one_number_takes_nothing_from_the_stream() {
        let (mut one, mut other) = (Draw::new(1), Draw::new(1));
        assert_eq!(one.below(1), 0);
        assert_eq!([(); 8].map(|()| one.below(1000)), [(); 8].map(|()| other.below(1000)));
    }
}
