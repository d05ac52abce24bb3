//! A scenario: an oracle's config file and request file. The request file is the same for every engine,
//! the config is the engine's own.

use super::engine::Engine;
use super::error::ConformanceError;
use super::files::{ConfigFile, read_requests};
use super::{sglang, vllm};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use windtunnel_engine::RequestId;
use windtunnel_traffic::RequestLine;

/// The config of a scenario.
#[derive(Clone, Debug)]
pub enum Settings {
    /// vLLM's.
    Vllm(vllm::Settings),
    /// SGLang's.
    Sglang(sglang::Settings),
}

/// A scenario, read.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The config, and with it which engine it is for.
    pub settings: Settings,
    /// The requests, in file order.
    pub requests: Vec<RequestLine>,
    /// The config's file.
    pub config_file: PathBuf,
    /// The requests' file.
    pub requests_file: PathBuf,
}

/// The one key that stands in every engine's config.
#[derive(Deserialize)]
struct Named {
    engine: Option<String>,
}

impl Scenario {
    /// Reads both files; the requests may be gzipped. The engine is the one given or the one that the
    /// config names, and vLLM if there is neither.
    pub fn read(
        config: &Path,
        requests: &Path,
        engine: Option<Engine>,
    ) -> Result<Scenario, ConformanceError> {
        let file = ConfigFile::read(config)?;
        let engine = engine_of(&file, engine)?;
        let settings = match engine {
            Engine::Vllm => Settings::Vllm(vllm::Settings::read(&file)?),
            Engine::Sglang => Settings::Sglang(sglang::Settings::read(&file)?),
        };
        let kv_moves = matches!(&settings, Settings::Vllm(settings) if settings.kv_role.is_some());
        Ok(Scenario {
            settings,
            requests: read_requests(requests, kv_moves)?,
            config_file: config.into(),
            requests_file: requests.into(),
        })
    }

    pub(super) fn name(&self, request: usize) -> String {
        self.requests[request].id.to_string()
    }

    /// Requests are numbered by their place in the file.
    pub(super) fn names(&self, requests: impl IntoIterator<Item = RequestId>) -> Vec<String> {
        requests.into_iter().map(|id| self.name(id.0 as usize)).collect()
    }

    /// What the rank refuses about a setting.
    pub(super) fn config_refused(&self, reason: impl ToString) -> ConformanceError {
        ConformanceError::Unsupported { path: self.config_file.clone(), reason: reason.to_string() }
    }

    /// What the rank refuses about a request.
    pub(super) fn request_refused(&self, request: usize, reason: impl std::fmt::Display) -> ConformanceError {
        ConformanceError::Unsupported {
            path: self.requests_file.clone(),
            reason: format!("request {}: {reason}", self.requests[request].id),
        }
    }
}

fn engine_of(file: &ConfigFile, asked: Option<Engine>) -> Result<Engine, ConformanceError> {
    let Some(name) = file.parse::<Named>()?.engine else { return Ok(asked.unwrap_or(Engine::Vllm)) };
    let Some(named) = Engine::named(&name) else {
        let known = Engine::ALL.map(Engine::name).join(", ");
        return Err(file.fault("engine", format!("got {name}; allowed are {known}")));
    };
    match asked {
        Some(asked) if asked != named => {
            Err(file.fault("engine", format!("is {named}, but {asked} was asked for")))
        }
        _ => Ok(named),
    }
}

/// The clock of the oracles: a pass takes time by its tokens, an empty one none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    base_ms: f64,
    per_token_ms: f64,
}

impl Clock {
    pub(super) fn new(base_ms: f64, per_token_ms: f64) -> Clock {
        Clock { base_ms, per_token_ms }
    }

    pub(super) fn pass_ms(self, tokens: u64) -> f64 {
        if tokens == 0 { 0.0 } else { self.base_ms + self.per_token_ms * tokens as f64 }
    }

    /// Refuses what could not be added up.
    pub(super) fn check(self, file: &ConfigFile) -> Result<(), ConformanceError> {
        for (key, ms) in [("step_ms_base", self.base_ms), ("step_ms_per_token", self.per_token_ms)] {
            if !(0.0..=1e9).contains(&ms) {
                return Err(file.fault(key, format!("{ms} must be from 0 to 1e9")));
            }
        }
        Ok(())
    }
}
