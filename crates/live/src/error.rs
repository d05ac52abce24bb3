//! What keeps a worker from starting.

use std::io;
use std::net::SocketAddr;
use thiserror::Error;
use windtunnel_engine::ConfigError;
use windtunnel_traffic::TrafficError;

/// A worker that could not start, or did not come to an orderly end.
#[derive(Debug, Error)]
pub enum LiveError {
    /// The engine refuses its settings.
    #[error(transparent)]
    Engine(#[from] ConfigError),
    /// Settings that the live worker refuses.
    #[error("{0}")]
    Settings(String),
    /// The system gives no thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// The system lets us hear no signal, or does not tell where we listen.
    #[error("the system refuses: {0}")]
    Signals(#[source] io::Error),
    /// The workload is wrong.
    #[error(transparent)]
    Traffic(#[from] TrafficError),
    /// It was told to stop.
    #[error("interrupted")]
    Interrupted,
    /// The engine would have died.
    #[error("the engine died: {0}")]
    Dead(&'static str),
    /// Requests are left that nothing will ever wake.
    #[error("{0} requests are unfinished and nothing is left to happen; the engine would wait for ever, too")]
    Stuck(u64),
    /// The address is taken, or not ours.
    #[error("cannot listen on {address}: {cause}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        cause: io::Error,
    },
    /// A ZeroMQ socket cannot be had.
    #[error("cannot open {endpoint}: {cause}")]
    Socket {
        /// Where.
        endpoint: String,
        /// Why.
        cause: String,
    },
}
