//! Time stamps, one JSON line for each request: `input_toks`, `output_toks`, `arrival_time`, `first_token_ts`,
//! `last_token_ts`, in seconds, and `queued_ts` where the engine's clock is not the client's. A line may name its
//! `run` and its `kind`; of other kinds than `request` none is read. The lines of requests.jsonl, which have their
//! times in milliseconds, are read as well.

use super::{MeasuredError, MeasuredRun, Stamped, stem};
use serde::Deserialize;
use std::path::Path;
use windtunnel_config::Pace;

#[derive(Deserialize)]
struct Line {
    kind: Option<Box<str>>,
    run: Option<String>,
    request_id: Option<Box<str>>,
    #[serde(alias = "input_tokens", alias = "input_length")]
    input_toks: Option<u32>,
    #[serde(alias = "output_tokens", alias = "output_length")]
    output_toks: Option<u32>,
    arrival_time: Option<f64>,
    queued_ts: Option<f64>,
    first_token_ts: Option<f64>,
    last_token_ts: Option<f64>,
    arrival_time_ms: Option<f64>,
    first_token_ms: Option<f64>,
    last_token_ms: Option<f64>,
    terminal_status: Option<Box<str>>,
}

impl Line {
    fn arrival(&self) -> Option<f64> {
        self.arrival_time.or(self.arrival_time_ms.map(|ms| ms / 1e3))
    }

    /// First and last token, of a request that was answered in full.
    fn tokens(&self) -> Option<(f64, f64)> {
        let first = self.first_token_ts.or(self.first_token_ms.map(|ms| ms / 1e3))?;
        let last = self.last_token_ts.or(self.last_token_ms.map(|ms| ms / 1e3))?;
        let whole = self.terminal_status.as_deref().is_none_or(|status| status == "completed");
        whole.then_some((first, last))
    }
}

/// The requests of one run, before its clocks are one.
struct Stamps {
    name: String,
    requests: Vec<Stamped>,
    failed: u64,
    /// Least time from arrival to the engine's queue, by their own clocks.
    queued_after: Option<f64>,
}

pub(super) fn runs(path: &Path, text: &str) -> Result<Vec<MeasuredRun>, MeasuredError> {
    let mut runs: Vec<Stamps> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let wrong = |reason: String| MeasuredError::Format { path: path.into(), line: number + 1, reason };
        let line: Line = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
        if line.kind.as_deref().is_some_and(|kind| kind != "request") {
            continue;
        }
        let name = line.run.clone().unwrap_or_else(|| stem(path));
        let at = runs.iter().position(|run| run.name == name).unwrap_or_else(|| {
            runs.push(Stamps { name, requests: Vec::new(), failed: 0, queued_after: None });
            runs.len() - 1
        });
        let run = &mut runs[at];
        let missing = |key: &str| wrong(format!("{key}: missing"));
        let arrival = line.arrival().ok_or_else(|| missing("arrival_time"))?;
        let place = run.requests.len() + run.failed as usize;
        // Without a token there is nothing to compare.
        let Some((first_token, last_token)) = line.tokens() else {
            run.failed += 1;
            continue;
        };
        if let Some(queued) = line.queued_ts {
            let after = queued - arrival;
            run.queued_after = Some(run.queued_after.map_or(after, |least| least.min(after)));
        }
        run.requests.push(Stamped {
            id: line.request_id,
            place,
            line: Some(number + 1),
            input_tokens: line.input_toks.ok_or_else(|| missing("input_toks"))?,
            output_tokens: line.output_toks.ok_or_else(|| missing("output_toks"))?,
            arrival,
            first_token,
            last_token,
        });
    }
    if runs.is_empty() {
        let kinds = "lines of time stamps (arrival_time, first_token_ts, last_token_ts, input_toks, output_toks), and \
                     the results of the serving benchmarks of vLLM and SGLang, saved with their details";
        return Err(MeasuredError::whole(
            path,
            format!("holds no measured request; what is read is {kinds}"),
        ));
    }
    runs.into_iter().map(|run| run.on_one_clock(path)).collect()
}

impl Stamps {
    /// vLLM stamps arrivals by the clock of the day and all else by another one. The request that came fastest into
    /// the engine's queue tells how the two differ, but for what that took it: about a millisecond.
    fn on_one_clock(mut self, path: &Path) -> Result<MeasuredRun, MeasuredError> {
        if let Some(after) = self.queued_after {
            self.requests.iter_mut().for_each(|request| request.arrival += after);
        }
        MeasuredRun::new(path, self.name, Pace::Arrivals, self.failed, self.requests)
    }
}
