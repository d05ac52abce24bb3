//! The way into the engine that all endpoints take: limits, faults, and the request at work.

use super::app::App;
use super::error::ApiError;
use super::faults::{FaultKind, Interruption};
use super::generation::{Ask, Generation};
use axum::http::{HeaderMap, StatusCode};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Begins a request, on all workers that have a part in it.
///
/// # Errors
/// What one of them refuses.
pub async fn begin(app: &Arc<App>, ask: Ask) -> Result<Generation, ApiError> {
    match &app.behind {
        Some(behind) => behind.start(app, ask).await,
        None => Generation::start(app, ask).await,
    }
}

/// Begins a request; says what shall happen amid its answer.
///
/// # Errors
/// Whatever refuses it: its server, a fault, the engine.
pub async fn start(
    app: &Arc<App>,
    headers: &HeaderMap,
    ask: Ask,
) -> Result<(Generation, Option<Interruption>), ApiError> {
    app.awake().await;
    app.check_open()?;
    let most = app.most_requests.load(Ordering::Relaxed);
    if app.load.load(Ordering::Relaxed) >= most {
        let message = format!("{most} requests are being served, the limit of this server");
        return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, message));
    }
    let Some(kind) = app.faults.draw(headers)? else {
        return Ok((begin(app, ask).await?, None));
    };
    let settings = app.faults.settings();
    if kind == FaultKind::Exit {
        std::process::exit(1);
    }
    if kind == FaultKind::Timeout {
        tokio::time::sleep(Duration::from_millis(settings.timeout_ms)).await;
    }
    if let Some(error) = kind.error() {
        return Err(error);
    }
    let generation = begin(app, ask).await?;
    let after = settings.fault_after_tokens;
    Ok(match kind {
        FaultKind::Cut => (generation, Some(Interruption::Cut(after))),
        FaultKind::Stall => {
            let time = Duration::from_millis(settings.stall_ms);
            (generation, Some(Interruption::Stall(after, time)))
        }
        _ => {
            tokio::time::sleep(Duration::from_millis(settings.slow_first_token_ms)).await;
            (generation, None)
        }
    })
}
