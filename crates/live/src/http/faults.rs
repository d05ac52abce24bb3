//! Faults on purpose: how often, of which kinds, or as a request's header says.
//!
//! Which request fails is drawn from the seed and the number of the request, so that a run can be repeated.

use super::error::ApiError;
use axum::http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Names the fault that a request shall meet.
const HEADER: &str = "x-return-error";

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// 429.
    RateLimit,
    /// 401.
    InvalidApiKey,
    /// 400: the prompt is too long.
    ContextLength,
    /// 400.
    InvalidRequest,
    /// 404.
    ModelNotFound,
    /// 500.
    ServerError,
    /// 503.
    Unavailable,
    /// Nothing for a while, then 504.
    Timeout,
    /// The first token comes late.
    SlowFirstToken,
    /// The connection breaks off amid the answer.
    Cut,
    /// The answer stops for a while, and then goes on.
    Stall,
    /// The process ends with exit code 1.
    Exit,
}

impl FaultKind {
    /// Every kind.
    pub const ALL: [FaultKind; 12] = [
        FaultKind::RateLimit,
        FaultKind::InvalidApiKey,
        FaultKind::ContextLength,
        FaultKind::InvalidRequest,
        FaultKind::ModelNotFound,
        FaultKind::ServerError,
        FaultKind::Unavailable,
        FaultKind::Timeout,
        FaultKind::SlowFirstToken,
        FaultKind::Cut,
        FaultKind::Stall,
        FaultKind::Exit,
    ];

    /// Its name in flags, headers and the admin endpoint.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::RateLimit => "rate_limit",
            FaultKind::InvalidApiKey => "invalid_api_key",
            FaultKind::ContextLength => "context_length",
            FaultKind::InvalidRequest => "invalid_request",
            FaultKind::ModelNotFound => "model_not_found",
            FaultKind::ServerError => "server_error",
            FaultKind::Unavailable => "unavailable",
            FaultKind::Timeout => "timeout",
            FaultKind::SlowFirstToken => "slow_first_token",
            FaultKind::Cut => "cut",
            FaultKind::Stall => "stall",
            FaultKind::Exit => "exit",
        }
    }

    /// The kind of a name.
    pub fn of(name: &str) -> Option<FaultKind> {
        FaultKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The answer, where the fault is one.
    pub fn error(self) -> Option<ApiError> {
        let (status, message) = match self {
            FaultKind::RateLimit => (StatusCode::TOO_MANY_REQUESTS, "injected fault: too many requests"),
            FaultKind::InvalidApiKey => (StatusCode::UNAUTHORIZED, "injected fault: the key is not valid"),
            FaultKind::ContextLength => (StatusCode::BAD_REQUEST, "injected fault: the prompt is too long"),
            FaultKind::InvalidRequest => {
                (StatusCode::BAD_REQUEST, "injected fault: the request is not valid")
            }
            FaultKind::ModelNotFound => (StatusCode::NOT_FOUND, "injected fault: the model does not exist"),
            FaultKind::ServerError => (StatusCode::INTERNAL_SERVER_ERROR, "injected fault: server error"),
            FaultKind::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "injected fault: not available"),
            FaultKind::Timeout => (StatusCode::GATEWAY_TIMEOUT, "injected fault: timeout"),
            FaultKind::SlowFirstToken | FaultKind::Cut | FaultKind::Stall | FaultKind::Exit => return None,
        };
        Some(ApiError::new(status, message))
    }
}

/// Which faults there are, and how they look. Times in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FaultSettings {
    /// Part of the requests that meet one, 0 to 1.
    pub failure_rate: f64,
    /// Of these kinds, all equally likely.
    pub failure_types: Vec<FaultKind>,
    /// How long a request waits for its [`FaultKind::Timeout`].
    pub timeout_ms: u64,
    /// How late the first token is.
    pub slow_first_token_ms: u64,
    /// After how many tokens an answer is cut or stalls.
    pub fault_after_tokens: u32,
    /// How long it stalls.
    pub stall_ms: u64,
}

impl Default for FaultSettings {
    fn default() -> Self {
        FaultSettings {
            failure_rate: 0.0,
            failure_types: FaultKind::ALL.into_iter().take(7).collect(),
            timeout_ms: 30_000,
            slow_first_token_ms: 5_000,
            fault_after_tokens: 3,
            stall_ms: 10_000,
        }
    }
}

impl FaultSettings {
    /// What is wrong with them, if anything.
    pub fn check(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.failure_rate) {
            return Err(format!("failure_rate is {}, allowed is 0 to 1", self.failure_rate));
        }
        if self.failure_rate > 0.0 && self.failure_types.is_empty() {
            return Err("failure_types is empty, and failure_rate above 0".into());
        }
        Ok(())
    }
}

/// What happens amid an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// The connection breaks off after so many tokens.
    Cut(u32),
    /// Nothing comes for a while after so many tokens.
    Stall(u32, Duration),
}

impl Interruption {
    /// After so many tokens.
    pub fn after(self) -> u32 {
        match self {
            Interruption::Cut(tokens) | Interruption::Stall(tokens, _) => tokens,
        }
    }
}

/// The faults of one server.
pub struct Faults {
    settings: RwLock<FaultSettings>,
    seed: u64,
    requests: AtomicU64,
}

impl Faults {
    /// Faults drawn from a seed.
    pub fn new(settings: FaultSettings, seed: u64) -> Faults {
        Faults { settings: RwLock::new(settings), seed, requests: AtomicU64::new(0) }
    }

    /// The settings in effect.
    pub fn settings(&self) -> FaultSettings {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts others in effect.
    pub fn set(&self, settings: FaultSettings) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = settings;
    }

    /// The fault that the next request meets, if any: the one that its header names, or one that is drawn.
    ///
    /// # Errors
    /// 400 when the header names none that exists.
    pub fn draw(&self, headers: &HeaderMap) -> Result<Option<FaultKind>, ApiError> {
        if let Some(named) = headers.get(HEADER) {
            let kind = named.to_str().ok().and_then(|name| FaultKind::of(name.trim()));
            return kind.map(Some).ok_or_else(|| {
                let names = FaultKind::ALL.map(FaultKind::name).join(", ");
                ApiError::form(format!("{HEADER} names no fault; there are {names}"))
            });
        }
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let settings = self.settings.read().unwrap_or_else(PoisonError::into_inner);
        let draw = |what: u64| xxh3_64_with_seed(&(number ^ what << 63).to_le_bytes(), self.seed);
        // 53 bits are what a float holds exactly.
        let place = (draw(0) >> 11) as f64 / (1u64 << 53) as f64;
        let kinds = &settings.failure_types;
        Ok((place < settings.failure_rate).then(|| kinds[draw(1) as usize % kinds.len()]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(rate: f64, seed: u64) -> Vec<Option<FaultKind>> {
        let settings = FaultSettings { failure_rate: rate, ..FaultSettings::default() };
        let faults = Faults::new(settings, seed);
        (0..10_000).map(|_| faults.draw(&HeaderMap::new()).unwrap()).collect()
    }

    #[test]
    fn rates_are_kept_and_seeds_repeat() {
        assert!(drawn(0.0, 1).iter().all(Option::is_none));
        assert!(drawn(1.0, 1).iter().all(Option::is_some));
        let third = drawn(0.3, 1);
        let count = third.iter().flatten().count();
        assert!((2_800..3_200).contains(&count), "{count}");
        assert_eq!(third, drawn(0.3, 1));
        assert_ne!(third, drawn(0.3, 2));
        // Of 7 kinds, each about 430 times.
        for kind in FaultKind::ALL.into_iter().take(7) {
            assert!(third.iter().flatten().filter(|other| **other == kind).count() > 300);
        }
    }

    #[test]
    fn a_header_decides() {
        let faults = Faults::new(FaultSettings::default(), 0);
        let mut headers = HeaderMap::new();
        for kind in FaultKind::ALL {
            headers.insert(HEADER, kind.name().parse().unwrap());
            assert_eq!(faults.draw(&headers), Ok(Some(kind)));
        }
        headers.insert(HEADER, "nothing".parse().unwrap());
        assert_eq!(faults.draw(&headers).unwrap_err().status, StatusCode::BAD_REQUEST);
    }
}
