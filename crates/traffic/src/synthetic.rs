//! Synthetic requests: of one size or of drawn sizes, sharing content with nobody.

use crate::arrivals::Clock;
use crate::{Arrival, Arrivals, MAX_TOKENS, TrafficError};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use windtunnel_engine::{Content, HandOff, OutputPlan, Request, RequestId};

/// A synthetic workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Synthetic {
    /// Longest prompt, at least 1.
    pub input_tokens: u32,
    /// Longest output, at least 1.
    pub output_tokens: u32,
    /// Lengths are drawn evenly from this share of the longest to all of it; none: all are the longest.
    pub shortest_share: Option<f64>,
    /// Of the drawn lengths.
    pub length_seed: u64,
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
    lengths: ChaCha8Rng,
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
        if let Some(share) = plan.shortest_share.filter(|share| !(*share > 0.0 && *share <= 1.0)) {
            return Err(TrafficError::Setting {
                field: "shortest_share",
                got: share.to_string(),
                problem: "must be above 0 and at most 1".into(),
            });
        }
        let lengths = ChaCha8Rng::seed_from_u64(plan.length_seed);
        Ok(SyntheticStream { plan: plan.clone(), clock: Clock::new(&plan.arrivals)?, lengths, next: 0 })
    }

    /// The lengths of the next request.
    fn draw(&mut self) -> (u32, u32) {
        let (input, output) = (self.plan.input_tokens, self.plan.output_tokens);
        let Some(share) = self.plan.shortest_share else { return (input, output) };
        let mut of = |longest: u32| {
            let shortest = ((f64::from(longest) * share) as u32).max(1);
            // The high half of a product of 32 bits each: even but for one part in 2^32.
            let below = u64::from(longest - shortest) + 1;
            shortest + ((u64::from(self.lengths.next_u32()) * below) >> 32) as u32
        };
        (of(input), of(output))
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
        let (input, output) = self.draw();
        let request = Request {
            id: RequestId(ordinal),
            arrival: at,
            prompt_tokens: input,
            content: Content::Private,
            output: OutputPlan::of_length(output),
            priority: None,
            tie: ordinal,
            hand_off: HandOff::None,
        };
        Some(Ok(Arrival { at, request, name: None, dp_rank: None, session: None }))
    }
}
