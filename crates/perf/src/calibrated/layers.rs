//! The operations of a pass that go by its tokens: everything but attention over the context. Which
//! operations a layer has, and their shapes, follows from the model's description; that simple kernels take
//! as long as they move bytes is aiconfigurator-core's rule (0.12.0, operators/elementwise.rs).

use super::cell::{AttentionKind, Cell};
use super::communication::{Exchange, scaled};
use super::curve::Line;
use super::peak::Reach;
use super::product::Product;
use super::sources::Sources;
use super::{Engine, Uncovered};
use crate::packs::Gpu;

/// Time of an operation by tokens.
type Time = Box<dyn Fn(f64) -> f64>;

/// Operations that run one after the other, with what is needed to draw their sum as a line.
#[derive(Default)]
pub(super) struct Sum {
    parts: Vec<Time>,
    knots: Vec<f64>,
    largest: f64,
}

/// Tokens up to which a line is drawn; it goes on straight.
const MOST_TOKENS: f64 = 262_144.0;

impl Sum {
    fn push(&mut self, times: f64, time: impl Fn(f64) -> f64 + 'static) {
        self.parts.push(Box::new(move |tokens| times * time(tokens)));
    }

    pub(super) fn product(&mut self, times: f64, product: Product) {
        self.knots.extend(product.positions());
        let largest = product.largest();
        self.largest = if self.largest == 0.0 { largest } else { self.largest.min(largest) };
        self.push(times, move |tokens| product.us(tokens));
    }

    fn exchanges(&mut self, times: f64, exchanges: Vec<Exchange>) {
        for exchange in exchanges {
            self.knots.extend(exchange.positions());
            self.push(times, move |tokens| exchange.us(tokens));
        }
    }

    /// A kernel that moves so many bytes for a token.
    fn moving(&mut self, times: f64, sources: &Sources, bytes: f64) {
        let gpu = sources.gpu.clone();
        self.push(times, move |tokens| gpu.memory_us(tokens * bytes));
    }

    /// Another sum, so many times.
    pub(super) fn all_of(&mut self, times: f64, other: Sum) {
        self.knots.extend(&other.knots);
        if other.largest > 0.0 {
            self.largest = if self.largest == 0.0 { other.largest } else { self.largest.min(other.largest) };
        }
        self.push(times, move |tokens| other.us(tokens));
    }

    /// Both at once: as long as the longer one.
    fn overlapped(self, other: Sum) -> Sum {
        let mut both = Sum { parts: Vec::new(), knots: Vec::new(), largest: self.largest };
        both.knots.extend(self.knots.iter().chain(&other.knots));
        both.push(1.0, move |tokens| self.us(tokens).max(other.us(tokens)));
        both
    }

    pub(super) fn us(&self, tokens: f64) -> f64 {
        self.parts.iter().map(|part| part(tokens)).sum()
    }

    pub(super) fn line(&self) -> Line {
        let mut knots: Vec<f64> = self.knots.iter().copied().filter(|at| *at <= MOST_TOKENS).collect();
        knots.extend([0.0, 1.0]);
        knots.extend((1..=18).map(|power| f64::from(1u32 << power)));
        // No token, no work: whoever asks then has another reason for the pass.
        Line::new(knots, |tokens| if tokens == 0.0 { self.us(1.0) } else { self.us(tokens) })
    }

    /// Tokens up to which its matrix products were measured.
    pub(super) fn largest(&self) -> f64 {
        self.largest
    }
}

/// The operations of a pass by its tokens, before and after prefill is known to be in it.
pub(super) struct Layers {
    /// Of a pass with prefill.
    pub(super) prefill: Sum,
    /// Of a pass of decodes, whose graph runs what is independent at once.
    pub(super) decode: Sum,
    /// The layers with experts of both, where several ranks share these, by the tokens of all ranks, divided by
    /// the number of ranks.
    pub(super) shared: Option<(Sum, Sum)>,
    /// The output layer, by sequences.
    pub(super) output: Sum,
}

/// Looks all of them up.
pub(super) fn layers(sources: &Sources, cell: &Cell, communication_scale: f64) -> Result<Layers, Uncovered> {
    let model = &cell.model;
    let one = |decode: bool| -> Result<Sum, Uncovered> {
        let mut sum = Sum::default();
        let hidden = f64::from(model.hidden);
        sum.moving(1.0, sources, 2.0 * hidden);
        let reduce = || {
            sources.all_reduce(model.hidden, cell.tensor).map(|one| scaled(vec![one], communication_scale))
        };
        sum.exchanges(1.0, reduce()?);
        let layers = f64::from(model.layers);
        // Two norms, each with the addition of the residual.
        sum.moving(2.0 * layers, sources, 8.0 * hidden);
        attention(sources, cell, decode, &mut sum)?;
        let with_experts = model.experts.map_or(0, |experts| experts.layers);
        let dense = f64::from(model.layers.saturating_sub(with_experts));
        if dense > 0.0 {
            sum.all_of(dense, gated(sources, cell, model.intermediate, &cell.types.gemm)?);
            sum.exchanges(2.0 * dense, reduce()?);
        }
        if with_experts > 0 && cell.attention_data == 1 {
            sum.all_of(f64::from(with_experts), experts(sources, cell, decode, communication_scale)?);
        }
        if cell.pipeline > 1 {
            let between = scaled(vec![sources.hand_over(model.hidden)], communication_scale);
            sum.exchanges(f64::from(cell.pipeline - 1), between);
        }
        Ok(sum)
    };
    let with_experts = model.experts.map_or(0, |experts| experts.layers);
    let shared = |decode: bool| -> Result<Sum, Uncovered> {
        let mut sum = Sum::default();
        sum.all_of(f64::from(with_experts), experts(sources, cell, decode, communication_scale)?);
        Ok(sum)
    };
    let shared = if with_experts > 0 && cell.attention_data > 1 {
        Some((shared(false)?, shared(true)?))
    } else {
        None
    };
    let mut output = Sum::default();
    output.product(1.0, sources.gemm("bfloat16", model.vocabulary / cell.tensor, model.hidden)?);
    Ok(Layers { prefill: one(false)?, decode: one(true)?, shared, output })
}

/// The projections of all layers.
fn attention(sources: &Sources, cell: &Cell, decode: bool, sum: &mut Sum) -> Result<(), Uncovered> {
    let (model, types) = (&cell.model, &cell.types);
    let linear = model.linear.map_or(0, |linear| linear.layers);
    let layers = f64::from(model.layers - linear);
    match model.attention {
        AttentionKind::Gqa { heads, kv_heads, head_dim, gate, norms } => {
            let (own_heads, own_kv) = cell.heads(heads, kv_heads);
            let (q, kv) = (own_heads * head_dim, own_kv * head_dim);
            sum.product(
                layers,
                sources.gemm(&types.attention_gemm, q + 2 * kv + if gate { q } else { 0 }, model.hidden)?,
            );
            sum.product(layers, sources.gemm(&types.attention_gemm, model.hidden, q)?);
            if !decode {
                // Rotation, writing of keys and values, norms: kernels of their own in a pass with prefill.
                let gpu = sources.gpu.clone();
                let (q, kv) = (f64::from(q), f64::from(kv));
                let mut us = 2.0 * gpu.memory_us(2.0 * (q + kv)) + 2.0 * gpu.memory_us(2.0 * kv);
                if norms {
                    us += 4.0 * (gpu.memory_us(2.0 * q) + gpu.memory_us(2.0 * kv));
                }
                sum.push(layers * 1.1, move |_| us);
            }
        }
        // The measured modules hold the projections; where there are none, `pass` adds them.
        AttentionKind::Mla { .. } => {}
    }
    if let Some(linear) = model.linear {
        let times = f64::from(linear.layers);
        let (keys, values) = (linear.key_heads * 128 / cell.tensor, linear.value_heads * 128 / cell.tensor);
        // Queries, keys, values and gates; two numbers of each head beside them; the way out.
        sum.product(times, sources.gemm(&types.attention_gemm, 2 * keys + 2 * values, model.hidden)?);
        sum.product(
            times,
            sources.gemm("bfloat16", (2 * linear.value_heads / cell.tensor).max(1), model.hidden)?,
        );
        sum.product(times, sources.gemm(&types.attention_gemm, model.hidden, values)?);
        sum.moving(times, sources, 6.0 * f64::from(values));
    }
    Ok(())
}

/// The projections of latent attention with a module of `heads` of its own kernels.
pub(super) fn latent_projections(sources: &Sources, cell: &Cell, decode: bool) -> Result<Sum, Uncovered> {
    let mut sum = Sum::default();
    let AttentionKind::Mla { heads, q_rank, kv_rank } = cell.model.attention else { return Ok(sum) };
    let (heads, dtype) = (heads / cell.tensor, &cell.types.attention_gemm);
    sum.product(1.0, sources.gemm(dtype, q_rank + kv_rank + 64, cell.model.hidden)?);
    sum.product(1.0, sources.gemm(dtype, heads * 192, q_rank)?);
    sum.product(1.0, sources.gemm(dtype, cell.model.hidden, heads * 128)?);
    if decode {
        let bmm = if dtype == "bfloat16" { "bfloat16" } else { "fp8" };
        for part in ["mla_gen_pre", "mla_gen_post"] {
            let (bmm, wide) = (format!("{bmm},{part},{heads}"), format!("bfloat16,{part},{heads}"));
            let curve = sources
                .curve("latent product", "mla_bmm", &bmm)
                .or_else(|| sources.curve("latent product", "mla_bmm", &wide));
            let n = f64::from(heads);
            let least = move |gpu: &Gpu, tokens: f64| {
                let arithmetic = 2.0 * tokens * n * 128.0 * 512.0 / gpu.flops(16);
                arithmetic.max(2.0 * n * (tokens * 640.0 + 65_536.0) / gpu.memory_bandwidth) * 1e6
            };
            match curve {
                Some(curve) => {
                    sum.knots.extend(curve.positions());
                    let gpu = sources.gpu.clone();
                    sum.push(1.0, move |tokens| curve.at(tokens, &|tokens| least(&gpu, tokens), 1));
                }
                None => {
                    sources.roofline_or("latent product", bmm, sources.keys("mla_bmm", ""), || ())?;
                    let gpu = Reach::SMALL.of(&sources.gpu);
                    sum.push(1.0, move |tokens| least(&gpu, tokens) + Reach::SMALL.kernel_us);
                }
            }
        }
    } else {
        sum.product(1.0, sources.gemm(dtype, heads * 256, kv_rank)?);
    }
    Ok(sum)
}

/// A feed-forward layer of gate, up and down.
fn gated(sources: &Sources, cell: &Cell, width: u32, dtype: &str) -> Result<Sum, Uncovered> {
    let mut sum = Sum::default();
    let (own, hidden) = (width / cell.tensor, cell.model.hidden);
    sum.product(1.0, sources.gemm(dtype, 2 * own, hidden)?);
    sum.moving(1.0, sources, 6.0 * f64::from(own));
    sum.product(1.0, sources.gemm(dtype, hidden, own)?);
    Ok(sum)
}

/// A layer of experts with all that is around it.
fn experts(sources: &Sources, cell: &Cell, decode: bool, communication_scale: f64) -> Result<Sum, Uncovered> {
    let mut routed = Sum::default();
    let Some(experts) = cell.model.experts else { return Ok(routed) };
    routed.product(1.0, sources.gemm("bfloat16", experts.count, cell.model.hidden)?);
    routed.exchanges(1.0, scaled(sources.around_experts(cell, true)?, communication_scale));
    let times = sources.experts(cell)?;
    let ranks = f64::from(cell.attention_data);
    routed.knots.extend(times.positions().iter().map(|tokens| (tokens / ranks).ceil()));
    routed.push(1.0, move |tokens| times.us(tokens * ranks));
    routed.exchanges(1.0, scaled(sources.around_experts(cell, false)?, communication_scale));
    if experts.shared == 0 {
        return Ok(routed);
    }
    let shared = gated(sources, cell, experts.shared, &cell.types.gemm)?;
    if decode {
        return Ok(routed.overlapped(shared));
    }
    routed.all_of(1.0, shared);
    Ok(routed)
}

/// TensorRT-LLM launches the kernels of a decode pass before the ones before them have ended, so that these
/// take less than alone (aiconfigurator-core 0.12.0, `_PDL_FACTOR`).
pub(super) fn early_launch(cell: &Cell) -> f64 {
    if cell.engine == Engine::Trtllm
        && matches!(cell.model.attention, AttentionKind::Mla { .. })
        && cell.attention_data > 1
    {
        0.9
    } else {
        1.0
    }
}
