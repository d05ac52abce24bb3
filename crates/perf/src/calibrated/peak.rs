//! What of an accelerator's peak figures operations reach, for those that nobody measured.
//!
//! The shares are medians over the medians of the packs that came out in 2026 (27 of nine accelerators and three
//! engines): of operations that are bound by arithmetic, of those bound by memory, and the microseconds of the
//! smallest ones.

use crate::packs::Gpu;

/// What a kind of operation reaches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    /// Share of the floating-point operations.
    arithmetic: f64,
    /// Share of the bandwidth of the memory.
    memory: f64,
    /// What it takes beside.
    pub(super) kernel_us: f64,
}

impl Reach {
    /// Matrix products by the bits of their operands: from 2048 rows, columns and depth; up to 16 rows of 30 MB of
    /// weights. Those of fewer bits include what brings the activations into their type.
    pub(super) fn product(bits: u32) -> Reach {
        match bits {
            0..=4 => Reach { arithmetic: 0.34, memory: 0.55, kernel_us: 7.0 },
            5..=8 => Reach { arithmetic: 0.50, memory: 0.60, kernel_us: 6.0 },
            _ => Reach { arithmetic: 0.73, memory: 0.81, kernel_us: 3.0 },
        }
    }

    /// Experts of a layer, with the choice of them and what sorts the tokens.
    pub(super) fn experts(bits: u32) -> Reach {
        match bits {
            0..=4 => Reach { arithmetic: 0.21, memory: 0.65, kernel_us: 19.0 },
            5..=8 => Reach { arithmetic: 0.30, memory: 0.60, kernel_us: 33.0 },
            _ => Reach { arithmetic: 0.24, memory: 0.69, kernel_us: 35.0 },
        }
    }

    /// Attention: arithmetic of prompts, memory of decodes.
    pub(super) const ATTENTION: Reach = Reach { arithmetic: 0.50, memory: 0.85, kernel_us: 11.0 };

    /// Small batched products and element-wise kernels.
    pub(super) const SMALL: Reach = Reach { arithmetic: 0.50, memory: 0.80, kernel_us: 3.0 };

    /// Share of the bandwidth between accelerators of exchanges over 100 µs.
    pub(super) const EXCHANGE: f64 = 0.67;

    /// An accelerator whose best is what is reached of `gpu`.
    pub(super) fn of(self, gpu: &Gpu) -> Gpu {
        Gpu {
            memory_bandwidth: gpu.memory_bandwidth * self.memory,
            flops_16: gpu.flops_16 * self.arithmetic,
            flops_8: gpu.flops_8.map(|flops| flops * self.arithmetic),
            flops_4: gpu.flops_4.map(|flops| flops * self.arithmetic),
            ..gpu.clone()
        }
    }
}
