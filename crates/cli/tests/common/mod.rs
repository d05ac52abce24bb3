//! What the tests of the program share: where things are, and how to run it.
#![allow(dead_code, reason = "every test file uses its own part")]

use flate2::read::GzDecoder;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The program under test.
pub const WINDTUNNEL: &str = env!("CARGO_BIN_EXE_windtunnel");

/// The root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The program with these arguments, at the root of the checkout.
pub fn windtunnel<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(WINDTUNNEL);
    command.args(arguments).current_dir(root());
    command
}

/// Runs a command line of bash in a folder; `windtunnel` is the program under test.
pub fn bash(line: &str, folder: &Path) -> Output {
    let script = format!("set -o pipefail\nwindtunnel() {{ \"$WINDTUNNEL\" \"$@\"; }}\n{line}\n");
    Command::new("bash")
        .args(["-c", &script])
        .env("WINDTUNNEL", WINDTUNNEL)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(folder)
        .output()
        .expect("bash is there")
}

/// Standard output as text.
pub fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Standard error as text.
pub fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Names in a folder, sorted; none if it does not exist.
pub fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Copies a folder and everything in it.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for name in names(from) {
        let (from, to) = (from.join(&name), to.join(&name));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).unwrap();
        }
    }
}

/// The folder of a set of goldens.
pub fn folder(set: &str) -> PathBuf {
    root().join("tests/golden").join(set)
}

/// The text of a gzipped file.
pub fn unpacked(path: &Path) -> String {
    let mut text = String::new();
    let packed = fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    GzDecoder::new(packed).read_to_string(&mut text).unwrap();
    text
}
