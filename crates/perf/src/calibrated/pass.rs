//! The compiled model: a pass is a few look-ups in lines and surfaces.

use super::cell::{AttentionKind, Cell, bytes_and_bits};
use super::curve::Line;
use super::layers::{early_launch, latent_projections, layers};
use super::peak::Reach;
use super::sources::{Sources, Use};
use super::sparse::{Chunks, sparse};
use super::surface::Surface;
use super::{Engine, Uncovered};
use crate::packs::Gpu;
use serde_json::{Value, json};
use windtunnel_engine::{Chunk, DecodeSet};

/// What the measurements of single operations do not hold. Few, and the same for all models of an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// Microseconds of the host for a pass, beside what the accelerator does.
    pub pass_us: f64,
    /// Microseconds of the host for each sequence in a pass.
    pub sequence_us: f64,
    /// The accelerator takes so many times the sum of its operations.
    pub gpu_scale: f64,
    /// Communication takes so many times what was measured.
    pub communication_scale: f64,
}

impl Constants {
    /// Those of an engine, fitted to measured deployments (docs/accuracy.md).
    pub fn of(engine: Engine) -> Constants {
        let (pass_us, sequence_us, gpu_scale) = match engine {
            Engine::Vllm => (200.0, 15.0, 1.05),
            Engine::Sglang => (1500.0, 15.0, 1.0),
            Engine::Trtllm => (200.0, 5.0, 1.0),
        };
        Constants { pass_us, sequence_us, gpu_scale, communication_scale: 1.0 }
    }

    /// The operations as they were measured, and nothing else.
    pub const NONE: Constants =
        Constants { pass_us: 0.0, sequence_us: 0.0, gpu_scale: 1.0, communication_scale: 1.0 };
}

/// Speculative decoding as a mean: a decode computes its token and so many drafted ones, and gives so many on
/// average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draft {
    /// Tokens drafted, by as many layers more.
    pub tokens: u32,
    /// Tokens that a pass gives on average, from 1 to one more than are drafted.
    pub given: f64,
}

/// Attention of prefill over the context.
#[derive(Clone, Debug, PartialEq)]
struct Context {
    surface: Surface,
    /// Tokens that a layer looks back at most.
    window: Option<f64>,
    law: ContextLaw,
}

/// How the time of a chunk follows from that of a whole prompt.
#[derive(Clone, Debug, PartialEq)]
enum ContextLaw {
    /// In the share of the pairs of tokens that the chunk computes.
    Pairs,
    /// As a prompt of the chunk's length, plus so many microseconds for each pair with a token before it.
    Added(f64),
    /// As a prompt of the chunk's length: nothing is looked back at.
    Alone,
    /// As chunks behind other tokens were measured.
    Behind(Box<Chunks>),
}

/// How long a pass takes, in one deployment.
#[derive(Clone, Debug, PartialEq)]
pub struct PassModel {
    prefill: Line,
    decode: Line,
    /// Layers of experts that several ranks share, in a pass with prefill and one of decodes, by the tokens of
    /// all ranks, divided by their number.
    shared: Option<(Line, Line)>,
    ranks: u64,
    output: Line,
    context: Vec<Context>,
    generation: Surface,
    early_launch: f64,
    constants: Constants,
    draft: Option<Draft>,
    layers: f64,
    largest_tokens: f64,
    /// Where its figures come from.
    uses: Vec<Use>,
    whose: String,
    keeps_less: bool,
}

impl PassModel {
    /// Looks up the operations of a cell and folds them.
    ///
    /// # Errors
    /// An operation that nothing measured covers, unless the sources allow the roofline.
    pub fn compile(sources: &Sources, cell: &Cell, constants: Constants) -> Result<PassModel, Uncovered> {
        let mut all = layers(sources, cell, constants.communication_scale)?;
        let (context, generation) = match cell.model.attention {
            AttentionKind::Gqa { .. } => grouped(sources, cell)?,
            AttentionKind::Mla { heads, .. } => {
                let found = latent(sources, cell, heads / cell.tensor)?;
                if found.kernels_only {
                    let times = f64::from(cell.model.layers);
                    all.prefill.all_of(times, latent_projections(sources, cell, false)?);
                    all.decode.all_of(times, latent_projections(sources, cell, true)?);
                }
                (vec![found.context], found.generation)
            }
        };
        Ok(PassModel {
            prefill: all.prefill.line(),
            decode: all.decode.line(),
            shared: all.shared.map(|(prefill, decode)| (prefill.line(), decode.line())),
            ranks: u64::from(cell.attention_data.max(1)),
            output: all.output.line(),
            context,
            generation,
            early_launch: early_launch(cell),
            constants,
            draft: None,
            layers: f64::from(cell.model.layers.max(1)),
            largest_tokens: all.prefill.largest(),
            uses: sources.take_uses(),
            whose: sources.name().map_or_else(
                || "peak figures of the accelerator".to_owned(),
                |name| format!("measurements of {} {} on {}", name.backend, name.version, name.system),
            ),
            keeps_less: cell.model.window.is_some() || cell.model.linear.is_some(),
        })
    }

    /// The same with speculative decoding: a pass is charged to each of the tokens that it gives.
    pub fn with_draft(mut self, draft: Draft) -> PassModel {
        self.draft = Some(draft);
        self
    }

    /// The same with other constants. What operations of communication take is as it was compiled.
    pub fn with_host(mut self, pass_us: f64, sequence_us: f64, gpu_scale: f64) -> PassModel {
        self.constants = Constants { pass_us, sequence_us, gpu_scale, ..self.constants };
        self
    }

    /// Accelerators of a rank or its group send each other something in a pass.
    pub fn communicates(&self) -> bool {
        let operations = ["all-reduce", "collective", "expert exchange"];
        self.uses.iter().any(|used| operations.contains(&used.operation))
    }

    /// Where the figures come from.
    pub fn uses(&self) -> &[Use] {
        &self.uses
    }

    /// For people: whose times these are, how many operations were found where, and what the KV pool does
    /// not know of this model.
    pub fn notes(&self) -> Vec<String> {
        let mut counts = std::collections::BTreeMap::new();
        for used in &self.uses {
            *counts.entry(used.how).or_insert(0u32) += 1;
        }
        let counts: Vec<String> =
            counts.into_iter().map(|(how, count)| format!("{count} {}", how.name())).collect();
        let mut notes = vec![format!("pass times from {}; operations: {}", self.whose, counts.join(", "))];
        if self.keeps_less {
            let note = "this model has layers that keep a window or a state of a sequence; its KV blocks are counted \
                        as if all layers kept every token";
            notes.push(note.to_owned());
        }
        notes
    }

    /// The same for programs: an object for the role `role`, with every operation that was looked up.
    pub fn provenance(&self, role: &str) -> Value {
        let Constants { pass_us, sequence_us, gpu_scale, communication_scale } = self.constants;
        json!({
            "role": role,
            "source": self.whose,
            "constants": {
                "pass_us": pass_us,
                "sequence_us": sequence_us,
                "gpu_scale": gpu_scale,
                "communication_scale": communication_scale,
            },
            "operations": self.uses,
        })
    }

    /// The constants in effect.
    pub fn constants(&self) -> Constants {
        self.constants
    }

    /// Milliseconds of a pass of these chunks and decodes, and whether it lies within what was measured.
    #[inline]
    pub fn pass_ms(&self, chunks: &[Chunk], decode: &DecodeSet) -> (f64, bool) {
        match self.draft {
            Some(draft) if decode.count > 0 => self.drafted_ms(chunks, decode, draft),
            _ => self.plain_ms(chunks, decode, 1),
        }
    }

    /// A pass that gives several tokens of a sequence, as a pass of one: what decodes add to it is shared by
    /// the tokens that they give.
    fn drafted_ms(&self, chunks: &[Chunk], decode: &DecodeSet, draft: Draft) -> (f64, bool) {
        let (all, inside) = self.plain_ms(chunks, decode, u64::from(draft.tokens) + 1);
        let more_layers = 1.0 + f64::from(draft.tokens) / self.layers;
        let (alone, _) =
            if chunks.is_empty() { (0.0, true) } else { self.plain_ms(chunks, &DecodeSet::default(), 1) };
        (alone + (all - alone).max(0.0) * more_layers / draft.given, inside)
    }

    /// A pass in which every decode computes `each` tokens.
    #[inline]
    fn plain_ms(&self, chunks: &[Chunk], decode: &DecodeSet, each: u64) -> (f64, bool) {
        let mut inside = true;
        let mut us = 0.0;
        let mut tokens = decode.count * each;
        let mut sequences = tokens;
        let mut in_pass = decode.count;
        let mut prefills = false;
        let decodes = tokens;
        if chunks.is_empty() {
            us += self.decode.at(tokens) * self.early_launch;
        } else {
            let count = chunks.iter().filter(|chunk| chunk.new_tokens > 0).count() as u64;
            let new: u64 = chunks.iter().map(|chunk| u64::from(chunk.new_tokens)).sum();
            tokens += new;
            sequences += count;
            in_pass += count;
            prefills = new > 0;
            us += if prefills { self.prefill.at(tokens) } else { self.decode.at(tokens) * self.early_launch };
            for chunk in chunks.iter().filter(|chunk| chunk.new_tokens > 0) {
                let (part, within) = self.chunk_us(*chunk, count as i64 as f64);
                us += part;
                inside &= within;
            }
        }
        if tokens == 0 {
            return (0.0, true);
        }
        if let Some((prefill, decode)) = &self.shared {
            // The other ranks decode as many sequences; that they prefill at the same time is the exception.
            let of_all = (tokens - decodes + decodes * self.ranks).div_ceil(self.ranks);
            us += if prefills { prefill.at(of_all) } else { decode.at(of_all) * self.early_launch };
        }
        us += self.output.at(sequences);
        if decode.count > 0 {
            let count = decode.count as i64 as f64;
            let mean = decode.sum_context as i64 as f64 / count;
            us += self.generation.at(count, mean) * if chunks.is_empty() { self.early_launch } else { 1.0 };
            inside &= self.generation.covers(count, mean);
        }
        inside &= tokens as i64 as f64 <= self.largest_tokens;
        let Constants { pass_us, sequence_us, gpu_scale, .. } = self.constants;
        ((us * gpu_scale + (pass_us + sequence_us * in_pass as i64 as f64)) / 1e3, inside)
    }

    /// Attention of a chunk among `count` of them: its share of a batch of as many prompts of its length.
    fn chunk_us(&self, chunk: Chunk, count: f64) -> (f64, bool) {
        let (new, before) = (f64::from(chunk.new_tokens), f64::from(chunk.before));
        let mut inside = true;
        let mut us = 0.0;
        for context in &self.context {
            if let ContextLaw::Behind(chunks) = &context.law
                && let Some(behind) = chunks.us(count, new, before)
            {
                us += behind;
                inside &= chunks.covers(count, new);
                continue;
            }
            let length = match context.law {
                ContextLaw::Pairs => new + before,
                ContextLaw::Added(_) | ContextLaw::Alone | ContextLaw::Behind(_) => new,
            };
            let whole = context.surface.at(count, length) / count;
            us += match context.law {
                ContextLaw::Pairs if before > 0.0 => {
                    let pairs = |tokens: f64| match context.window {
                        Some(window) if tokens > window => window * window / 2.0 + (tokens - window) * window,
                        _ => tokens * tokens / 2.0,
                    };
                    whole * (1.0 - pairs(before) / pairs(length))
                }
                ContextLaw::Added(per_pair) => whole + per_pair * new * before,
                ContextLaw::Pairs | ContextLaw::Alone | ContextLaw::Behind(_) => whole,
            };
            inside &= context.surface.covers(count, length);
        }
        (us, inside)
    }
}

/// The surfaces of grouped queries, with windows and layers without attention.
fn grouped(sources: &Sources, cell: &Cell) -> Result<(Vec<Context>, Surface), Uncovered> {
    let model = &cell.model;
    let AttentionKind::Gqa { heads, kv_heads, head_dim, .. } = model.attention else {
        return Err(Uncovered {
            operation: "attention",
            cell: "not of grouped queries".into(),
            nearest: "none".into(),
        });
    };
    let (own, own_kv) = cell.heads(heads, kv_heads);
    let linear = model.linear.map_or(0, |linear| linear.layers);
    let (windowed, window) = model.window.unwrap_or((0, 0));
    let full = model.layers.saturating_sub(linear + windowed);
    let mut context = Vec::new();
    let mut generation: Option<Surface> = None;
    for (layers, window) in [(full, 0), (windowed, window)] {
        if layers == 0 {
            continue;
        }
        let times = f64::from(layers);
        let shape = Heads { heads: own, kv_heads: own_kv, dim: head_dim, window };
        let (found, answered) = context_surface(sources, cell, shape)?;
        let law = ContextLaw::Pairs;
        let looks = (answered > 0).then_some(f64::from(window));
        context.push(Context { surface: found.times(times), window: looks, law });
        let part = generation_surface(sources, cell, shape)?.times(times);
        generation = Some(match generation {
            Some(sum) => sum.plus(&part),
            None => part,
        });
    }
    if let Some(linear) = model.linear {
        let (surface, part) =
            gated_delta(sources, cell, linear.key_heads / cell.tensor, linear.value_heads / cell.tensor)?;
        context.push(Context {
            surface: surface.times(f64::from(linear.layers)),
            window: None,
            law: ContextLaw::Alone,
        });
        let part = part.times(f64::from(linear.layers));
        generation = Some(match generation {
            Some(sum) => sum.plus(&part),
            None => part,
        });
    }
    match generation {
        Some(generation) => Ok((context, generation)),
        None => Err(Uncovered {
            operation: "attention",
            cell: "a model without layers".into(),
            nearest: "none".into(),
        }),
    }
}

/// Heads of one accelerator.
#[derive(Clone, Copy)]
struct Heads {
    heads: u32,
    kv_heads: u32,
    dim: u32,
    window: u32,
}

impl Heads {
    /// As in the keys of the tables, where as many KV heads as heads are 0.
    fn key(self, window: u32) -> String {
        let kv_heads = if self.kv_heads == self.heads { 0 } else { self.kv_heads };
        format!("{},{window},{kv_heads},", self.dim)
    }

    /// The window, as it was measured, and then none.
    fn windows(self) -> Vec<u32> {
        if self.window > 0 { vec![self.window, 0] } else { vec![0] }
    }
}

/// Attention of prompts, and the window that it was measured with.
fn context_surface(sources: &Sources, cell: &Cell, shape: Heads) -> Result<(Surface, u32), Uncovered> {
    let kv = cell.types.kv.as_str();
    let (kv_bytes, _) = bytes_and_bits(kv);
    let (dim, kv_heads) = (f64::from(shape.dim), f64::from(shape.kv_heads));
    let window = f64::from(shape.window);
    let least_on = move |gpu: &Gpu, heads: f64, batch: f64, length: f64| {
        let pairs = if shape.window > 0 && length > window { length * window } else { length * length / 2.0 };
        let arithmetic = 4.0 * batch * pairs * heads * dim / gpu.flops(16);
        let moved = batch * length * dim * (4.0 * heads + 2.0 * kv_heads * kv_bytes);
        arithmetic.max(moved / gpu.memory_bandwidth) * 1e6
    };
    let least = |heads: f64, batch: f64, length: f64| least_on(&sources.gpu, heads, batch, length);
    for window in shape.windows() {
        let types: &[&str] = if kv == "fp8" { &["bfloat16", "fp8"] } else { &["bfloat16"] };
        let prefixes: Vec<String> =
            types.iter().map(|dtype| format!("{dtype},{kv},{}", shape.key(window))).collect();
        let found =
            sources.surface("prefill attention", "context_attention", &prefixes, shape.heads, true, &least);
        if let Some(surface) = found {
            return Ok((surface, window));
        }
    }
    let cell = format!("{kv},{}{} heads", shape.key(shape.window), shape.heads);
    let nearest = near_heads(sources, "context_attention", &format!("bfloat16,{kv},{},", shape.dim));
    let heads = f64::from(shape.heads);
    let peak = || {
        let least = |gpu: &Gpu, batch: f64, length: f64| least_on(gpu, heads, batch, length);
        sources.peak_surface(true, Reach::ATTENTION, &least)
    };
    required(sources.roofline_or("prefill attention", cell, nearest, peak)?)
        .map(|surface| (surface, shape.window))
}

/// Attention of decodes.
fn generation_surface(sources: &Sources, cell: &Cell, shape: Heads) -> Result<Surface, Uncovered> {
    let kv = cell.types.kv.as_str();
    let (kv_bytes, _) = bytes_and_bits(kv);
    let bits = if kv == "fp8" && sources.gpu.sm >= 89 { 8 } else { 16 };
    let (dim, kv_heads) = (f64::from(shape.dim), f64::from(shape.kv_heads));
    let window = f64::from(shape.window);
    let least_on = move |gpu: &Gpu, heads: f64, batch: f64, length: f64| {
        let looks = (length - 1.0).max(1.0);
        let looks = if shape.window > 0 { looks.min(window) } else { looks };
        let arithmetic = 4.0 * batch * heads * dim * looks / gpu.flops(bits);
        let moved = batch * dim * (4.0 * heads + 2.0 * kv_heads * looks * kv_bytes);
        arithmetic.max(moved / gpu.memory_bandwidth) * 1e6
    };
    let least = |heads: f64, batch: f64, length: f64| least_on(&sources.gpu, heads, batch, length);
    for window in shape.windows() {
        let prefixes = [format!("{kv},{}", shape.key(window))];
        let table = "generation_attention";
        if let Some(surface) =
            sources.surface("decode attention", table, &prefixes, shape.heads, false, &least)
        {
            return Ok(surface);
        }
    }
    let cell = format!("{kv},{}{} heads", shape.key(shape.window), shape.heads);
    let nearest = near_heads(sources, "generation_attention", &format!("{kv},{},", shape.dim));
    let heads = f64::from(shape.heads);
    let peak = || {
        let least = |gpu: &Gpu, batch: f64, length: f64| least_on(gpu, heads, batch, length);
        sources.peak_surface(false, Reach::ATTENTION, &least)
    };
    required(sources.roofline_or("decode attention", cell, nearest, peak)?)
}

/// Keys without their batch, for messages.
pub(super) fn near_heads(sources: &Sources, table: &str, prefix: &str) -> Vec<String> {
    let keys = sources.keys(table, prefix);
    keys.iter().filter_map(|key| key.rsplit_once(',').map(|(shape, _)| shape.to_owned())).collect()
}

fn required(surface: Option<Surface>) -> Result<Surface, Uncovered> {
    surface.ok_or_else(|| Uncovered {
        operation: "attention",
        cell: "an empty table".into(),
        nearest: "none".into(),
    })
}

/// What was found of latent attention.
struct Latent {
    context: Context,
    generation: Surface,
    /// The surfaces hold the kernel of the attention alone.
    kernels_only: bool,
}

const PREFILL: &str = "latent attention, prefill";
const DECODE: &str = "latent attention, decode";

fn latent(sources: &Sources, cell: &Cell, heads: u32) -> Result<Latent, Uncovered> {
    if let Some(layers) = cell.model.sparse {
        let found = sparse(sources, cell, layers, heads)?;
        let law = match found.chunks {
            Some(chunks) => ContextLaw::Behind(Box::new(chunks)),
            None => ContextLaw::Added(found.pair_us),
        };
        let context = Context { surface: found.prompts, window: None, law };
        return Ok(Latent { context, generation: found.generation, kernels_only: false });
    }
    let (kv, gemm) = (cell.types.kv.as_str(), cell.types.attention_gemm.as_str());
    let layers = f64::from(cell.model.layers);
    let (kv_bytes, _) = bytes_and_bits(kv);
    let context_on = |gpu: &Gpu, heads: f64, batch: f64, length: f64| {
        let arithmetic = batch * heads * 320.0 * length * length / gpu.flops(16);
        let moved = batch * heads * length * 320.0 * (kv_bytes + 2.0);
        arithmetic.max(moved / gpu.memory_bandwidth) * 1e6
    };
    let generation_on = |gpu: &Gpu, heads: f64, batch: f64, length: f64| {
        let arithmetic = 2.0 * batch * heads * 1088.0 * length / gpu.flops(if kv == "fp8" { 8 } else { 16 });
        let moved = batch * (heads * 2176.0 + (length - 1.0).max(1.0) * 576.0 * kv_bytes)
            + 2.0 * heads * 65_536.0 * kv_bytes;
        arithmetic.max(moved / gpu.memory_bandwidth) * 1e6
    };
    let context = |heads: f64, batch: f64, length: f64| context_on(&sources.gpu, heads, batch, length);
    let generation = |heads: f64, batch: f64, length: f64| generation_on(&sources.gpu, heads, batch, length);
    // The engine's own modules, its own kernels, and only then those of other engines.
    let everyone = sources.count();
    for packs in [1, everyone] {
        let prefixes = [format!("bfloat16,{kv},{gemm},"), format!("fp8,{kv},{gemm},")];
        let modules = (
            sources.surface_of(packs, PREFILL, "mla_context_module", &prefixes, heads, true, &context),
            sources.surface_of(packs, DECODE, "mla_generation_module", &prefixes, heads, false, &generation),
        );
        if let (Some(prefill), Some(decode)) = modules {
            let law = ContextLaw::Added(pair_us(&prefill) * layers);
            let context = Context { surface: prefill.times(layers), window: None, law };
            return Ok(Latent { context, generation: decode.times(layers), kernels_only: false });
        }
        let prefixes = [format!("bfloat16,{kv},"), format!("fp8,{kv},")];
        let decodes = [format!("{kv},")];
        let kernels = (
            sources.surface_of(packs, PREFILL, "context_mla", &prefixes, heads, true, &context),
            sources.surface_of(packs, DECODE, "generation_mla", &decodes, heads, false, &generation),
        );
        if let (Some(prefill), Some(decode)) = kernels {
            let context = Context { surface: prefill.times(layers), window: None, law: ContextLaw::Pairs };
            return Ok(Latent { context, generation: decode.times(layers), kernels_only: true });
        }
    }
    let wanted = format!("{kv},{gemm},{heads} heads");
    let nearest = near_heads(sources, "mla_generation_module", "");
    let of = f64::from(heads);
    let peak = || {
        let prefill = |gpu: &Gpu, batch: f64, length: f64| context_on(gpu, of, batch, length);
        let decode = |gpu: &Gpu, batch: f64, length: f64| generation_on(gpu, of, batch, length);
        (
            sources.peak_surface(true, Reach::ATTENTION, &prefill),
            sources.peak_surface(false, Reach::ATTENTION, &decode),
        )
    };
    let (prefill, decode) = sources.roofline_or("latent attention", wanted, nearest, peak)?;
    Ok(Latent {
        context: Context { surface: required(prefill)?.times(layers), window: None, law: ContextLaw::Pairs },
        generation: required(decode)?.times(layers),
        kernels_only: true,
    })
}

/// Microseconds of a pair of tokens in a module whose other parts go by tokens: from the curvature between
/// two long prompts.
pub(super) fn pair_us(surface: &Surface) -> f64 {
    const LONG: f64 = 16_384.0;
    let bent = surface.at(1.0, LONG) - 2.0 * surface.at(1.0, LONG / 2.0);
    // t = a + b·L + c·L²/2 has t(L) − 2·t(L/2) = c·L²/4 − a; each token of the chunk pairs with all before it.
    (4.0 * bent / (LONG * LONG)).max(0.0)
}

/// Layers with a gated delta rule: prompts by their length, decodes by their number.
fn gated_delta(
    sources: &Sources,
    cell: &Cell,
    keys: u32,
    values: u32,
) -> Result<(Surface, Surface), Uncovered> {
    let (key_width, value_width) = (f64::from(keys) * 128.0, f64::from(values) * 128.0);
    // Queries, keys, values and results once; of a decode the whole state, read and written.
    let prefill = move |gpu: &Gpu, batch: f64, length: f64| {
        batch * length * 2.0 * (4.0 * key_width + 3.0 * value_width) / gpu.memory_bandwidth * 1e6
    };
    let decode =
        move |gpu: &Gpu, batch: f64, _: f64| batch * 8.0 * value_width * 128.0 / gpu.memory_bandwidth * 1e6;
    let hidden = cell.model.hidden;
    let one = |kernel: &str, phase: &str, root: bool, least: &dyn Fn(&Gpu, f64, f64) -> f64| {
        let prefix = format!("{kernel},{phase},{hidden},{keys},");
        let on_own = |_: f64, batch: f64, length: f64| least(&sources.gpu, batch, length);
        match sources.delta_surface(&prefix, values, root, &on_own) {
            Some(surface) => Ok(surface),
            None => {
                let wanted = format!("{kernel},{phase},{hidden},{keys},{values}");
                let nearest = near_heads(sources, "gated_delta", &format!("{kernel},{phase},"));
                let peak = || sources.peak_surface(root, Reach::SMALL, least);
                required(sources.roofline_or("gated delta rule", wanted, nearest, peak)?)
            }
        }
    };
    let conv = one("causal_conv1d_fn", "context", false, &prefill)?;
    let chunks = one("chunk_gated_delta_rule", "context", false, &prefill)?;
    let update = one("causal_conv1d_update", "generation", false, &decode)?;
    let step = one("fused_recurrent_gated_delta_rule_packed_decode", "generation", false, &decode)
        .or_else(|_| one("fused_sigmoid_gating_delta_rule_update", "generation", false, &decode))?;
    Ok((conv.plus(&chunks), update.plus(&step)))
}
