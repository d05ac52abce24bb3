//! The files of a scenario as text: plain or gzipped, a JSON object, a request file, the lines of a trace.
//! What the keys of a config mean is not known here.

use super::error::ConformanceError;
use serde::de::DeserializeOwned;
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use windtunnel_traffic::{RequestLine, RequestLines};

/// The text of a config file, which holds one JSON object.
pub(super) struct ConfigFile<'a> {
    path: &'a Path,
    text: String,
}

impl ConfigFile<'_> {
    pub(super) fn read(path: &Path) -> Result<ConfigFile<'_>, ConformanceError> {
        let mut text = String::new();
        open(path)?
            .read_to_string(&mut text)
            .map_err(|source| ConformanceError::Io { path: path.into(), source })?;
        let file = ConfigFile { path, text };
        // serde would take a list for the values of the keys in order.
        if !file.text.trim_start().starts_with('{') {
            let blank = file.text.chars().take_while(|c| c.is_whitespace());
            let line = blank.filter(|&c| c == '\n').count() + 1;
            return Err(file.problem(line, "must be one JSON object".into()));
        }
        Ok(file)
    }

    pub(super) fn parse<T: DeserializeOwned>(&self) -> Result<T, ConformanceError> {
        let mut json = serde_json::Deserializer::from_str(&self.text);
        let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let path = error.path().to_string();
            let error = error.into_inner();
            let reason = ConformanceError::json_reason(&error);
            // An unknown field is named in the reason.
            let known = path != "." && !reason.contains("unknown field");
            let key = if known { format!("{path}: ") } else { String::new() };
            self.problem(error.line(), format!("{key}{reason}"))
        });
        parsed.and_then(|value| match json.end() {
            Ok(()) => Ok(value),
            Err(error) => Err(self.problem(error.line(), ConformanceError::json_reason(&error))),
        })
    }

    /// An error of a key, with the line on which the key stands.
    pub(super) fn fault(&self, key: &str, reason: impl std::fmt::Display) -> ConformanceError {
        let quoted = format!("\"{key}\"");
        let line = self.text.lines().position(|line| line.contains(&quoted)).map_or(1, |i| i + 1);
        self.problem(line, format!("{key}: {reason}"))
    }

    fn problem(&self, line: usize, reason: String) -> ConformanceError {
        ConformanceError::Format { path: self.path.into(), line, reason }
    }
}

/// Reads a request file. Only where KV moves are there hand-offs, and aborts by time.
pub(super) fn read_requests(path: &Path, kv_moves: bool) -> Result<Vec<RequestLine>, ConformanceError> {
    let requests: Vec<RequestLine> = RequestLines::open(path)?.collect::<Result<_, _>>()?;
    let mut names = HashSet::new();
    for (i, request) in requests.iter().enumerate() {
        let reason = if !names.insert(&request.id) {
            format!("id: \"{}\" stands twice", request.id)
        } else if request.abort_ms.is_some() && !kv_moves {
            "abort_ms: a scenario without kv_role aborts by abort_step".into()
        } else if let Some(key) = transfer_key(request).filter(|_| !kv_moves) {
            format!("{key}: needs a kv_role in the config")
        } else if request.arrival_ms.is_some() && request.arrival_step.is_some() {
            "arrival_step: arrival_ms is given too; a request has one of them".into()
        } else if request.session_id.is_some() {
            "session_id: a scenario drives one rank".into()
        } else if request.dp_rank.is_some() {
            "dp_rank: a scenario drives one rank".into()
        } else {
            continue;
        };
        let line = lines(path)?.nth(i).transpose()?.map_or(1, |(line, _)| line);
        return Err(ConformanceError::Format { path: path.into(), line, reason });
    }
    Ok(requests)
}

/// The first key of a line that is about a transfer.
fn transfer_key(request: &RequestLine) -> Option<&'static str> {
    let keys = [
        ("remote_prefill", request.remote_prefill.is_some()),
        ("remote_decode", request.remote_decode.is_some()),
        ("load_ms", request.load_ms.is_some()),
        ("send_ms", request.send_ms.is_some()),
        ("load_fail", request.load_fail.is_some()),
    ];
    keys.iter().find(|(_, given)| *given).map(|&(key, _)| key)
}

/// Opens a file, unpacking it if it is gzipped.
fn open(path: &Path) -> Result<Box<dyn Read>, ConformanceError> {
    let wrap = |source| ConformanceError::Io { path: path.into(), source };
    let mut file = BufReader::new(File::open(path).map_err(wrap)?);
    let gzipped = file.fill_buf().map_err(wrap)?.starts_with(&[0x1f, 0x8b]);
    Ok(if gzipped { Box::new(flate2::read::MultiGzDecoder::new(file)) } else { Box::new(file) })
}

/// The non-blank lines of a file, numbered from 1.
pub(super) fn lines(
    path: &Path,
) -> Result<impl Iterator<Item = Result<(usize, String), ConformanceError>> + use<>, ConformanceError> {
    let owned = path.to_path_buf();
    Ok(BufReader::new(open(path)?)
        .lines()
        .enumerate()
        .map(move |(i, line)| match line {
            Ok(text) => Ok((i + 1, text)),
            Err(source) => Err(ConformanceError::Io { path: owned.clone(), source }),
        })
        .filter(|line| !matches!(line, Ok((_, text)) if text.trim().is_empty())))
}
