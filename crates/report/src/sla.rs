//! The promise to users that goodput counts by, and the one place that decides whether a request kept
//! it. Decided on whole nanoseconds, as the request ends, so that no request has to be kept for it.
//! Where the bounds come from is not known here.

use crate::record::RequestRecord;
use windtunnel_engine::Nanos;

/// Bounds that a request must keep to be good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sla {
    /// Bounds on TTFT and on the mean gap between tokens; those that are set must hold.
    Tokens {
        /// Longest TTFT.
        ttft: Option<Nanos>,
        /// Longest (E2E − TTFT) / (tokens − 1). Not checked for a request with one token.
        itl: Option<Nanos>,
    },
    /// Longest E2E.
    E2e(Nanos),
}

impl Sla {
    /// Whether a completed request kept every bound. Without a token there is neither TTFT nor E2E: such
    /// a request can be good only by the time until it ended.
    pub(crate) fn kept_by(self, request: &RequestRecord) -> bool {
        match self {
            Sla::E2e(bound) => request.e2e().unwrap_or(request.terminal.since(request.arrival)) <= bound,
            Sla::Tokens { ttft, itl } => {
                let Some(first) = request.ttft() else { return false };
                let within = |bound: Nanos, time: Nanos| {
                    let gaps = u128::from(request.output_tokens.saturating_sub(1));
                    u128::from(time.0) <= u128::from(bound.0) * gaps
                };
                ttft.is_none_or(|bound| first <= bound)
                    && itl.is_none_or(|bound| request.decode_time().is_none_or(|time| within(bound, time)))
            }
        }
    }
}
