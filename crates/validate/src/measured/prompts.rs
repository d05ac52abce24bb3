//! The prompts of a measured run: which of them begin alike. From a file in Mooncake's format, with the requests of
//! the run.

use super::{MeasuredError, MeasuredRequest};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use windtunnel_engine::{Content, Request};
use windtunnel_traffic::{Format, Times, TraceFile, TrafficError, WorkloadSource};

/// Tokens that an id stands for, in files that are about; the first that fits every row is taken.
const BLOCK_SIZES: [u32; 9] = [512, 16, 64, 32, 128, 256, 1024, 8, 4];

/// Prompts by the place of their request, and by its id.
#[derive(Clone, Debug)]
pub struct Prompts {
    path: PathBuf,
    requests: Vec<Request>,
    places: HashMap<Box<str>, usize>,
}

impl Prompts {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that is no Mooncake trace with any of the usual block sizes.
    pub fn read(path: &Path) -> Result<Prompts, MeasuredError> {
        let mut first_error = None;
        for block_size in BLOCK_SIZES {
            match Prompts::of_size(path, block_size) {
                Ok(prompts) => return Ok(prompts),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        match first_error {
            Some(TrafficError::Field { field, .. }) if field == "hash_ids" => {
                let sizes: Vec<String> = BLOCK_SIZES.iter().map(u32::to_string).collect();
                let reason = format!(
                    "hash_ids: with none of the block sizes {} a row has one id for each started block of its prompt",
                    sizes.join(", ")
                );
                Err(MeasuredError::whole(path, reason))
            }
            Some(error) => Err(error.into()),
            // invariant: there is a block size, and without an error it was returned
            None => Err(MeasuredError::whole(path, "cannot be read".into())),
        }
    }

    fn of_size(path: &Path, block_size: u32) -> Result<Prompts, TrafficError> {
        let format = Format::Mooncake { block_size };
        let file = TraceFile { path: path.into(), format, times: Times::Ignored, limit: None };
        let mut prompts = Prompts { path: path.into(), requests: Vec::new(), places: HashMap::new() };
        for arrival in WorkloadSource::Trace(file).open()? {
            let arrival = arrival?;
            if let Some(name) = arrival.name {
                prompts.places.insert(name, prompts.requests.len());
            }
            prompts.requests.push(arrival.request);
        }
        Ok(prompts)
    }

    /// The prompt of a request: that of its id, or else that of its place.
    pub(super) fn of(&self, measured: &MeasuredRequest) -> Result<Content, MeasuredError> {
        let named = measured.id.as_ref().and_then(|id| self.places.get(id)).copied();
        let place = named.unwrap_or(measured.place);
        let wrong = |reason: String| MeasuredError::whole(&self.path, reason);
        let Some(request) = self.requests.get(place) else {
            return Err(wrong(format!(
                "has {} rows; there is none for request {place}",
                self.requests.len()
            )));
        };
        if request.prompt_tokens != measured.input_tokens {
            return Err(wrong(format!(
                "request {place}: its prompt has {} tokens here, {} in the measured run",
                request.prompt_tokens, measured.input_tokens
            )));
        }
        Ok(request.content.clone())
    }
}
