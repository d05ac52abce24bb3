//! Builds packs from the `systems` folder of the aiconfigurator-core 0.12.0 wheel, whose measurements are
//! public under Apache-2.0: reads its parquet files, takes of each operation what an engine's current
//! version has (and what it lacks from the nearest other version), screens defects, and writes small files.

mod columns;
mod merge;
mod screen;
mod systems;
mod tables;

use super::{FORMAT, PackError, PackName};
use merge::Lines;
pub use screen::Screened;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use tables::SPECS;

const SOURCE: &str = "aiconfigurator-core 0.12.0, systems/data, Apache-2.0";
const LEVEL: i32 = 19;
const BACKENDS: [&str; 3] = ["vllm", "sglang", "trtllm"];

/// A pack that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Which.
    pub name: PackName,
    /// Measured points in it.
    pub points: usize,
    /// Bytes of the file.
    pub bytes: usize,
}

/// The tables of one engine, by name.
type Tables = BTreeMap<&'static str, Lines>;

/// Builds the packs of one accelerator below `out`. Returns them, and what was screened.
///
/// # Errors
/// A folder without this accelerator, or a file of it that cannot be used.
pub fn system(from: &Path, system: &str, out: &Path) -> Result<(Vec<Written>, Vec<Screened>), PackError> {
    let gpu_text = systems::gpu(from, system)?;
    let gpu = super::Gpu::parse(system, &gpu_text)?;
    let nccl = systems::nccl_version(from, system)?;
    let mut all: Vec<(PackName, Tables)> = Vec::new();
    for backend in BACKENDS {
        let Some(version) = systems::current_version(from, system, backend)? else { continue };
        let mut tables = Tables::new();
        for spec in SPECS {
            let (owner, current) = if spec.name == "nccl" { ("nccl", &nccl) } else { (backend, &version) };
            let family = from.join("data").join(system).join(spec.family);
            for source in systems::sources(&family, owner, current, spec)? {
                let preferred = systems::preferred_kernels(backend, gpu.sm);
                tables.entry(spec.name).or_default().read(spec, &source, preferred)?;
            }
        }
        if let Some(moe) = tables.get_mut("moe") {
            moe.drop_balanced();
        }
        all.push((PackName { system: system.into(), backend: backend.into(), version }, tables));
    }
    let screened = screen::gemm(&mut all, &gpu);
    let folder = out.join(system);
    let failed = |error: std::io::Error| PackError::new(folder.display().to_string(), error.to_string());
    std::fs::create_dir_all(&folder).map_err(failed)?;
    std::fs::write(folder.join("gpu.txt"), gpu_text).map_err(failed)?;
    let mut written = Vec::new();
    for (name, tables) in all {
        let text = text(&name, &tables);
        let packed = zstd::encode_all(text.as_bytes(), LEVEL).map_err(failed)?;
        std::fs::write(out.join(name.path()), &packed).map_err(failed)?;
        let points = tables.values().map(Lines::points).sum();
        written.push(Written { name, points, bytes: packed.len() });
    }
    Ok((written, screened))
}

/// The accelerators of a `systems` folder that have measurements of these engines.
///
/// # Errors
/// A folder that is not one.
pub fn known_systems(from: &Path) -> Result<Vec<String>, PackError> {
    systems::known(from)
}

fn text(name: &PackName, tables: &Tables) -> String {
    let mut text = format!(
        "{FORMAT}\nsystem {}\nbackend {}\nversion {}\nsource {SOURCE}\n",
        name.system, name.backend, name.version
    );
    let mut done: Vec<&str> = Vec::new();
    for spec in SPECS {
        let Some(lines) = tables.get(spec.name).filter(|lines| lines.points() > 0) else { continue };
        if done.contains(&spec.name) {
            continue;
        }
        done.push(spec.name);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "table {} {} {}", spec.name, spec.keys, spec.axis);
        lines.write(&mut text);
    }
    text
}
