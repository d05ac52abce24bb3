//! What a request of SGLang says of the other worker that has it (`bootstrap_host`, `bootstrap_port`, `bootstrap_room`;
//! srt/managers/io_struct.py, srt/managers/scheduler.py, 0.5.23), and what a worker says of its part.

use super::app::App;
use super::error::ApiError;
use crate::kv_transfer::{FAKE_BOOTSTRAP_HOST, Remote, Room, RoomSettings};
use axum::http::HeaderMap;
use serde_json::Value;
use std::borrow::Cow;
use std::sync::Arc;

/// Where bootstrap servers listen, unless something else is said (`--disaggregation-bootstrap-port`).
const DEFAULT_PORT: u16 = 8998;

/// The rooms that there are, of several prompts up to the last one's.
const ROOMS: &str = "a whole number from 0 to 18446744073709551615";

/// The fields as they came: one value, or a list of one for each prompt.
#[derive(Clone, Copy, Debug)]
pub struct RoomFields<'a> {
    /// `bootstrap_host`.
    pub host: Option<&'a Value>,
    /// `bootstrap_port`.
    pub port: Option<&'a Value>,
    /// `bootstrap_room`.
    pub room: Option<&'a Value>,
}

fn settings(app: &App) -> Option<&RoomSettings> {
    app.transfers.as_ref()?.settings().rooms()
}

/// Whether the worker computes prompts for others.
pub fn prefills(app: &App) -> bool {
    settings(app).is_some() && app.transfers.as_ref().is_some_and(|of| of.settings().role.produces())
}

/// `disaggregation_mode`.
pub fn mode(app: &App) -> &'static str {
    match settings(app) {
        None => "null",
        Some(_) if prefills(app) => "prefill",
        Some(_) => "decode",
    }
}

/// `disaggregation_bootstrap_port`.
pub fn port(app: &App) -> u16 {
    settings(app).and_then(|settings| settings.ports.first().copied()).unwrap_or(DEFAULT_PORT)
}

/// What a request has to say that has no other worker, such as a health probe.
pub fn nowhere(app: &App) -> Remote {
    match settings(app) {
        None => Remote::None,
        Some(_) => Remote::Meet(Arc::new(Room { number: 0, server: None })),
    }
}

/// The rank of a worker that computes prompts that a room belongs to (`follow_bootstrap_room`).
pub fn rank(app: &App, remote: &Remote) -> Option<u32> {
    match remote {
        Remote::Meet(room) if prefills(app) => {
            // Below the number of ranks.
            u32::try_from(room.number % u64::from(app.worker.ranks().max(1))).ok()
        }
        _ => None,
    }
}

/// Where each prompt's other worker is; nothing of a worker that does all by itself, which ignores these fields as
/// SGLang's does.
///
/// # Errors
/// A room is missing, or what is said has not the right form.
pub fn asked(
    app: &App,
    rooms: &RoomFields<'_>,
    headers: &HeaderMap,
    (choices, prompts): (u32, usize),
) -> Result<Vec<Remote>, ApiError> {
    let Some(settings) = settings(app) else { return Ok(Vec::new()) };
    let host = overridden(rooms.host, headers, "x-override-bootstrap-host", false)?;
    let port = overridden(rooms.port, headers, "x-override-bootstrap-port", true)?;
    let room = overridden(rooms.room, headers, "x-override-bootstrap-room", true)?;
    let Some(room) = room.filter(|room| !room.is_null()) else {
        let message = "the worker has one part of a request only, and bootstrap_room says which other worker has the \
                       other; send requests to a router";
        return Err(ApiError::field("bootstrap_room", message));
    };
    if choices > 1 {
        return Err(ApiError::field("n", "n is above 1, and a bootstrap_room is for one choice"));
    }
    (0..prompts)
        .map(|at| {
            let number = of_prompt("bootstrap_room", &room, at, prompts)?;
            // A room that is not in a list is that of the first prompt; the next prompts have the next ones.
            let next = if room.is_array() { 0 } else { at as u64 };
            let number = number.as_u64().and_then(|number| number.checked_add(next));
            let number = number.ok_or_else(|| wrong("bootstrap_room", &room, ROOMS))?;
            let host = match &host {
                None => Cow::Borrowed("localhost"),
                Some(host) => match of_prompt("bootstrap_host", host, at, prompts)? {
                    Value::Null => Cow::Borrowed("localhost"),
                    Value::String(name) if !name.is_empty() => Cow::Owned(name.clone()),
                    _ => return Err(wrong("bootstrap_host", host, "the name of a host")),
                },
            };
            let port = match &port {
                None => None,
                Some(port) => match of_prompt("bootstrap_port", port, at, prompts)? {
                    Value::Null => None,
                    number => {
                        let number = number.as_u64().and_then(|number| u16::try_from(number).ok());
                        Some(number.ok_or_else(|| wrong("bootstrap_port", port, "a port"))?)
                    }
                },
            };
            let port = port.or(settings.ports.first().copied()).unwrap_or(DEFAULT_PORT);
            let server = (host != FAKE_BOOTSTRAP_HOST).then(|| (bare(&host).to_owned(), port));
            Ok(Remote::Meet(Arc::new(Room { number, server })))
        })
        .collect()
}

/// An address of IPv6 without its brackets.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// A field, or the header that overrides it.
fn overridden<'a>(
    field: Option<&'a Value>,
    headers: &HeaderMap,
    header: &str,
    number: bool,
) -> Result<Option<Cow<'a, Value>>, ApiError> {
    let Some(given) = headers.get(header) else { return Ok(field.map(Cow::Borrowed)) };
    let text = given.to_str().ok();
    let value = match number {
        false => text.map(Value::from),
        true => text.and_then(|text| text.trim().parse::<u64>().ok()).map(Value::from),
    };
    let value = value.ok_or_else(|| ApiError::form(format!("invalid {header} header")))?;
    Ok(Some(Cow::Owned(value)))
}

/// What a field says of one prompt.
fn of_prompt<'a>(field: &str, value: &'a Value, at: usize, prompts: usize) -> Result<&'a Value, ApiError> {
    match value {
        Value::Array(values) if values.len() == prompts => Ok(&values[at]),
        Value::Array(values) => {
            let message = format!("{field} has {} values for {prompts} prompts", values.len());
            Err(ApiError::field(field, message))
        }
        one => Ok(one),
    }
}

fn wrong(field: &str, got: &Value, allowed: &str) -> ApiError {
    ApiError::field(field, format!("{field} is {got}, allowed is {allowed}"))
}
