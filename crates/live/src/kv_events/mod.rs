//! KV events on the wire: what a rank's prefix cache publishes, byte for byte as the engines do.
//!
//! `hash` names blocks, `stream` turns the core's events into batches of `event`s, `config` says where they go,
//! and `observer` sends them there.

mod config;
mod event;
pub mod hash;
mod observer;
mod stream;

pub use config::KvEventsConfig;
pub use event::{Dialect, Encoding, TIMESTAMP, WireHash};
pub use observer::{Identity, KvEventPublisher};
pub use stream::{EventStream, Naming, Source};
