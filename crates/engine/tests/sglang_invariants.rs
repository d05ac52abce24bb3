//! Random workloads on small SGLang ranks: every invariant after every call, and three ways of computing
//! passes that must agree.
//!
//! The cases are the same in every run. PROPTEST_CASES sets their number, PROPTEST_RNG_SEED draws others;
//! with --nocapture, what they met is printed.

mod support;

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use std::cell::RefCell;
use support::sglang::{Tally, World, case};

fn runner(cases: u32) -> TestRunner {
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

#[test]
fn random_workloads_keep_every_invariant() {
    let total = RefCell::new(Tally::default());
    let done = runner(2000).run(&case(), |case| {
        let tally = World::run(&case);
        total.borrow_mut().add(&tally);
        Ok(())
    });
    println!("{:?}", total.into_inner());
    done.unwrap();
}
