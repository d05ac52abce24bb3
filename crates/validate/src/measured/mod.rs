//! Runs of real engines, as they were measured: when each request arrived, and when its tokens came.
//!
//! Three kinds of files are read, told by what they hold: lines of time stamps, and the results that the
//! serving benchmarks of vLLM and SGLang save with their details. All become one [`MeasuredRun`]. What a
//! simulation makes of the same requests is not known here.

mod bench;
mod error;
mod prompts;
mod stamps;

pub use error::MeasuredError;
pub use prompts::Prompts;

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use windtunnel_config::Pace;
use windtunnel_engine::{Content, HandOff, Nanos, OutputPlan, Request, RequestId};
use windtunnel_traffic::{Arrival, MAX_TOKENS};

/// Longest file, unpacked.
const MAX_BYTES: u64 = 1 << 30;

/// One measured run.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredRun {
    /// Its name: that in the file, or else the file's.
    pub name: String,
    /// Its requests that were answered, in order of arrival. The first arrives at 0.
    pub requests: Vec<MeasuredRequest>,
    /// Who decided when a request was sent.
    pub pace: Pace,
    /// Requests without an answer, which are left out.
    pub failed: u64,
}

/// A line of a file and its number, from 1.
pub type Numbered = (usize, String);

/// One request of a measured run.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredRequest {
    /// Its id, where the file gives one.
    pub id: Option<Box<str>>,
    /// Its place in the file, from 0, failed ones counted.
    pub place: usize,
    /// Prompt length in tokens.
    pub input_tokens: u32,
    /// Output tokens that came.
    pub output_tokens: u32,
    /// When it was sent.
    pub arrival: Nanos,
    /// When its first token came.
    pub first_token: Nanos,
    /// When its last token came.
    pub last_token: Nanos,
}

impl MeasuredRun {
    /// Reads every run of a file, and its lines of kind meta with their numbers: what they say of the runs.
    ///
    /// # Errors
    /// As [`read`](Self::read), but for names.
    pub fn all(path: &Path) -> Result<(Vec<MeasuredRun>, Vec<Numbered>), MeasuredError> {
        let text = text(path)?;
        let numbered = text.lines().enumerate().filter(|(_, line)| line.contains("\"meta\""));
        let about = numbered.map(|(number, line)| (number + 1, line.to_owned())).collect();
        Ok((runs(path, &text)?, about))
    }

    /// Reads a run. `name` says which one, where the file holds several.
    ///
    /// # Errors
    /// A file that cannot be read or is of no known kind, several runs and no name, a name that is not there,
    /// and times that contradict each other.
    pub fn read(path: &Path, name: Option<&str>) -> Result<MeasuredRun, MeasuredError> {
        let text = text(path)?;
        let mut runs = runs(path, &text)?;
        let at = match name {
            Some(name) => runs.iter().position(|run| run.name == name),
            None if runs.len() == 1 => Some(0),
            None => None,
        };
        let Some(at) = at else {
            let known: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
            let asked =
                name.map_or("holds several runs".to_owned(), |name| format!("there is no run \"{name}\""));
            return Err(MeasuredError::whole(path, format!("{asked}; there are {}", known.join(", "))));
        };
        Ok(runs.swap_remove(at))
    }

    /// The same requests as a workload: with the prompts of `prompts`, or else with prompts that share nothing.
    ///
    /// # Errors
    /// Prompts of other requests.
    pub fn workload(&self, prompts: Option<&Prompts>) -> Result<Arc<[Arrival]>, MeasuredError> {
        let arrivals = self.requests.iter().enumerate().map(|(ordinal, measured)| {
            let content = match prompts {
                Some(prompts) => prompts.of(measured)?,
                None => Content::Private,
            };
            let at = if self.pace == Pace::Arrivals { measured.arrival } else { Nanos::ZERO };
            let request = Request {
                id: RequestId(ordinal as u64),
                arrival: at,
                prompt_tokens: measured.input_tokens,
                content,
                output: OutputPlan::of_length(measured.output_tokens),
                priority: None,
                tie: ordinal as u64,
                hand_off: HandOff::None,
            };
            Ok(Arrival { at, request, name: measured.id.clone(), dp_rank: None, session: None })
        });
        arrivals.collect()
    }

    /// Puts requests in order of arrival, the first at 0. Each is its stamps in seconds of one clock.
    fn new(
        path: &Path,
        name: String,
        pace: Pace,
        failed: u64,
        mut stamped: Vec<Stamped>,
    ) -> Result<MeasuredRun, MeasuredError> {
        stamped.sort_by(|a, b| a.arrival.total_cmp(&b.arrival));
        let Some(start) = stamped.first().map(|request| request.arrival) else {
            return Err(MeasuredError::whole(path, format!("run \"{name}\" has no request with an answer")));
        };
        let requests = stamped.into_iter().map(|request| {
            let since = |key: &str, seconds: f64| {
                let wrong =
                    || request.wrong(path, format!("{key}: got {seconds}, which is no time of this run"));
                Nanos::from_ms((seconds - start) * 1e3).ok_or_else(wrong)
            };
            let measured = MeasuredRequest {
                place: request.place,
                input_tokens: request.input_tokens,
                output_tokens: request.output_tokens,
                arrival: since("arrival", request.arrival)?,
                first_token: since("first token", request.first_token)?,
                last_token: since("last token", request.last_token)?,
                id: request.id.clone(),
            };
            if measured.first_token < measured.arrival || measured.last_token < measured.first_token {
                return Err(
                    request.wrong(path, "its first token came before it, or after its last one".into())
                );
            }
            for (what, tokens) in [("prompt", request.input_tokens), ("output", request.output_tokens)] {
                if tokens == 0 || tokens > MAX_TOKENS {
                    let problem = format!("has {tokens} {what} tokens; allowed are 1 to {MAX_TOKENS}");
                    return Err(request.wrong(path, problem));
                }
            }
            Ok(measured)
        });
        Ok(MeasuredRun { name, requests: requests.collect::<Result<_, _>>()?, pace, failed })
    }
}

fn runs(path: &Path, text: &str) -> Result<Vec<MeasuredRun>, MeasuredError> {
    if bench::is_result(text) { bench::runs(path, text) } else { stamps::runs(path, text) }
}

/// A request with its stamps in seconds.
struct Stamped {
    id: Option<Box<str>>,
    place: usize,
    /// The line that it stands on, if it has one of its own.
    line: Option<usize>,
    input_tokens: u32,
    output_tokens: u32,
    arrival: f64,
    first_token: f64,
    last_token: f64,
}

impl Stamped {
    fn wrong(&self, path: &Path, problem: String) -> MeasuredError {
        let reason = format!("request {}: {problem}", self.place);
        match self.line {
            Some(line) => MeasuredError::Format { path: path.into(), line, reason },
            None => MeasuredError::whole(path, reason),
        }
    }
}

/// The text of a file, unpacked if it is gzipped.
fn text(path: &Path) -> Result<String, MeasuredError> {
    let wrap = |source| MeasuredError::Io { path: path.into(), source };
    let mut bytes = Vec::new();
    File::open(path).map_err(wrap)?.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(wrap)?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let packed = std::mem::take(&mut bytes);
        let mut unpacked = flate2::read::MultiGzDecoder::new(&packed[..]).take(MAX_BYTES + 1);
        unpacked.read_to_end(&mut bytes).map_err(wrap)?;
    }
    if bytes.len() as u64 > MAX_BYTES {
        return Err(MeasuredError::whole(path, format!("longer than {} MiB", MAX_BYTES >> 20)));
    }
    String::from_utf8(bytes).map_err(|_| MeasuredError::whole(path, "not UTF-8".into()))
}

/// The name of a file without its endings, for a run that has none.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}
