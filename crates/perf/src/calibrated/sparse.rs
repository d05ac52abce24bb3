//! Sparse attention, measured as a whole module with its projections and the indexer that chooses the tokens to look at.

use super::cell::{Cell, SparseLayers, bytes_and_bits};
use super::sources::Sources;
use super::surface::Surface;
use super::{Uncovered, pass};
use crate::packs::{CHUNKS_BEHIND, Gpu};

const PREFILL: &str = "sparse attention, prefill";
const DECODE: &str = "sparse attention, decode";

/// Tokens before the chunks that were measured as such, and before those that tell what a token before them costs.
const BEFORE: u32 = CHUNKS_BEHIND[0];
const FAR_BEFORE: u32 = CHUNKS_BEHIND[1];
/// The chunk by which that is told.
const CHUNK: f64 = 8192.0;

/// The surfaces of all layers.
pub(super) struct Sparse {
    /// Prompts by their length.
    pub(super) prompts: Surface,
    /// Chunks behind other tokens; none where they were not measured.
    pub(super) chunks: Option<Chunks>,
    /// Microseconds for each pair of a chunk's token with one before it, where chunks were not measured.
    pub(super) pair_us: f64,
    /// Decodes by their number and context.
    pub(super) generation: Surface,
}

/// Chunks behind [`BEFORE`] tokens, and what more or fewer tokens make of them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Chunks {
    surface: Surface,
    /// For each pair of a chunk's token with one that is chosen from.
    pair_us: f64,
    /// Tokens that are looked at, at most; sequences up to there need no choice.
    top: f64,
}

impl Chunks {
    /// Microseconds of a chunk among `count`, behind `before` tokens; none where all are looked at, so that it is as if
    /// these were not there.
    pub(super) fn us(&self, count: f64, new: f64, before: f64) -> Option<f64> {
        if before == 0.0 || new + before <= self.top {
            return None;
        }
        let measured = self.surface.at(count, new) / count;
        let more = self.pair_us * new * (before - f64::from(BEFORE));
        Some((measured + more).max(measured / 2.0))
    }

    pub(super) fn covers(&self, count: f64, new: f64) -> bool {
        self.surface.covers(count, new)
    }
}

/// Looks the layers up: in the engine's own pack, and then in the others'.
pub(super) fn sparse(
    sources: &Sources,
    cell: &Cell,
    layers: SparseLayers,
    heads: u32,
) -> Result<Sparse, Uncovered> {
    let all = cell.model.layers;
    let choosing = layers.choosing.min(all);
    let parts: Vec<(&str, u32)> =
        [("chooses", choosing), ("skips", all - choosing)].into_iter().filter(|part| part.1 > 0).collect();
    for packs in [1, sources.count()] {
        let found: Option<Vec<Sparse>> = parts
            .iter()
            .map(|(part, count)| {
                Some(one(sources, cell, layers, heads, packs, part)?.times(f64::from(*count)))
            })
            .collect();
        if let Some(sum) = found.and_then(|found| found.into_iter().reduce(Sparse::plus)) {
            return Ok(sum);
        }
    }
    let parts = parts.iter().map(|(part, _)| *part).collect::<Vec<_>>().join(" and ");
    let (kv, gemm) = (&cell.types.kv, &cell.types.attention_gemm);
    let wanted = format!("{},{parts},{kv},{gemm},{heads} heads", layers.model);
    let nearest = pass::near_heads(sources, "sparse_generation_module", "");
    Err(Sources::uncovered("sparse attention", wanted, nearest))
}

/// The layers of one kind.
fn one(
    sources: &Sources,
    cell: &Cell,
    layers: SparseLayers,
    heads: u32,
    packs: usize,
    part: &str,
) -> Option<Sparse> {
    let (model, kv, gemm) = (layers.model, cell.types.kv.as_str(), cell.types.attention_gemm.as_str());
    let least = Least { gpu: &sources.gpu, kv_bytes: bytes_and_bits(kv).0, top: f64::from(layers.top) };
    let context = |heads: f64, batch: f64, length: f64| least.prompt(heads, batch, length);
    let prefixes = [format!("{model},{part},{kv},{gemm},")];
    let found = |packs: usize, table: &str, prefixes: &[String]| {
        sources.surface_of(packs, PREFILL, table, prefixes, heads, false, &context)
    };
    let prompts = found(packs, "sparse_context_module", &prefixes)?;
    let generation = sources.surface_of(
        packs,
        DECODE,
        "sparse_generation_module",
        &prefixes,
        heads,
        false,
        &|heads, batch, length| least.decode(heads, batch, length),
    )?;
    let behind = |packs: usize, before: u32| {
        found(packs, "sparse_chunk_module", &[format!("{model},{part},{before},{kv},{gemm},")])
    };
    let chunks_of = |packs: usize| {
        let (near, far) = (behind(packs, BEFORE)?, behind(packs, FAR_BEFORE)?);
        let pairs = CHUNK * f64::from(FAR_BEFORE - BEFORE);
        let pair_us = ((far.at(1.0, CHUNK) - near.at(1.0, CHUNK)) / pairs).max(0.0);
        Some(Chunks { surface: near, pair_us, top: f64::from(layers.top) })
    };
    let chunks = chunks_of(packs);
    // Whole prompts alone may be measured too coarsely to bend at all; the indexer reads as many keys in every engine.
    let pair_us = match &chunks {
        Some(chunks) => chunks.pair_us,
        None => {
            let others = chunks_of(sources.count()).map_or(0.0, |chunks| chunks.pair_us);
            pass::pair_us(&prompts).max(others)
        }
    };
    Some(Sparse { prompts, chunks, pair_us, generation })
}

impl Sparse {
    fn times(self, factor: f64) -> Sparse {
        Sparse {
            prompts: self.prompts.times(factor),
            chunks: self.chunks.map(|chunks| Chunks {
                surface: chunks.surface.times(factor),
                pair_us: chunks.pair_us * factor,
                top: chunks.top,
            }),
            pair_us: self.pair_us * factor,
            generation: self.generation.times(factor),
        }
    }

    fn plus(self, other: Sparse) -> Sparse {
        Sparse {
            prompts: self.prompts.plus(&other.prompts),
            chunks: self.chunks.zip(other.chunks).map(|(one, other)| Chunks {
                surface: one.surface.plus(&other.surface),
                pair_us: one.pair_us + other.pair_us,
                top: one.top,
            }),
            pair_us: self.pair_us + other.pair_us,
            generation: self.generation.plus(&other.generation),
        }
    }
}

/// The least microseconds of a layer, by which surfaces go on beyond what was measured.
struct Least<'a> {
    gpu: &'a Gpu,
    kv_bytes: f64,
    top: f64,
}

impl Least<'_> {
    /// Of so many prompts: products with each token looked at, over the width of the latent, and the indexer's 64 heads of
    /// 128 numbers with all tokens before.
    fn prompt(&self, heads: f64, batch: f64, length: f64) -> f64 {
        let looks = (length / 2.0).min(self.top);
        let attention = 2.0 * heads * 1088.0 * looks / self.gpu.flops(16);
        let index = 2.0 * 64.0 * 128.0 * length / 2.0 / self.gpu.flops(8);
        let moved = heads * 320.0 * (self.kv_bytes + 2.0) / self.gpu.memory_bandwidth;
        batch * length * (attention + index).max(moved) * 1e6
    }

    /// Of so many decodes: what is looked at is read, and the indexer's key of every token.
    fn decode(&self, heads: f64, batch: f64, length: f64) -> f64 {
        let looks = length.min(self.top);
        let moved = batch * (heads * 2176.0 + looks * 576.0 * self.kv_bytes + length * 132.0)
            + 2.0 * heads * 65_536.0 * self.kv_bytes;
        let arithmetic = 2.0 * batch * heads * 1088.0 * looks / self.gpu.flops(16);
        (moved / self.gpu.memory_bandwidth).max(arithmetic) * 1e6
    }
}
