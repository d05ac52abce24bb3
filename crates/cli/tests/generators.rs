//! The inputs of the golden traces are those that the generators in tools/oracle write, byte for byte.

mod common;

use common::{err, folder, names, root, unpacked};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::tempdir;

fn generate(script: &str, arguments: &[&str], into: &Path) -> bool {
    let made = Command::new("python3")
        .arg(root().join("tools/oracle").join(script))
        .args(arguments)
        .arg("--out")
        .arg(into)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output();
    match made {
        Ok(made) => {
            assert!(made.status.success(), "{}", err(&made));
            true
        }
        Err(e) => {
            println!("skipped: python3 does not start ({e})");
            false
        }
    }
}

/// Whether a scenario of a golden is byte for byte the one in `made`.
fn same_scenario(set: &str, name: &str, made: &Path) -> bool {
    let ours = folder(set).join("scenarios");
    let config = format!("{name}.config.json");
    let Ok(made_config) = fs::read(made.join("scenarios").join(&config)) else { return false };
    let made_requests = fs::read_to_string(made.join(format!("scenarios/{name}.requests.jsonl"))).unwrap();
    made_config == fs::read(ours.join(config)).unwrap()
        && made_requests == unpacked(&ours.join(format!("{name}.requests.jsonl.gz")))
}

fn golden_names(set: &str) -> Vec<String> {
    let files = names(&folder(set).join("golden"));
    files.iter().map(|file| file.strip_suffix(".jsonl.gz").unwrap().to_owned()).collect()
}

#[test]
fn the_generator_writes_the_hand_written_scenarios() {
    let made = tempdir().unwrap();
    if generate("gen_vllm.py", &[], made.path()) {
        let golden = golden_names("vllm");
        assert_eq!(names(&made.path().join("scenarios")).len(), 2 * golden.len());
        for name in golden {
            assert!(same_scenario("vllm", &name, made.path()), "{name}");
        }
    }
}

#[test]
fn the_generator_writes_the_scenarios_in_which_kv_moves() {
    let made = tempdir().unwrap();
    if generate("gen_vllm_kv.py", &[], made.path()) {
        for name in golden_names("vllm_kv") {
            assert!(same_scenario("vllm_kv", &name, made.path()), "{name}");
        }
    }
}

/// And the seed that the README gives for each random one.
#[test]
fn the_generator_writes_the_random_scenarios_from_their_seeds() {
    let readme = fs::read_to_string(folder("vllm_random").join("README.md")).unwrap();
    let made = tempdir().unwrap();
    for seed in ["1", "2"] {
        let into = made.path().join(seed);
        if !generate("gen_random_vllm.py", &["--seed", seed, "--count", "300", "--nasty", "3"], &into) {
            return;
        }
    }
    for name in golden_names("vllm_random") {
        let row = readme.lines().find(|line| line.starts_with(&format!("| {name} |")));
        let seed = row.unwrap_or_else(|| panic!("{name} is not in the README")).split(" | ").nth(1).unwrap();
        assert!(same_scenario("vllm_random", &name, &made.path().join(seed)), "{name} of seed {seed}");
    }
}

/// Those with a host tier come from seed 7.
#[test]
fn the_generator_writes_the_scenarios_with_a_host_tier() {
    let made = tempdir().unwrap();
    if generate("gen_random_sglang.py", &["--seed", "7", "--tiers", "36"], made.path()) {
        for name in golden_names("sglang_hicache") {
            assert!(same_scenario("sglang_hicache", &name, made.path()), "{name}");
        }
    }
}

/// Those with a disk behind the host come from seed 9.
#[test]
fn the_generator_writes_the_scenarios_with_a_disk() {
    let made = tempdir().unwrap();
    let arguments = ["--seed", "9", "--count", "60", "--kinds", "disk"];
    if generate("gen_random_vllm_kv.py", &arguments, made.path()) {
        let (ours, theirs) = (folder("vllm_disk").join("scenarios"), made.path().join("scenarios"));
        for name in golden_names("vllm_disk") {
            let config = format!("{name}.config.json");
            assert_eq!(fs::read(ours.join(&config)).unwrap(), fs::read(theirs.join(&config)).unwrap());
            let requests = format!("{name}.requests.jsonl.gz");
            assert!(unpacked(&ours.join(&requests)) == unpacked(&theirs.join(&requests)), "{name}");
        }
    }
}

/// Those of two more options come from the random ones of seed 1.
#[test]
fn the_generator_switches_the_two_options_on() {
    let made = tempdir().unwrap();
    let arguments = ["--seed", "1", "--count", "300", "--nasty", "3", "--options", "7"];
    if generate("gen_random_vllm.py", &arguments, made.path()) {
        for name in golden_names("vllm_options") {
            assert!(same_scenario("vllm_options", &name, made.path()), "{name}");
        }
    }
}
