//! What `vllm bench serve --save-result --save-detailed` and SGLang's `bench_serving --output-details` save: lists
//! with an entry for each request. vLLM's file is one JSON object, SGLang's has one a line and no start times.

use super::{MeasuredError, MeasuredRun, Stamped, stem};
use serde::Deserialize;
use serde_json::{Deserializer, Value};
use std::num::NonZeroU32;
use std::path::Path;
use windtunnel_config::Pace;

#[derive(Deserialize)]
struct Results {
    input_lens: Vec<u32>,
    output_lens: Vec<u32>,
    /// Seconds from the start of a request.
    ttfts: Vec<f64>,
    /// Seconds between what came of a request.
    itls: Vec<Vec<f64>>,
    start_times: Option<Vec<f64>>,
    max_concurrency: Option<NonZeroU32>,
    /// A number, or "inf"; SGLang writes Infinity, which is no JSON and is read as null.
    request_rate: Option<Value>,
    label: Option<String>,
    tag: Option<String>,
}

/// Whether a text is of this kind: its first object has the list of TTFTs, or what is left
/// without details.
pub(super) fn is_result(text: &str) -> bool {
    ["\"mean_ttft_ms\"", "\"ttfts\""].iter().any(|key| text.contains(key))
}

pub(super) fn runs(path: &Path, text: &str) -> Result<Vec<MeasuredRun>, MeasuredError> {
    // What Python writes and JSON does not know. Inside of a text, a null does no harm.
    let json = text.replace("\": Infinity", "\": null").replace("\": NaN", "\": null");
    let mut runs = Vec::new();
    for (number, results) in Deserializer::from_str(&json).into_iter::<Value>().enumerate() {
        let wrong = |reason: String| MeasuredError::whole(path, format!("result {number}: {reason}"));
        let results = results.map_err(|error| wrong(error.to_string()))?;
        if results.get("ttfts").is_none() {
            let remedy = "vllm bench serve needs --save-detailed, SGLang's bench_serving --output-details";
            return Err(wrong(format!("no times of single requests (ttfts); {remedy}")));
        }
        let results = Results::deserialize(results).map_err(|error| wrong(error.to_string()))?;
        let name = results.label.clone().or_else(|| results.tag.clone());
        let name = name.unwrap_or_else(|| match number {
            0 => stem(path),
            _ => format!("{}-{number}", stem(path)),
        });
        runs.push(results.run(path, name)?);
    }
    Ok(runs)
}

impl Results {
    fn run(self, path: &Path, name: String) -> Result<MeasuredRun, MeasuredError> {
        let requests = self.ttfts.len();
        let lists = [
            ("input_lens", self.input_lens.len()),
            ("output_lens", self.output_lens.len()),
            ("itls", self.itls.len()),
            ("start_times", self.start_times.as_ref().map_or(requests, Vec::len)),
        ];
        if let Some((key, length)) = lists.into_iter().find(|(_, length)| *length != requests) {
            let reason = format!("{key}: has {length} entries; ttfts has {requests}");
            return Err(MeasuredError::whole(path, reason));
        }
        let pace = self.pace(path)?;
        let mut stamped = Vec::with_capacity(requests);
        for place in 0..requests {
            // A request that failed has no token; its time is 0.
            if self.output_lens[place] == 0 || self.ttfts[place] <= 0.0 {
                continue;
            }
            let arrival = self.start_times.as_ref().map_or(0.0, |times| times[place]);
            let first_token = arrival + self.ttfts[place];
            stamped.push(Stamped {
                id: None,
                place,
                line: None,
                input_tokens: self.input_lens[place],
                output_tokens: self.output_lens[place],
                arrival,
                first_token,
                last_token: first_token + self.itls[place].iter().sum::<f64>(),
            });
        }
        let failed = (requests - stamped.len()) as u64;
        MeasuredRun::new(path, name, pace, failed, stamped)
    }

    /// Start times are followed. Without them a run can be repeated if it kept a number of requests in flight, or
    /// sent all at once.
    fn pace(&self, path: &Path) -> Result<Pace, MeasuredError> {
        if self.start_times.is_some() {
            return Ok(Pace::Arrivals);
        }
        let at_once = match &self.request_rate {
            None => true,
            Some(rate) => rate.as_str() == Some("inf") || rate.is_null(),
        };
        match (at_once, self.max_concurrency) {
            (true, Some(concurrency)) => Ok(Pace::Concurrency(concurrency)),
            (true, None) => Ok(Pace::Arrivals),
            (false, _) => Err(MeasuredError::whole(
                path,
                "start_times: missing, and request_rate is finite; without start times a run can be repeated if its \
                 requests were sent at once, or kept to max_concurrency"
                    .into(),
            )),
        }
    }
}
