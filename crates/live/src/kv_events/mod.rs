//! KV events on the wire: what a rank's prefix cache publishes, byte for byte as the engines do.

mod event;
pub mod hash;
mod stream;

pub use event::{Dialect, Encoding, TIMESTAMP, WireHash};
pub use stream::{EventStream, Naming, Source};
