//! Request files: JSON lines that carry the tokens of every prompt and output, the format of the
//! scheduler oracles.
//!
//! The line, its reader and its meaning as a request are public, for tools that drive requests by
//! steps or abort them; the stream below them serves predictions, which do neither.

use crate::fields::{self, Fields, LineFault};
use crate::lines::{Fault, Lines};
use crate::times::TimeLine;
use crate::{Arrival, MAX_TOKENS, Times, TrafficError};
use serde::Deserialize;
use serde_json::Value;
use std::collections::VecDeque;
use std::path::Path;
use windtunnel_engine::{Content, HandOff, Nanos, OutputPlan, Request, RequestId};

/// One line of a request file. A field that is null counts as not given.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestLine {
    /// Name of the request.
    pub id: Box<str>,
    /// The prompt's tokens, at least one.
    pub prompt_token_ids: Vec<u32>,
    /// Most output tokens, 1 to 2^24.
    pub max_tokens: u32,
    /// The output tokens, in order.
    pub output_token_ids: Option<Vec<u32>>,
    /// When the request arrives, in milliseconds.
    pub arrival_ms: Option<f64>,
    /// Or: the scheduler step before which it arrives.
    pub arrival_step: Option<u64>,
    /// vLLM's priority, the smaller the more urgent; 0 if not given.
    pub priority: Option<i32>,
    /// Tokens that end the output when they are generated.
    pub stop_token_ids: Option<Vec<u32>>,
    /// The scheduler step before which the request is aborted.
    pub abort_step: Option<u64>,
    /// When the request is aborted, in milliseconds.
    pub abort_ms: Option<f64>,
    /// Whether the end-of-sequence token is ignored. Outputs are planned, so this never shortens one;
    /// SGLang reserves memory by it.
    pub ignore_eos: Option<bool>,
    /// The data-parallel rank of its worker that has to take it, from 0.
    pub dp_rank: Option<u32>,
    /// Names the conversation that the request belongs to, for routers that keep conversations together.
    pub session_id: Option<Box<str>>,
    /// The KV of its prompt is pulled from a prefill side.
    pub remote_prefill: Option<bool>,
    /// Its blocks are held after it ends, for a decode side to read.
    pub remote_decode: Option<bool>,
    /// How long its load takes, in milliseconds.
    pub load_ms: Option<f64>,
    /// How long it takes until its blocks have been read, in milliseconds.
    pub send_ms: Option<f64>,
    /// Its load fails.
    pub load_fail: Option<LoadFail>,
}

/// How a load fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum LoadFail {
    /// From the n-th block that is loaded on.
    FromBlock(u32),
    /// All of it.
    Whole(Whole),
}

/// The word for all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Whole {
    /// `request`
    Request,
}

const KNOWN: [&str; 18] = [
    "id",
    "prompt_token_ids",
    "max_tokens",
    "output_token_ids",
    "arrival_ms",
    "arrival_step",
    "priority",
    "stop_token_ids",
    "abort_step",
    "abort_ms",
    "ignore_eos",
    "dp_rank",
    "session_id",
    "remote_prefill",
    "remote_decode",
    "load_ms",
    "send_ms",
    "load_fail",
];

/// What `load_fail` may be.
const LOAD_FAILURES: &str = "allowed are \"request\" and the number of a block, from 0";

/// Output token of a position behind a given list of output tokens.
const PADDING_TOKEN: u32 = 199_999;

impl RequestLine {
    /// The request that this line, the `ordinal`-th of its file from 0, describes.
    ///
    /// Output token k is `output_token_ids[k]`, 199999 behind the end of that list, and without a list
    /// (or with an empty one) 100000 + (997·ordinal + k) mod 90000. A stop token among them ends the
    /// output.
    pub fn into_request(self, ordinal: u64, arrival: Nanos) -> Request {
        let max_tokens = self.max_tokens as usize;
        let tokens: Box<[u32]> = match self.output_token_ids {
            Some(given) if !given.is_empty() => {
                let padding = std::iter::repeat(PADDING_TOKEN);
                given.into_iter().chain(padding).take(max_tokens).collect()
            }
            _ => {
                // Reduced first, so that no ordinal overflows; the sum is below 90000 and fits.
                let first = 997 * (ordinal % 90_000);
                (0..u64::from(self.max_tokens)).map(|k| 100_000 + ((first + k) % 90_000) as u32).collect()
            }
        };
        let stop_tokens = self.stop_token_ids.unwrap_or_default();
        let stop_at = tokens.iter().position(|token| stop_tokens.contains(token));
        Request {
            id: RequestId(ordinal),
            arrival,
            // Prompts are bounded by MAX_TOKENS when a line is read.
            prompt_tokens: self.prompt_token_ids.len() as u32,
            content: Content::Tokens(self.prompt_token_ids.into()),
            output: OutputPlan {
                max_tokens: self.max_tokens,
                stop_after: stop_at.map(|k| k as u32 + 1),
                tokens: Some(tokens),
                ignore_eos: self.ignore_eos,
            },
            priority: self.priority,
            tie: ordinal,
            hand_off: match (self.remote_prefill, self.remote_decode) {
                (Some(true), _) => HandOff::Pull,
                (_, Some(true)) => HandOff::Hold,
                _ => HandOff::None,
            },
        }
    }

    fn check(&self) -> Result<(), Fault> {
        let prompt = self.prompt_token_ids.len();
        if prompt == 0 || prompt > MAX_TOKENS as usize {
            let allowed = format!("allowed are 1 to {MAX_TOKENS}");
            return Err(Fault::new("prompt_token_ids", format!("got {prompt} tokens"), allowed));
        }
        if self.max_tokens == 0 || self.max_tokens > MAX_TOKENS {
            let allowed = format!("allowed is an integer from 1 to {MAX_TOKENS}");
            return Err(Fault::new("max_tokens", format!("got {}", self.max_tokens), allowed));
        }
        let times = [
            ("arrival_ms", self.arrival_ms),
            ("abort_ms", self.abort_ms),
            ("load_ms", self.load_ms),
            ("send_ms", self.send_ms),
        ];
        for (field, ms) in times {
            if let Some(ms) = ms
                && !(ms.is_finite() && ms >= 0.0)
            {
                let allowed = "allowed is a number of milliseconds of at least 0";
                return Err(Fault::new(field, format!("got {ms}"), allowed));
            }
        }
        if self.remote_prefill == Some(true) && self.remote_decode == Some(true) {
            let allowed = "remote_prefill is true too; a request has one of them";
            return Err(Fault::new("remote_decode", "got true", allowed));
        }
        Ok(())
    }
}

/// The lines of a request file, plain or gzip. Ends after its first error.
#[derive(Debug)]
pub struct RequestLines {
    lines: Lines,
    read: u64,
    ended: bool,
}

impl RequestLines {
    /// Opens a file.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path) -> Result<RequestLines, TrafficError> {
        Ok(RequestLines { lines: Lines::open(path)?, read: 0, ended: false })
    }

    fn read_line(&mut self) -> Option<Result<RequestLine, TrafficError>> {
        let line = match self.lines.next_line() {
            None if self.read == 0 => return Some(Err(self.lines.empty())),
            None => return None,
            Some(Err(error)) => return Some(Err(error)),
            Some(Ok(line)) => line,
        };
        let parsed = match serde_json::from_slice::<RequestLine>(line) {
            Ok(parsed) => parsed.check().map(|()| parsed).map_err(LineFault::from),
            Err(error) => Err(explain(line, &error)),
        };
        self.read += 1;
        Some(parsed.map_err(|fault| match fault {
            LineFault::Syntax(problem) => self.lines.syntax(problem),
            LineFault::Field(fault) => self.lines.field(fault),
        }))
    }

    /// An error about the line read last.
    fn refuse(&self, fault: Fault) -> TrafficError {
        self.lines.field(fault)
    }
}

impl Iterator for RequestLines {
    type Item = Result<RequestLine, TrafficError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.read_line();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Finds the field because of which a line is not a [`RequestLine`].
fn explain(line: &[u8], error: &serde_json::Error) -> LineFault {
    let found = Fields::parse(line).and_then(|fields| {
        let fields = fields.distinct()?;
        for (name, value) in &fields {
            if !(value.is_null() && KNOWN.contains(&&**name)) {
                check_type(name, value)?;
            }
        }
        for required in &KNOWN[..3] {
            if !fields.iter().any(|(name, value)| name == required && !value.is_null()) {
                return Err(fields::missing(required).into());
            }
        }
        Ok(())
    });
    found.err().unwrap_or_else(|| LineFault::Syntax(error.to_string()))
}

fn check_type(field: &str, value: &Value) -> Result<(), Fault> {
    match field {
        "id" => fields::text(field, value).map(drop),
        "prompt_token_ids" | "output_token_ids" | "stop_token_ids" => {
            fields::integers(field, value, u32::MAX.into()).map(drop)
        }
        "max_tokens" => fields::integer(field, value, 1, MAX_TOKENS.into()).map(drop),
        "arrival_ms" | "abort_ms" | "load_ms" | "send_ms" => fields::milliseconds(field, value).map(drop),
        "arrival_step" | "abort_step" => fields::integer(field, value, 0, u64::MAX).map(drop),
        "priority" => fields::signed(field, value).map(drop),
        "ignore_eos" | "remote_prefill" | "remote_decode" => fields::boolean(field, value).map(drop),
        "load_fail" if value == "request" => Ok(()),
        "load_fail" => fields::integer(field, value, 0, u32::MAX.into())
            .map(drop)
            .map_err(|_| Fault::new(field, format!("got {value}"), LOAD_FAILURES)),
        "dp_rank" => fields::integer(field, value, 0, u32::MAX.into()).map(drop),
        "session_id" => fields::text(field, value).map(drop),
        _ => Err(fields::unknown(field, &KNOWN)),
    }
}

/// The stream of a request file whose requests arrive by time.
///
/// vLLM orders requests of one priority and one time by their ids as strings. So the requests of one time
/// are read together, however many they are; they come out in the order of the file, with their ties in
/// the order of their ids.
#[derive(Debug)]
pub(crate) struct RequestStream {
    lines: RequestLines,
    times: TimeLine,
    /// Ordinal of the next request to be read.
    next: u64,
    /// Requests to read at most.
    limit: u64,
    /// Whether requests have times at all.
    timed: bool,
    /// Requests of one time, ties in order.
    ready: VecDeque<Arrival>,
    /// What was read behind them.
    ahead: Option<Result<Timed, TrafficError>>,
}

/// A request, and the time that its line gives.
#[derive(Debug)]
struct Timed {
    arrival_ms: Option<f64>,
    arrival: Arrival,
}

impl RequestStream {
    pub(crate) fn open(path: &Path, times: Times, limit: Option<u64>) -> Result<RequestStream, TrafficError> {
        Ok(RequestStream {
            times: TimeLine::new(times)?,
            lines: RequestLines::open(path)?,
            next: 0,
            limit: limit.unwrap_or(u64::MAX),
            timed: times != Times::Ignored,
            ready: VecDeque::new(),
            ahead: None,
        })
    }

    pub(crate) fn next_arrival(&mut self) -> Option<Result<Arrival, TrafficError>> {
        if self.ready.is_empty() {
            let first = match self.ahead.take().or_else(|| self.read())? {
                Ok(first) => first,
                Err(error) => return Some(Err(error)),
            };
            self.ready.push_back(first.arrival);
            if self.timed {
                self.read_others_of(first.arrival_ms);
                self.order_ties();
            }
        }
        self.ready.pop_front().map(Ok)
    }

    fn read_others_of(&mut self, arrival_ms: Option<f64>) {
        loop {
            match self.read() {
                Some(Ok(other)) if other.arrival_ms == arrival_ms => self.ready.push_back(other.arrival),
                behind => {
                    self.ahead = behind;
                    return;
                }
            }
        }
    }

    /// Hands the ties of the requests that are ready, their ordinals till now, out anew.
    fn order_ties(&mut self) {
        let Some(first) = self.ready.front().map(|arrival| arrival.request.tie) else { return };
        let mut by_id: Vec<usize> = (0..self.ready.len()).collect();
        by_id.sort_by(|&a, &b| self.ready[a].name.cmp(&self.ready[b].name));
        for (tie, &index) in (first..).zip(&by_id) {
            self.ready[index].request.tie = tie;
        }
    }

    fn read(&mut self) -> Option<Result<Timed, TrafficError>> {
        if self.next == self.limit {
            return None;
        }
        let line = match self.lines.next()? {
            Ok(line) => line,
            Err(error) => return Some(Err(error)),
        };
        let arrival_ms = line.arrival_ms;
        let arrival = self.arrival(line).map_err(|fault| self.lines.refuse(fault));
        Some(arrival.map(|arrival| Timed { arrival_ms, arrival }))
    }

    fn arrival(&mut self, mut line: RequestLine) -> Result<Arrival, Fault> {
        let by_step =
            "arrivals and aborts by scheduler step belong to conformance runs; a prediction has times";
        let transfers =
            "hand-offs by line belong to conformance runs; a prediction has its roles and kv_transfer";
        let refused = [
            ("arrival_step", line.arrival_step.map(|step| step.to_string()), by_step),
            ("abort_step", line.abort_step.map(|step| step.to_string()), by_step),
            (
                "abort_ms",
                line.abort_ms.map(|ms| ms.to_string()),
                "aborts are not supported in predictions yet",
            ),
            ("remote_prefill", line.remote_prefill.map(|remote| remote.to_string()), transfers),
            ("remote_decode", line.remote_decode.map(|remote| remote.to_string()), transfers),
            ("load_ms", line.load_ms.map(|ms| ms.to_string()), transfers),
            ("send_ms", line.send_ms.map(|ms| ms.to_string()), transfers),
            ("load_fail", line.load_fail.map(|_| "one".to_owned()), transfers),
        ];
        for (field, value, why) in refused {
            if let Some(value) = value {
                return Err(Fault::new(field, format!("got {value}"), why));
            }
        }
        let at = self.times.at("arrival_ms", line.arrival_ms)?;
        let ordinal = self.next;
        self.next += 1;
        let (name, dp_rank) = (std::mem::take(&mut line.id), line.dp_rank);
        let session = line.session_id.take();
        Ok(Arrival { at, request: line.into_request(ordinal, at), name: Some(name), dp_rank, session })
    }
}
