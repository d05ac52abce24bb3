//! docs/config.md against the program: its YAML loads, and its tables name every key and its default.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use windtunnel_config::{from_str, schema};

const DOCUMENT: &str = include_str!("../../../docs/config.md");

const BASE: &str = "\
engine:
  model: m
  hardware: h
  workers:
    aggregated:
      kv_cache: {capacity: {type: fixed, blocks: 1024}}
      timing: {type: polynomial}
";

/// The same with prefill and decode apart.
const ROLES: &str = "\
engine:
  mode: disaggregated
  model: m
  hardware: h
  context_length: 8192
  workers:
    prefill:
      kv_cache: {capacity: {type: fixed, blocks: 1024}}
      timing: {type: polynomial}
    decode:
      kv_cache: {capacity: {type: fixed, blocks: 1024}}
      timing: {type: polynomial}
";

/// The fenced blocks: what stands behind the three marks, and the text.
fn blocks() -> Vec<(String, String)> {
    let parts: Vec<&str> = DOCUMENT.split("```").collect();
    parts
        .chunks(2)
        .filter_map(|pair| pair.get(1))
        .map(|block| block.split_once('\n').unwrap())
        .map(|(info, text)| (info.to_owned(), text.to_owned()))
        .collect()
}

#[test]
fn every_yaml_block_loads() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let name = folder.join("document.yaml").display().to_string();
    let blocks = blocks();
    assert!(blocks.len() >= 4);
    for (info, text) in blocks {
        let result = match info.strip_prefix("yaml at ") {
            Some(path) => match path.strip_suffix(" with roles") {
                Some(path) => from_str(&name, ROLES, &[format!("{path}=\n{text}")]),
                None => from_str(&name, BASE, &[format!("{path}=\n{text}")]),
            },
            None => {
                assert_eq!(info, "yaml");
                from_str(&name, &text, &[])
            }
        };
        if let Err(error) = result {
            panic!("{text}\n{error}");
        }
    }
}

/// Path and default of every key in the tables that stand under a heading with a path.
fn documented() -> BTreeMap<String, String> {
    let mut keys = BTreeMap::new();
    let mut section = None;
    for line in DOCUMENT.lines() {
        if line == "## Top level" {
            section = Some(String::new());
        } else if let Some(path) = line.strip_prefix("### `") {
            section = Some(format!("{}.", path.trim_end_matches('`')));
        } else if line.starts_with('#') {
            section = None;
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let (Some(section), Some(key)) = (&section, cells.get(1).and_then(|cell| cell.strip_prefix('`'))) {
            let key = key.trim_end_matches('`');
            assert!(keys.insert(format!("{section}{key}"), cells[2].to_owned()).is_none(), "{section}{key}");
        }
    }
    keys
}

/// Path and default of every key of the schema. No default: the key must be given. Null: what holds
/// when it is left out depends on other keys.
fn declared(schema: &Value, path: &str, keys: &mut BTreeMap<String, Option<Value>>) {
    for form in schema["anyOf"].as_array().into_iter().flatten().chain([schema]) {
        let required: Vec<_> = form["required"].as_array().into_iter().flatten().collect();
        let known = form["properties"].as_object().into_iter().flatten();
        // A key without a type is one that can only be "not used"; the list of what is refused has it.
        for (key, child) in known.filter(|(_, child)| child["enum"].is_null() || !child["type"].is_null()) {
            let needed = required.iter().any(|name| *name == key);
            let default = (!needed).then(|| child["default"].clone());
            keys.insert(format!("{path}{key}"), default);
            declared(child, &format!("{path}{key}."), keys);
        }
    }
}

#[test]
fn every_key_is_documented_with_its_default() {
    let documented = documented();
    let mut keys = BTreeMap::new();
    declared(&schema(), "", &mut keys);
    // Roles have the same keys, which are told once.
    let roles = [
        ("engine.workers.prefill.", "engine.workers.aggregated."),
        ("engine.workers.decode.", "engine.workers.aggregated."),
        ("faults.prefill.", "faults."),
        ("faults.decode.", "faults."),
        ("planner.prefill.", "planner."),
        ("planner.decode.", "planner."),
    ];
    for (role, all) in roles {
        let of_role = keys.extract_if(.., |path, _| path.starts_with(role));
        let theirs: BTreeMap<String, _> =
            of_role.map(|(path, default)| (path.replace(role, all), default)).collect();
        assert!(!theirs.is_empty());
        for (path, default) in theirs {
            assert_eq!(keys.get(&path), Some(&default), "{role} {path}");
        }
    }
    assert_eq!(documented.keys().collect::<Vec<_>>(), keys.keys().collect::<Vec<_>>());
    for (path, default) in keys {
        let said = documented[&path].trim_matches('`');
        match default {
            None => assert_eq!(said, "needed", "{path}"),
            // What is said is checked where it is worked out.
            Some(Value::Null) => assert_ne!(said, "", "{path}"),
            Some(Value::Object(_)) => assert!(["{}", "see below"].contains(&said), "{path}: {said}"),
            Some(Value::String(word)) => assert_eq!(said, word, "{path}"),
            Some(Value::Number(number)) => {
                assert_eq!(said.parse::<f64>().ok(), number.as_f64(), "{path}: {said}");
            }
            Some(other) => assert_eq!(said, other.to_string(), "{path}"),
        }
    }
}
