//! KV caches: what holds a request's tokens, what can be found again, and what goes first.

mod block_pool;
mod block_table;
mod block_tree;
mod free_queue;
mod key_table;
mod radix;
mod text;

pub(crate) use block_pool::BlockPool;
pub(crate) use block_table::MOST_BLOCKS;
pub(crate) use block_tree::BlockTree;
pub use key_table::KeyTable;
pub(crate) use radix::{Entering, HostMove, NodeId, ROOT, Radix, Telling};
pub use radix::{HostTier, WritePolicy};
pub(crate) use text::Text;
