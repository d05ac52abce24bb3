//! What a workload is made from, and the one stream type that all kinds become.

use crate::mooncake::MooncakeStream;
use crate::requests::RequestStream;
use crate::synthetic::SyntheticStream;
use crate::{Arrival, Synthetic, TrafficError};
use std::path::PathBuf;
use std::sync::Arc;

/// Layout of a trace file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Mooncake JSON lines: lengths, a time, and one id for each started block of the prompt.
    Mooncake {
        /// Prompt tokens that one id stands for (512 in the published traces).
        block_size: u32,
    },
    /// JSON lines that carry the prompt's tokens (see [`RequestLine`](crate::RequestLine)).
    Requests,
}

/// What becomes of the times of a trace file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Times {
    /// Followed: shifted so that the first is 0, then divided by `speedup`.
    Recorded {
        /// Above 0; 2 replays twice as fast.
        speedup: f64,
    },
    /// Not needed and not read: every arrival is at 0, and the driver decides.
    Ignored,
}

/// A trace file, plain or gzip (told by its first bytes, not by its name).
#[derive(Clone, Debug, PartialEq)]
pub struct TraceFile {
    /// Where it lies.
    pub path: PathBuf,
    /// Its layout.
    pub format: Format,
    /// Its times.
    pub times: Times,
    /// Read this many requests at most.
    pub limit: Option<u64>,
}

/// What the requests are made from.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkloadSource {
    /// Made up.
    Synthetic(Synthetic),
    /// Read from a file.
    Trace(TraceFile),
    /// Known already, in order of arrival: for tools that run the same requests many times.
    Given(Arc<[Arrival]>),
}

impl WorkloadSource {
    /// Begins the stream. Costs nothing but the opening of a file.
    ///
    /// # Errors
    /// A setting without meaning, or a file that cannot be opened.
    pub fn open(&self) -> Result<Source, TrafficError> {
        let (inner, limit) = match self {
            WorkloadSource::Synthetic(plan) => {
                (Inner::Synthetic(Box::new(SyntheticStream::new(plan)?)), None)
            }
            WorkloadSource::Trace(file) => (file.open()?, file.limit),
            WorkloadSource::Given(requests) => (Inner::Given(requests.clone(), 0), None),
        };
        Ok(Source { inner, left: limit.unwrap_or(u64::MAX) })
    }
}

impl TraceFile {
    fn open(&self) -> Result<Inner, TrafficError> {
        if self.limit == Some(0) {
            return Err(TrafficError::Setting {
                field: "limit",
                got: "0".into(),
                problem: "must be at least 1".into(),
            });
        }
        Ok(match self.format {
            Format::Mooncake { block_size } => {
                Inner::Mooncake(Box::new(MooncakeStream::open(&self.path, block_size, self.times)?))
            }
            Format::Requests => {
                Inner::Requests(Box::new(RequestStream::open(&self.path, self.times, self.limit)?))
            }
        })
    }
}

/// A stream of requests in order of arrival. Ends after its first error.
#[derive(Debug)]
pub struct Source {
    inner: Inner,
    /// Requests that may still come.
    left: u64,
}

#[derive(Debug)]
enum Inner {
    Synthetic(Box<SyntheticStream>),
    Mooncake(Box<MooncakeStream>),
    Requests(Box<RequestStream>),
    /// All of them, and how many came already.
    Given(Arc<[Arrival]>, usize),
}

impl Iterator for Source {
    type Item = Result<Arrival, TrafficError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let next = match &mut self.inner {
            Inner::Synthetic(stream) => stream.next_arrival(),
            Inner::Mooncake(stream) => stream.next_arrival(),
            Inner::Requests(stream) => stream.next_arrival(),
            Inner::Given(requests, came) => {
                let next = requests.get(*came).cloned();
                *came += 1;
                next.map(Ok)
            }
        };
        if !matches!(next, Some(Ok(_))) {
            self.left = 0;
        }
        next
    }
}
