//! Compares a replay with a golden trace, step by step and key by key.

use super::engine::{Engine, replay};
use super::error::ConformanceError;
use super::files::lines;
use super::scenario::Scenario;
use super::trace::{Summary, TraceLine};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserializer, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use windtunnel_engine::Stepper;

/// A time of ours, in milliseconds, equals one this close.
const TIME_TOLERANCE: f64 = 1e-3;
/// Any other fraction of ours equals one this close: a step of the sixth digit, which is the last one
/// written.
const RATIO_TOLERANCE: f64 = 1.5e-6;

/// The first place at which a trace differs.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// The golden's line, from 1; none where it lacks ours.
    pub line: Option<usize>,
    /// Number of the step, none for the summary and what follows it.
    pub step: Option<u64>,
    /// The key; `line` where one side has no such line.
    pub key: String,
    /// Our value.
    pub ours: Value,
    /// The golden's.
    pub theirs: Value,
}

/// The outcome for one golden.
#[derive(Clone, Debug, Serialize)]
pub struct ScenarioResult {
    /// The golden's file.
    pub golden: PathBuf,
    /// The golden's name.
    pub name: String,
    /// Steps that both sides have; these are compared.
    pub steps: u64,
    /// Those of them that differ in at least one key.
    pub differing: u64,
    /// Whether both have a summary and the two differ.
    pub summary_differs: bool,
    /// Lines of ours that the golden lacks.
    pub missing_lines: u64,
    /// Lines of the golden that ours lacks.
    pub extra_lines: u64,
    /// The first difference.
    pub first: Option<Difference>,
}

impl ScenarioResult {
    /// Whether nothing differs: no step, not the summary, no line too many or too few.
    pub fn is_equal(&self) -> bool {
        self.first.is_none()
    }
}

/// A line of the golden.
struct Theirs {
    line: usize,
    kind: String,
    value: Value,
}

/// The golden's lines, one ahead.
struct Golden<'a> {
    path: &'a Path,
    lines: Box<dyn Iterator<Item = Result<(usize, String), ConformanceError>>>,
    next: Option<Theirs>,
}

impl Golden<'_> {
    fn open(path: &Path) -> Result<Golden<'_>, ConformanceError> {
        let mut golden = Golden { path, lines: Box::new(lines(path)?), next: None };
        golden.take()?;
        Ok(golden)
    }

    /// The line that comes next if it is of this kind; otherwise it stays.
    fn take_kind(&mut self, kind: &str) -> Result<Option<Theirs>, ConformanceError> {
        match &self.next {
            Some(next) if next.kind == kind => self.take(),
            _ => Ok(None),
        }
    }

    /// The line that comes next, if it is not of this kind. One of a kind that does not exist is taken: it
    /// stands where ours stands, and its kind is what differs.
    fn take_unless(&mut self, kind: &str) -> Result<Option<Theirs>, ConformanceError> {
        match &self.next {
            Some(next) if next.kind != kind => self.take(),
            _ => Ok(None),
        }
    }

    fn take(&mut self) -> Result<Option<Theirs>, ConformanceError> {
        let read = match self.lines.next().transpose()? {
            None => None,
            Some((line, text)) => {
                let value: Value = serde_json::from_str(&text)
                    .map_err(|e| self.problem(line, ConformanceError::json_reason(&e)))?;
                let kind = value.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
                Some(Theirs { line, kind, value })
            }
        };
        Ok(std::mem::replace(&mut self.next, read))
    }

    /// The first line: that of a trace, and of an engine that we have.
    fn expect_config(&mut self) -> Result<Engine, ConformanceError> {
        let Some(config) = self.take_kind("config")? else {
            let line = self.next.as_ref().map_or(1, |next| next.line);
            return Err(self.problem(line, "is not the first line of a trace, of kind config".into()));
        };
        let Some(name) = config.value.get("engine").and_then(Value::as_str) else {
            return Err(self.problem(config.line, "does not say of which engine the trace is".into()));
        };
        Engine::named(name).ok_or_else(|| {
            let known = Engine::ALL.map(Engine::name).join(" and ");
            let reason = format!("a trace of engine {name}; only those of {known} can be checked");
            self.problem(config.line, reason)
        })
    }

    fn problem(&self, line: usize, reason: String) -> ConformanceError {
        ConformanceError::Format { path: self.path.into(), line, reason }
    }
}

/// Replays a golden's inputs and compares every key of every step, and the summary. Steps are compared in
/// their order; where one side has no step left, the other's are lines missing or extra.
pub fn check_golden(golden: &Path, stepper: Stepper) -> Result<ScenarioResult, ConformanceError> {
    let name = golden_name(golden);
    let (config, requests) = find_inputs(golden, &name)?;
    let mut theirs = Golden::open(golden)?;
    let engine = theirs.expect_config()?;
    let scenario = Scenario::read(&config, &requests, Some(engine))?;
    let mut result = ScenarioResult {
        golden: golden.into(),
        name,
        steps: 0,
        differing: 0,
        summary_differs: false,
        missing_lines: 0,
        extra_lines: 0,
        first: None,
    };
    replay(&scenario, stepper, |mut line| {
        let (other, step) = match &line {
            TraceLine::Config(_) => return Ok(()),
            TraceLine::Step(step) => ("summary", Some(step.number())),
            TraceLine::Summary(_) => ("step", None),
        };
        if step.is_none() {
            while let Some(extra) = theirs.take_kind("step")? {
                result.extra(extra);
            }
        }
        let Some(their_line) = theirs.take_unless(other)? else {
            result.missing(step, &line);
            return Ok(());
        };
        result.steps += u64::from(step.is_some());
        if let TraceLine::Summary(Summary::Vllm(ours)) = &mut line
            && their_line.value.get("free_blocks").is_some()
        {
            ours.free_blocks = Some(ours.free);
        }
        if let Some((key, ours, theirs)) = first_difference(&line, &their_line.value) {
            match step {
                Some(_) => result.differing += 1,
                None => result.summary_differs = true,
            }
            let line = Some(their_line.line);
            result.first.get_or_insert(Difference { line, step, key, ours, theirs });
        }
        Ok(())
    })?;
    while let Some(extra) = theirs.take()? {
        result.extra(extra);
    }
    Ok(result)
}

impl ScenarioResult {
    fn missing(&mut self, step: Option<u64>, line: &TraceLine) {
        self.missing_lines += 1;
        let ours = serde_json::to_value(line).unwrap_or(Value::Null);
        let (key, theirs) = ("line".to_owned(), Value::Null);
        self.first.get_or_insert(Difference { line: None, step, key, ours, theirs });
    }

    fn extra(&mut self, Theirs { line, value, .. }: Theirs) {
        self.extra_lines += 1;
        let step = value.get("step").and_then(Value::as_u64);
        let (key, ours) = ("line".to_owned(), Value::Null);
        self.first.get_or_insert(Difference { line: Some(line), step, key, ours, theirs: value });
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
    // A key that only one side has differs, even from one that is null.
    let same = |key: &str| matches!((a.get(key), b.get(key)), (Some(a), Some(b)) if equal(key, a, b));
    let differing: Vec<&String> = keys.into_iter().filter(|key| !same(key)).collect();
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

/// Whether the golden's value `b` is our value `a`; both are what stands under a key.
fn equal(key: &str, a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() => {
            let tolerance = if key.ends_with("_ms") { TIME_TOLERANCE } else { RATIO_TOLERANCE };
            matches!((a.as_f64(), b.as_f64()), (Some(a), Some(b)) if (a - b).abs() <= tolerance)
        }
        // An integer of ours is a count or a name: exactly that one.
        (Value::Number(a), Value::Number(b)) => a == b,
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(key, a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(inner, a)| b.get(inner).is_some_and(|b| equal(inner, a, b)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_our_fractions_are_compared_with_a_tolerance() {
        let time = |a, b| equal("t_end_ms", &a, &b);
        assert!(time(json!(10.0), json!(10.0009)) && time(json!(10.0), json!(10)));
        assert!(!time(json!(10.0), json!(10.0011)));
        let ratio = |a, b| equal("ratio_after", &a, &b);
        assert!(ratio(json!(0.698997), json!(0.698998)) && !ratio(json!(0.698997), json!(0.698999)));
        let inside = |ratio: f64| json!([{"retracted": ["a"], "new_ratio": ratio}]);
        assert!(!equal("retract", &inside(0.5), &inside(0.5001)));
        let count = |a, b| equal("total", &a, &b);
        assert!(count(json!(45), json!(45)));
        assert!(!count(json!(45), json!(45.0004)) && !count(json!(45), json!(44)));
        assert!(!count(json!(u64::MAX), json!(u64::MAX - 1)));
        assert!(!count(json!([["a", 1]]), json!([["a", 1.0001]])));
    }
}
