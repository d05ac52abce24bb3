//! The engines whose scenarios can be replayed: their names, their versions, and where each one's replay
//! stands. A further engine is a variant here, in `scenario::Settings`, and in the lines of `trace`.

use super::error::ConformanceError;
use super::scenario::{Scenario, Settings};
use super::trace::TraceLine;
use super::{sglang, vllm};
use serde::{Deserialize, Serialize};
use std::fmt;
use windtunnel_engine::Stepper;

/// An engine that has an oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

impl Engine {
    /// All of them.
    pub const ALL: [Engine; 2] = [Engine::Vllm, Engine::Sglang];

    /// Its name in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Vllm => "vllm",
            Engine::Sglang => "sglang",
        }
    }

    /// The version whose behaviour is reproduced.
    pub fn version(self) -> &'static str {
        match self {
            Engine::Vllm => windtunnel_engine::vllm::VERSION,
            Engine::Sglang => windtunnel_engine::sglang::VERSION,
        }
    }

    /// The engine of this name.
    pub fn named(name: &str) -> Option<Engine> {
        Engine::ALL.into_iter().find(|engine| engine.name() == name)
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Replays a scenario, handing out the lines of its trace in order.
pub fn replay(
    scenario: &Scenario,
    stepper: Stepper,
    mut emit: impl FnMut(TraceLine) -> Result<(), ConformanceError>,
) -> Result<(), ConformanceError> {
    match &scenario.settings {
        Settings::Vllm(settings) => vllm::replay(scenario, settings, stepper, &mut emit),
        Settings::Sglang(settings) => sglang::replay(scenario, settings, stepper, &mut emit),
    }
}
