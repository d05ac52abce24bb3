//! The count of weights: parameters and bytes of each part, added module by module. Which modules there are
//! is known to who adds them, how they are quantised to `quantization`.

use super::quantization::{Quantization, WeightFormat};
use super::{Dtype, Part, Weights};

const PARTS: [Part; 11] = [
    Part::Embedding,
    Part::OutputHead,
    Part::Attention,
    Part::LinearAttention,
    Part::KvProjection,
    Part::LatentProjection,
    Part::Indexer,
    Part::FeedForward,
    Part::Experts,
    Part::Router,
    Part::Norms,
];
/// More parameters than any model will have; below it no sum of bytes overflows.
const MOST: u128 = 1 << 60;

/// Parameters and bytes so far.
pub(super) struct Count<'a> {
    dtype: Dtype,
    quantization: Option<&'a Quantization>,
    parts: [Entry; PARTS.len()],
}

/// One part so far.
#[derive(Clone, Copy, Default)]
struct Entry {
    parameters: u128,
    quantized: u128,
    bytes: f64,
}

impl<'a> Count<'a> {
    pub(super) fn new(dtype: Dtype, quantization: Option<&'a Quantization>) -> Count<'a> {
        Count { dtype, quantization, parts: [Entry::default(); PARTS.len()] }
    }

    fn add(&mut self, part: Part, parameters: u128, quantized: Option<f64>) {
        let entry = &mut self.parts[PARTS.iter().position(|other| *other == part).unwrap_or(0)];
        entry.parameters += parameters;
        entry.quantized += if quantized.is_some() { parameters } else { 0 };
        entry.bytes += parameters as f64 * quantized.unwrap_or(self.dtype.bytes() as f64);
    }

    /// A matrix of this many parameters, quantised unless its module is among the exceptions.
    pub(super) fn matrix(&mut self, part: Part, module: &str, parameters: u128) {
        let scheme = self.quantization.filter(|scheme| scheme.covers(module));
        self.add(part, parameters, scheme.map(|scheme| scheme.bytes_per_parameter));
    }

    /// What is never quantised.
    pub(super) fn plain(&mut self, part: Part, parameters: u128) {
        self.add(part, parameters, None);
    }

    /// Adds the table of embeddings, the output head and the last norm, and gives the parts that there are.
    /// Engines quantise neither the table nor the head.
    /// None if there are too many parameters.
    pub(super) fn finish(mut self, table: u64, tied: bool, hidden_size: u32) -> Option<Vec<Weights>> {
        self.plain(Part::Embedding, table.into());
        if !tied {
            self.plain(Part::OutputHead, table.into());
        }
        self.plain(Part::Norms, hidden_size.into());
        if self.parts.iter().map(|entry| entry.parameters).sum::<u128>() > MOST {
            return None;
        }
        let format = |entry: &Entry| match self.quantization {
            Some(scheme) if 2 * entry.quantized > entry.parameters => scheme.format,
            _ => WeightFormat::of(self.dtype),
        };
        let weights = PARTS.iter().zip(&self.parts).filter(|(_, entry)| entry.parameters > 0);
        Some(
            weights
                .map(|(part, entry)| Weights {
                    part: *part,
                    parameters: entry.parameters as u64,
                    bytes: entry.bytes.ceil() as u64,
                    format: format(entry),
                })
                .collect(),
        )
    }
}
