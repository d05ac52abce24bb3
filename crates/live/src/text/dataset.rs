//! Replies from a file: JSON lines with what is said, and, if given, in answer to what.

use serde::Deserialize;
use std::collections::HashMap;
use std::path::Path;

/// What a mock model says, read from a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dataset {
    responses: Vec<String>,
    /// Places of the responses by the prompt that they answer.
    by_prompt: HashMap<String, usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(default)]
    prompt: Option<String>,
    response: String,
}

impl Dataset {
    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with it, and in which line.
    pub fn read(path: &Path) -> Result<Dataset, String> {
        let wrong = |message: String| format!("{}: {message}", path.display());
        let text =
            std::fs::read_to_string(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        let mut dataset = Dataset::default();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let line: Line =
                serde_json::from_str(line).map_err(|error| wrong(format!("line {}: {error}", at + 1)))?;
            if let Some(prompt) = line.prompt {
                dataset.by_prompt.entry(prompt).or_insert(dataset.responses.len());
            }
            dataset.responses.push(line.response);
        }
        if dataset.responses.is_empty() {
            return Err(wrong("there is no line in it".into()));
        }
        Ok(dataset)
    }

    /// The answer to what was said last: the one that belongs to it, or else one that is drawn.
    pub(super) fn response(&self, said: &str, drawn: u64) -> &str {
        let at = self.by_prompt.get(said).copied();
        // A dataset has at least one line.
        &self.responses[at.unwrap_or((drawn % self.responses.len() as u64) as usize)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Dataset, String> {
        let path =
            std::env::temp_dir().join(format!("windtunnel-dataset-{}-{}", std::process::id(), text.len()));
        std::fs::write(&path, text).unwrap();
        let read = Dataset::read(&path);
        std::fs::remove_file(&path).unwrap();
        read
    }

    #[test]
    fn what_belongs_to_a_prompt_answers_it_and_others_are_drawn() {
        let dataset = read("{\"prompt\": \"hi\", \"response\": \"ho\"}\n\n{\"response\": \"hm\"}\n").unwrap();
        assert_eq!(dataset.response("hi", 1), "ho");
        assert_eq!((dataset.response("hey", 0), dataset.response("hey", 3)), ("ho", "hm"));
    }

    #[test]
    fn a_bad_line_is_named() {
        assert!(
            read("{\"response\": \"a\"}\n{\"answer\": 1}\n")
                .unwrap_err()
                .contains("line 2: unknown field `answer`")
        );
        assert!(read("\n").unwrap_err().ends_with("there is no line in it"));
        assert!(Dataset::read(Path::new("/nonexistent")).unwrap_err().contains("cannot be read"));
    }
}
