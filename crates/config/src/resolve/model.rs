//! The model of a deployment, for whatever goes by what it is made of.

use super::role::RoleKeys;
use super::{Findings, places};
use std::path::Path;
use windtunnel_perf::models::{ModelDescription, aliases, names};

/// The model by its name, or the config.json at a path, beside the configuration file or in the working
/// directory. Without one that is a problem, of which the first who asks tells.
pub(super) fn described(keys: &RoleKeys, folder: &Path, findings: &mut Findings) -> Option<ModelDescription> {
    let name = &keys.model;
    if let Some(model) = ModelDescription::named(name) {
        return Some(model);
    }
    let path = "engine.model";
    let there = places(name, folder).into_iter().find(|file| file.exists());
    let got = findings.shown(path, name);
    let message = match there.map(|file| ModelDescription::read(&file)) {
        Some(Ok(model)) => return Some(model),
        Some(Err(error)) => format!("got {got}; {error}"),
        None => {
            let near = nearest(name).map_or(String::new(), |near| format!("; did you mean {near}?"));
            format!(
                "got {got}; timing and capacity of type default need a model that `windtunnel models` lists, or the \
                 path of a config.json{near}"
            )
        }
    };
    if findings.problems.iter().all(|problem| problem.path != path) {
        findings.problem(path, message);
    }
    None
}

/// The name that was probably meant.
fn nearest(name: &str) -> Option<String> {
    let likeness = |other: &String| strsim::jaro_winkler(&other.to_lowercase(), &name.to_lowercase());
    let known = names().into_iter().chain(aliases().iter().map(|(alias, _)| (*alias).to_owned()));
    let best = known.max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(&best) > 0.85).then_some(best)
}
