//! Matrix products: of the own pack, of the nearest shapes, or of the accelerator's peak figures.

use super::Uncovered;
use super::cell::{bytes_and_bits, least_gemm};
use super::curve::Curve;
use super::peak::Reach;
use super::sources::Sources;
use crate::packs::{Gpu, Row};

/// Distance in octaves over which a matrix product stands for another one, and how many do.
const GEMM_REACH: f64 = 2.0;
const GEMM_SITES: usize = 4;

impl Sources {
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
        let reach = Reach::product(bytes_and_bits(dtype).1);
        let product = |sites| Product {
            gpu: match sites {
                Sites::Peak => reach.of(&self.gpu),
                _ => self.gpu.clone(),
            },
            kernel_us: reach.kernel_us,
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
}

/// A matrix product of one shape.
pub(super) struct Product {
    /// The accelerator, or what is reached of it where nothing is measured.
    gpu: Gpu,
    kernel_us: f64,
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
            Sites::Peak => own + self.kernel_us,
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
