//! Random workloads on small SGLang ranks: every invariant after every call, and three ways of computing
//! passes that must agree.
//!
//! The cases are the same in every run. PROPTEST_CASES sets their number, PROPTEST_RNG_SEED draws others;
//! with --nocapture, what they met is printed.

mod support;

use std::cell::RefCell;
use support::runner::runner;
use support::sglang::{Tally, World, case};

#[test]
fn random_workloads_keep_every_invariant() {
    let total = RefCell::new(Tally::default());
    let done = runner(2000).run(&case(), |case| {
        let tally = World::run(&case);
        total.borrow_mut().add(&tally);
        Ok(())
    });
    let total = total.into_inner();
    println!("{total:?}");
    done.unwrap();
    // The cases meet what they are for. Per case, a third of what was counted when they were written.
    let (cases, met) =
        (total.cases, |what: u64, per_thousand: u64| what * 1000 >= per_thousand * total.cases);
    assert!(cases > 0);
    assert!(met(total.finished, 2400) && met(total.refused, 600) && met(total.aborted, 500));
    assert!(met(total.retractions, 50) && met(total.evictions, 35_000) && met(total.mixed, 550));
    assert!(met(total.stores, 700) && met(total.awaited, 760) && met(total.loads, 22));
    assert!(met(total.hit_tokens, 3400) && met(total.leapt_passes, 22_000));
}
