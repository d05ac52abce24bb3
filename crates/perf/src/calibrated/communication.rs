//! What accelerators send each other in a layer: all-reduces of tensor parallelism, what takes tokens to
//! their experts and back, and hand-over between pipeline stages.

use super::cell::Cell;
use super::curve::Curve;
use super::peak::Reach;
use super::sources::Sources;
use super::{Engine, Uncovered};

/// Accelerators of a group from which on one domain of NVLink spans racks, and all-reduce is NCCL's there.
const RACK: u32 = 72;
const RACK_CUSTOM: u32 = 4;

/// Time of one exchange by the tokens of a rank.
pub(super) struct Exchange {
    curve: Option<Curve>,
    /// Elements of a token.
    width: f64,
    /// Of times of a smaller group.
    factor: f64,
    /// Microseconds of an element and of the exchange, where nothing is measured.
    peak: (f64, f64),
}

impl Exchange {
    const NONE: Exchange = Exchange { curve: None, width: 0.0, factor: 0.0, peak: (0.0, 0.0) };

    pub(super) fn us(&self, tokens: f64) -> f64 {
        let elements = tokens * self.width;
        match &self.curve {
            // The least possible time is in proportion to the elements.
            Some(curve) => self.factor * curve.at(elements, &|elements| elements, 1),
            None => self.peak.0 * elements + self.peak.1,
        }
    }

    /// Tokens at which it was measured.
    pub(super) fn positions(&self) -> Vec<f64> {
        let curve = self.curve.iter().flat_map(Curve::positions);
        curve.map(|elements| (elements / self.width).ceil()).filter(|tokens| *tokens >= 1.0).collect()
    }

    fn times(mut self, factor: f64) -> Exchange {
        self.factor *= factor;
        self.peak = (self.peak.0 * factor, self.peak.1 * factor);
        self
    }
}

impl Sources {
    fn bandwidth(&self, gpus: u32) -> f64 {
        if gpus <= self.gpu.gpus_per_node {
            self.gpu.intra_node_bandwidth
        } else {
            self.gpu.inter_node_bandwidth
        }
    }

    /// An all-reduce of one vector of 16-bit numbers per token.
    pub(super) fn all_reduce(&self, width: u32, gpus: u32) -> Result<Exchange, Uncovered> {
        if gpus <= 1 {
            return Ok(Exchange::NONE);
        }
        if self.gpu.gpus_per_node >= RACK && gpus > RACK_CUSTOM {
            return self.collective("all_reduce", f64::from(width), gpus);
        }
        self.largest_group("all-reduce", "all_reduce", "bfloat16,", f64::from(width), gpus, 2.0)
    }

    /// A collective of NCCL of `width` 16-bit numbers per token.
    pub(super) fn collective(&self, operation: &str, width: f64, gpus: u32) -> Result<Exchange, Uncovered> {
        if gpus <= 1 {
            return Ok(Exchange::NONE);
        }
        let passes = if operation == "all_reduce" { 2.0 } else { 1.0 };
        self.largest_group("collective", "nccl", &format!("{operation},half,"), width, gpus, passes)
    }

    /// Times of `gpus` accelerators, or of the largest smaller group, scaled by what each sends and over what.
    fn largest_group(
        &self,
        operation: &'static str,
        table: &str,
        prefix: &str,
        width: f64,
        gpus: u32,
        passes: f64,
    ) -> Result<Exchange, Uncovered> {
        let sends = |gpus: u32| f64::from(gpus - 1) / f64::from(gpus) / self.bandwidth(gpus);
        let smaller = (2..=gpus).rev().find_map(|group| {
            let curve = self.curve(operation, table, &format!("{prefix}{group}"))?;
            Some(Exchange { curve: Some(curve), width, factor: sends(gpus) / sends(group), peak: (0.0, 0.0) })
        });
        if let Some(exchange) = smaller {
            return Ok(exchange);
        }
        let peak = (2.0 * passes * sends(gpus) * 1e6 / Reach::EXCHANGE, self.gpu.p2p_us);
        let cell = format!("{prefix}{gpus}");
        self.roofline_or(operation, cell, self.keys(table, prefix), || Exchange {
            width,
            factor: 1.0,
            peak,
            ..Exchange::NONE
        })
    }

    /// Hand-over of a stage's output to the next one.
    pub(super) fn hand_over(&self, width: u32) -> Exchange {
        let peak = (2.0 / self.gpu.inter_node_bandwidth * 1e6, self.gpu.p2p_us);
        Exchange { curve: None, width: f64::from(width), factor: 1.0, peak }
    }

    /// What stands before (`true`) or after the experts of a layer: with attention split by tensor
    /// parallelism the all-reduce of the attention and that of the experts, with data parallelism the
    /// gathering of all ranks' tokens and the scattering of the results. Rules by engine: vLLM and SGLang
    /// as aiconfigurator-core 0.12.0 has them (operators/moe_dispatch.rs), and TensorRT-LLM.
    pub(super) fn around_experts(&self, cell: &Cell, before: bool) -> Result<Vec<Exchange>, Uncovered> {
        let hidden = cell.model.hidden;
        let width = f64::from(hidden);
        let all = cell.expert_gpus();
        let (tensor, data) = (cell.tensor, cell.attention_data);
        let gathered = f64::from(data);
        let collective = if before { "all_gather" } else { "reduce_scatter" };
        Ok(match cell.engine {
            Engine::Sglang if tensor > 1 && data > 1 => {
                if before {
                    vec![
                        self.collective("reduce_scatter", width, tensor)?,
                        self.collective("all_gather", width * gathered, all)?,
                    ]
                } else {
                    vec![
                        self.collective("reduce_scatter", width * gathered, all)?,
                        self.collective("all_gather", width, tensor)?,
                    ]
                }
            }
            Engine::Vllm => {
                let mut exchanges = Vec::new();
                if tensor > 1 {
                    exchanges.push(self.all_reduce(hidden, if data > 1 { all } else { tensor })?);
                }
                if data > 1 {
                    exchanges.push(self.collective(collective, width * gathered, all)?);
                }
                exchanges
            }
            Engine::Trtllm if data > 1 && self.gpu.gpus_per_node >= RACK && cell.moe_tensor == 1 => {
                vec![self.expert_exchange(cell, before)?]
            }
            Engine::Trtllm if data > 1 => {
                // Tokens travel in the type of the experts, with a scale for each block of 16.
                let share = match (before, cell.types.experts.as_str()) {
                    (true, "nvfp4") => 0.25 + 0.25 / 8.0,
                    (true, "fp8" | "fp8_block") if self.gpu.sm >= 100 => 0.5,
                    _ => 1.0,
                };
                vec![self.collective(collective, width * gathered * share, all)?]
            }
            _ if tensor > 1 => vec![self.all_reduce(hidden, tensor)?],
            _ if data > 1 => vec![self.collective(collective, width * gathered, all)?],
            _ => Vec::new(),
        })
    }

    /// The all-to-all of TensorRT-LLM over NVLink.
    fn expert_exchange(&self, cell: &Cell, before: bool) -> Result<Exchange, Uncovered> {
        let part = if before { "alltoall_dispatch" } else { "alltoall_combine" };
        let dtype = match cell.types.experts.as_str() {
            "fp8_block" => "fp8",
            other => other,
        };
        let (topk, count) = cell.model.experts.map_or((1, 1), |experts| (experts.per_token, experts.count));
        let key =
            format!("NVLinkOneSided,{part},{dtype},{},{topk},{count},{}", cell.model.hidden, cell.moe_expert);
        if let Some(curve) = self.curve("expert exchange", "expert_exchange", &key) {
            return Ok(Exchange { curve: Some(curve), width: 1.0, factor: 1.0, peak: (0.0, 0.0) });
        }
        // Each token goes to so many other accelerators at most.
        let remote = f64::from(topk.min(cell.moe_expert.saturating_sub(1)));
        let width = f64::from(cell.model.hidden);
        let peak = (2.0 * remote / self.bandwidth(cell.moe_expert) * 1e6 / Reach::EXCHANGE, self.gpu.p2p_us);
        let nearest = self.keys("expert_exchange", "NVLinkOneSided,");
        self.roofline_or("expert exchange", key, nearest, || Exchange {
            width,
            factor: 1.0,
            peak,
            ..Exchange::NONE
        })
    }
}

/// Several exchanges, one after the other.
pub(super) fn scaled(exchanges: Vec<Exchange>, factor: f64) -> Vec<Exchange> {
    exchanges.into_iter().map(|exchange| exchange.times(factor)).collect()
}
