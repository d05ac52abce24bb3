//! What a request gives to the radix cache, holds of it, and gives back
//! (mem_cache/common.py, mem_cache/unified_radix_cache.py `checkpoint_into_tree`).

use super::rank::Rank;
use crate::kv::{Entering, HostMove, Radix};
use crate::pass::HostJob;
use std::sync::Arc;

impl Rank {
    /// Enters the request's first `up_to` tokens in the tree, as far as they fill pages, and moves its lock
    /// to their end. Slots that the tree has already go back to the pool.
    pub(super) fn checkpoint(&mut self, slot: u32, up_to: u32) {
        if !self.radix.enabled() {
            return;
        }
        let page = self.config.page_size;
        let len = up_to - up_to % page;
        let s = &mut self.sequences[slot as usize];
        self.keys.clear();
        if let Some(keys) = &mut s.keys {
            self.radix.name(keys, len, s.text.output(), &mut self.keys);
        }
        let text = Arc::clone(&s.text);
        let who = Entering { request: s.id, keys: &self.keys, entered: s.entered_len };
        let node = self.radix.insert(&text, len, s.protected_len, who);
        // The tree can drop the outputs without the prompt.
        let prompt = s.prompt - s.prompt % page;
        if prompt > 0 && prompt < len {
            self.radix.part_at(&text, prompt);
        }
        let old = s.lock.replace(node);
        if let Some(old) = old {
            self.radix.unlock(old);
        }
        self.radix.lock(node);
        s.protected_len = len;
        s.entered_len = s.entered_len.max(len);
        s.last_node = node;
    }

    /// Gives back all slots of a request that is not in the decode set, after entering them in the tree if
    /// it says so (`release_kv_cache`).
    pub(super) fn release(&mut self, slot: u32, checkpoint: Option<u32>) {
        if let Some(up_to) = checkpoint {
            self.checkpoint(slot, up_to);
        }
        let page = self.config.page_size;
        let s = &mut self.sequences[slot as usize];
        let pages = u64::from(s.committed.div_ceil(page));
        self.radix.give_back(pages * u64::from(page) - u64::from(s.protected_len));
        if let Some(node) = s.lock.take() {
            self.radix.unlock(node);
        }
        s.committed = 0;
        s.protected_len = 0;
        self.rows -= 1;
    }

    /// Takes a running request's memory away and lets it forget its progress (`release_req`);
    /// what that makes evictable goes at once, as far as the requests that remain will soon need it.
    pub(super) fn retract(&mut self, slot: u32, remaining: usize) {
        self.release(slot, None);
        let soon = remaining as u64 * u64::from(super::ratio::RETRACT_DECODE_STEPS);
        evict_for(&mut self.radix, soon);
        self.sequences[slot as usize].reset_for_retract();
    }

    /// The longest cached prefix of a request's prompt and outputs, at most `limit` tokens
    /// (`match_kv_cache`).
    pub(super) fn match_prefix(&mut self, slot: u32, limit: u32) {
        let s = &mut self.sequences[slot as usize];
        let known = s.known();
        let found = self.radix.lookup(&s.text, limit.min(known));
        s.prefix_len = found.len;
        s.last_node = found.node;
        (s.best_node, s.host_len) = (found.best, found.host);
        s.matched = (found.len + found.host).min(known.saturating_sub(1));
    }

    /// Tells of the copies from and to the host that were handed over.
    pub(super) fn take_host_jobs(&mut self, into: &mut Vec<HostJob>, flush: &mut Vec<u64>) {
        for HostMove { job, load, tokens, awaited } in self.radix.take_moves() {
            let (blocks, chunks) = (Vec::new(), Vec::new());
            into.push(HostJob { job, request: None, load, tokens, blocks, chunks });
            if awaited {
                flush.push(job);
            }
        }
    }

    /// A copy from or to the host has ended; heard in the next turn, in the order in which copies were handed over.
    pub fn job_done(&mut self, job: u64) {
        self.radix.move_ended(job);
    }
}

/// Evicts until `tokens` are free, where the cache is on (`evict_from_tree_cache`).
pub(super) fn evict_for(radix: &mut Radix, tokens: u64) {
    if radix.enabled() {
        radix.evict_until_free(tokens);
    }
}
