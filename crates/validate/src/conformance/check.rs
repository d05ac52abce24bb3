//! Compares a replay with a golden trace, step by step and key by key.

use super::error::ConformanceError;
use super::replay::replay;
use super::scenario::{Scenario, lines};
use super::trace::TraceLine;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserializer, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use windtunnel_engine::vllm::Stepper;

/// Two numbers this close are equal.
const TOLERANCE: f64 = 1e-3;

/// The first place at which a trace differs.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// Number of the step, or of the line past the last step for the summary.
    pub step: u64,
    /// The key.
    pub key: String,
    /// Our value.
    pub ours: Value,
    /// The golden's.
    pub theirs: Value,
}

/// The outcome for one golden.
#[derive(Clone, Debug, Serialize)]
pub struct ScenarioResult {
    /// The golden's name.
    pub name: String,
    /// Steps compared.
    pub steps: u64,
    /// Steps that differ in at least one key.
    pub differing: u64,
    /// The first difference.
    pub first: Option<Difference>,
}

/// Replays a golden's inputs and compares every key of every step, and the summary.
pub fn check_golden(golden: &Path, stepper: Stepper) -> Result<ScenarioResult, ConformanceError> {
    let name = golden_name(golden);
    let (config, requests) = find_inputs(golden, &name)?;
    let scenario = Scenario::read(&config, &requests)?;
    let mut theirs = lines(golden)?;
    let mut result = ScenarioResult { name, steps: 0, differing: 0, first: None };
    let mut next = || -> Result<Option<Value>, ConformanceError> {
        let Some(line) = theirs.next() else { return Ok(None) };
        let (line, text) = line?;
        serde_json::from_str(&text).map(Some).map_err(|e| ConformanceError::Format {
            path: golden.into(),
            line,
            reason: e.to_string(),
        })
    };
    replay(&scenario, stepper, |line| {
        let their_line = next()?;
        if let TraceLine::Config { .. } = line {
            return expect_kind(golden, their_line.as_ref(), "config");
        }
        let is_step = matches!(line, TraceLine::Step(_));
        result.steps += u64::from(is_step);
        let difference = first_difference(&line, &their_line.unwrap_or(Value::Null));
        if let Some((key, ours, theirs)) = difference {
            result.differing += 1;
            let step = result.steps.saturating_sub(u64::from(is_step));
            result.first.get_or_insert(Difference { step, key, ours, theirs });
        }
        Ok(())
    })?;
    while let Some(theirs) = next()? {
        result.differing += 1;
        let step = result.steps;
        let key = "line".to_owned();
        result.first.get_or_insert(Difference { step, key, ours: Value::Null, theirs });
    }
    Ok(result)
}

fn expect_kind(path: &Path, line: Option<&Value>, kind: &str) -> Result<(), ConformanceError> {
    match line.and_then(|l| l.get("kind")).and_then(Value::as_str) {
        Some(found) if found == kind => Ok(()),
        found => Err(ConformanceError::Format {
            path: path.into(),
            line: 1,
            reason: format!("expected a line of kind {kind:?}, found {found:?}"),
        }),
    }
}

/// The first key that differs, in the order in which things happen in a step.
fn first_difference(line: &TraceLine, theirs: &Value) -> Option<(String, Value, Value)> {
    let ours = serde_json::to_value(line).unwrap_or(Value::Null);
    let (Some(a), Some(b)) = (ours.as_object(), theirs.as_object()) else {
        return Some(("line".into(), ours, theirs.clone()));
    };
    let value = |object: &Map<String, Value>, key: &str| object.get(key).cloned().unwrap_or(Value::Null);
    let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let differing: Vec<&String> =
        keys.into_iter().filter(|key| !equal(&value(a, key), &value(b, key))).collect();
    if differing.is_empty() {
        return None;
    }
    let order = keys_in_order(line);
    let place = |key: &String| order.iter().position(|other| other == key).unwrap_or(usize::MAX);
    let first = differing.into_iter().min_by_key(|key| place(key))?;
    Some((first.clone(), value(a, first), value(b, first)))
}

/// The keys of a line as they are written; a JSON value sorts them.
fn keys_in_order(line: &TraceLine) -> Vec<String> {
    struct Keys;
    impl<'de> Visitor<'de> for Keys {
        type Value = Vec<String>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<String>, A::Error> {
            let mut keys = Vec::new();
            while let Some((key, IgnoredAny)) = map.next_entry()? {
                keys.push(key);
            }
            Ok(keys)
        }
    }
    let text = serde_json::to_string(line).unwrap_or_default();
    serde_json::Deserializer::from_str(&text).deserialize_map(Keys).unwrap_or_default()
}

fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a == b,
            _ => matches!((a.as_f64(), b.as_f64()), (Some(a), Some(b)) if (a - b).abs() <= TOLERANCE),
        },
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        _ => a == b,
    }
}

fn golden_name(golden: &Path) -> String {
    let file = golden.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let stem = file.strip_suffix(".gz").unwrap_or(&file);
    stem.strip_suffix(".jsonl").unwrap_or(stem).to_owned()
}

/// The inputs of a golden stand beside it or in `../scenarios`.
fn find_inputs(golden: &Path, name: &str) -> Result<(PathBuf, PathBuf), ConformanceError> {
    let beside = golden.parent().unwrap_or(Path::new("."));
    for folder in [beside.to_path_buf(), beside.join("../scenarios")] {
        let config = folder.join(format!("{name}.config.json"));
        let requests = ["requests.jsonl", "requests.jsonl.gz"]
            .map(|ending| folder.join(format!("{name}.{ending}")))
            .into_iter()
            .find(|path| path.is_file());
        if let (true, Some(requests)) = (config.is_file(), requests) {
            return Ok((config, requests));
        }
    }
    Err(ConformanceError::NotFound {
        path: golden.into(),
        reason: format!(
            "needs {name}.config.json and {name}.requests.jsonl[.gz] beside it or in ../scenarios"
        ),
    })
}

/// The goldens among files and folders, in order of their names. A folder stands for all `.jsonl` and
/// `.jsonl.gz` files in it that are not request files; its subfolder `golden`, if it has one, is meant.
pub fn find_goldens(paths: &[PathBuf]) -> Result<Vec<PathBuf>, ConformanceError> {
    let mut found = BTreeSet::new();
    for path in paths {
        if !path.is_dir() {
            found.insert(path.clone());
            continue;
        }
        let inner = path.join("golden");
        let folder = if inner.is_dir() { &inner } else { path };
        let wrap = |source| ConformanceError::Io { path: folder.clone(), source };
        let before = found.len();
        for entry in std::fs::read_dir(folder).map_err(wrap)? {
            let path = entry.map_err(wrap)?.path();
            let file = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            let is_trace = file.ends_with(".jsonl") || file.ends_with(".jsonl.gz");
            if is_trace && !file.contains(".requests.jsonl") {
                found.insert(path);
            }
        }
        if found.len() == before {
            return Err(ConformanceError::NotFound {
                path: folder.clone(),
                reason: "holds no trace (NAME.jsonl or NAME.jsonl.gz)".into(),
            });
        }
    }
    Ok(found.into_iter().collect())
}
