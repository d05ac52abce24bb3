//! Accelerators by name: how much memory one has. Names are those of the system descriptions of
//! aiconfigurator-core 0.12.0 (`systems/*.yaml`), which AISimulate reads; memory is what `nvidia-smi` shows
//! of one, where that is public, and else theirs. How fast accelerators are is not known here.

use serde::Serialize;

const MIB: u64 = 1 << 20;
const GIB: f64 = 1_073_741_824.0;

/// The memory of one accelerator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Accelerator {
    /// Its name, or none if only its memory is known.
    pub name: Option<String>,
    /// All of its memory.
    pub memory_bytes: u64,
    /// What AISimulate takes for it.
    pub reference_bytes: u64,
}

/// Name, memory in MiB, and `mem_capacity` of its description in MiB.
const KNOWN: &[(&str, u64, u64)] = &[
    ("a100_pcie", 81_920, 81_920),
    ("a100_sxm", 81_920, 81_920),
    ("a30", 24_576, 24_576),
    ("b200_sxm", 183_359, 184_320),
    ("b300_sxm", 275_040, 275_040),
    ("b60", 24_576, 24_576),
    ("gb200", 189_471, 189_471),
    ("gb300", 284_208, 284_208),
    ("h100_pcie", 81_559, 81_920),
    ("h100_sxm", 81_559, 81_920),
    ("h200_sxm", 143_771, 144_384),
    ("l4", 23_034, 24_576),
    ("l40s", 46_068, 46_068),
    ("rtx_pro_6000_server", 97_887, 97_887),
];

impl Accelerator {
    /// The one of this name.
    pub fn named(name: &str) -> Option<Accelerator> {
        KNOWN.iter().find(|(known, ..)| *known == name).map(|(_, memory, reference)| Accelerator {
            name: Some(name.to_owned()),
            memory_bytes: memory * MIB,
            reference_bytes: reference * MIB,
        })
    }

    /// One that a file describes, by the name that it is given. None if its memory is not a number from 1 to 2^20 GiB.
    pub fn described(name: &str, memory_gib: f64) -> Option<Accelerator> {
        Some(Accelerator { name: Some(name.to_owned()), ..Accelerator::of_memory(memory_gib)? })
    }

    /// One of which only the memory is known. None if it is not a number from 1 to 2^20 GiB.
    pub fn of_memory(gib: f64) -> Option<Accelerator> {
        let bytes = (1.0..=1_048_576.0).contains(&gib).then_some((gib * GIB) as u64)?;
        Some(Accelerator { name: None, memory_bytes: bytes, reference_bytes: bytes })
    }

    /// Its memory in GiB, as it is sold: to the next whole number.
    pub fn memory_gib(&self) -> f64 {
        (self.reference_bytes as f64 / GIB).round()
    }

    /// The names that are known.
    pub fn names() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().map(|(name, ..)| *name)
    }
}
