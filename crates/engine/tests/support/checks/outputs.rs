//! (Invariants 4 and 5) Every live request that a pass brought to its last known token gets exactly one token from it,
//! in batch order, numbered without gaps, preempted or not; it ends with the token that its plan says, and
//! never gives another.

use crate::support::world::{Fate, Flown, World};
use windtunnel_engine::{FinishReason, Finished, Outcome, Token};

/// To be called before the outcome is entered in the books.
pub fn check(world: &World, flown: &Flown, outcome: &Outcome) {
    let (mut tokens, mut finished) = (Vec::new(), Vec::new());
    for &(number, _, samples) in &flown.batch {
        let request = &world.requests[number];
        if !samples || request.fate != Fate::Live {
            continue;
        }
        let (slot, ordinal) = (request.slot, request.outputs + 1);
        tokens.push(Token { slot, ordinal });
        let last = request.plan.outputs(world.case.config.max_model_len);
        assert!(ordinal <= last);
        if ordinal == last {
            let stopped = request.plan.stop_after == Some(ordinal);
            finished.push(Finished {
                slot,
                id: windtunnel_engine::RequestId(number as u64),
                reason: if stopped { FinishReason::Stop } else { FinishReason::Length },
                output_tokens: ordinal,
                held: false,
            });
        }
    }
    assert_eq!(outcome.tokens, tokens);
    assert_eq!(outcome.finished, finished);
    assert!(outcome.second.is_empty() && outcome.parked.is_empty());
}
