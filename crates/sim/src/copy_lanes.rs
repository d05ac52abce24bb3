//! Lanes on which KV is copied between two memories in virtual time: one for each direction, first come first served.

use windtunnel_engine::Nanos;

/// Two lanes, and what they have moved.
pub(crate) struct CopyLanes {
    bytes_per_token: u64,
    /// Bytes per nanosecond; none takes no time.
    rates: [Option<f64>; 2],
    /// Added to each copy.
    latency: Nanos,
    /// When each has done what it was given.
    free_at: [Nanos; 2],
    tokens: [u64; 2],
}

impl CopyLanes {
    pub(crate) fn new(bytes_per_token: u64, rates: [Option<f64>; 2], latency: Nanos) -> CopyLanes {
        CopyLanes { bytes_per_token, rates, latency, free_at: [Nanos::ZERO; 2], tokens: [0; 2] }
    }

    /// A copy of so many tokens, which begins at `now` if its lane is free. Tells when it ends.
    pub(crate) fn copy(&mut self, lane: usize, tokens: u32, now: Nanos) -> Nanos {
        let bytes = f64::from(tokens) * self.bytes_per_token as f64;
        let time = self.rates[lane].map_or(0.0, |rate| bytes / rate).round() as u64;
        self.tokens[lane] += u64::from(tokens);
        let end = now.max(self.free_at[lane]) + self.latency + Nanos(time);
        self.free_at[lane] = end;
        end
    }

    /// Bytes moved on each.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        self.tokens.map(|tokens| tokens * self.bytes_per_token)
    }
}
