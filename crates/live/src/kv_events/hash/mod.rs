//! Block hashes exactly as the engines compute them: what stands in their KV events, and what routers and other
//! instances compare. From prompts given as tokens only.
//!
//! Nothing here knows of pools, events or sockets.

mod cbor;
mod pickle;
mod sglang;
mod vllm;

pub use sglang::{PageHasher, SglangNamespace};
pub use vllm::{Adapter, BlockHash, BlockHasher, ExtraKey, HashAlgorithm, Multimodal, Namespace};

/// What both serialisations of a Python value can write.
trait Python {
    /// `None`.
    fn none(&mut self);
    /// A number.
    fn int(&mut self, value: i64);
    /// A byte string.
    fn bytes(&mut self, value: &[u8]);
    /// A text that is an object of its own.
    fn text(&mut self, value: &str);
    /// A text that is the same object wherever it stands: a literal of the engine's source.
    fn constant(&mut self, value: &'static str);
    /// A tuple of `length` values, which `write` writes.
    fn tuple(&mut self, length: usize, write: impl FnOnce(&mut Self));
}
