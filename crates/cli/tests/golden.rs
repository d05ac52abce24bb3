//! The golden traces of the real engines against our schedulers: every step of every scenario, in both
//! steppers; that a difference is found, whatever the key; and that the traces we write are theirs. Where the
//! inputs come from is the matter of generators.rs.

mod common;

use common::{copy, err, folder, names, out, root, unpacked, windtunnel};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use tempfile::{TempDir, tempdir};
use windtunnel_sim::Stepper;
use windtunnel_validate::conformance::{check_golden, find_goldens};

const STEPPERS: [Stepper; 2] = [Stepper::Plain, Stepper::Fast];

/// Folders of goldens, with what must be in them: a trace that gets lost must not go unnoticed.
const SETS: &[(&str, usize, u64)] = &[
    ("sglang", 18, 2650),
    ("sglang_edges", 5, 98),
    ("sglang_hicache", 13, 2896),
    ("sglang_random", 32, 3336),
    ("vllm", 29, 3860),
    ("vllm_disk", 12, 3324),
    ("vllm_dp", 4, 330),
    ("vllm_kv", 50, 4672),
    ("vllm_options", 7, 202),
    ("vllm_random", 36, 2456),
];

// ---- our schedulers are theirs ----

#[test]
fn no_step_of_any_golden_differs_in_either_stepper() {
    let sets: Vec<&str> = SETS.iter().map(|(set, ..)| *set).collect();
    assert_eq!(names(&root().join("tests/golden")), sets, "a set without its numbers in this file");
    for &(set, scenarios, steps) in SETS {
        let goldens = find_goldens(&[folder(set)]).unwrap();
        assert_eq!(goldens.len(), scenarios, "{set}");
        for stepper in STEPPERS {
            let mut seen = 0;
            for golden in &goldens {
                let result = check_golden(golden, stepper).unwrap();
                assert_eq!(result.differing, 0, "{set}, {stepper:?}: {result:?}");
                seen += result.steps;
            }
            assert_eq!(seen, steps, "{set}, {stepper:?}");
        }
    }
}

#[test]
fn check_prints_the_count_and_exits_with_0() {
    let scenarios: usize = SETS.iter().map(|(_, scenarios, _)| scenarios).sum();
    let steps: u64 = SETS.iter().map(|(.., steps)| steps).sum();
    for stepper in ["plain", "fast"] {
        let done = windtunnel(["conformance", "check", "--stepper", stepper])
            .args(SETS.iter().map(|(set, ..)| folder(set)))
            .output()
            .unwrap();
        assert_eq!(done.status.code(), Some(0), "{}", err(&done));
        assert_eq!(out(&done), format!("{scenarios} scenarios, {steps} steps, 0 differing\n"));
    }
}

/// `conformance run` writes what the real engine's driver writes: the same lines, but for what only a real
/// engine can say of itself.
#[test]
fn run_writes_the_lines_of_the_golden() {
    let target = tempdir().unwrap();
    for (set, engine, name) in [
        ("vllm", "vllm", "async_pressure"),
        ("vllm", "vllm", "priority_late_urgent"),
        ("vllm", "vllm", "aborts"),
        ("vllm_random", "vllm", "rand_00234_async_pressure_fcfs"),
        ("sglang", "sglang", "retract_overlap"),
        ("sglang", "sglang", "priority"),
        ("sglang", "sglang", "mixed_chunk"),
        ("sglang_edges", "sglang", "late_arrivals"),
        ("sglang_hicache", "sglang", "tier_00014_overlap_p4_fcfs_write_back"),
    ] {
        let scenario = folder(set).join("scenarios");
        let trace = target.path().join(format!("{name}.jsonl"));
        let done = windtunnel(["conformance", "run", "--engine", engine, "--config"])
            .arg(scenario.join(format!("{name}.config.json")))
            .arg("--requests")
            .arg(scenario.join(format!("{name}.requests.jsonl.gz")))
            .arg("--out")
            .arg(&trace)
            .output()
            .unwrap();
        assert_eq!(done.status.code(), Some(0), "{}", err(&done));
        let ours = fs::read_to_string(&trace).unwrap();
        let theirs = unpacked(&folder(set).join(format!("golden/{name}.jsonl.gz")));
        let (first, our_steps) = ours.split_once('\n').unwrap();
        let (their_first, their_steps) = theirs.split_once('\n').unwrap();
        assert!(our_steps == their_steps, "{name}: {:?}", first_differing_line(our_steps, their_steps));

        let config: Value = serde_json::from_str(first).unwrap();
        let mut their_config: Value = serde_json::from_str(their_first).unwrap();
        their_config["effective"].as_object_mut().unwrap().remove("use_v2_model_runner");
        assert_eq!(config, their_config, "{name}");
    }
}

fn first_differing_line<'a>(ours: &'a str, theirs: &'a str) -> Option<(&'a str, &'a str)> {
    ours.lines().zip(theirs.lines()).find(|(a, b)| a != b)
}

// ---- a difference is found ----

/// One golden with its inputs in a folder of its own, where it can be changed.
struct Copy {
    folder: TempDir,
    name: &'static str,
}

impl Copy {
    fn of(set: &str, name: &'static str) -> Copy {
        let to = tempdir().unwrap();
        for file in [format!("{name}.config.json"), format!("{name}.requests.jsonl.gz")] {
            fs::copy(folder(set).join("scenarios").join(&file), to.path().join(&file)).unwrap();
        }
        fs::copy(folder(set).join(format!("golden/{name}.jsonl.gz")), to.path().join("original.gz")).unwrap();
        Copy { folder: to, name }
    }

    fn lines(&self) -> Vec<Value> {
        let text = unpacked(&self.folder.path().join("original.gz"));
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Writes the golden with these lines.
    fn write(&self, lines: &[Value]) -> PathBuf {
        let path = self.folder.path().join(format!("{}.jsonl.gz", self.name));
        let mut file = GzEncoder::new(fs::File::create(&path).unwrap(), Compression::fast());
        for line in lines {
            writeln!(file, "{line}").unwrap();
        }
        file.finish().unwrap();
        path
    }
}

#[test]
fn one_changed_number_is_reported_with_step_key_and_both_values() {
    let golden = Copy::of("vllm", "async_pressure");
    let mut lines = golden.lines();
    // Line 0 is the config, so step 41 is line 42.
    let right = lines[42]["free_after_sched"].as_u64().unwrap();
    lines[42]["free_after_sched"] = json!(right + 1);
    let path = golden.write(&lines);

    let done = windtunnel(["conformance", "check"]).arg(&path).output().unwrap();
    assert_eq!(done.status.code(), Some(1));
    assert_eq!(
        out(&done),
        format!(
            "{}:43: 1 of 204 steps differ, first step 41\n  key    free_after_sched\n  \
             ours   {right}\n  theirs {}\n1 scenario, 204 steps, 1 differing\n",
            path.display(),
            right + 1
        )
    );
    assert_eq!(err(&done), "");

    let done = windtunnel(["conformance", "check", "--json"]).arg(&path).output().unwrap();
    assert_eq!(done.status.code(), Some(1));
    let result: Value = serde_json::from_str(&out(&done)).unwrap();
    assert_eq!(
        result,
        json!({
            "scenarios": 1, "steps": 204, "differing": 1,
            "results": [{
                "golden": path, "name": "async_pressure", "steps": 204, "differing": 1,
                "summary_differs": false, "missing_lines": 0, "extra_lines": 0,
                "first": {"line": 43, "step": 41, "key": "free_after_sched", "ours": right, "theirs": right + 1},
            }],
            "errors": [],
        })
    );
}

/// Of several keys that differ in a step, the one that comes first in the step is named.
#[test]
fn the_cause_is_named_before_its_consequences() {
    let golden = Copy::of("vllm", "async_pressure");
    let mut lines = golden.lines();
    for key in ["cached_blocks", "computed", "free_before", "sched"] {
        lines[30][key] = json!("changed");
    }
    lines[31]["total"] = json!(0);
    let result = check_golden(&golden.write(&lines), Stepper::Fast).unwrap();
    let first = result.first.unwrap();
    assert_eq!((result.differing, first.step, first.key.as_str()), (2, Some(29), "sched"));
}

/// Every key of a step and of the summary is compared: changed, missing or additional.
#[test]
fn no_key_goes_unread() {
    every_key_is_read(&Copy::of("vllm_random", "rand_00234_async_pressure_fcfs"), 29, |line| {
        line["step"] == 19
    });
}

/// And of a step in which KV moves, on either side.
#[test]
fn no_key_of_a_transfer_goes_unread() {
    every_key_is_read(&Copy::of("vllm_kv", "d_pressure_shared_async"), 42, |line| line["step"] == 46);
    let loads = |line: &Value| line["load_jobs"].as_array().is_some_and(|jobs| !jobs.is_empty());
    every_key_is_read(&Copy::of("vllm_kv", "offload_reload"), 42, loads);
    every_key_is_read(&Copy::of("vllm_kv", "p_mixed_decode_async"), 42, |line| line["stale"].is_array());
}

/// And of a pass of each kind that SGLang has.
#[test]
fn no_key_of_sglang_goes_unread() {
    let golden = Copy::of("sglang", "chunked_overlap");
    every_key_is_read(&golden, 35, |line| line["mode"] == "EXTEND" && !line["chunked_req"].is_null());
    every_key_is_read(&golden, 30, |line| line["mode"] == "DECODE");
    every_key_is_read(&Copy::of("sglang", "mixed_chunk"), 34, |line| line["mode"] == "MIXED");
    // Its first pass has no batch.
    let without = |line: &Value| line["kind"] == "step" && line["mode"].is_null();
    every_key_is_read(&Copy::of("sglang_edges", "late_arrivals"), 27, without);
}

fn every_key_is_read(golden: &Copy, step_keys: usize, is_step: impl Fn(&Value) -> bool) {
    let lines = golden.lines();
    let last = lines.len() - 1;
    let step = lines.iter().position(is_step).unwrap();
    for at in [step, last] {
        let keys: Vec<String> = lines[at].as_object().unwrap().keys().cloned().collect();
        assert!(keys.len() >= if at == last { 7 } else { step_keys }, "{keys:?}");
        for key in keys {
            let changed = match &lines[at][&key] {
                Value::Number(n) => json!(n.as_f64().unwrap() + 0.01),
                Value::Bool(b) => json!(!b),
                Value::String(_) => json!("other"),
                Value::Array(items) if items.is_empty() => json!(["r000"]),
                Value::Array(items) => json!(items[1..]),
                Value::Object(entries) if entries.is_empty() => json!({"r000": 1}),
                Value::Object(_) => json!({}),
                Value::Null => json!(0),
            };
            let mut other = lines.clone();
            other[at][&key] = changed.clone();
            let mut without = lines.clone();
            without[at].as_object_mut().unwrap().remove(&key);
            for (lines, theirs) in [(other, changed), (without, Value::Null)] {
                for stepper in STEPPERS {
                    let result = check_golden(&golden.write(&lines), stepper).unwrap();
                    let first = result.first.unwrap_or_else(|| panic!("{key} = {theirs} went unread"));
                    let step = (at < last).then_some(at as u64 - 1);
                    let differs = (u64::from(at < last), at == last);
                    assert_eq!((result.differing, result.summary_differs), differs, "{key}");
                    assert_eq!((first.step, first.line), (step, Some(at + 1)), "{key}");
                    assert_eq!((first.key, first.theirs), (key.clone(), theirs.clone()));
                }
            }
        }
        let mut more = lines.clone();
        more[at]["lora"] = json!(1);
        let first = check_golden(&golden.write(&more), Stepper::Fast).unwrap().first.unwrap();
        assert_eq!((first.key.as_str(), first.ours), ("lora", Value::Null));
    }
}

/// Numbers are equal to a thousandth: a microsecond of a time in milliseconds.
#[test]
fn times_are_compared_to_a_thousandth() {
    let golden = Copy::of("vllm", "plain");
    let lines = golden.lines();
    let differing = |by: f64| {
        let mut lines = lines.clone();
        lines[9]["t_end_ms"] = json!(lines[9]["t_end_ms"].as_f64().unwrap() + by);
        check_golden(&golden.write(&lines), Stepper::Fast).unwrap().differing
    };
    assert_eq!(differing(0.0009), 0);
    assert_eq!(differing(-0.0009), 0);
    assert_eq!(differing(0.0011), 1);
}

#[test]
fn a_trace_that_is_cut_short_or_goes_on_differs() {
    let golden = Copy::of("vllm", "plain");
    let lines = golden.lines();
    let result = check_golden(&golden.write(&lines[..40]), Stepper::Fast).unwrap();
    let first = result.first.unwrap();
    // The config and 39 steps are there; the other 6 steps and the summary are not.
    assert_eq!((first.step, first.line, first.key.as_str()), (Some(39), None, "line"));
    assert_eq!((result.steps, result.differing, result.missing_lines), (39, 0, 7));

    let mut longer = lines.clone();
    longer.push(lines[lines.len() - 2].clone());
    let result = check_golden(&golden.write(&longer), Stepper::Fast).unwrap();
    assert_eq!((result.steps, result.differing, result.extra_lines), (45, 0, 1));
    assert_eq!(result.first.unwrap().ours, Value::Null);

    // A step more before the summary: the summary is still compared with the summary.
    let mut inserted = lines.clone();
    inserted.insert(lines.len() - 1, lines[lines.len() - 2].clone());
    let path = golden.write(&inserted);
    let result = check_golden(&path, Stepper::Fast).unwrap();
    assert_eq!((result.steps, result.differing, result.extra_lines), (45, 0, 1));
    assert!(!result.summary_differs);
    let done = windtunnel(["conformance", "check"]).arg(&path).output().unwrap();
    assert_eq!(done.status.code(), Some(1));
    let said = out(&done);
    assert!(said.contains("plain.jsonl.gz:47: has 1 line that ours lacks\n"), "{said}");
    assert!(
        said.ends_with("\n1 scenario, 45 steps, 0 differing, 1 scenario with another difference\n"),
        "{said}"
    );

    // Every step and the summary.
    let mut other = lines.clone();
    other[1..].iter_mut().for_each(|line| line["more"] = json!(1));
    let path = golden.write(&other);
    let done = windtunnel(["conformance", "check"]).arg(&path).output().unwrap();
    let said = out(&done);
    let fact = "plain.jsonl.gz:2: 45 of 45 steps differ, first step 0; the summary differs\n";
    assert!(said.contains(fact), "{said}");
    assert!(said.ends_with("\n1 scenario, 45 steps, 45 differing\n"), "{said}");
}

/// What is wrong with one scenario is said with its file, and the others are checked all the same.
#[test]
fn a_bad_scenario_does_not_end_the_check() {
    let golden = Copy::of("vllm", "plain");
    let good = golden.write(&golden.lines());
    let at = golden.folder.path();
    let bad = at.join("bad.jsonl");
    fs::copy(at.join("plain.requests.jsonl.gz"), at.join("bad.requests.jsonl.gz")).unwrap();
    fs::write(&bad, "{\"kind\":\"config\",\"engine\":\"vllm\"}\n").unwrap();
    let missing = at.join("missing.jsonl");
    let check = |more: &[&str]| {
        windtunnel(["conformance", "check"]).args(more).args([&bad, &missing, &good]).output().unwrap()
    };
    let configs = [
        ("[101]", ":1: must be one JSON object"),
        ("\n5", ":2: must be one JSON object"),
        (
            "{\n\"num_blocks\": \"x\"}",
            ":2: num_blocks: column 17: invalid type: string \"x\", expected an integer from 0 to 4294967295",
        ),
        ("{\"num_blocks\": 0}", ": "),
    ];
    for (config, reason) in configs {
        let file = at.join("bad.config.json");
        fs::write(&file, config).unwrap();
        let done = check(&[]);
        assert_eq!(done.status.code(), Some(2));
        assert_eq!(out(&done), "1 scenario, 45 steps, 0 differing, 2 errors\n");
        let said = err(&done);
        let first = format!("error: {}: {}{reason}", bad.display(), file.display());
        assert!(said.starts_with(&first), "{said}");
        assert!(
            said.contains(&format!("\nerror: {}: needs missing.config.json", missing.display())),
            "{said}"
        );
    }
    let json: Value = serde_json::from_str(&out(&check(&["--json"]))).unwrap();
    assert_eq!((&json["scenarios"], &json["steps"]), (&json!(1), &json!(45)));
    assert_eq!(json["errors"][0]["golden"], json!(bad));
    assert_eq!(json["errors"].as_array().unwrap().len(), 2);
}

#[test]
fn a_trace_of_another_engine_is_an_error() {
    let golden = Copy::of("vllm", "plain");
    let mut lines = golden.lines();
    lines[0]["engine"] = json!("trtllm");
    let path = golden.write(&lines);
    let error = check_golden(&path, Stepper::Fast).unwrap_err().to_string();
    let reason = "a trace of engine trtllm; only those of vllm and sglang can be checked";
    assert_eq!(error, format!("{}:1: {reason}", path.display()));
    // The golden says whose keys the config has.
    lines[0]["engine"] = json!("sglang");
    let error = check_golden(&golden.write(&lines), Stepper::Fast).unwrap_err().to_string();
    assert!(error.contains("plain.config.json:2: column 13: unknown field `num_blocks`"), "{error}");
}

/// `run` takes the engine from its option, or from the config, or it is vLLM.
#[test]
fn the_engine_is_that_of_the_option_or_of_the_config() {
    let golden = Copy::of("vllm", "plain");
    let run = |config: &str, engine: &[&str]| {
        fs::write(golden.folder.path().join("c.json"), config).unwrap();
        windtunnel(["conformance", "run", "--config", "c.json", "--requests", "plain.requests.jsonl.gz"])
            .args(engine)
            .current_dir(golden.folder.path())
            .output()
            .unwrap()
    };
    for (config, engine) in [("{}", &[][..]), ("{}", &["--engine", "vllm"]), ("{\"engine\": \"vllm\"}", &[])]
    {
        let done = run(config, engine);
        assert!(out(&done).starts_with("{\"kind\":\"config\",\"engine\":\"vllm\","), "{}", err(&done));
    }
    let refused = [
        (
            "{\n\"engine\": \"vllm\"}",
            &["--engine", "sglang"][..],
            "2: engine: is vllm, but sglang was asked for",
        ),
        ("{\"engine\": \"trtllm\"}", &[], "1: engine: got trtllm; allowed are vllm, sglang"),
        ("{\"page_size\": 1}", &[], "1: column 12: unknown field `page_size`"),
        (
            "{\"engine\": \"sglang\",\n\"schedule_policy\": \"hrrn\"}",
            &[],
            "2: schedule_policy: got hrrn; allowed are fcfs, lpm, dfs-weight, lof, random",
        ),
        ("{\"num_blocks\": 3}", &["--engine", "sglang"], "1: column 13: unknown field `num_blocks`"),
    ];
    for (config, engine, reason) in refused {
        let done = run(config, engine);
        assert_eq!(done.status.code(), Some(2));
        assert!(err(&done).starts_with(&format!("error: c.json:{reason}")), "{}", err(&done));
    }
}

/// `run --out`: gzip by name, always the same bytes, and never over its inputs.
#[test]
fn run_packs_by_name_and_spares_its_inputs() {
    let golden = Copy::of("vllm", "plain");
    let at = golden.folder.path();
    let run = |requests: &str, to: &str| {
        windtunnel([
            "conformance",
            "run",
            "--config",
            "plain.config.json",
            "--requests",
            requests,
            "--out",
            to,
        ])
        .current_dir(at)
        .output()
        .unwrap()
    };
    for to in ["t.jsonl", "t.jsonl.gz"] {
        assert_eq!(run("plain.requests.jsonl.gz", to).status.code(), Some(0));
    }
    assert_eq!(unpacked(&at.join("t.jsonl.gz")), fs::read_to_string(at.join("t.jsonl")).unwrap());
    let packed = fs::read(at.join("t.jsonl.gz")).unwrap();
    // Magic, deflate, no flags, and no time.
    assert_eq!(packed[..8], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0]);

    let before = fs::read(at.join("plain.config.json")).unwrap();
    for (to, option) in [("./plain.config.json", "--config"), ("plain.requests.jsonl.gz", "--requests")] {
        let done = run("plain.requests.jsonl.gz", to);
        assert_eq!(done.status.code(), Some(2));
        assert_eq!(err(&done), format!("error: --out: {to} is the file of {option}\n"));
    }
    assert_eq!(fs::read(at.join("plain.config.json")).unwrap(), before);

    let request = r#"{"id":"a","prompt_token_ids":[1],"max_tokens":1"#;
    for (line, reason) in [
        (
            r#","arrival_ms":1,"arrival_step":2}"#,
            "arrival_step: arrival_ms is given too; a request has one of them",
        ),
        (r#","abort_ms":2}"#, "abort_ms: a scenario without kv_role aborts by abort_step"),
        (r#","remote_prefill":true}"#, "remote_prefill: needs a kv_role in the config"),
        (r#"}"#, "id: \"a\" stands twice"),
    ] {
        fs::write(
            at.join("r.jsonl"),
            format!("{request}}}\n\n{request}{line}\n").replacen(
                "\"a\"",
                if line == "}" { "\"a\"" } else { "\"b\"" },
                1,
            ),
        )
        .unwrap();
        let done = run("r.jsonl", "t.jsonl");
        assert_eq!(done.status.code(), Some(2));
        assert_eq!(err(&done), format!("error: r.jsonl:3: {reason}\n"));
    }
}

#[test]
fn a_golden_that_cannot_be_read_is_an_error_with_its_line() {
    let golden = Copy::of("vllm", "plain");
    let path = golden.folder.path().join("plain.jsonl");
    let text = unpacked(&golden.folder.path().join("original.gz"));
    let broken: Vec<&str> = text.lines().take(3).chain(["{not json"]).collect();
    fs::write(&path, broken.join("\n")).unwrap();
    let done = windtunnel(["conformance", "check"]).arg(&path).output().unwrap();
    assert_eq!(done.status.code(), Some(2));
    assert!(err(&done).contains("plain.jsonl:4: "), "{}", err(&done));

    // Its first line must be that of a trace.
    fs::write(&path, text.lines().skip(1).collect::<Vec<_>>().join("\n")).unwrap();
    let done = windtunnel(["conformance", "check"]).arg(&path).output().unwrap();
    assert_eq!(done.status.code(), Some(2));
    assert!(
        err(&done).contains("plain.jsonl:1: is not the first line of a trace, of kind config"),
        "{}",
        err(&done)
    );
}

// ---- finding goldens ----

/// A folder with goldens in it, or a folder of folders named on the command line: both are found, and the
/// requests beside the traces are not taken for traces.
#[test]
fn goldens_are_found_in_every_layout() {
    let place = tempdir().unwrap();
    let flat = place.path().join("flat");
    copy(&folder("vllm").join("scenarios"), &flat);
    copy(&folder("vllm").join("golden"), &flat);
    let found = find_goldens(std::slice::from_ref(&flat)).unwrap();
    assert_eq!(found.len(), 29);
    let both = find_goldens(&[flat.clone(), flat.join("plain.jsonl.gz")]).unwrap();
    assert_eq!(both, found, "each golden once");
    assert_eq!(check_golden(&flat.join("plain.jsonl.gz"), Stepper::Fast).unwrap().differing, 0);
}
