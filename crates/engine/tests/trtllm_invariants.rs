//! Random workloads on small TensorRT-LLM ranks. After every call, every invariant of
//! `support::trtllm::checks` is checked, and three ways of computing passes are compared: plain, fast, and
//! fast with many steady passes at once.
//!
//! The cases are the same in every run. PROPTEST_CASES sets their number, PROPTEST_RNG_SEED draws others;
//! with --nocapture, what they met is printed.

mod support;

use proptest::prelude::*;
use std::cell::RefCell;
use support::runner::runner;
use support::trtllm::case::case;
use support::trtllm::world::{Tally, World};

#[test]
fn random_workloads_keep_every_invariant() {
    let total = RefCell::new(Tally::default());
    let done = runner(1000).run(&case(), |case| {
        let (tally, _) = World::run(&case);
        total.borrow_mut().add(&tally);
        Ok(())
    });
    let total = total.into_inner();
    println!("{total:?}");
    done.unwrap();
    // The cases meet what they are for. Per case, about a third of what was counted when they were written.
    let (cases, met) =
        (total.cases, |what: u64, per_thousand: u64| what * 1000 >= per_thousand * total.cases);
    assert!(cases > 0);
    assert!(met(total.finished, 3000) && met(total.refused, 900) && met(total.cancelled, 300));
    assert!(met(total.pauses, 180) && met(total.evictions, 6500) && met(total.hit_tokens, 2000));
    assert!(met(total.skips, 350) && met(total.chunks, 900) && met(total.leapt_passes, 3500));
}

#[test]
fn the_same_calls_give_the_same_results() {
    runner(50)
        .run(&case(), |case| {
            prop_assert_eq!(World::run(&case), World::run(&case));
            Ok(())
        })
        .unwrap();
}
