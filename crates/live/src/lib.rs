//! Live mock workers: the engine cores on the wall clock, behind the engines' own HTTP servers.
//!
//! `worker` is what runs: rank groups (`group`, of ranks, `rank`) in logical time, each driven by a thread
//! (`drive`). Clients see a request through its `stream`; everything that watches does so as an `observer`.
//! `kv_transfer` moves KV between workers. `text` plans what a request will say; `http` is the servers; `mocker` puts all of it together.
//! `online` replays a workload against the same ranks; `traces` tells OpenTelemetry of them.

mod clock;
mod door;
mod drive;
mod error;
mod forward_pass;
mod group;
pub mod http;
pub mod kv_events;
pub mod kv_transfer;
pub mod limits;
pub mod metrics;
pub mod mocker;
mod msgpack;
pub mod observer;
pub mod online;
pub mod outlets;
mod placement;
mod publisher;
mod rank;
mod recorder;
pub mod stream;
mod submission;
pub mod text;
pub mod traces;
mod worker;
mod zmq;

pub use clock::WallClock;
pub use error::LiveError;
pub use forward_pass::ForwardPassPublisher;
pub use submission::{Stops, Submission};
pub use worker::{RequestHandle, Worker, WorkerOptions};
pub use zmq::Endpoint;
