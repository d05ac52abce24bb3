//! How random cases are run: always the same ones, unless the environment asks for others.

use proptest::prelude::ProptestConfig;
use proptest::test_runner::{RngSeed, TestRunner};

/// A runner of this many cases. PROPTEST_CASES sets another number, PROPTEST_RNG_SEED draws others.
pub fn runner(cases: u32) -> TestRunner {
    let given = ProptestConfig::default();
    TestRunner::new(ProptestConfig {
        cases: if std::env::var_os("PROPTEST_CASES").is_some() { given.cases } else { cases },
        rng_seed: match given.rng_seed {
            RngSeed::Random => RngSeed::Fixed(20_261_130),
            fixed => fixed,
        },
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..given
    })
}
