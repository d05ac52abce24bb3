//! docs/compatibility.md against the program: every key of AISimulate's schema is tried as the document says, and is
//! accepted, with the value in effect, or refused in the words that stand there.
//!
//! After a change, run with UPDATE_COMPATIBILITY=1 and read the difference.

use serde_json::Value;
use std::path::{Path, PathBuf};

const BASE: &str = "\
traffic:
  stop: {requests: 20}
engine:
  model: m
  hardware: h
  workers:
    aggregated:
      parallelism: {replicas: 2}
      kv_cache: {capacity: {type: fixed, blocks: 1024}}
      timing: {type: fixed, prefill_ms: 10, decode_ms: 2}
";

/// What stands between backticks.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

fn is_same(given: &Value, effective: &Value) -> bool {
    match (given, effective) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        // What is in effect beside it was filled in.
        (Value::Object(one), Value::Object(other)) => {
            one.iter().all(|(key, value)| other.get(key).is_some_and(|other| is_same(value, other)))
        }
        _ => given == effective,
    }
}

/// What the program makes of a key that is set to a value, after others.
fn outcome(name: &Path, key: &str, value: &str, others: &[&str]) -> String {
    let set = format!("{key}={value}");
    let overrides: Vec<String> =
        others.iter().map(|other| (*other).to_owned()).chain([set.clone()]).collect();
    match windtunnel_config::from_str(name.to_str().unwrap(), BASE, &overrides) {
        Err(error) => {
            let about = error.problems.iter().find(|problem| problem.path == key);
            let problem = about.unwrap_or(&error.problems[0]);
            match problem.path == key {
                true => format!("refused: {}", problem.message),
                false => format!("refused: {}: {}", problem.path, problem.message),
            }
        }
        Ok(experiment) => {
            let pointer = format!("/{}", key.replace('.', "/"));
            let given: Value = json(value);
            match experiment.effective.pointer(&pointer) {
                Some(effective) if is_same(&given, effective) => "accepted".to_owned(),
                // A section that says that something is not used, or a value that means so, leaves no trace.
                None => "accepted, not used".to_owned(),
                Some(other) => format!("accepted, and {other} is in effect"),
            }
        }
    }
}

/// The value of a cell, in the little YAML that the document uses, as JSON.
fn json(text: &str) -> Value {
    let plain = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()));
    let text = text.trim();
    match text.strip_prefix('{').and_then(|inner| inner.strip_suffix('}')) {
        Some(inner) => {
            let mut entries = serde_json::Map::new();
            for part in split(inner) {
                let (key, value) = part.split_once(':').unwrap();
                entries.insert(key.trim().to_owned(), json(value));
            }
            Value::Object(entries)
        }
        None => match text.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')) {
            Some(inner) => Value::Array(split(inner).into_iter().map(json).collect()),
            None => plain(text),
        },
    }
}

/// The parts between commas that stand in no bracket.
fn split(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, letter) in text.char_indices() {
        match letter {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !text[start..].trim().is_empty() {
        parts.push(&text[start..]);
    }
    parts
}

#[test]
fn every_key_is_accepted_or_refused_as_the_document_says() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let document = root.join("docs/compatibility.md");
    let text = std::fs::read_to_string(&document).unwrap();
    let name = root.join("examples/compatibility.yaml");
    // Words that stand for several keys.
    let words: Vec<Vec<&str>> = text.lines().filter(|line| line.starts_with("- `")).map(quoted).collect();
    let (mut written, mut wrong, mut rows) = (String::new(), Vec::new(), 0);
    for line in text.lines() {
        let cells: Vec<&str> = line.split(" |").collect();
        let key = line.strip_prefix("| `").and_then(|rest| rest.split('`').next());
        // Flags of the command line have a test of their own, of the program.
        let Some(key) = key.filter(|key| !key.starts_with('-')) else {
            written.push_str(&format!("{line}\n"));
            continue;
        };
        assert!(cells.len() >= 4, "{line}");
        let tried = quoted(cells[2]);
        let others: Vec<&str> = tried[1..]
            .iter()
            .flat_map(|&other| match words.iter().find(|word| word[0] == other) {
                Some(word) => word[1..].to_vec(),
                None => vec![other],
            })
            .collect();
        let here = outcome(&name, key, tried[0], &others);
        let said = cells[3].trim();
        if said != here {
            wrong.push(format!("{key} = {}: the document says \"{said}\", the program \"{here}\"", tried[0]));
        }
        written.push_str(&format!("{} |{} |{} | {here} |\n", cells[0], cells[1], cells[2]));
        rows += 1;
    }
    if std::env::var_os("UPDATE_COMPATIBILITY").is_some() {
        std::fs::write(&document, written).unwrap();
        return;
    }
    assert!(rows > 120, "{rows}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
