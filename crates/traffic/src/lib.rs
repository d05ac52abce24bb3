//! Workloads: where requests come from and when they arrive.
//!
//! A source is a stream: one request at a time, in order of arrival, never a list of all of them.
//! Files are read and checked as they stream, so a bad line is an error at the instant it is reached.
//! Who runs the requests, and whether the times are followed or a number of requests is kept in flight
//! instead, is not known here.

mod arrivals;
mod error;
mod fields;
mod gunzip;
mod lines;
mod mooncake;
mod requests;
mod source;
mod synthetic;
mod times;

pub use arrivals::Arrivals;
pub use error::{TrafficError, escaped};
pub use requests::{LoadFail, RequestLine, RequestLines, Whole};
pub use source::{Format, Source, Times, TraceFile, WorkloadSource};
pub use synthetic::Synthetic;

use windtunnel_engine::{Nanos, Request};

/// Largest number of prompt tokens and of output tokens of one request. The longest contexts of today's
/// models are some ten million tokens; a larger number is a mistake, and would cost memory for each token.
pub const MAX_TOKENS: u32 = 1 << 24;

/// One request and the time at which it arrives.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// When. The first arrival of a workload is at 0; equal to `request.arrival`.
    pub at: Nanos,
    /// The request. Its id is its ordinal in the workload, from 0, and so is its tie, but for request files
    /// with times: among their requests of one instant the ties follow the ids of the file as strings.
    pub request: Request,
    /// The request's id in its file, where the file gives one.
    pub name: Option<Box<str>>,
    /// The data-parallel rank of its worker that has to take it, where the file says so.
    pub dp_rank: Option<u32>,
    /// The conversation that it belongs to, where the file says so.
    pub session: Option<Box<str>>,
}
