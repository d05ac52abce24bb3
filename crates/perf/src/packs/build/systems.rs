//! What a `systems` folder says about accelerators and versions. Its YAML files are flat enough to be read
//! line by line.

use super::tables::Spec;
use crate::packs::PackError;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// A file, and what it is called in a pack.
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) label: String,
}

/// The accelerators with measurements.
pub(super) fn known(from: &Path) -> Result<Vec<String>, PackError> {
    let mut names = folders(&from.join("data"))?;
    let measured = |name: &String| from.join("data").join(name).join("gemm").is_dir();
    names.retain(|name| measured(name) && from.join(format!("{name}.yaml")).is_file());
    // Intel's has figures of one engine only, and other libraries for communication.
    names.retain(|name| name != "b60");
    Ok(names)
}

/// The description of an accelerator, in our words.
pub(super) fn gpu(from: &Path, system: &str) -> Result<String, PackError> {
    let path = from.join(format!("{system}.yaml"));
    let yaml = read(&path)?;
    let keys = [
        ("memory_bandwidth", "mem_bw", 1.0),
        ("memory_efficiency", "mem_bw_empirical_scaling_factor", 1.0),
        ("kernel_us", "mem_empirical_constant_latency", 1e6),
        ("flops_16", "bfloat16_tc_flops", 1.0),
        ("flops_8", "fp8_tc_flops", 1.0),
        ("flops_4", "fp4_tc_flops", 1.0),
        ("gpus_per_node", "num_gpus_per_node", 1.0),
        ("intra_node_bandwidth", "intra_node_bw", 1.0),
        ("inter_node_bandwidth", "inter_node_bw", 1.0),
        ("p2p_us", "p2p_latency", 1e6),
        ("sm", "sm_version", 1.0),
    ];
    let mut text = format!("# From systems/{system}.yaml of aiconfigurator-core 0.12.0 (Apache-2.0).\n");
    for (ours, theirs, unit) in keys {
        let value: Option<f64> = value(&yaml, theirs).and_then(|text| text.parse().ok());
        if let Some(value) = value {
            let _ = writeln!(text, "{ours} {}", value * unit);
        }
    }
    Ok(text)
}

/// The version of NCCL that belongs to an accelerator.
pub(super) fn nccl_version(from: &Path, system: &str) -> Result<String, PackError> {
    let path = from.join(format!("{system}.yaml"));
    let yaml = read(&path)?;
    value(&yaml, "nccl_version")
        .map(|version| version.trim_matches(['\'', '"']).to_owned())
        .ok_or_else(|| PackError::new(path.display().to_string(), "has no nccl_version"))
}

/// The version of an engine that is measured as a whole, from `query_versions.yaml`: a line
/// `engine: {current: "version", …}` below the name of the accelerator, or below `defaults`.
pub(super) fn current_version(from: &Path, system: &str, backend: &str) -> Result<Option<String>, PackError> {
    let yaml = read(&from.join("query_versions.yaml"))?;
    let (mut section, mut default, mut own) = (String::new(), None, None);
    for line in yaml.lines() {
        let text = line.trim();
        if let Some(name) = text.strip_suffix(':') {
            name.clone_into(&mut section);
        } else if let Some(rest) = text.strip_prefix(&format!("{backend}:")) {
            let version = rest.split('"').nth(1).map(str::to_owned);
            match section.as_str() {
                "defaults" => default = version,
                name if name == system => own = version,
                _ => {}
            }
        }
    }
    Ok(own.or(default))
}

/// The files of a table, the current version's first, then earlier ones, the nearest first, then later ones.
pub(super) fn sources(
    family: &Path,
    owner: &str,
    current: &str,
    spec: &Spec,
) -> Result<Vec<Source>, PackError> {
    let folder = family.join(owner);
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut versions = folders(&folder)?;
    // Builds of a day have no place in the order.
    versions.retain(|version| !version.contains("dev"));
    if owner == "nccl" {
        versions.retain(|version| version == current);
    }
    let now = parts(current);
    versions.sort_by_key(|version| parts(version));
    let (mut before, after): (Vec<_>, Vec<_>) =
        versions.into_iter().partition(|version| parts(version) <= now);
    before.reverse();
    let all = before.into_iter().chain(after);
    let file = format!("{}.parquet", spec.file);
    let of = |version: String| Source {
        path: folder.join(&version).join(&file),
        label: format!("{}/{owner}/{version}/{file}", spec.family),
    };
    Ok(all.map(of).filter(|source| source.path.is_file()).collect())
}

/// The kernels that an engine picks by itself where several were measured.
pub(super) fn preferred_kernels(backend: &str, sm: u32) -> &'static [&'static str] {
    match (backend, sm) {
        // SGLang 0.5.14, server_args.py: FlashAttention 3 on Hopper, TensorRT-LLM's kernels on Blackwell's
        // data-centre chips, FlashInfer elsewhere.
        ("sglang", 90) => &["fa3", "flash_attention"],
        ("sglang", 100 | 103) => &["trtllm_mha", "trtllm_mla"],
        ("sglang", _) => &["flashinfer"],
        _ => &[],
    }
}

/// The numbers in a version.
fn parts(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

fn folders(path: &Path) -> Result<Vec<String>, PackError> {
    let failed = |error: std::io::Error| PackError::new(path.display().to_string(), error.to_string());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.path().is_dir()
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn read(path: &Path) -> Result<String, PackError> {
    std::fs::read_to_string(path)
        .map_err(|error| PackError::new(path.display().to_string(), error.to_string()))
}

/// The value of a key anywhere in a file of `key: value # remark` lines.
fn value<'a>(yaml: &'a str, key: &str) -> Option<&'a str> {
    yaml.lines().find_map(|line| {
        let rest = line.trim().strip_prefix(key)?.strip_prefix(':')?;
        Some(rest.split('#').next().unwrap_or_default().trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_in_order() {
        let mut versions = ["1.3.0rc23", "1.3.0rc5", "1.2.0rc5", "1.3.0rc20"];
        versions.sort_by_key(|version| parts(version));
        assert_eq!(versions, ["1.2.0rc5", "1.3.0rc5", "1.3.0rc20", "1.3.0rc23"]);
    }

    #[test]
    fn values_stand_before_remarks() {
        let yaml = "gpu:\n  mem_bw: 4800 # 4800GB/s\n  mem_bw_empirical_scaling_factor: 0.8\n";
        assert_eq!(value(yaml, "mem_bw"), Some("4800"));
        assert_eq!(value(yaml, "power"), None);
    }
}
