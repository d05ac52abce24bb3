//! What is refused, and in which words: every case and its message stand in refusals.txt, compared as a
//! whole. After a change of words, run with UPDATE_REFUSALS=1 and read the difference.

#[path = "refusals/cases.rs"]
mod cases;

use cases::{Case, all};
use std::fmt::Write;
use std::path::Path;

/// The message of a case that is loaded from `folder`, with the folder's name taken out.
fn message(case: &Case, folder: &Path) -> String {
    let config = folder.join("case.yaml");
    std::fs::write(&config, &case.config).unwrap();
    if let Some(trace) = &case.trace {
        std::fs::write(folder.join("trace.jsonl"), trace).unwrap();
    }
    let overrides: Vec<String> = case.overrides.iter().map(|text| (*text).to_owned()).collect();
    let message = match windtunnel_config::load(&config, &overrides) {
        Err(error) => error.to_string(),
        Ok(experiment) => match experiment.workload.open() {
            Err(error) => error.to_string(),
            Ok(mut stream) => match stream.find_map(Result::err) {
                Some(error) => error.to_string(),
                None => panic!("{}: not refused", case.name),
            },
        },
    };
    message.replace(&format!("{}/", folder.display()), "")
}

#[test]
fn every_refusal_has_its_words() {
    let folder = tempfile::tempdir().unwrap();
    let cases = all();
    assert!(cases.len() >= 60, "{}", cases.len());
    let mut text = String::new();
    for case in &cases {
        writeln!(text, "{}\n    {}\n", case.name, message(case, folder.path()).replace('\n', "\n    "))
            .unwrap();
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/refusals.txt");
    if std::env::var_os("UPDATE_REFUSALS").is_some() {
        std::fs::write(&golden, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap_or_default();
    for (number, (got, expected)) in text.lines().zip(expected.lines()).enumerate() {
        assert_eq!(got, expected, "line {} of refusals.txt", number + 1);
    }
    assert_eq!(text.lines().count(), expected.lines().count(), "lines of refusals.txt");
}

#[test]
fn every_message_says_where_and_names_the_key() {
    let folder = tempfile::tempdir().unwrap();
    for case in all() {
        for line in message(&case, folder.path()).lines() {
            let placed = ["case.yaml", "trace.jsonl", "--set "].iter().any(|place| line.starts_with(place));
            assert!(placed, "{}: {line}", case.name);
        }
    }
}
