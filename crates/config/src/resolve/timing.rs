//! `engine.workers.<role>.timing`: the law of pass time, how the parts of a pass are put together, and
//! what must fit what.

use super::engine::TIMING;
use super::{Findings, existing_file, places};
use crate::document::{Composition as CompositionKey, Timing, TimingType};
use crate::experiment::Semantics;
use crate::{profile_file, table_file};
use std::path::Path;
use std::sync::Arc;
use windtunnel_engine::Nanos;
use windtunnel_perf::calibrated::PassModel;
use windtunnel_perf::{Composition, Fixed, Law, Linear, PerfError, Polynomial, Speedup, TimingModel};

/// Makes the timing model and fills in the composition. `capacity_tokens` is what the KV cache of a rank
/// holds, `calibrated` the compiled model of timing type default.
pub(super) fn timing(
    keys: &mut Timing,
    folder: &Path,
    (capacity_tokens, calibrated): (u64, Option<PassModel>),
    semantics: Semantics,
    findings: &mut Findings,
) -> Option<TimingModel> {
    let law = law(keys, folder, (capacity_tokens, calibrated), findings);
    let composition = match (keys.composition, semantics) {
        (Some(CompositionKey::Mixed), Semantics::Aisimulate013) => {
            let message = "got \"mixed\"; engine.semantics aisimulate_0_13 adds the parts: allowed is sum";
            findings.problem(&format!("{TIMING}.composition"), message);
            return None;
        }
        (Some(CompositionKey::Mixed), Semantics::Native) => Some(Composition::Mixed),
        (Some(CompositionKey::Sum), _) | (None, Semantics::Aisimulate013) => Some(Composition::Sum),
        (None, Semantics::Native) => None,
    };
    let speedup = Speedup { ratio: keys.speedup_ratio, decode_ratio: keys.decode_speedup_ratio };
    match TimingModel::new(law?, composition, speedup) {
        Ok(model) => {
            if let Law::Fixed(fixed) = model.law() {
                check_fixed(fixed, speedup, findings)?;
            }
            keys.composition = Some(match model.composition() {
                Composition::Sum => CompositionKey::Sum,
                Composition::Mixed => CompositionKey::Mixed,
            });
            Some(model)
        }
        Err(PerfError { field, got, problem }) => {
            let path = format!("{TIMING}.{field}");
            let got = findings.shown(&path, got);
            findings.problem(&path, format!("{got} {problem}"));
            None
        }
    }
}

/// No pass of fixed times may be longer than the longest run: each time as it is given, each after its
/// speedup, and both in one pass. (What other laws come to is known in the run only.)
fn check_fixed(fixed: &Fixed, speedup: Speedup, findings: &mut Findings) -> Option<()> {
    let prefill = findings.time(&format!("{TIMING}.prefill_ms"), fixed.prefill_ms);
    let decode = findings.time(&format!("{TIMING}.decode_ms"), fixed.decode_ms);
    prefill?;
    decode?;
    let prefill_ms = fixed.prefill_ms / speedup.ratio;
    let decode_ms = fixed.decode_ms / (speedup.ratio * speedup.decode_ratio);
    if Nanos::from_ms(prefill_ms + decode_ms).is_some() {
        return Some(());
    }
    let ratios = [("speedup_ratio", speedup.ratio), ("decode_speedup_ratio", speedup.decode_ratio)];
    let slowing = ratios.iter().filter(|(_, ratio)| *ratio < 1.0).min_by(|a, b| a.1.total_cmp(&b.1));
    let (key, value) = slowing.copied().unwrap_or(("decode_ms", fixed.decode_ms));
    let path = format!("{TIMING}.{key}");
    let got = findings.shown(&path, value);
    let message = format!(
        "got {got}; a pass with prefill and decode would take too long: a time must be below 292 years"
    );
    findings.problem(&path, message);
    None
}

fn law(
    keys: &Timing,
    folder: &Path,
    (capacity_tokens, calibrated): (u64, Option<PassModel>),
    findings: &mut Findings,
) -> Option<Law> {
    let fixed = keys.kind == TimingType::Fixed;
    let linear = keys.kind == TimingType::Linear;
    let here = match keys.kind {
        TimingType::Default => "timing.type default",
        TimingType::Fixed => "timing.type fixed",
        TimingType::Linear => "timing.type linear",
        TimingType::Polynomial => "timing.type polynomial",
        TimingType::Profile => "timing.type profile",
        TimingType::Table => "timing.type table",
    };
    for (key, given) in [("prefill_ms", keys.prefill_ms.is_some()), ("decode_ms", keys.decode_ms.is_some())] {
        let path = format!("{TIMING}.{key}");
        findings.foreign(&path, given && !fixed, "timing.type fixed", here);
        if fixed && !given {
            findings.problem(&path, "missing; timing.type fixed needs a number of at least 0");
        }
    }
    let own = [
        ("allow_roofline", keys.allow_roofline.is_some()),
        ("pass_us", keys.pass_us.is_some()),
        ("sequence_us", keys.sequence_us.is_some()),
        ("gpu_scale", keys.gpu_scale.is_some()),
        ("communication_scale", keys.communication_scale.is_some()),
        ("draft_tokens", keys.draft_tokens.is_some()),
        ("tokens_per_pass", keys.tokens_per_pass.is_some()),
    ];
    for (key, given) in own {
        let given = given && keys.kind != TimingType::Default;
        findings.foreign(&format!("{TIMING}.{key}"), given, "timing.type default", here);
    }
    let given = keys.linear.is_some();
    findings.foreign(&format!("{TIMING}.linear"), given && !linear, "timing.type linear", here);
    if linear && !given {
        let message = "missing; timing.type linear needs a mapping with base_ms, per_new_token_ms, …";
        findings.problem(&format!("{TIMING}.linear"), message);
    }
    let path = format!("{TIMING}.path");
    let measured = matches!(keys.kind, TimingType::Profile | TimingType::Table);
    findings.foreign(&path, keys.path.is_some() && !measured, "timing.type profile and table", here);
    if measured && keys.path.is_none() {
        let kinds = if keys.kind == TimingType::Profile {
            "a .npz or .json file, or a folder"
        } else {
            "a .json file"
        };
        findings.problem(&path, format!("missing; {here} needs {kinds}"));
    }
    Some(match keys.kind {
        TimingType::Default => Law::Calibrated(Arc::new(calibrated?)),
        TimingType::Fixed => Law::Fixed(Fixed { prefill_ms: keys.prefill_ms?, decode_ms: keys.decode_ms? }),
        TimingType::Linear => {
            let linear = keys.linear.as_ref()?;
            Law::Linear(Linear {
                base_ms: linear.base_ms,
                per_new_token_ms: linear.per_new_token_ms,
                per_new_times_context_ms: linear.per_new_times_context_ms,
                per_sequence_ms: linear.per_sequence_ms,
                per_context_token_ms: linear.per_context_token_ms,
            })
        }
        TimingType::Polynomial => Law::Polynomial(Polynomial { capacity_tokens }),
        TimingType::Profile => {
            Law::Profile(Arc::new(measured_file(keys, &path, folder, profile_file::read, findings)?))
        }
        TimingType::Table => {
            Law::Table(Arc::new(measured_file(keys, &path, folder, table_file::read, findings)?))
        }
    })
}

/// What `read` makes of the file of the key `at`.
fn measured_file<T>(
    keys: &Timing,
    at: &str,
    folder: &Path,
    read: fn(&Path) -> Result<T, String>,
    findings: &mut Findings,
) -> Option<T> {
    let name = keys.path.as_ref()?;
    // A profile may be a folder, where no file has its name.
    let there = places(name, folder).into_iter().filter(|path| path.exists());
    let (folders, files): (Vec<_>, Vec<_>) = there.partition(|path| path.is_dir());
    let profile = folders.into_iter().next().filter(|_| keys.kind == TimingType::Profile && files.is_empty());
    let file = match profile {
        Some(folder) => folder,
        None => existing_file(at, name, folder, findings)?,
    };
    match read(&file) {
        Ok(measured) => Some(measured),
        Err(problem) => {
            findings.problem(at, format!("got \"{name}\"; {problem}"));
            None
        }
    }
}
