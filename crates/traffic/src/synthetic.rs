//! Synthetic requests: all of one size, sharing content with nobody.

use crate::arrivals::Clock;
use crate::{Arrival, Arrivals, MAX_TOKENS, TrafficError};
use windtunnel_engine::{Content, HandOff, OutputPlan, Request, RequestId};

/// A synthetic workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Synthetic {
    /// Prompt length of every request, at least 1.
    pub input_tokens: u32,
    /// Output length of every request, at least 1.
    pub output_tokens: u32,
    /// Number of requests, at least 1.
    pub requests: u64,
    /// When they arrive.
    pub arrivals: Arrivals,
}

/// The stream of a synthetic workload.
#[derive(Clone, Debug)]
pub(crate) struct SyntheticStream {
    plan: Synthetic,
    clock: Clock,
    next: u64,
}

impl SyntheticStream {
    pub(crate) fn new(plan: &Synthetic) -> Result<SyntheticStream, TrafficError> {
        let lengths = [("input_tokens", plan.input_tokens), ("output_tokens", plan.output_tokens)];
        for (field, tokens) in lengths {
            if tokens == 0 || tokens > MAX_TOKENS {
                return Err(TrafficError::Setting {
                    field,
                    got: tokens.to_string(),
                    problem: format!("must be from 1 to {MAX_TOKENS}"),
                });
            }
        }
        if plan.requests == 0 {
            return Err(TrafficError::Setting {
                field: "requests",
                got: "0".into(),
                problem: "must be at least 1".into(),
            });
        }
        Ok(SyntheticStream { plan: plan.clone(), clock: Clock::new(&plan.arrivals)?, next: 0 })
    }

    pub(crate) fn next_arrival(&mut self) -> Option<Result<Arrival, TrafficError>> {
        if self.next == self.plan.requests {
            return None;
        }
        let ordinal = self.next;
        self.next += 1;
        let Some(at) = self.clock.next() else {
            return Some(Err(TrafficError::TooSlow {
                requests: self.plan.requests,
                requests_per_second: self.plan.arrivals.rate().unwrap_or_default(),
                ordinal,
            }));
        };
        let request = Request {
            id: RequestId(ordinal),
            arrival: at,
            prompt_tokens: self.plan.input_tokens,
            content: Content::Private,
            output: OutputPlan::of_length(self.plan.output_tokens),
            priority: None,
            tie: ordinal,
            hand_off: HandOff::None,
        };
        Some(Ok(Arrival { at, request, name: None, dp_rank: None, session: None }))
    }
}
