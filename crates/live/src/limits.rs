//! What a deployment may ask for and live workers do not do yet.

use crate::error::LiveError;
use windtunnel_config::Experiment;

/// Refuses what would be left out.
///
/// # Errors
/// The key that asks for it.
pub fn check(experiment: &Experiment) -> Result<(), LiveError> {
    let refused = if experiment.deployment.host_offload.is_some() {
        "engine.workers.aggregated.kv_cache.host_offload: live workers have no tier in the host's memory yet; leave it out"
    } else if experiment.is_scaled() {
        "planner: the number of live workers does not change; leave it out"
    } else if experiment.faults.is_some() {
        "faults: live workers do not fail by plan; leave it out"
    } else {
        return Ok(());
    };
    Err(LiveError::Settings(refused.to_owned()))
}
