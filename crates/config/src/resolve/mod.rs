//! From a document whose keys are right one by one to an experiment: defaults that depend on other keys,
//! keys that contradict each other, and the values that the simulator wants.
//!
//! Fills the document with what is in effect on the way, so that it can be written out.

mod calibrated;
mod capacity;
mod engine;
mod faults;
mod gpu;
mod host;
mod model;
mod owners;
mod planner;
mod role;
mod roles;
mod router;
mod sglang;
mod timing;
mod traffic;
mod trtllm;
mod vllm;

pub use engine::NO_CONTEXT_LIMIT;

use crate::document::{Document, Sla as SlaKeys};
use crate::error::Problem;
use crate::experiment::{Deployment, Experiment, Sla};
use crate::fleet::Scaling;
use crate::tree::Node;
use std::path::{Path, PathBuf};
use windtunnel_engine::Nanos;

/// Makes the experiment. `root` is the tree that `document` was read from; trace files are looked for in
/// `folder` and then in the working directory.
pub(crate) fn resolve(
    mut document: Document,
    root: &Node,
    folder: &Path,
) -> Result<Experiment, Vec<Problem>> {
    let mut findings = Findings { root, role: "aggregated", problems: Vec::new() };
    let workload = traffic::workload(&mut document.traffic, folder, &mut findings);
    let mut deployments = roles::deployments(&mut document.engine, folder, &mut findings);
    if let Some((deployment, prefill)) = &mut deployments {
        match prefill {
            Some(prefill) => {
                let roles = (&mut prefill.deployment, deployment);
                router::resolve_roles(&mut document.router, roles, &mut findings);
            }
            None => router::resolve(&mut document.router, deployment, &mut findings),
        }
    }
    let sla = sla(&document.evaluation.sla, &mut findings);
    let (mut scaling, mut faults) = (None, None);
    if let Some((deployment, prefill)) = &mut deployments {
        let first = prefill.as_ref().map(|prefill| &prefill.deployment);
        let (more, of_prefill) =
            planner::scaling(&mut document.planner, deployment, first, sla, &mut findings);
        let most = |deployment: &Deployment, scaling: &Option<Scaling>| {
            scaling.as_ref().map_or(deployment.replicas.get(), |scaling| scaling.most)
        };
        let all = (&*deployment, most(deployment, &more));
        let first = first.map(|first| (first, most(first, &of_prefill)));
        let (fail, prefills_fail) = faults::faults(&mut document.faults, all, first, &mut findings);
        (scaling, faults) = (more, fail);
        if let Some(prefill) = prefill {
            (prefill.scaling, prefill.faults) = (of_prefill, prefills_fail);
        }
    }
    let price_per_gpu_hour = document.evaluation.price_per_gpu_hour;
    let effective = match serde_json::to_value(&document) {
        Ok(effective) => effective,
        Err(error) => {
            findings.problem("", format!("cannot be written as JSON: {error}"));
            serde_json::Value::Null
        }
    };
    match (workload, deployments) {
        (Some(workload), Some((deployment, prefill))) if findings.problems.is_empty() => Ok(Experiment {
            deployment,
            prefill,
            workload,
            sla,
            scaling,
            faults,
            price_per_gpu_hour,
            effective,
        }),
        _ => Err(findings.problems),
    }
}

/// What is wrong, and the tree in which to look up where it was written.
struct Findings<'a> {
    root: &'a Node,
    /// The role whose keys are looked at: paths name those of `workers.aggregated`, and mean its.
    role: &'static str,
    problems: Vec<Problem>,
}

impl Findings<'_> {
    /// The path of a key in the role that is looked at.
    fn path(&self, path: &str) -> String {
        path.replace("workers.aggregated", &format!("workers.{}", self.role))
    }

    fn problem(&mut self, path: &str, message: impl Into<String>) {
        let (path, message) = (&*self.path(path), self.path(&message.into()));
        let place = self.root.place_of(path).clone();
        self.problems.push(Problem { place, path: path.to_owned(), message });
    }

    /// Whether something is wrong with the value of a path.
    fn told(&self, path: &str) -> bool {
        let path = self.path(path);
        self.problems.iter().any(|problem| problem.path == path)
    }

    /// The value of a path as it was written, or `default` with a note that it is one.
    fn shown(&self, path: &str, default: impl ToString) -> String {
        match self.root.find(&self.path(path)) {
            Some(node) => node.shown(),
            None => format!("{} (default)", default.to_string()),
        }
    }

    /// A key that was given although it has no meaning here.
    fn foreign(&mut self, path: &str, given: bool, belongs_to: &str, here: &str) {
        if given {
            let got = self.shown(path, "");
            self.problem(path, format!("got {got}; it belongs to {belongs_to}, and here is {here}"));
        }
    }

    /// A time as nanoseconds.
    fn time(&mut self, path: &str, ms: f64) -> Option<Nanos> {
        let time = Nanos::from_ms(ms);
        if time.is_none() {
            let got = self.shown(path, ms);
            self.problem(path, format!("got {got}; a time must be below 292 years"));
        }
        time
    }
}

fn sla(keys: &SlaKeys, findings: &mut Findings) -> Option<Sla> {
    let path = |key: &str| format!("evaluation.sla.{key}");
    if keys.e2e_ms.is_some() && (keys.ttft_ms.is_some() || keys.itl_ms.is_some()) {
        let got = findings.shown(&path("e2e_ms"), "");
        findings.problem(
            &path("e2e_ms"),
            format!("got {got}; allowed is e2e_ms alone, or ttft_ms and itl_ms without it"),
        );
    }
    let mut time = |key: &str, ms: Option<f64>| ms.and_then(|ms| findings.time(&path(key), ms));
    let sla = Sla {
        ttft: time("ttft_ms", keys.ttft_ms),
        itl: time("itl_ms", keys.itl_ms),
        e2e: time("e2e_ms", keys.e2e_ms),
    };
    (sla != Sla::default()).then_some(sla)
}

/// What `name` may stand for: beside the configuration file, or else in the working directory.
fn places(name: &str, folder: &Path) -> [PathBuf; 2] {
    [folder.join(name), name.into()]
}

/// The file `name` of the key `at`: beside the configuration file, or else in the working directory.
fn existing_file(at: &str, name: &str, folder: &Path, findings: &mut Findings) -> Option<PathBuf> {
    let places = places(name, folder);
    let beside = places[0].clone();
    // A pipe or a device is as good as a file: what stands there is asked once, when it is opened.
    let there = places.into_iter().filter(|path| path.exists());
    let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) = there.partition(|path| path.is_dir());
    let found = files.into_iter().next();
    if found.is_none() && !folders.is_empty() {
        findings.problem(at, format!("got \"{name}\"; a folder, a file is needed"));
    } else if found.is_none() {
        let looked = if Path::new(name).is_absolute() {
            String::new()
        } else {
            format!(", neither as {} nor in the working directory", beside.display())
        };
        findings.problem(at, format!("got \"{name}\"; there is no such file{looked}"));
    }
    found
}
