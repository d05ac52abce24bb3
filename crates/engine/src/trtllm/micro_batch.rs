//! Who has the tokens: the micro batch scheduler (tensorrt_llm/_torch/pyexecutor/scheduler/scheduler.py,
//! `PyMicroBatchScheduler`, which mirrors cpp/tensorrt_llm/batch_manager/microBatchScheduler.cpp).

use super::rank::Rank;
use super::sequence::State;

impl Rank {
    /// Goes through `fitting` and keeps the generating requests that get their token; fills `chunks` with
    /// the prompts that get a share of the token budget, in batch order.
    ///
    /// The budget is charged what the pass will compute. The engine charges an estimate that is one token, or
    /// without partial reuse one block, short when a prompt is cached to its end, and fails where the pass
    /// then exceeds the budget.
    pub(super) fn decide_micro_batch(&mut self) {
        self.chunks.clear();
        // Members of the decode set all get their token: that is what being a member needs.
        let mut left = self.config.max_num_tokens - self.decoders.members.count as u32;
        let mut kept = 0;
        for at in 0..self.fitting.len() {
            let slot = self.fitting[at];
            let s = &self.sequences[slot as usize];
            if s.state == State::Generating {
                if left == 0 {
                    break;
                }
                left -= 1;
                self.fitting[kept] = slot;
                kept += 1;
                continue;
            }
            let remaining = self.remaining(slot);
            if self.config.chunked_prefill {
                self.chunks.push((slot, remaining));
                continue;
            }
            if remaining > left {
                break;
            }
            left -= remaining;
            self.chunks.push((slot, remaining));
        }
        self.fitting.truncate(kept);
        if self.config.chunked_prefill {
            self.share(left);
        }
    }

    /// Tokens of a prompt that are still to be computed: all but those before it in the cache. At least 1.
    fn remaining(&self, slot: u32) -> u32 {
        let s = &self.sequences[slot as usize];
        let before = match (s.started, s.found) {
            (true, _) => s.computed,
            (false, found) => found.map_or(0, |(_, found)| found.hit_tokens),
        };
        (s.known - before).max(1)
    }

    /// `_chunk_fcfs`: if not all prompts fit as a whole, each in turn takes what it needs of the rest, cut
    /// down to whole units where that is less. Prompts that are not finished with their chunk go first
    /// (`_sort_requests`).
    fn share(&mut self, mut left: u32) {
        let wanted: u64 = self.chunks.iter().map(|&(_, tokens)| u64::from(tokens)).sum();
        if wanted <= u64::from(left) {
            return;
        }
        let unit = self.config.chunk_unit();
        let mut last = Vec::new();
        let mut kept = 0;
        for at in 0..self.chunks.len() {
            let (slot, tokens) = self.chunks[at];
            if tokens <= left {
                left -= tokens;
                last.push((slot, tokens));
                continue;
            }
            let part = left / unit * unit;
            left -= part;
            if part > 0 {
                self.chunks[kept] = (slot, part);
                kept += 1;
            }
        }
        self.chunks.truncate(kept);
        self.chunks.append(&mut last);
    }
}
