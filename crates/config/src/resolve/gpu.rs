//! The memory of accelerators: what the defaults of vLLM's and SGLang's servers go by. Nothing else here
//! depends on it.

use super::Findings;
use crate::document::Engine;

/// Memory in GiB, rounded. Names and bytes are those of the system descriptions of aiconfigurator-core
/// 0.12.0 (systems/*.yaml, `mem_capacity`), which AISimulate reads.
const MEMORY: &[(&str, u32)] = &[
    ("a100_pcie", 80),
    ("a100_sxm", 80),
    ("a30", 24),
    ("b200_sxm", 180),
    ("b300_sxm", 269),
    ("b60", 24),
    ("gb200", 185),
    ("gb300", 278),
    ("h100_pcie", 80),
    ("h100_sxm", 80),
    ("h200_sxm", 141),
    ("l4", 24),
    ("l40s", 45),
    ("rtx_pro_6000_server", 96),
];

/// The memory of the deployment's accelerator, which is written into the keys. `needed` names the key whose
/// default depends on it.
pub(super) fn memory_gib(keys: &mut Engine, needed: &str, findings: &mut Findings) -> Option<f64> {
    let known = MEMORY.iter().find(|(name, _)| *name == keys.hardware).map(|(_, gib)| f64::from(*gib));
    keys.gpu_memory_gib = keys.gpu_memory_gib.or(known);
    if keys.gpu_memory_gib.is_none() {
        let path = "engine.hardware";
        let got = findings.shown(path, &keys.hardware);
        let names: Vec<&str> = MEMORY.iter().map(|(name, _)| *name).collect();
        let message = format!(
            "got {got}, of unknown memory, on which the native default of {needed} depends: give \
             engine.gpu_memory_gib, or the key itself; known are {}",
            names.join(", ")
        );
        findings.problem(path, message);
    }
    keys.gpu_memory_gib
}
