//! Accelerators: the file that describes one, and their memory, which the defaults of vLLM's and SGLang's servers go
//! by and into which KV blocks are to fit.

use super::role::RoleKeys;
use super::{Findings, existing_file, places};
use std::path::Path;
use windtunnel_perf::hardware::Accelerator;
use windtunnel_perf::packs::Gpu;

/// What the file says that the hardware names, if it names one, beside the configuration file or in the working
/// directory.
pub(super) fn described(keys: &RoleKeys, folder: &Path, findings: &mut Findings) -> Option<Gpu> {
    let name = &keys.hardware;
    if Accelerator::named(name).is_some() {
        return None;
    }
    // A label needs no file; what can only be a path does.
    let is_path = name.contains(['/', '\\']) || name.ends_with(".gpu");
    let file = if is_path {
        existing_file(keys.hardware_path(), name, folder, findings)?
    } else {
        places(name, folder).into_iter().find(|file| file.is_file())?
    };
    match Gpu::read(&file) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            let path = keys.hardware_path();
            let got = findings.shown(path, name);
            findings.problem(path, format!("got {got}; {error}"));
            None
        }
    }
}

/// The hardware, if its memory is known by its name or its description.
fn known(keys: &RoleKeys) -> Option<Accelerator> {
    let described = || Accelerator::described(&keys.hardware, keys.gpu.as_ref()?.memory_gib?);
    Accelerator::named(&keys.hardware).or_else(described)
}

/// The memory of the deployment's accelerator in GiB, which is written into the keys. `needed` names the key
/// whose default depends on it.
pub(super) fn memory_gib(keys: &mut RoleKeys, needed: &str, findings: &mut Findings) -> Option<f64> {
    let known = known(keys).map(|known| known.memory_gib());
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
    let known = known(keys);
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
    // What is wrong with its description has been told.
    if findings.told(path) {
        return;
    }
    let got = findings.shown(path, &keys.hardware);
    let names: Vec<&str> = Accelerator::names().collect();
    let message = format!("got {got}, of unknown memory, {why}; known are {}", names.join(", "));
    findings.problem(path, message);
}
