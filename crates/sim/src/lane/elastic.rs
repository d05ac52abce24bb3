//! What is asked of a rank whose worker may go, or fail: what it has to do, in tokens, and which requests are lost with
//! it. Looks at every request that has not ended, so it is for rare occasions.

use super::Lane;
use crate::planner::RankLoad;
use std::collections::HashSet;
use windtunnel_engine::{Nanos, RequestId, Slot};
use windtunnel_report::RequestRecord;
use windtunnel_router::NewsBook;

impl Lane {
    /// What a planner sees of it.
    pub(crate) fn load(&self) -> RankLoad {
        let stats = self.rank.stats();
        let mut load = RankLoad {
            running: stats.running as u64,
            waiting: stats.waiting as u64,
            used_blocks: u64::from(stats.used_blocks),
            usable_blocks: u64::from(stats.usable_blocks),
            ..RankLoad::default()
        };
        let mut known = 0;
        for (slot, record) in self.unfinished_records() {
            let tokens = u64::from(record.input_tokens) + u64::from(self.rank.outputs(slot));
            known += tokens;
            if record.admissions == 0 {
                load.queued_prefill_tokens += u64::from(record.input_tokens);
            } else if record.admissions == record.preemptions {
                load.queued_decode_tokens += tokens;
            }
        }
        load.running_tokens = known - load.queued_prefill_tokens - load.queued_decode_tokens;
        load
    }

    /// The requests that have not ended, with what is known of them, by slot.
    fn unfinished_records(&self) -> impl Iterator<Item = (Slot, &RequestRecord)> {
        let unfinished: HashSet<RequestId> = self.rank.unfinished_requests().into_iter().collect();
        let records = (0u32..).zip(&self.live);
        records
            .filter(move |(_, record)| unfinished.contains(&record.id))
            .map(|(at, record)| (Slot(at), record))
    }

    /// What is known of a request that is lost at `now`.
    pub(crate) fn record_of(&self, slot: Slot, now: Nanos) -> RequestRecord {
        let record = self.live[slot.0 as usize].clone();
        // It was to give more.
        RequestRecord { output_tokens: self.rank.outputs(slot), last_token: None, terminal: now, ..record }
    }

    /// The requests that have not ended, which are lost at `now`.
    pub(crate) fn lose(&mut self, now: Nanos) -> Vec<RequestRecord> {
        let lost: Vec<RequestRecord> =
            self.unfinished_records().map(|(slot, _)| self.record_of(slot, now)).collect();
        if let Some(news) = &mut self.news {
            lost.iter().for_each(|record| news.ended(now, record.id));
        }
        lost
    }

    /// Requests that got their first token here, and Σ of their TTFT in nanoseconds.
    pub(crate) fn first_tokens(&self) -> (u64, u128) {
        self.first_tokens
    }

    /// Batches of KV events that the router never heard of.
    pub(crate) fn lost_batches(&self) -> u64 {
        self.news.as_ref().map_or(0, NewsBook::lost)
    }
}
