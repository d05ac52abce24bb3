//! The new token ratio: the share of their remaining outputs that is reserved for running requests
//! (managers/scheduler_components/new_token_ratio_tracker.py). Built by the engine's own floating-point
//! steps, so that comparisons fall as they do there.

const INIT: f64 = 0.7;
const MIN_FACTOR: f64 = 0.14;
const DECAY_STEPS: f64 = 600.0;
/// Tokens that each kept request is expected to give before the next retraction.
pub(super) const RETRACT_DECODE_STEPS: u32 = 20;

#[derive(Clone, Copy, Debug)]
pub(super) struct Ratio {
    pub(super) init: f64,
    pub(super) min: f64,
    pub(super) decay: f64,
    pub(super) current: f64,
}

impl Ratio {
    pub(super) fn new(conservativeness: f64) -> Ratio {
        let init = (INIT * conservativeness).min(1.0);
        let min = (init * MIN_FACTOR).min(1.0);
        Ratio { init, min, decay: (init - min) / DECAY_STEPS, current: init }
    }

    /// A decode pass in which nothing was retracted.
    pub(super) fn decay_step(&mut self) {
        self.current = (self.current - self.decay).max(self.min);
    }

    /// That many decode passes.
    pub(super) fn decay_steps(&mut self, passes: u64) {
        for _ in 0..passes {
            if self.current <= self.min {
                self.decay_step();
                return;
            }
            self.decay_step();
        }
    }

    /// Nothing is left to do.
    pub(super) fn reset(&mut self) {
        self.current = self.init;
    }

    /// After a retraction, from what the kept requests have given and may give.
    pub(super) fn estimate(&mut self, outputs: u64, max_new: u64, kept: u64) {
        let expected = outputs + u64::from(RETRACT_DECODE_STEPS) * kept;
        self.current = (expected as f64 / (max_new + 1) as f64).min(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::Ratio;

    #[test]
    fn many_steps_are_the_same_steps() {
        for conservativeness in [0.0, 0.1, 0.3, 1.0, 1.7] {
            let (mut one, mut many) = (Ratio::new(conservativeness), Ratio::new(conservativeness));
            for passes in [1, 2, 5, 100, 600, 1000] {
                (0..passes).for_each(|_| one.decay_step());
                many.decay_steps(passes);
                assert_eq!(one.current.to_bits(), many.current.to_bits());
            }
        }
    }

    /// sglang 0.5.23, traces `retract_p1` (0.07, 0.0098, 0.000100333…) and step 24 (0.514286).
    #[test]
    fn values_of_the_engine() {
        let mut ratio = Ratio::new(0.1);
        assert_eq!(
            (ratio.init, ratio.min, ratio.decay),
            (0.069_999_999_999_999_99, 0.0098, 0.000_100_333_333_333_333_31)
        );
        ratio.estimate(0, 39, 1);
        assert_eq!(ratio.current, 0.5);
        ratio.estimate(1000, 39, 1);
        assert_eq!(ratio.current, 1.0);
    }
}
