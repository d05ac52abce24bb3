//! Timing from measured files: a profile, which Dynamo's profiler saves with `numpy.savez`, or the same as JSON; and a
//! table.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use windtunnel_config::load;
use windtunnel_engine::{Chunk, DecodeSet, Nanos, Shape};
use windtunnel_perf::TimingModel;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

const CONFIG: &str = "\
engine:
  model: m
  hardware: h
  workers:
    aggregated:
      kv_cache: {capacity: {type: fixed, blocks: 1024}}
      timing: {type: ";

const JSON: &str = r#"{"prefill_isl": [100, 300], "prefill_ttft_ms": [10, 50],
    "decode_active_kv_tokens": [1000, 3000], "decode_context_length": [100, 500], "decode_itl": [[5, 7], [10, 16]]}"#;

/// The timing of a deployment whose profile is the file `name` beside it, or what is said against it.
fn timing(folder: &Path, name: &str) -> Result<TimingModel, String> {
    timing_of("profile", folder, name)
}

fn timing_of(kind: &str, folder: &Path, name: &str) -> Result<TimingModel, String> {
    let path = folder.join("case.yaml");
    std::fs::write(&path, format!("{CONFIG}{kind}, path: {name}}}\n")).unwrap();
    let said = load(&path, &[]).map(|experiment| experiment.deployment.timing);
    said.map_err(|error| error.to_string().replace(&format!("{}/", folder.display()), ""))
}

/// An array as numpy saves it.
fn npy(shape: &str, values: &[f64]) -> Vec<u8> {
    let header = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

fn npz(path: &Path, arrays: &[(&str, Vec<u8>)]) {
    let mut archive = ZipWriter::new(File::create(path).unwrap());
    for (name, bytes) in arrays {
        archive.start_file(format!("{name}.npy"), SimpleFileOptions::default()).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap();
}

fn arrays() -> [(&'static str, Vec<u8>); 5] {
    [
        ("prefill_isl", npy("(2,)", &[100.0, 300.0])),
        ("prefill_ttft_ms", npy("(2,)", &[10.0, 50.0])),
        ("decode_active_kv_tokens", npy("(2,)", &[1000.0, 3000.0])),
        ("decode_context_length", npy("(2,)", &[100.0, 500.0])),
        ("decode_itl", npy("(2, 2)", &[5.0, 7.0, 10.0, 16.0])),
    ]
}

#[test]
fn a_profile_gives_the_same_times_from_either_file() {
    let at = tempfile::tempdir().unwrap();
    std::fs::write(at.path().join("profile.json"), JSON).unwrap();
    npz(&at.path().join("profile.npz"), &arrays());
    for name in ["profile.json", "profile.npz"] {
        let model = timing(at.path(), name).unwrap();
        let mut decode = DecodeSet::default();
        // Ten requests: 2,000 tokens of context, 200 on average; halfway down and a quarter to the right.
        (0..10).for_each(|_| decode.add(200));
        let chunks = [Chunk { new_tokens: 150, before: 50 }, Chunk { new_tokens: 50, before: 0 }];
        let ms = |prefill: &[Chunk], decode| model.pass_duration(&Shape { prefill, decode });
        assert_eq!(ms(&chunks, DecodeSet::default()), Nanos(30_000_000), "{name}: 200 new tokens");
        assert_eq!(ms(&[], decode), Nanos(8_500_000), "{name}: between 5.5 and 11.5 ms");
        assert_eq!(ms(&chunks, decode), Nanos(38_500_000), "{name}: both");
        assert!(!model.outside().prefill() && !model.outside().decode());
        ms(&[Chunk { new_tokens: 301, before: 0 }], decode);
        assert!(model.outside().prefill() && !model.outside().decode(), "{name}");
    }
}

#[test]
fn what_is_no_profile_is_refused() {
    let at = tempfile::tempdir().unwrap();
    let key = "case.yaml, line 7: engine.workers.aggregated.timing.path: got";
    let json = |text: &str| {
        std::fs::write(at.path().join("p.json"), text).unwrap();
        timing(at.path(), "p.json").unwrap_err()
    };
    assert_eq!(
        json(&JSON.replace("[100, 300]", "[300, 100]")),
        format!("{key} \"p.json\"; prefill_isl: 100 must be above the value before (300)")
    );
    assert_eq!(
        json(&JSON.replace("prefill_isl", "isl")),
        format!(
            "{key} \"p.json\"; not a profile: unknown field `isl`, expected one of `prefill_isl`, `prefill_ttft_ms`, \
             `decode_active_kv_tokens`, `decode_context_length`, `decode_itl` at line 1 column 6"
        )
    );
    npz(&at.path().join("p.npz"), &arrays()[..2]);
    assert_eq!(
        timing(at.path(), "p.npz").unwrap_err(),
        format!("{key} \"p.npz\"; decode_active_kv_tokens: missing; it holds prefill_isl, prefill_ttft_ms")
    );
    std::fs::write(at.path().join("q.npz"), "PK").unwrap();
    assert!(
        timing(at.path(), "q.npz").unwrap_err().starts_with(&format!("{key} \"q.npz\"; not a .npz file: "))
    );
    std::fs::write(at.path().join("p.csv"), "").unwrap();
    assert_eq!(
        timing(at.path(), "p.csv").unwrap_err(),
        format!("{key} \"p.csv\"; a profile is a .npz or a .json file")
    );
    assert_eq!(
        timing(at.path(), "none.json").unwrap_err(),
        format!(
            "{key} \"none.json\"; there is no such file, neither as none.json nor in the working directory"
        )
    );
}

#[test]
fn a_table_is_one_term_for_the_whole_pass() {
    let at = tempfile::tempdir().unwrap();
    let text = r#"{"about": "a day in May", "tokens": [1, 100, 200], "pass_ms": [5, 6, 16],
        "per_new_times_context_ms": 0.0001, "per_sequence_ms": 0.01, "per_context_token_ms": 0.002}"#;
    std::fs::write(at.path().join("table.json"), text).unwrap();
    let model = timing_of("table", at.path(), "table.json").unwrap();
    let mut decode = DecodeSet::default();
    (0..10).for_each(|_| decode.add(200));
    let chunks = [Chunk { new_tokens: 100, before: 50 }, Chunk { new_tokens: 40, before: 0 }];
    let ms = |prefill: &[Chunk], decode| model.pass_duration(&Shape { prefill, decode });
    // 150 tokens are 11 ms; 100·150 + 40·40 = 16,600; 12 sequences; 2,000 tokens of context.
    assert_eq!(ms(&chunks, decode), Nanos(11_000_000 + 1_660_000 + 120_000 + 4_000_000));
    // The line between 1 and 100 tokens, at 10.
    assert_eq!(ms(&[], decode), Nanos(5_090_909 + 100_000 + 4_000_000));
    assert_eq!(model.steady_duration(decode), None, "contexts grow");
    assert!(!model.outside().prefill() && !model.outside().decode());
    ms(&[Chunk { new_tokens: 201, before: 0 }], DecodeSet::default());
    assert!(model.outside().prefill() && !model.outside().decode());
}

#[test]
fn what_is_no_table_is_refused() {
    let at = tempfile::tempdir().unwrap();
    let key = "case.yaml, line 7: engine.workers.aggregated.timing.path: got \"t.json\"; ";
    for (text, problem) in [
        (r#"{"tokens": [1, 2], "pass_ms": [1]}"#, "pass_ms: 1 values must be 2, as many as tokens has"),
        (r#"{"tokens": [1]}"#, "not a table of pass times: missing field `pass_ms` at line 1 column 15"),
        ("", "not a table of pass times: EOF while parsing a value at line 1 column 0"),
    ] {
        std::fs::write(at.path().join("t.json"), text).unwrap();
        assert_eq!(timing_of("table", at.path(), "t.json").unwrap_err(), format!("{key}{problem}"));
    }
}
