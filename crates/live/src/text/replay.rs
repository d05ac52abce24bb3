//! Replies of a trace: which tokens a request of it got, by the key under which a client asks for them.
//!
//! The trace is Mooncake's with `output_token_ids`, the keys are those of Dynamo's mocker: `request_id`, or else
//! `session_id:turn`, or else `line:N`, turns and lines counted from 0.

use serde::Deserialize;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

/// Replies by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replays {
    by_key: HashMap<String, Arc<[u32]>>,
    greatest: u32,
}

/// What counts of a row. Mooncake's rows have more.
#[derive(Deserialize)]
struct Row {
    request_id: Option<String>,
    session_id: Option<String>,
    output_length: Option<u64>,
    output_token_ids: Option<Vec<u32>>,
}

impl Replays {
    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with it, and in which line.
    pub fn read(path: &Path) -> Result<Replays, String> {
        let wrong = |message: String| format!("{}: {message}", path.display());
        let file = File::open(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        let mut replays = Replays::default();
        let mut turns: HashMap<String, usize> = HashMap::new();
        for (at, line) in BufReader::new(file).lines().enumerate() {
            let in_line = |message: String| wrong(format!("line {}: {message}", at + 1));
            let line = line.map_err(|error| in_line(error.to_string()))?;
            if line.trim().is_empty() {
                continue;
            }
            let row: Row = serde_json::from_str(&line).map_err(|error| in_line(error.to_string()))?;
            let given =
                |name: Option<String>| name.map(|name| name.trim().to_owned()).filter(|n| !n.is_empty());
            let session = given(row.session_id);
            let turn = session.clone().map(|session| {
                let turn = turns.entry(session).or_default();
                std::mem::replace(turn, *turn + 1)
            });
            let Some(tokens) = row.output_token_ids else { continue };
            if row.output_length.is_some_and(|length| length != tokens.len() as u64) || tokens.is_empty() {
                let length = row.output_length.unwrap_or(1);
                let message =
                    format!("output_token_ids has {} tokens, output_length is {length}", tokens.len());
                return Err(in_line(message));
            }
            let key = match (given(row.request_id), session, turn) {
                (Some(id), ..) => id,
                (None, Some(session), Some(turn)) => format!("{session}:{turn}"),
                _ => format!("line:{at}"),
            };
            replays.greatest = replays.greatest.max(tokens.iter().copied().max().unwrap_or(0));
            if replays.by_key.insert(key.clone(), tokens.into()).is_some() {
                return Err(in_line(format!("another line has the key \"{key}\", too")));
            }
        }
        if replays.by_key.is_empty() {
            return Err(wrong("no line has output_token_ids".into()));
        }
        Ok(replays)
    }

    /// The tokens under a key.
    pub fn tokens(&self, key: &str) -> Option<&Arc<[u32]>> {
        self.by_key.get(key)
    }

    /// The greatest token in it.
    pub fn greatest_token(&self) -> u32 {
        self.greatest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Replays, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.jsonl");
        std::fs::write(&path, text).unwrap();
        Replays::read(&path).map_err(|message| message.rsplit_once("jsonl: ").unwrap().1.to_owned())
    }

    /// reference-surface.md §2.1: "key = request_id, else session:turn, else line:N".
    #[test]
    fn a_row_has_the_key_that_dynamo_gives_it() {
        let replays = read(concat!(
            r#"{"request_id": "a", "session_id": "s", "output_length": 2, "output_token_ids": [7, 8], "hash_ids": []}"#,
            "\n",
            r#"{"session_id": "s", "output_length": 1, "output_token_ids": [9]}"#,
            "\n\n",
            r#"{"output_length": 4}"#,
            "\n",
            r#"{"output_token_ids": [5, 6]}"#,
        ))
        .unwrap();
        for (key, tokens) in [("a", &[7, 8][..]), ("s:1", &[9]), ("line:4", &[5, 6])] {
            assert_eq!(replays.tokens(key).map(|tokens| &**tokens), Some(tokens), "{key}");
        }
        assert_eq!((replays.tokens("s:0"), replays.greatest_token()), (None, 9));
    }

    #[test]
    fn what_is_no_such_trace_is_refused_by_line() {
        assert!(read("{\"output_length\": 4}\n").unwrap_err().contains("no line has output_token_ids"));
        let lengths = read("\n{\"output_length\": 4, \"output_token_ids\": [1]}").unwrap_err();
        assert_eq!(lengths, "line 2: output_token_ids has 1 tokens, output_length is 4");
        let twice = "{\"request_id\": \"a\", \"output_token_ids\": [1]}\n".repeat(2);
        assert_eq!(read(&twice).unwrap_err(), "line 2: another line has the key \"a\", too");
        assert!(read("[1]").unwrap_err().starts_with("line 1: "));
    }
}
