//! KV caches: what holds a request's tokens, what can be found again, and what goes first.

mod block_pool;
mod prefix_index;

pub(crate) use block_pool::BlockPool;
