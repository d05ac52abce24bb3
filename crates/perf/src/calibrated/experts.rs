//! The experts of a layer: of the own pack, of another spread, or of the accelerator's peak figures.

use super::cell::{Cell, bytes_and_bits};
use super::curve::Curve;
use super::peak::Reach;
use super::sources::Sources;
use super::{ExpertLayers, Uncovered};
use crate::packs::{Gpu, Row};

impl Sources {
    /// The time of the experts of one layer by the tokens of all ranks, and the positions that were measured.
    pub(super) fn experts(&self, cell: &Cell) -> Result<Experts, Uncovered> {
        let model = &cell.model;
        // Whoever asks has layers with experts.
        let Some(experts) = model.experts else { return Err(no_experts()) };
        let dtype = cell.types.experts.as_str();
        let rest = format!(
            "{},{},{},{},{},{}",
            model.hidden,
            experts.intermediate,
            experts.per_token,
            experts.count,
            cell.moe_tensor,
            cell.moe_expert
        );
        let wanted = format!("{dtype},{},{rest}", cell.distribution());
        let least = LeastExperts::new(&self.gpu, dtype, cell);
        for distribution in [cell.distribution(), "power_law_1.2", "power_law_1.01", "balanced", "uniform"] {
            let key = format!("{dtype},{distribution},{rest}");
            let own = self.packs.first().map(|(name, _)| name.backend.as_str());
            let few = if own == Some("trtllm") {
                self.curve("experts, few tokens", "moe_low_latency", &key)
            } else {
                None
            };
            if let Some(curve) = self.curve("experts", "moe", &key) {
                return Ok(Experts { curve: Some(curve), few, factor: 1.0, least, kernel_us: 0.0 });
            }
        }
        if let Some((curve, factor)) = self.experts_of_other_spread(cell, dtype, &least, &wanted) {
            return Ok(Experts { curve: Some(curve), few: None, factor, least, kernel_us: 0.0 });
        }
        let same_size = |key: &String| key.contains(&format!(",{},{},", model.hidden, experts.intermediate));
        let mut nearest: Vec<String> = self.keys("moe", "").into_iter().filter(same_size).collect();
        if nearest.is_empty() {
            nearest = self.types("moe");
        }
        let reach = Reach::experts(bytes_and_bits(dtype).1);
        self.roofline_or("experts", wanted, nearest, || Experts {
            curve: None,
            few: None,
            factor: 1.0,
            least: LeastExperts::new(&reach.of(&self.gpu), dtype, cell),
            kernel_us: reach.kernel_us,
        })
    }

    /// The experts of the same model spread otherwise over as many accelerators, or over half or twice as
    /// many, scaled by the least possible times.
    fn experts_of_other_spread(
        &self,
        cell: &Cell,
        dtype: &str,
        least: &LeastExperts,
        wanted: &str,
    ) -> Option<(Curve, f64)> {
        let (model, experts) = (&cell.model, cell.model.experts?);
        let shape =
            format!("{},{},{},{}", model.hidden, experts.intermediate, experts.per_token, experts.count);
        for (index, (_, pack)) in self.packs.iter().enumerate() {
            let Some(table) = pack.table("moe") else { continue };
            let rows = pack.rows(table, &format!("{dtype},{},{shape},", cell.distribution()));
            let octaves = |row: &Row| {
                let spread = |field: usize, own: u32| {
                    row.number(field)
                        .map_or(f64::INFINITY, |other| (f64::from(other) / f64::from(own)).log2().abs())
                };
                spread(6, cell.moe_tensor) + spread(7, cell.moe_expert)
            };
            let best = rows.map(|row| (octaves(&row), row)).min_by(|a, b| a.0.total_cmp(&b.0));
            let Some((_, row)) = best.filter(|(distance, _)| *distance <= 2.01) else { continue };
            let other = Cell { moe_tensor: row.number(6)?, moe_expert: row.number(7)?, ..cell.clone() };
            let other = LeastExperts::new(&self.gpu, dtype, &other);
            let factor = least.us(256.0) / other.us(256.0);
            self.note_pack("experts", wanted, index, &row, true);
            return Some((Curve::new(self.screened("moe", &row).0)?, factor));
        }
        None
    }
}

fn no_experts() -> Uncovered {
    Uncovered { operation: "experts", cell: "a model without them".into(), nearest: "none".into() }
}

/// The experts of one layer.
pub(super) struct Experts {
    curve: Option<Curve>,
    /// Of a kernel for few tokens.
    few: Option<Curve>,
    factor: f64,
    least: LeastExperts,
    /// Beside the least times, where nothing is measured.
    kernel_us: f64,
}

/// Tokens up to which TensorRT-LLM takes its kernel for few of them.
const FEW_TOKENS: f64 = 128.0;

impl Experts {
    /// Microseconds for the tokens of all ranks.
    pub(super) fn us(&self, tokens: f64) -> f64 {
        let least = |tokens: f64| self.least.us(tokens);
        match (&self.few, &self.curve) {
            (Some(few), _) if tokens <= FEW_TOKENS => few.at(tokens, &least, 1),
            (_, Some(curve)) => self.factor * curve.at(tokens, &least, 1),
            (_, None) => self.factor * least(tokens) + self.kernel_us,
        }
    }

    /// Where it was measured.
    pub(super) fn positions(&self) -> Vec<f64> {
        let few = self.few.iter().flat_map(Curve::positions);
        let mut all: Vec<f64> = self.curve.iter().flat_map(Curve::positions).chain(few).collect();
        all.extend([FEW_TOKENS, FEW_TOKENS + 1.0]);
        all
    }
}

/// The least microseconds of the experts of one layer.
struct LeastExperts {
    bandwidth: f64,
    flops: f64,
    bytes: f64,
    hidden: f64,
    inter: f64,
    topk: f64,
    experts: f64,
    tp: f64,
    ep: f64,
}

impl LeastExperts {
    fn new(gpu: &Gpu, dtype: &str, cell: &Cell) -> LeastExperts {
        let (bytes, bits) = bytes_and_bits(dtype);
        let experts = cell.model.experts;
        let of = |value: fn(&ExpertLayers) -> u32| {
            experts.as_ref().map_or(1.0, |experts| f64::from(value(experts)))
        };
        LeastExperts {
            bandwidth: gpu.memory_bandwidth,
            flops: gpu.flops(bits),
            bytes,
            hidden: f64::from(cell.model.hidden),
            inter: of(|experts| experts.intermediate),
            topk: of(|experts| experts.per_token),
            experts: of(|experts| experts.count),
            tp: f64::from(cell.moe_tensor.max(1)),
            ep: f64::from(cell.moe_expert.max(1)),
        }
    }

    fn us(&self, tokens: f64) -> f64 {
        let rows = tokens * self.topk;
        // Gate, up and down, of the share of the tokens that goes to experts here.
        let arithmetic = rows * self.hidden * self.inter * 6.0 / (self.ep * self.tp) / self.flops;
        let weights =
            3.0 * self.hidden * self.inter / self.tp * self.experts.min(rows) / self.ep * self.bytes;
        let moved = rows / self.ep * (2.0 * self.hidden + 3.0 * self.inter / self.tp) * self.bytes;
        arithmetic.max((weights + moved) / self.bandwidth) * 1e6
    }
}
