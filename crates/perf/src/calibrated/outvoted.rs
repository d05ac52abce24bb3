//! Times that both other engines contradict. The engines call the same kernels, or may; where one of them was measured
//! far above two others at the same shape and size, another kernel was measured than the one that it runs with. The
//! slower of the two others takes the place.

use super::sources::Sources;
use crate::packs::Row;
use std::collections::HashMap;

/// By how much, for a matrix product and for experts. Measured deployments were slower than what stays and faster than
/// what is replaced (docs/accuracy.md).
const PRODUCTS: f64 = 1.3;
const EXPERTS: f64 = 1.5;

impl Sources {
    /// The times of a line of `table`, and how many of them were replaced.
    pub(super) fn screened(&self, table: &str, row: &Row) -> (Vec<(u32, f64)>, u32) {
        let mut points: Vec<(u32, f64)> = row.points().into_iter().collect();
        let limit = match table {
            "gemm" => PRODUCTS,
            "moe" => EXPERTS,
            _ => return (points, 0),
        };
        if !self.screens {
            return (points, 0);
        }
        let all: Vec<HashMap<u32, f64>> = self
            .packs()
            .filter_map(|pack| Some(pack.row(pack.table(table)?, row.key)?.points().into_iter().collect()))
            .collect();
        let mut replaced = 0;
        for (at, us) in &mut points {
            let mut times: Vec<f64> = all.iter().filter_map(|engine| engine.get(at).copied()).collect();
            times.sort_by(f64::total_cmp);
            // Of three engines: the slowest against the middle one.
            if let [_, second, _, ..] = times[..]
                && *us > limit * second
            {
                *us = second;
                replaced += 1;
            }
        }
        (points, replaced)
    }
}
