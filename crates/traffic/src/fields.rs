//! The fields of one JSON line, taken one by one with an error that names the field, what stands there
//! and what is allowed. The careful way to read a line; hot paths use their own scanners and come here
//! when a line is not of the plain kind they know.

use crate::lines::Fault;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use std::fmt;

/// The fields of a JSON object in their order, duplicates included.
pub(crate) struct Fields(Vec<(String, Value)>);

/// The line is not one JSON object, or a field is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LineFault {
    Syntax(String),
    Field(Fault),
}

impl From<Fault> for LineFault {
    fn from(fault: Fault) -> LineFault {
        LineFault::Field(fault)
    }
}

impl Fields {
    pub(crate) fn parse(line: &[u8]) -> Result<Fields, LineFault> {
        if let Some(problem) = encoding_problem(line) {
            return Err(LineFault::Syntax(problem));
        }
        if !line.trim_ascii_start().starts_with(b"{") {
            return Err(LineFault::Syntax(format!("got {}", excerpt(&String::from_utf8_lossy(line)))));
        }
        let mut json = serde_json::Deserializer::from_slice(line);
        json.deserialize_map(Collect)
            .and_then(|fields| json.end().map(|()| fields))
            .map_err(|error| LineFault::Syntax(syntax_problem(&error)))
    }

    /// Every field in order, each name once.
    pub(crate) fn distinct(self) -> Result<Vec<(String, Value)>, Fault> {
        let mut seen: Vec<(String, Value)> = Vec::with_capacity(self.0.len());
        for (name, value) in self.0 {
            if seen.iter().any(|(earlier, _)| *earlier == name) {
                return Err(Fault::new(name, "given twice", "allowed is once"));
            }
            seen.push((name, value));
        }
        Ok(seen)
    }
}

/// What is wrong with bytes that are not UTF-8. UTF-16 of plain letters is, but for its zeros.
fn encoding_problem(line: &[u8]) -> Option<String> {
    if line.contains(&0) || line.starts_with(b"\xff\xfe") || line.starts_with(b"\xfe\xff") {
        return Some("this is UTF-16 or not text; the file must be UTF-8".into());
    }
    let error = std::str::from_utf8(line).err()?;
    Some(format!("not UTF-8 at byte {}; the file must be UTF-8", error.valid_up_to() + 1))
}

struct Collect;

impl<'de> Visitor<'de> for Collect {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Vec::new();
        while let Some(entry) = map.next_entry()? {
            fields.push(entry);
        }
        Ok(Fields(fields))
    }
}

/// What the JSON parser says, with the column only: the line is told by the reader.
fn syntax_problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let problem = text.strip_suffix(&place).unwrap_or(&text);
    format!("not JSON at column {}: {problem}", error.column())
}

/// A whole number from `low` to `high`.
pub(crate) fn integer(field: &str, value: &Value, low: u64, high: u64) -> Result<u64, Fault> {
    value.as_u64().filter(|n| (low..=high).contains(n)).ok_or_else(|| {
        let allowed = if high == u64::MAX {
            format!("allowed is an integer from {low} to 2^64 - 1")
        } else {
            format!("allowed is an integer from {low} to {high}")
        };
        Fault::new(field, got(value), allowed)
    })
}

/// A whole number of 32 bits with a sign.
pub(crate) fn signed(field: &str, value: &Value) -> Result<i32, Fault> {
    value.as_i64().and_then(|n| i32::try_from(n).ok()).ok_or_else(|| {
        Fault::new(field, got(value), format!("allowed is an integer from {} to {}", i32::MIN, i32::MAX))
    })
}

/// A time in milliseconds.
pub(crate) fn milliseconds(field: &str, value: &Value) -> Result<f64, Fault> {
    value
        .as_f64()
        .filter(|ms| ms.is_finite() && *ms >= 0.0)
        .ok_or_else(|| Fault::new(field, got(value), "allowed is a number of milliseconds of at least 0"))
}

pub(crate) fn text<'a>(field: &str, value: &'a Value) -> Result<&'a str, Fault> {
    value.as_str().ok_or_else(|| Fault::new(field, got(value), "allowed is a string"))
}

pub(crate) fn boolean(field: &str, value: &Value) -> Result<bool, Fault> {
    value.as_bool().ok_or_else(|| Fault::new(field, got(value), "allowed is true or false"))
}

/// A list of whole numbers up to `high`; an error names the place in the list.
pub(crate) fn integers(field: &str, value: &Value, high: u64) -> Result<Vec<u64>, Fault> {
    let Value::Array(items) = value else {
        return Err(Fault::new(field, got(value), "allowed is a list of integers"));
    };
    items.iter().enumerate().map(|(i, item)| integer(&format!("{field}[{i}]"), item, 0, high)).collect()
}

/// A field that is not known: with the nearest name that is.
pub(crate) fn unknown(field: &str, known: &[&str]) -> Fault {
    let nearest = known
        .iter()
        .map(|name| (strsim::damerau_levenshtein(field, name), name))
        .filter(|(distance, name)| *distance <= name.len() / 2)
        .min();
    let allowed = match nearest {
        Some((_, name)) => format!("did you mean {name}? known are {}", known.join(", ")),
        None => format!("known are {}", known.join(", ")),
    };
    Fault::new(field, "unknown field", allowed)
}

/// A field that must be there and is not.
pub(crate) fn missing(field: &str) -> Fault {
    Fault::new(field, "missing", "each line needs it")
}

/// A value as an error shows it.
pub(crate) fn got(value: &Value) -> String {
    format!("got {}", excerpt(&value.to_string()))
}

/// The beginning of a text, enough to recognise it.
pub(crate) fn excerpt(text: &str) -> String {
    const SHOWN: usize = 60;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
