//! The documentation against the program: its commands run and print what it says, its links lead
//! somewhere, and its list of dependencies is that of the manifests.
//!
//! Commands stand in fenced blocks. In a `sh` or `bash` block every line is one; in a `console` block those
//! that begin with `$ `, and the lines below one are what it prints on standard output (a line `...` stands
//! for any number of lines; a command without such lines may print anything). Each document has a copy of
//! the examples, goldens and tools for itself, in which its commands run from top to bottom. A comment
//! `<!-- not run: REASON -->` on the line above a block says why its commands are not run.

mod common;

use common::{bash, copy, err, names, out, root};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::{TempDir, tempdir};

// ---- documents ----

/// All documents, relative to the root.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for name in names(&root().join(&folder)) {
            let path = folder.join(&name);
            let generated = name.starts_with('.') || name == "target" || name == "node_modules";
            if root().join(&path).is_dir() && !generated {
                folders.push(path);
            } else if name.ends_with(".md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn text(document: &Path) -> String {
    fs::read_to_string(root().join(document)).unwrap()
}

/// A fenced block.
#[derive(Debug, PartialEq)]
struct Block {
    /// Its first line, counted from 1.
    line: usize,
    /// What stands behind the fence.
    language: String,
    lines: Vec<String>,
    /// Why it is not run.
    not_run: Option<String>,
}

fn blocks(text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut not_run = None;
    let mut open: Option<(Block, String)> = None;
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        if let Some((block, fence)) = &mut open {
            if trimmed == fence {
                found.extend(open.take().map(|(block, _)| block));
            } else {
                block.lines.push(line.to_owned());
            }
            continue;
        }
        let marks = trimmed.chars().take_while(|&c| c == '`').count();
        if marks >= 3 {
            let language = trimmed[marks..].trim().to_owned();
            let block = Block { line: number + 2, language, lines: Vec::new(), not_run: not_run.take() };
            open = Some((block, "`".repeat(marks)));
        } else if !trimmed.is_empty() {
            not_run = trimmed
                .strip_prefix("<!-- not run:")
                .and_then(|rest| rest.strip_suffix("-->"))
                .map(|reason| reason.trim().to_owned());
        }
    }
    assert!(open.is_none(), "a block without an end");
    found
}

// ---- commands ----

/// A command line, and what it prints if the document says so.
#[derive(Debug, PartialEq)]
struct Step {
    line: usize,
    command: String,
    prints: Option<Vec<String>>,
}

/// The commands of a block, if it is one of commands.
fn steps(block: &Block) -> Vec<Step> {
    let lines = block.lines.iter().enumerate().map(|(i, line)| (block.line + i, line.as_str()));
    let mut steps: Vec<Step> = Vec::new();
    match block.language.as_str() {
        "sh" | "bash" => {
            let mut goes_on = false;
            for (line, text) in lines {
                let blank = text.trim().is_empty() || text.trim_start().starts_with('#');
                match steps.last_mut() {
                    Some(step) if goes_on => step.command += &format!("\n{text}"),
                    _ if blank => continue,
                    _ => steps.push(Step { line, command: text.to_owned(), prints: None }),
                }
                goes_on = text.ends_with('\\');
            }
        }
        "console" => {
            let mut goes_on = false;
            for (line, text) in lines {
                if goes_on && let Some(step) = steps.last_mut() {
                    step.command += &format!("\n{}", text.strip_prefix("> ").unwrap_or(text));
                    goes_on = text.ends_with('\\');
                } else if let Some(command) = text.strip_prefix("$ ") {
                    steps.push(Step { line, command: command.to_owned(), prints: None });
                    goes_on = text.ends_with('\\');
                } else if let Some(step) = steps.last_mut() {
                    step.prints.get_or_insert_default().push(text.trim_end().to_owned());
                }
            }
        }
        _ => {}
    }
    steps
}

/// The command as it is run here: with the program that is under test.
fn runnable(command: &str) -> String {
    command
        .replace("cargo run --release -- ", "windtunnel ")
        .replace("target/release/windtunnel ", "windtunnel ")
}

/// A folder with what the commands of a document need.
fn checkout() -> TempDir {
    let place = tempdir().unwrap();
    for folder in ["examples", "tests/golden", "tools"] {
        copy(&root().join(folder), &place.path().join(folder));
    }
    place
}

/// Whether lines were printed as the document has them; a line `...` stands for any lines.
fn prints(expected: &[String], printed: &[&str]) -> bool {
    match expected.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if first == "..." => {
            (0..=printed.len()).any(|skipped| prints(rest, &printed[skipped..]))
        }
        Some((first, rest)) => {
            printed.split_first().is_some_and(|(line, lines)| first == line && prints(rest, lines))
        }
    }
}

#[test]
fn every_command_runs_and_prints_what_its_document_says() {
    let (mut run, mut documents_with_commands) = (0, BTreeSet::new());
    let mut failures = Vec::new();
    let python = Command::new("python3").arg("--version").output().is_ok();
    for document in documents() {
        let mut place = None;
        for block in blocks(&text(&document)) {
            let steps = steps(&block);
            if steps.is_empty() {
                continue;
            }
            if let Some(reason) = &block.not_run {
                println!("not run: {}:{}: {reason}", document.display(), block.line);
                continue;
            }
            let place = place.get_or_insert_with(checkout);
            for step in steps {
                if step.command.starts_with("python3 ") && !python {
                    println!("skipped: {}:{}: there is no python3", document.display(), step.line);
                    continue;
                }
                let at = format!("{}:{}: {}", document.display(), step.line, step.command);
                let done = bash(&runnable(&step.command), place.path());
                let printed = out(&done);
                let lines: Vec<&str> = printed.lines().map(str::trim_end).collect();
                if !done.status.success() {
                    failures.push(format!("{at}\nended with {}\n{}", done.status, err(&done)));
                } else if let Some(expected) = step.prints.filter(|expected| !prints(expected, &lines)) {
                    let expected = expected.join("\n");
                    failures.push(format!("{at}\nprints\n{printed}\nthe document has\n{expected}"));
                }
                run += 1;
                documents_with_commands.insert(document.clone());
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    // If the blocks were not found any more, all of this would pass.
    assert!(run >= 15 && documents_with_commands.len() >= 4, "{run} commands in {documents_with_commands:?}");
}

/// A command in a block that the test above does not take for one would never run.
#[test]
fn commands_stand_in_blocks_of_commands() {
    const COMMANDS: [&str; 7] = ["$ ", "windtunnel ", "cargo ", "./", "python3 ", "pip ", "git "];
    for document in documents() {
        for block in blocks(&text(&document)) {
            let at = format!("{}:{}", document.display(), block.line);
            let is_shell = ["sh", "bash", "console"].contains(&block.language.as_str());
            if !is_shell {
                let command = block.lines.iter().find(|line| COMMANDS.iter().any(|c| line.starts_with(c)));
                assert_eq!(command, None, "{at}: in a block of {:?}", block.language);
            }
            assert!(block.not_run.is_none() || is_shell, "{at}: not run, but no commands");
            assert_ne!(block.not_run.as_deref(), Some(""), "{at}: not run without a reason");
            if is_shell {
                assert!(!steps(&block).is_empty(), "{at}: no command");
            }
        }
    }
}

#[test]
fn blocks_and_their_commands_are_found() {
    let text = "\
Text.

<!-- not run: needs a download -->

```sh
# a comment
curl example.org \\
  --output x

tar xf x
```

<!-- not run: forgotten -->
More text.
```console
$ windtunnel schema \\
> | head -1
{

$ true
```
````md
```sh
no command
```
````
";
    let blocks = blocks(text);
    assert_eq!(blocks.len(), 3);
    assert_eq!(blocks[0].not_run.as_deref(), Some("needs a download"));
    let step = |line, command: &str, prints| Step { line, command: command.to_owned(), prints };
    assert_eq!(
        steps(&blocks[0]),
        [step(7, "curl example.org \\\n  --output x", None), step(10, "tar xf x", None)]
    );
    assert_eq!(blocks[1].not_run, None);
    assert_eq!(
        steps(&blocks[1]),
        [
            step(16, "windtunnel schema \\\n| head -1", Some(vec!["{".to_owned(), String::new()])),
            step(20, "true", None)
        ]
    );
    assert_eq!(steps(&blocks[2]), []);
}

#[test]
fn dots_stand_for_any_lines() {
    let expected = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(prints(&expected("a\n...\nd"), &["a", "b", "c", "d"]));
    assert!(prints(&expected("a\n..."), &["a"]));
    assert!(prints(&expected("...\nd\n"), &["d", "d"]));
    assert!(!prints(&expected("a\n...\nd"), &["a", "b"]));
    assert!(!prints(&expected("a"), &["a", "b"]));
    assert!(!prints(&expected("a\nb"), &["a"]));
}

// ---- links ----

/// The name by which a heading can be linked to.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Text outside of fenced blocks.
fn prose(text: &str) -> Vec<&str> {
    let mut inside = false;
    text.lines()
        .filter(|line| {
            let fence = line.trim_start().starts_with("```");
            inside ^= fence;
            !inside && !fence
        })
        .collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).into_iter().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let mut seen = 0;
    for document in documents() {
        let own = text(&document);
        let prose = prose(&own).join("\n");
        for link in prose.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            if link.contains("://") {
                continue;
            }
            seen += 1;
            let (path, section) = link.split_once('#').unwrap_or((link, ""));
            let at = format!("{}: ({link})", document.display());
            let target = match path {
                "" => root().join(&document),
                path => root().join(document.parent().unwrap()).join(path),
            };
            assert!(target.exists(), "{at}: there is no such file");
            if !section.is_empty() {
                let there = fs::read_to_string(&target).unwrap();
                assert!(anchors(&there).contains(section), "{at}: there is no such heading");
            }
        }
    }
    assert!(seen >= 10, "{seen} links");
}

// ---- dependencies ----

/// Dependency → who uses it, as docs/dependencies.md writes it.
type Users = BTreeMap<String, BTreeSet<String>>;

fn documented_dependencies() -> Users {
    let mut users = Users::new();
    for line in text(Path::new("docs/dependencies.md")).lines() {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [name, used_by, why] = cells[..] else { continue };
        if name == "dependency" || name.starts_with('-') {
            continue;
        }
        assert!(why.len() > 10, "{name}: no reason");
        let row = users.entry(name.to_owned()).or_default();
        for group in used_by.split("; ") {
            let (tests, crates) = match group.strip_prefix("tests of ") {
                Some(crates) => ("tests of ", crates),
                None => ("", group),
            };
            row.extend(crates.split(", ").map(|user| format!("{tests}{user}")));
        }
    }
    users
}

fn declared_dependencies() -> Users {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", err(&metadata));
    let metadata: Value = serde_json::from_str(&out(&metadata)).unwrap();
    let mut users = Users::new();
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let name = name.strip_prefix("windtunnel-").unwrap_or("cli");
        for dependency in package["dependencies"].as_array().unwrap() {
            let internal = dependency["source"].is_null();
            if internal {
                continue;
            }
            let tests = if dependency["kind"] == "dev" { "tests of " } else { "" };
            let of = dependency["name"].as_str().unwrap().to_owned();
            users.entry(of).or_default().insert(format!("{tests}{name}"));
        }
    }
    users
}

#[test]
fn every_dependency_is_explained_where_it_is_used() {
    let (documented, declared) = (documented_dependencies(), declared_dependencies());
    assert!(declared.len() > 10);
    for (name, users) in &declared {
        assert_eq!(documented.get(name), Some(users), "docs/dependencies.md: {name}");
    }
    for name in documented.keys() {
        assert!(declared.contains_key(name), "docs/dependencies.md: {name} is not a dependency");
    }
}
