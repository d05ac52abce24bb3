//! Configuration: the one place where text becomes values.
//!
//! A file in the AISimulate prediction schema, plus keys of our own, becomes an [`Experiment`] or a list
//! of problems, each with its place, dotted path, value and remedy. Nothing is ignored: what this version
//! cannot do is refused by name.

mod check;
mod document;
mod error;
mod experiment;
mod overrides;
mod refused;
mod resolve;
mod tree;
mod yaml;

pub use error::{ConfigError, Place, Problem};
pub use experiment::{Deployment, Experiment, Pace, Parallelism, Semantics, Sla, Workload};
pub use resolve::NO_CONTEXT_LIMIT;

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
    match std::fs::read_to_string(path) {
        Ok(text) => build(&name, path.parent().unwrap_or(Path::new("")), &text, overrides),
        Err(error) => {
            let place = Place::File { file: name.into(), line: 0 };
            let message = format!("cannot be read: {error}");
            Err(ConfigError { problems: vec![Problem { place, path: String::new(), message }] })
        }
    }
}

/// Loads a text as if it stood in a file called `name`, which need not exist.
///
/// # Errors
/// As [`load`].
pub fn from_str(name: &str, text: &str, overrides: &[String]) -> Result<Experiment, ConfigError> {
    build(name, Path::new(name).parent().unwrap_or(Path::new("")), text, overrides)
}

/// The JSON Schema of a configuration file (draft 2020-12).
pub fn schema() -> serde_json::Value {
    document::json_schema()
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
    problems.extend(check::check(&schema(), &root, &excused));
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
