//! Reading what a client sends, within bounds.

use super::app::App;
use super::error::ApiError;
use super::form::{self, Object};
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// Bytes from which on a body is read where it holds up nobody.
const LONG: usize = 64 << 10;

/// The body of a request, whole.
///
/// # Errors
/// 413, 408, and 400 when it breaks off.
pub async fn read(app: &App, headers: &HeaderMap, body: Body) -> Result<Bytes, ApiError> {
    let limit = app.settings.max_body_bytes;
    let told = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    let too_large = || {
        let message = format!("the body is larger than {limit} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    if told.and_then(|length| length.parse::<u64>().ok()).is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    match tokio::time::timeout(app.settings.body_timeout, to_bytes(body, limit)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => {
            let limited = std::error::Error::source(&error)
                .is_some_and(|cause| cause.is::<http_body_util::LengthLimitError>());
            Err(if limited { too_large() } else { ApiError::form("the body breaks off") })
        }
        Err(_) => Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")),
    }
}

/// A JSON body as a value.
///
/// # Errors
/// As [`read`]; 415 for another type of content, 400 for what is not JSON or not of the right form.
pub async fn json<T>(app: &Arc<App>, headers: &HeaderMap, body: Body) -> Result<T, ApiError>
where
    T: DeserializeOwned + Send + 'static,
{
    sized(app, headers, body).await.map(|(value, _)| value)
}

/// The same, and how many bytes it has.
///
/// # Errors
/// As [`json`].
pub async fn sized<T>(app: &Arc<App>, headers: &HeaderMap, body: Body) -> Result<(T, usize), ApiError>
where
    T: DeserializeOwned + Send + 'static,
{
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.map(|kind| kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase());
    if kind.is_some_and(|kind| kind != "application/json") {
        let message = "only application/json is taken";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let bytes = read(app, headers, body).await?;
    let size = bytes.len();
    let value = if size > LONG { app.work_on(size, move |_| parse(&bytes)).await? } else { parse(&bytes)? };
    Ok((value, size))
}

/// A JSON object as a value.
///
/// # Errors
/// 400, with the place.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let read: Result<Object<T>, _> = serde_path_to_error::deserialize(&mut json);
    let Object(value) = read.map_err(|error| {
        if error.inner().is_data() {
            let words = form::words(&error.path().to_string(), error.inner());
            ApiError::form(format!("the body does not have the right form: {words}"))
        } else {
            ApiError::form(format!("the body is not JSON: {}", error.inner()))
        }
    })?;
    json.end().map_err(|error| ApiError::form(format!("the body is not JSON: {error}")))?;
    Ok(value)
}
