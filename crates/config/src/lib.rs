//! Configuration: the one place where text becomes values.
//!
//! A file in the AISimulate prediction schema, plus keys of our own, becomes an [`Experiment`] or a list
//! of problems, each with its place, dotted path, value and remedy. Nothing is ignored: what this version
//! cannot do is refused by name.

mod check;
mod document;
mod engine_names;
mod error;
mod experiment;
mod fleet;
mod links;
mod overrides;
mod profile_file;
mod profile_folder;
mod refused;
mod resolve;
mod table_file;
mod tree;
mod yaml;

pub use error::{ConfigError, Place, Problem};
pub use experiment::{
    ChargedTokens, Deployment, DiskOffload, Experiment, HostOffload, KvTransfer, LinkSharing, Pace,
    Parallelism, Placement, Prefill, Semantics, Sla, Workload,
};
pub use fleet::{
    Crash, CrashRate, DynamoPlanner, Faults, Hpa, KvEventLoss, LoadPredictor, PlannerPolicy, PlannerTarget,
    Scaling, ScalingMetric, Slow,
};
pub use links::{Cargo, Links, TransferId};
pub use resolve::NO_CONTEXT_LIMIT;
pub use table_file::TableFile;

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use tree::{Node, Value};

/// Loads a file. Each override is `a.b.c=VALUE` with a YAML value; they apply from left to right. The
/// file of a trace is looked for beside the configuration file, then in the working directory.
///
/// # Errors
/// Every problem of the file and of the overrides.
pub fn load(path: &Path, overrides: &[String]) -> Result<Experiment, ConfigError> {
    let name = path.display().to_string();
    match read(path) {
        Ok(text) => build(&name, path.parent().unwrap_or(Path::new("")), &text, overrides),
        Err(message) => {
            let place = Place::File { file: name.into(), line: 0 };
            Err(ConfigError { problems: vec![Problem { place, path: String::new(), message }] })
        }
    }
}

/// The text of a file, no more of it than tells that it is too long.
fn read(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(yaml::MAX_BYTES as u64 + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() > yaml::MAX_BYTES {
        return Err(yaml::too_long());
    }
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Err("this is UTF-16; the file must be UTF-8".into());
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + valid.iter().filter(|&&byte| byte == b'\n').count();
        format!("not UTF-8 in line {line}; the file must be UTF-8")
    })
}

/// Loads a text as if it stood in a file called `name`, which need not exist.
///
/// # Errors
/// As [`load`].
pub fn from_str(name: &str, text: &str, overrides: &[String]) -> Result<Experiment, ConfigError> {
    build(name, Path::new(name).parent().unwrap_or(Path::new("")), text, overrides)
}

/// The JSON Schema of a configuration file (draft 2020-12). Keys that are accepted only with the values
/// that mean "not used" are in it with these values.
pub fn schema() -> serde_json::Value {
    let mut schema = document::json_schema();
    refused::add_unused_keys(&mut schema);
    schema
}

fn build(name: &str, folder: &Path, text: &str, overrides: &[String]) -> Result<Experiment, ConfigError> {
    let file: Arc<str> = name.into();
    let place = |line| Place::File { file: file.clone(), line };
    let only = |problem| ConfigError { problems: vec![problem] };
    let mut root = yaml::parse(text, &place).map_err(only)?;
    if root.value == Value::Null {
        root = Node::new(Value::Map(Vec::new()), place(1));
    }
    for text in overrides {
        overrides::apply(&mut root, text).map_err(only)?;
    }
    let (mut problems, excused) = refused::take_out(&mut root);
    problems.extend(check::check(&document::json_schema(), &root, &excused));
    if problems.is_empty() {
        match serde_json::from_value(root.to_json()) {
            Ok(document) => match resolve::resolve(document, &root, folder) {
                Ok(experiment) => return Ok(experiment),
                Err(found) => problems = found,
            },
            // The check lets nothing pass that the types do not take; if it ever does, it is said.
            Err(error) => {
                let message = format!("cannot be understood: {error}");
                problems.push(Problem { place: root.place.clone(), path: String::new(), message });
            }
        }
    }
    problems.sort_by_key(|problem| problem.place.order());
    Err(ConfigError { problems })
}
