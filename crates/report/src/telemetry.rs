//! Telemetry: the state of each rank at regular virtual times, and what it did since the last
//! sample. The writer keeps each rank's last counters, so that a driver hands over totals only.

use crate::json_line;
use crate::rank::Role;
use crate::ratio::part;
use serde::Serialize;
use std::collections::HashMap;
use std::io::{self, Write};
use windtunnel_engine::Nanos;

/// One rank at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TelemetrySample {
    /// The instant.
    pub time: Nanos,
    /// The worker's role.
    pub role: Role,
    /// The worker, numbered from 0 within its role.
    pub worker: u32,
    /// The rank in it.
    pub rank: u32,
    /// Requests in the running list.
    pub running: u64,
    /// Requests in the waiting queue.
    pub waiting: u64,
    /// KV blocks held by requests.
    pub kv_blocks_used: u64,
    /// KV blocks that can hold tokens.
    pub kv_blocks_usable: u64,
    /// Non-empty passes scheduled since the start of the run, those in flight included.
    pub passes: u64,
    /// Tokens of prefill chunks in them.
    pub prefill_tokens: u64,
    /// Tokens of decoding requests in them.
    pub decode_tokens: u64,
    /// Preemptions since the start of the run.
    pub preemptions: u64,
    /// Time with a pass running since the start of the run, up to the instant.
    pub busy: Nanos,
}

/// Counters from the start of the run, or between two samples.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Work {
    passes: u64,
    prefill_tokens: u64,
    decode_tokens: u64,
    preemptions: u64,
    busy_ms: f64,
}

#[derive(Debug, Serialize)]
struct Line {
    time_ms: f64,
    role: Role,
    worker: u32,
    rank: u32,
    running: u64,
    waiting: u64,
    kv_blocks_used: u64,
    kv_usage: Option<f64>,
    total: Work,
    since_last: Work,
}

/// Writes samples as lines.
#[derive(Debug)]
pub struct TelemetryWriter<W> {
    out: W,
    last: HashMap<(Role, u32, u32), TelemetrySample>,
}

impl<W: Write> TelemetryWriter<W> {
    /// A writer that has seen no rank yet.
    pub fn new(out: W) -> TelemetryWriter<W> {
        TelemetryWriter { out, last: HashMap::new() }
    }

    /// Writes one sample. The first one of a rank counts its work from the start of the run.
    pub fn sample(&mut self, sample: &TelemetrySample) -> io::Result<()> {
        let last = self.last.insert((sample.role, sample.worker, sample.rank), *sample);
        // A worker that came into the place of another one counts anew.
        let since = |field: fn(&TelemetrySample) -> u64| {
            let (now, before) = (field(sample), last.as_ref().map_or(0, field));
            now.checked_sub(before).unwrap_or(now)
        };
        let line = Line {
            time_ms: sample.time.as_ms(),
            role: sample.role,
            worker: sample.worker,
            rank: sample.rank,
            running: sample.running,
            waiting: sample.waiting,
            kv_blocks_used: sample.kv_blocks_used,
            kv_usage: part(sample.kv_blocks_used, sample.kv_blocks_usable),
            total: Work {
                passes: sample.passes,
                prefill_tokens: sample.prefill_tokens,
                decode_tokens: sample.decode_tokens,
                preemptions: sample.preemptions,
                busy_ms: sample.busy.as_ms(),
            },
            since_last: Work {
                passes: since(|s| s.passes),
                prefill_tokens: since(|s| s.prefill_tokens),
                decode_tokens: since(|s| s.decode_tokens),
                preemptions: since(|s| s.preemptions),
                busy_ms: Nanos(since(|s| s.busy.0)).as_ms(),
            },
        };
        json_line::write(&mut self.out, &line)
    }

    /// The destination, to be finished.
    pub fn into_inner(self) -> W {
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_totals_and_what_happened_since_the_one_before() {
        let first = TelemetrySample {
            time: Nanos(1_000_000_000),
            role: Role::Aggregated,
            worker: 0,
            rank: 0,
            running: 3,
            waiting: 1,
            kv_blocks_used: 10,
            kv_blocks_usable: 40,
            passes: 100,
            prefill_tokens: 5000,
            decode_tokens: 280,
            preemptions: 0,
            busy: Nanos(900_000_000),
        };
        let other_rank = TelemetrySample { rank: 1, passes: 7, ..first };
        let second = TelemetrySample {
            time: Nanos(2_000_000_000),
            passes: 150,
            preemptions: 2,
            busy: Nanos(1_900_000_500),
            ..first
        };
        let mut writer = TelemetryWriter::new(Vec::new());
        for sample in [&first, &other_rank, &second] {
            writer.sample(sample).unwrap();
        }
        let text = String::from_utf8(writer.into_inner()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            concat!(
                r#"{"time_ms":1000.0,"role":"aggregated","worker":0,"rank":0,"running":3,"waiting":1,"#,
                r#""kv_blocks_used":10,"kv_usage":0.25,"#,
                r#""total":{"passes":100,"prefill_tokens":5000,"decode_tokens":280,"preemptions":0,"#,
                r#""busy_ms":900.0},"since_last":{"passes":100,"prefill_tokens":5000,"#,
                r#""decode_tokens":280,"preemptions":0,"busy_ms":900.0}}"#
            )
        );
        assert!(lines[2].ends_with(
            r#""since_last":{"passes":50,"prefill_tokens":0,"decode_tokens":0,"preemptions":2,"busy_ms":1000.0005}}"#
        ));
    }
}
