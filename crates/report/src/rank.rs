//! What one rank did in a run: plain counters that its driver fills and hands over at the end, how rows
//! are added up, and the ratios that follow from them. How a driver counts, and how a row is written or
//! printed, is not known here.

use crate::ratio::part;
use serde::Serialize;
use windtunnel_engine::Nanos;

/// What a worker is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Prefill and decode.
    Aggregated,
    /// Prompts only; the KV cache is handed off.
    Prefill,
    /// Decode of handed-off requests.
    Decode,
}

impl Role {
    /// Its name in files and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Aggregated => "aggregated",
            Role::Prefill => "prefill",
            Role::Decode => "decode",
        }
    }
}

/// Counters of one rank. Passes without a token are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankRow {
    /// The worker's role.
    pub role: Role,
    /// The worker, numbered from 0 within its role.
    pub worker: u32,
    /// The rank in it.
    pub rank: u32,
    /// Passes that computed at least one token.
    pub passes: u64,
    /// Those with a prefill chunk.
    pub prefill_passes: u64,
    /// Those with a decoding request. A mixed pass counts in both.
    pub decode_passes: u64,
    /// Tokens computed in prefill chunks, recomputation after preemptions included.
    pub prefill_tokens: u64,
    /// Tokens computed by decoding requests.
    pub decode_tokens: u64,
    /// Prompt tokens of requests admitted for the first time, which are looked up in the prefix cache.
    /// vLLM 0.33.0 (`record_prefix_cache_stats`): entered once a request has its blocks, and not again
    /// when it comes back from a preemption.
    pub prefix_cache_queries: u64,
    /// Those of them that were found.
    pub prefix_cache_hits: u64,
    /// Most KV blocks in use at one time, also inside a pass.
    pub peak_kv_blocks: u64,
    /// KV blocks that can hold tokens.
    pub usable_kv_blocks: u64,
    /// Preemptions (SGLang: retractions).
    pub preemptions: u64,
    /// Cached blocks dropped to make room.
    pub evicted_blocks: u64,
    /// Time with a pass running, up to the end of the run.
    pub busy: Nanos,
    /// Where there is a tier in the host's memory.
    pub host: Option<HostRow>,
    /// Where there is a disk behind it.
    pub disk: Option<DiskRow>,
}

/// A tier in the host's memory, of one rank or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostRow {
    /// Blocks that it can hold.
    pub blocks: u64,
    /// Blocks that are there at the end, or on their way.
    pub used_blocks: u64,
    /// Tokens that requests had loaded from it.
    pub hit_tokens: u64,
    /// Copied to it.
    pub bytes_to_host: u64,
    /// Copied from it.
    pub bytes_from_host: u64,
}

impl HostRow {
    fn add(&mut self, other: &HostRow) {
        self.blocks += other.blocks;
        self.used_blocks += other.used_blocks;
        self.hit_tokens += other.hit_tokens;
        self.bytes_to_host += other.bytes_to_host;
        self.bytes_from_host += other.bytes_from_host;
    }
}

/// A disk behind the host's memory, of one rank or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskRow {
    /// Blocks that it can hold; none if it is not bounded.
    pub blocks: Option<u64>,
    /// Blocks that are there at the end, or on their way.
    pub used_blocks: u64,
    /// Tokens that came from it to the host's memory.
    pub hit_tokens: u64,
    /// Written to it.
    pub bytes_written: u64,
    /// Read from it.
    pub bytes_read: u64,
}

impl DiskRow {
    fn add(&mut self, other: &DiskRow) {
        self.blocks = self.blocks.zip(other.blocks).map(|(mine, theirs)| mine + theirs);
        self.used_blocks += other.used_blocks;
        self.hit_tokens += other.hit_tokens;
        self.bytes_written += other.bytes_written;
        self.bytes_read += other.bytes_read;
    }
}

impl RankRow {
    /// A row without counts.
    pub fn new(role: Role, worker: u32, rank: u32, usable_kv_blocks: u64) -> RankRow {
        RankRow {
            role,
            worker,
            rank,
            passes: 0,
            prefill_passes: 0,
            decode_passes: 0,
            prefill_tokens: 0,
            decode_tokens: 0,
            prefix_cache_queries: 0,
            prefix_cache_hits: 0,
            peak_kv_blocks: 0,
            usable_kv_blocks,
            preemptions: 0,
            evicted_blocks: 0,
            busy: Nanos::ZERO,
            host: None,
            disk: None,
        }
    }

    /// Orders rows and tells them apart.
    pub(crate) fn key(&self) -> (Role, u32, u32) {
        (self.role, self.worker, self.rank)
    }

    /// Adds the counts of the same rank, or of another one when rows are summed. Of the peaks the larger
    /// usage stays, together with its own pool; of equal ones, that of the larger pool, so that the order
    /// of additions cannot show.
    pub(crate) fn add(&mut self, other: &RankRow) {
        self.passes += other.passes;
        self.prefill_passes += other.prefill_passes;
        self.decode_passes += other.decode_passes;
        self.prefill_tokens += other.prefill_tokens;
        self.decode_tokens += other.decode_tokens;
        self.prefix_cache_queries += other.prefix_cache_queries;
        self.prefix_cache_hits += other.prefix_cache_hits;
        self.preemptions += other.preemptions;
        self.evicted_blocks += other.evicted_blocks;
        if let Some(host) = &other.host {
            self.host.get_or_insert_default().add(host);
        }
        self.disk = match (self.disk, other.disk) {
            (Some(mut mine), Some(theirs)) => {
                mine.add(&theirs);
                Some(mine)
            }
            (mine, theirs) => mine.or(theirs),
        };
        self.busy += other.busy;
        let pool = |row: &RankRow| (row.peak_kv_blocks, row.usable_kv_blocks);
        let ((mine, my_pool), (theirs, their_pool)) = (pool(self), pool(other));
        let my_usage = u128::from(mine) * u128::from(their_pool.max(1));
        let their_usage = u128::from(theirs) * u128::from(my_pool.max(1));
        if (their_usage, their_pool, theirs) > (my_usage, my_pool, mine) {
            (self.peak_kv_blocks, self.usable_kv_blocks) = pool(other);
        }
    }

    /// Most blocks in use, as a part of those usable. None without a pool.
    pub(crate) fn peak_kv_usage(&self) -> Option<f64> {
        part(self.peak_kv_blocks, self.usable_kv_blocks)
    }

    /// Found tokens as a part of those looked up. None without a look-up.
    pub(crate) fn prefix_cache_hit_rate(&self) -> Option<f64> {
        part(self.prefix_cache_hits, self.prefix_cache_queries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuller_pool_wins_whichever_comes_first() {
        let row = |peak_kv_blocks, usable| RankRow {
            peak_kv_blocks,
            ..RankRow::new(Role::Aggregated, 0, 0, usable)
        };
        for (a, b, want) in [((3, 10), (4, 20), (3, 10)), ((0, 5), (0, 7), (0, 7)), ((2, 4), (1, 2), (2, 4))]
        {
            let (a, b) = (row(a.0, a.1), row(b.0, b.1));
            for (mut first, second) in [(a, b), (b, a)] {
                first.add(&second);
                assert_eq!((first.peak_kv_blocks, first.usable_kv_blocks), want);
            }
        }
    }
}
