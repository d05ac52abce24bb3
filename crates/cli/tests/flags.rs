//! The flags of `aisimulate predict`, as docs/compatibility.md has them: each is given to the program.

mod common;

use common::{err, root, windtunnel};
use tempfile::tempdir;

#[test]
fn flags_of_aisimulate_are_there_or_not_as_the_document_says() {
    let document = std::fs::read_to_string(root().join("docs/compatibility.md")).unwrap();
    let section = document.split("## Command line").nth(1).unwrap().split("## Top level").next().unwrap();
    let folder = tempdir().unwrap();
    let out = folder.path().display().to_string();
    let mut rows = 0;
    for line in section.lines().filter(|line| line.starts_with("| `-")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let flag = cells[1].split('`').nth(1).unwrap().split(' ').next().unwrap();
        let given: &[&str] = match flag {
            "-c" => &["-c", "examples/quickstart.yaml", "--limit", "3"],
            "--set" => &[
                "examples/quickstart.yaml",
                "--limit",
                "3",
                "--set",
                "router.policy=random",
                "--set",
                "router.policy=round_robin",
            ],
            "--output-dir" => &["examples/quickstart.yaml", "--limit", "3", "--output-dir", &out],
            // Runs after the row above, which has filled the folder.
            "--overwrite" => {
                &["examples/quickstart.yaml", "--limit", "3", "--output-dir", &out, "--overwrite"]
            }
            "--format" => &["examples/quickstart.yaml", "--limit", "3", "--format", "json"],
            "--capture-per-request" => &[
                "examples/quickstart.yaml",
                "--limit",
                "3",
                "--output-dir",
                &out,
                "--overwrite",
                "--capture-per-request",
            ],
            "--online" => &["examples/quickstart.yaml", "--limit", "3", "--online=100"],
            "--stack" => &["examples/quickstart.yaml", "--limit", "3", "--stack", "dynamo"],
            other => panic!("{other}: what is tried?"),
        };
        let done = windtunnel(["predict"]).args(given).output().unwrap();
        let expected = if cells[2].starts_with("is not there") { 2 } else { 0 };
        assert_eq!(done.status.code(), Some(expected), "{flag}: {}", err(&done));
        rows += 1;
    }
    assert_eq!(rows, 8);
    assert!(folder.path().join("requests.jsonl").is_file());
}
