//! The commands that make docs/studies run, at a small size: every row comes out, and what is in the document is what
//! they print, in form.

mod common;

use common::{err, root};
use std::path::Path;
use std::process::Command;

/// What a study prints, none where Python is missing.
fn study(script: &str, arguments: &[&str]) -> Option<String> {
    let made = Command::new("python3")
        .arg(root().join("benches").join(script))
        .args(arguments)
        .args(["--binary", env!("CARGO_BIN_EXE_windtunnel")])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output();
    match made {
        Ok(made) => {
            assert!(made.status.success(), "{}", err(&made));
            Some(String::from_utf8(made.stdout).unwrap())
        }
        Err(error) => {
            println!("skipped: python3 does not start ({error})");
            None
        }
    }
}

/// First cells and headings: what the rows are about.
fn rows(text: &str) -> Vec<&str> {
    let rows = text.lines().filter(|line| line.starts_with("| ") || line.starts_with("### "));
    rows.map(|line| line.trim_start_matches("| ").split(" |").next().unwrap()).collect()
}

#[test]
fn the_autoscaling_study_makes_the_tables_of_its_document() {
    let trace = root().join("examples/quickstart-trace.jsonl");
    let trace = trace.to_str().unwrap();
    let Some(made) = study("autoscaling_study.py", &["--traces", trace, trace, "--limit", "60"]) else {
        return;
    };
    let document: &Path = &root().join("docs/studies/autoscaling.md");
    let document = std::fs::read_to_string(document).unwrap();
    let (_, from) = document.split_once("<!-- made by benches/autoscaling_study.py -->").unwrap();
    let tables = from.split("<!-- end -->").next().unwrap();
    assert_eq!(rows(&made), rows(tables));
    assert!(rows(&made).len() > 40);
}
