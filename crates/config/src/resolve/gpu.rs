//! The memory of accelerators: what the defaults of vLLM's and SGLang's servers go by, and what KV blocks
//! are to fit into.

use super::Findings;
use super::role::RoleKeys;
use windtunnel_perf::hardware::Accelerator;

/// The memory of the deployment's accelerator in GiB, which is written into the keys. `needed` names the key
/// whose default depends on it.
pub(super) fn memory_gib(keys: &mut RoleKeys, needed: &str, findings: &mut Findings) -> Option<f64> {
    let known = Accelerator::named(&keys.hardware).map(|known| known.memory_gib());
    keys.gpu_memory_gib = keys.gpu_memory_gib.or(known);
    if keys.gpu_memory_gib.is_none() {
        let memory = if keys.worker.hardware.is_some() { "" } else { "engine.gpu_memory_gib, or " };
        let why = format!("on which the native default of {needed} depends: give {memory}the key itself");
        unknown(keys, &why, findings);
    }
    keys.gpu_memory_gib
}

/// The deployment's accelerator, for the key `needed`. Memory that is given holds, unless it is the rounded one
/// of a known accelerator.
pub(super) fn accelerator(keys: &RoleKeys, needed: &str, findings: &mut Findings) -> Option<Accelerator> {
    let known = Accelerator::named(&keys.hardware);
    match (keys.gpu_memory_gib, known) {
        (None, Some(known)) => Some(known),
        (Some(gib), Some(known)) if gib == known.memory_gib() => Some(known),
        (Some(gib), _) => {
            let given = Accelerator::of_memory(gib);
            if given.is_none() {
                let message = format!("got {gib}; {needed} needs a number from 1 to 1048576");
                findings.problem("engine.gpu_memory_gib", message);
            }
            given
        }
        (None, None) => {
            let instead = match keys.worker.hardware {
                Some(_) => "give one that is known",
                None => "give engine.gpu_memory_gib",
            };
            unknown(keys, &format!("on which {needed} depends: {instead}"), findings);
            None
        }
    }
}

fn unknown(keys: &RoleKeys, why: &str, findings: &mut Findings) {
    let path = keys.hardware_path();
    let got = findings.shown(path, &keys.hardware);
    let names: Vec<&str> = Accelerator::names().collect();
    let message = format!("got {got}, of unknown memory, {why}; known are {}", names.join(", "));
    findings.problem(path, message);
}
