//! One row of a Mooncake trace, its fields and the careful way to read it, with an error for every
//! field that is wrong, unknown, or known but not supported.

use crate::MAX_TOKENS;
use crate::fields::{self, Fields, LineFault};
use crate::lines::Fault;
use serde_json::Value;

/// A row as read. Reused from line to line.
#[derive(Debug, Default)]
pub(super) struct Row {
    pub(super) timestamp: Option<f64>,
    pub(super) input_length: Option<u64>,
    pub(super) output_length: Option<u64>,
    pub(super) ids: Vec<u64>,
    pub(super) has_ids: bool,
    pub(super) priority: Option<i32>,
    pub(super) name: Option<Box<str>>,
    /// The spelling of each field that has two, as this row has it.
    pub(super) time_field: &'static str,
    pub(super) input_field: &'static str,
    pub(super) output_field: &'static str,
}

/// The fields that are read, the usual spelling of each first.
const KNOWN: [&str; 9] = [
    "timestamp",
    "created_time",
    "input_length",
    "input_tokens",
    "output_length",
    "output_tokens",
    "hash_ids",
    "request_id",
    "priority",
];

/// Fields of the format that ask for something that is not built yet.
const UNSUPPORTED: [(&str, &str); 7] = [
    ("session_id", "sessions of several turns are not supported yet"),
    ("delay", "sessions of several turns are not supported yet"),
    ("delay_ms", "sessions of several turns are not supported yet"),
    ("strict_priority", "router queue classes are not supported yet; priority is"),
    ("policy_class", "router queue classes are not supported yet; priority is"),
    ("output_token_ids", "outputs with content are supported in traces of format requests only"),
    ("text_input", "prompts as text are not supported; prompts are described by hash_ids"),
];

impl Row {
    pub(super) fn clear(&mut self) {
        self.timestamp = None;
        self.input_length = None;
        self.output_length = None;
        self.ids.clear();
        self.has_ids = false;
        self.priority = None;
        self.name = None;
        self.time_field = "timestamp";
        self.input_field = "input_length";
        self.output_field = "output_length";
    }

    /// Reads a line of any form. A field that is null counts as not given.
    pub(super) fn read(&mut self, line: &[u8]) -> Result<(), LineFault> {
        self.clear();
        for (field, value) in Fields::parse(line)?.distinct()? {
            if value.is_null() && (KNOWN.contains(&&*field) || UNSUPPORTED.iter().any(|u| u.0 == field)) {
                continue;
            }
            self.take(&field, &value)?;
        }
        Ok(())
    }

    fn take(&mut self, field: &str, value: &Value) -> Result<(), Fault> {
        match field {
            "timestamp" | "created_time" => {
                self.time_field = one_spelling("timestamp", "created_time", field, self.timestamp.is_some())?;
                self.timestamp = Some(fields::milliseconds(field, value)?);
            }
            "input_length" | "input_tokens" => {
                let known = self.input_length.is_some();
                self.input_field = one_spelling("input_length", "input_tokens", field, known)?;
                self.input_length = Some(fields::integer(field, value, 1, MAX_TOKENS.into())?);
            }
            "output_length" | "output_tokens" => {
                let known = self.output_length.is_some();
                self.output_field = one_spelling("output_length", "output_tokens", field, known)?;
                self.output_length = Some(fields::integer(field, value, 1, MAX_TOKENS.into())?);
            }
            "hash_ids" => {
                self.ids = fields::integers(field, value, u64::MAX)?;
                self.has_ids = true;
            }
            "request_id" => self.name = Some(fields::text(field, value)?.into()),
            "priority" => self.priority = Some(fields::signed(field, value)?),
            _ => {
                return Err(match UNSUPPORTED.iter().find(|(name, _)| *name == field) {
                    Some((_, why)) => Fault::new(field, fields::got(value), *why),
                    None => fields::unknown(field, &KNOWN),
                });
            }
        }
        Ok(())
    }

    /// The prompt length, which must need exactly as many ids as there are. A row that gives none has
    /// whole blocks.
    pub(super) fn checked_input_length(&self, block_size: u32) -> Result<u32, Fault> {
        if !self.has_ids {
            return Err(fields::missing("hash_ids"));
        }
        let ids = self.ids.len() as u64;
        let block = u64::from(block_size);
        let length = self.input_length.unwrap_or(ids * block);
        if length == 0 || length > u64::from(MAX_TOKENS) {
            let allowed = format!("allowed is an integer from 1 to {MAX_TOKENS}");
            return Err(Fault::new(self.input_field, format!("got {length}"), allowed));
        }
        let needed = length.div_ceil(block);
        if ids != needed {
            let allowed = format!(
                "{length} input tokens in blocks of {block_size} need {needed}, one for each started block"
            );
            return Err(Fault::new("hash_ids", format!("got {ids} ids"), allowed));
        }
        // At most MAX_TOKENS, checked above.
        Ok(length as u32)
    }

    pub(super) fn checked_output_length(&self) -> Result<u32, Fault> {
        match self.output_length {
            None => Err(fields::missing(self.output_field)),
            Some(length) if length == 0 || length > u64::from(MAX_TOKENS) => {
                let allowed = format!("allowed is an integer from 1 to {MAX_TOKENS}");
                Err(Fault::new(self.output_field, format!("got {length}"), allowed))
            }
            Some(length) => Ok(length as u32),
        }
    }
}

/// Which of the two spellings a row uses; using both is an error.
fn one_spelling(
    usual: &'static str,
    other: &'static str,
    used: &str,
    known: bool,
) -> Result<&'static str, Fault> {
    if known {
        return Err(Fault::new(used, "given as well", format!("allowed is one of {usual} and {other}")));
    }
    Ok(if used == usual { usual } else { other })
}
