//! The look-ups: an operation by its key in the engine's own pack, else with other shapes, else in the packs of
//! the other engines for the same accelerator, else of the accelerator's peak figures, if that is allowed.

use super::cell::{Cell, bytes_and_bits, least_gemm};
use super::curve::Curve;
use super::surface::{Measured, Surface};
use super::{Engine, Uncovered};
use crate::packs::{Gpu, Pack, PackError, PackName, Row, Store};
use serde::{Serialize, Serializer};
use std::cell::RefCell;
use thiserror::Error;

/// How a figure came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// Measured with these shapes, engine and version.
    Measured,
    /// Measured with these shapes and another version of the engine.
    OtherVersion,
    /// Measured with these shapes and another engine.
    OtherEngine,
    /// Scaled from other shapes by the least possible times.
    Transferred,
    /// Of the accelerator's peak figures.
    Roofline,
}

impl How {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            How::Measured => "measured",
            How::OtherVersion => "other version",
            How::OtherEngine => "other engine",
            How::Transferred => "transferred",
            How::Roofline => "roofline",
        }
    }
}

impl Serialize for How {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Where the time of one operation comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Use {
    /// The operation.
    pub operation: &'static str,
    /// What was looked for.
    pub cell: String,
    /// How it was answered.
    pub how: How,
    /// The file that it comes from.
    pub origin: String,
    /// Sizes at which the time of another engine took its place.
    pub outvoted: u32,
}

/// Shares of the peak that operations reach where nothing is measured: medians over the measurements of 2026
/// (matrix products of 2048…16384 in both directions, by bits of the operands; attention; communication).
mod peak {
    pub(super) fn gemm(bits: u32) -> f64 {
        match bits {
            0..=4 => 0.30,
            5..=8 => 0.50,
            _ => 0.70,
        }
    }
    pub(super) const ATTENTION: f64 = 0.5;
    pub(super) const EXPERTS: f64 = 0.5;
    pub(super) const KERNEL_US: f64 = 3.0;
}

/// Distance in octaves over which a matrix product stands for another one, and how many do.
const GEMM_REACH: f64 = 2.0;
const GEMM_SITES: usize = 4;

/// Packs that cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    /// None of the accelerator; those that there are.
    #[error("there are no measurements of it, but of {0}")]
    System(String),
    /// None of the engine version.
    #[error("of {system} there are no measurements of it, but of {known}")]
    Version {
        /// The accelerator.
        system: String,
        /// What there is.
        known: String,
    },
    /// A pack that cannot be read.
    #[error(transparent)]
    Pack(#[from] PackError),
}

/// The packs of one accelerator, the engine's own first.
pub struct Sources {
    packs: Vec<(PackName, Pack)>,
    /// The accelerator.
    pub gpu: Gpu,
    /// Peak figures may stand in for measurements.
    pub allow_roofline: bool,
    /// Times that both other engines contradict are replaced.
    pub(super) screens: bool,
    used: RefCell<Vec<Use>>,
}

impl Sources {
    /// Of a store. Without a version the only one there is.
    ///
    /// # Errors
    /// No such pack, with those that there are, or one that cannot be read.
    pub fn open(
        store: &Store,
        system: &str,
        engine: Engine,
        version: Option<&str>,
        allow_roofline: bool,
    ) -> Result<Sources, OpenError> {
        let all = store.list()?;
        let here: Vec<&PackName> = all.iter().filter(|name| name.system == system).collect();
        if here.is_empty() {
            let mut systems: Vec<&str> = all.iter().map(|name| name.system.as_str()).collect();
            systems.dedup();
            return Err(OpenError::System(systems.join(", ")));
        }
        let fits =
            |name: &PackName| name.backend == engine.name() && version.is_none_or(|v| v == name.version);
        if !here.iter().any(|name| fits(name)) {
            let known: Vec<String> =
                here.iter().map(|name| format!("{} {}", name.backend, name.version)).collect();
            return Err(OpenError::Version { system: system.to_owned(), known: known.join(", ") });
        }
        let mut names: Vec<PackName> = here.into_iter().cloned().collect();
        names.sort_by_key(|name| (!fits(name), name.backend.clone(), name.version.clone()));
        let mut packs = Vec::new();
        for name in names {
            let pack = store.pack(&name)?;
            packs.push((name, pack));
        }
        Ok(Sources {
            packs,
            gpu: store.gpu(system)?,
            allow_roofline,
            screens: true,
            used: RefCell::default(),
        })
    }

    /// Without packs: everything is made of the accelerator's peak figures.
    pub fn roofline(gpu: Gpu) -> Sources {
        Sources { packs: Vec::new(), gpu, allow_roofline: true, screens: true, used: RefCell::default() }
    }

    /// The same with the times as they were measured, also those that both other engines contradict.
    pub fn as_measured(self) -> Sources {
        Sources { screens: false, ..self }
    }

    /// All packs.
    pub(super) fn packs(&self) -> impl Iterator<Item = &Pack> {
        self.packs.iter().map(|(_, pack)| pack)
    }

    /// The engine and version whose times these are; none without packs.
    pub fn name(&self) -> Option<&PackName> {
        self.packs.first().map(|(name, _)| name)
    }

    /// Number of packs.
    pub(super) fn count(&self) -> usize {
        self.packs.len()
    }

    /// What was looked up, each operation once.
    pub(super) fn take_uses(&self) -> Vec<Use> {
        let mut used = self.used.take();
        used.sort();
        used.dedup();
        used
    }

    pub(super) fn note(&self, operation: &'static str, cell: &str, how: How, origin: &str) {
        let used = Use { operation, cell: cell.to_owned(), how, origin: origin.to_owned(), outvoted: 0 };
        self.used.borrow_mut().push(used);
    }

    /// Of what was noted last.
    fn note_outvoted(&self, outvoted: u32) {
        if let Some(last) = self.used.borrow_mut().last_mut() {
            last.outvoted = outvoted;
        }
    }

    fn note_pack(&self, operation: &'static str, cell: &str, pack: usize, row: &Row, transferred: bool) {
        let how = match pack {
            _ if transferred => How::Transferred,
            0 if row.origin.contains(&self.packs[0].0.version) || row.origin.contains("nccl") => {
                How::Measured
            }
            0 => How::OtherVersion,
            _ => How::OtherEngine,
        };
        self.note(operation, cell, how, row.origin);
    }

    /// The roofline, if it is allowed, and the error if not.
    pub(super) fn roofline_or<T>(
        &self,
        operation: &'static str,
        cell: String,
        nearest: Vec<String>,
        peak: impl FnOnce() -> T,
    ) -> Result<T, Uncovered> {
        if self.allow_roofline {
            self.note(operation, &cell, How::Roofline, "peak figures of the accelerator");
            return Ok(peak());
        }
        let mut nearest = nearest;
        nearest.sort();
        nearest.dedup();
        let more = nearest.len().saturating_sub(8);
        nearest.truncate(8);
        let mut nearest = if nearest.is_empty() { "none".to_owned() } else { nearest.join("; ") };
        if more > 0 {
            nearest += &format!("; and {more} more");
        }
        Err(Uncovered { operation, cell, nearest })
    }

    /// The first pack that has a line for a key.
    pub(super) fn curve(&self, operation: &'static str, table: &str, key: &str) -> Option<Curve> {
        for (index, (_, pack)) in self.packs.iter().enumerate() {
            let found = pack.table(table).and_then(|table| pack.row(table, key));
            if let Some(row) = found
                && let (points, outvoted) = self.screened(table, &row)
                && let Some(curve) = Curve::new(points)
            {
                self.note_pack(operation, key, index, &row, false);
                self.note_outvoted(outvoted);
                return Some(curve);
            }
        }
        None
    }

    /// The keys of the own pack that begin so, for messages.
    pub(super) fn keys(&self, table: &str, prefix: &str) -> Vec<String> {
        let own = self.packs.first().and_then(|(_, pack)| Some((pack, pack.table(table)?)));
        own.map_or_else(Vec::new, |(pack, table)| {
            pack.rows(table, prefix).map(|row| row.key.to_owned()).collect()
        })
    }

    /// The time of a matrix product by its rows.
    pub(super) fn gemm(&self, dtype: &str, n: u32, k: u32) -> Result<Product, Uncovered> {
        if dtype == "fp8_static" {
            // Measured with the scaling of the activations, which is then a part of the kernel before.
            let scaling = ["scale", "matrix"]
                .iter()
                .filter_map(|part| {
                    self.curve("scaling of activations", "quantize", &format!("{part},fp8,{k}"))
                })
                .collect();
            return Ok(Product { scaling, ..self.gemm("fp8", n, k)? });
        }
        let key = format!("{dtype},{n},{k}");
        let product = |sites| Product {
            gpu: self.gpu.clone(),
            dtype: dtype.to_owned(),
            n: f64::from(n),
            k: f64::from(k),
            sites,
            scaling: Vec::new(),
        };
        if let Some(curve) = self.own_gemm(&key) {
            return Ok(product(Sites::Own(curve)));
        }
        for (index, (_, pack)) in self.packs.iter().enumerate() {
            let Some(table) = pack.table("gemm") else { continue };
            let mut near: Vec<(f64, Row)> = Vec::new();
            for row in pack.rows(table, &format!("{dtype},")) {
                let (Some(other_n), Some(other_k)) = (row.number(1), row.number(2)) else { continue };
                let octaves = |a: u32, b: u32| (f64::from(a) / f64::from(b)).log2();
                let distance = octaves(other_n, n).hypot(octaves(other_k, k));
                if distance <= GEMM_REACH {
                    near.push((distance, row));
                }
            }
            near.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.key.cmp(b.1.key)));
            near.truncate(GEMM_SITES);
            let sites: Vec<(f64, f64, f64, Curve)> = near
                .iter()
                .filter_map(|(distance, row)| {
                    let weight = 1.0 / (distance * distance + 1e-12);
                    let (n, k) = (f64::from(row.number(1)?), f64::from(row.number(2)?));
                    Some((weight, n, k, Curve::new(self.screened("gemm", row).0)?))
                })
                .collect();
            if let Some((_, row)) = near.first().filter(|_| !sites.is_empty()) {
                self.note_pack("matrix product", &key, index, row, true);
                return Ok(product(Sites::Near(sites)));
            }
        }
        let types = self.types("gemm");
        self.roofline_or("matrix product", key, types, || product(Sites::Peak))
    }

    fn own_gemm(&self, key: &str) -> Option<Curve> {
        let (_, pack) = self.packs.first()?;
        let row = pack.row(pack.table("gemm")?, key)?;
        let (points, outvoted) = self.screened("gemm", &row);
        let curve = Curve::new(points)?;
        self.note_pack("matrix product", key, 0, &row, false);
        self.note_outvoted(outvoted);
        Some(curve)
    }

    /// The types that the own pack has of an operation.
    pub(super) fn types(&self, table: &str) -> Vec<String> {
        let mut types: Vec<String> =
            self.keys(table, "").iter().filter_map(|key| key.split(',').next().map(str::to_owned)).collect();
        types.dedup();
        types
    }

    /// A surface over batch and axis, of any engine: `prefix` is the key up to the heads, exclusive.
    pub(super) fn surface(
        &self,
        operation: &'static str,
        table: &str,
        prefixes: &[String],
        heads: u32,
        root: bool,
        least: &dyn Fn(f64, f64, f64) -> f64,
    ) -> Option<Surface> {
        self.surface_of(self.packs.len(), operation, table, prefixes, heads, root, least)
    }

    /// The same of the first `packs` packs.
    #[expect(clippy::too_many_arguments, reason = "the table, the key and the law of one look-up")]
    pub(super) fn surface_of(
        &self,
        packs: usize,
        operation: &'static str,
        table: &str,
        prefixes: &[String],
        heads: u32,
        root: bool,
        least: &dyn Fn(f64, f64, f64) -> f64,
    ) -> Option<Surface> {
        for (index, (_, pack)) in self.packs.iter().enumerate().take(packs) {
            let Some(table) = pack.table(table) else { continue };
            let heads_at = table.keys.iter().position(|key| key == "heads").unwrap_or(0);
            for prefix in prefixes {
                let rows: Vec<Row> = pack.rows(table, prefix).collect();
                let measured = rows.iter().filter_map(|row| row.number(heads_at));
                let octaves = |other: u32| (f64::from(other) / f64::from(heads)).log2().abs();
                let nearest = measured.min_by(|a, b| octaves(*a).total_cmp(&octaves(*b)).then(a.cmp(b)));
                let Some(nearest) = nearest.filter(|other| octaves(*other) <= 1.01) else { continue };
                let of: Vec<&Row> = rows.iter().filter(|row| row.number(heads_at) == Some(nearest)).collect();
                let mut grid = Measured::default();
                for row in &of {
                    let Some(batch) = row.number(heads_at + 1) else { continue };
                    let scale = |length: u32| {
                        let (batch, length) = (f64::from(batch), f64::from(length));
                        least(f64::from(heads), batch, length) / least(f64::from(nearest), batch, length)
                    };
                    for (length, us) in row.points() {
                        let us = if nearest == heads { us } else { us * scale(length) };
                        grid.points.push((batch, length, us));
                    }
                }
                let surface =
                    Surface::new(&grid, root, &|batch, length| least(f64::from(heads), batch, length));
                if let (Some(surface), Some(row)) = (surface, of.first()) {
                    let cell = format!("{prefix}{heads} heads");
                    self.note_pack(operation, &cell, index, row, nearest != heads);
                    return Some(surface);
                }
            }
        }
        None
    }

    /// A surface of a kernel of the gated delta rule: the value heads stand where other tables have heads.
    pub(super) fn delta_surface(
        &self,
        prefix: &str,
        values: u32,
        root: bool,
        least: &dyn Fn(f64, f64, f64) -> f64,
    ) -> Option<Surface> {
        for (index, (_, pack)) in self.packs.iter().enumerate() {
            let Some(table) = pack.table("gated_delta") else { continue };
            let mut grid = Measured::default();
            let rows: Vec<Row> = pack.rows(table, &format!("{prefix}{values},")).collect();
            for row in &rows {
                let batch = row.number(5).unwrap_or(1);
                grid.points.extend(row.points().into_iter().map(|(length, us)| (batch, length, us)));
            }
            let surface = Surface::new(&grid, root, &|batch, length| least(f64::from(values), batch, length));
            if let (Some(surface), Some(row)) = (surface, rows.first()) {
                self.note_pack("gated delta rule", &format!("{prefix}{values}"), index, row, false);
                return Some(surface);
            }
        }
        None
    }

    /// A surface of the accelerator's peak figures.
    pub(super) fn peak_surface(&self, root: bool, least: &dyn Fn(f64, f64) -> f64) -> Option<Surface> {
        let lengths = (0..=17u32).map(|power| 1u32 << power);
        let points = lengths.flat_map(|length| (0..=9u32).map(move |power| (1u32 << power, length)));
        let us = |batch: u32, length: u32| {
            least(f64::from(batch), f64::from(length)) / peak::ATTENTION + peak::KERNEL_US
        };
        let points = points.map(|(batch, length)| (batch, length, us(batch, length))).collect();
        Surface::new(&Measured { points }, root, least)
    }

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
                return Ok(Experts { curve: Some(curve), few, factor: 1.0, least });
            }
        }
        if let Some((curve, factor)) = self.experts_of_other_spread(cell, dtype, &least, &wanted) {
            return Ok(Experts { curve: Some(curve), few: None, factor, least });
        }
        let same_size = |key: &String| key.contains(&format!(",{},{},", model.hidden, experts.intermediate));
        let mut nearest: Vec<String> = self.keys("moe", "").into_iter().filter(same_size).collect();
        if nearest.is_empty() {
            nearest = self.types("moe");
        }
        self.roofline_or("experts", wanted, nearest, || Experts {
            curve: None,
            few: None,
            factor: 1.0 / peak::EXPERTS,
            least,
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

/// A matrix product of one shape.
pub(super) struct Product {
    gpu: Gpu,
    dtype: String,
    n: f64,
    k: f64,
    sites: Sites,
    /// What is in its times and is not part of it.
    scaling: Vec<Curve>,
}

enum Sites {
    Own(Curve),
    /// Weight, shape and times of each.
    Near(Vec<(f64, f64, f64, Curve)>),
    Peak,
}

/// Points by which a curve of matrix products goes on.
const GEMM_TAIL: usize = 3;

impl Product {
    /// Microseconds for `m` rows.
    pub(super) fn us(&self, m: f64) -> f64 {
        let all = self.with_scaling(m);
        if self.scaling.is_empty() {
            return all;
        }
        let moved = |m: f64| m * self.k;
        let scaling: f64 = self.scaling.iter().map(|curve| curve.at(m, &moved, 1)).sum();
        (all - scaling).max(least_gemm(&self.gpu, &self.dtype, m, self.n, self.k))
    }

    fn with_scaling(&self, m: f64) -> f64 {
        let least = |m: f64, n: f64, k: f64| least_gemm(&self.gpu, &self.dtype, m, n, k);
        let own = least(m, self.n, self.k);
        match &self.sites {
            Sites::Own(curve) => curve.at(m, &|m| least(m, self.n, self.k), GEMM_TAIL),
            Sites::Near(sites) => {
                let efficiency = |(weight, n, k, curve): &(f64, f64, f64, Curve)| {
                    weight * least(m, *n, *k) / curve.at(m, &|m| least(m, *n, *k), GEMM_TAIL)
                };
                let total: f64 = sites.iter().map(|site| site.0).sum();
                own / (sites.iter().map(efficiency).sum::<f64>() / total)
            }
            Sites::Peak => own / peak::gemm(bytes_and_bits(&self.dtype).1) + peak::KERNEL_US,
        }
    }

    /// Where it was measured.
    pub(super) fn positions(&self) -> Vec<f64> {
        match &self.sites {
            Sites::Own(curve) => curve.positions().collect(),
            Sites::Near(sites) => sites.iter().flat_map(|(.., curve)| curve.positions()).collect(),
            Sites::Peak => (0..16).map(|power| f64::from(1u32 << power)).collect(),
        }
    }

    /// The largest position that was measured.
    pub(super) fn largest(&self) -> f64 {
        match &self.sites {
            Sites::Own(curve) => curve.range().1,
            Sites::Near(sites) => {
                sites.iter().map(|(.., curve)| curve.range().1).fold(f64::INFINITY, f64::min)
            }
            Sites::Peak => f64::INFINITY,
        }
    }
}

/// The experts of one layer.
pub(super) struct Experts {
    curve: Option<Curve>,
    /// Of a kernel for few tokens.
    few: Option<Curve>,
    factor: f64,
    least: LeastExperts,
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
            (_, None) => self.factor * least(tokens) + peak::KERNEL_US,
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
        let of = |value: fn(&super::ExpertLayers) -> u32| {
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
