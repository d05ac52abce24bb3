//! Configuration files that are not as they should be, or not files, and overrides beyond all measure.

use std::path::Path;
use windtunnel_config::{from_str, load};

const GOOD: &str = "\
traffic:
  source: {type: trace, paths: [trace.jsonl]}
  load: {type: trace_timestamps}
engine:
  model: m
  hardware: h
  workers:
    aggregated:
      kv_cache: {capacity: {type: fixed, blocks: 1024}}
      timing: {type: fixed, prefill_ms: 10, decode_ms: 2}
";

const TRACE: &str = r#"{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [0]}"#;

/// What is said of a file of these bytes, beside a trace; nothing if it is right.
fn said(bytes: &[u8]) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("trace.jsonl"), TRACE).unwrap();
    let path = folder.path().join("case.yaml");
    std::fs::write(&path, bytes).unwrap();
    let error = load(&path, &[]).err()?;
    Some(error.to_string().replace(&format!("{}/", folder.path().display()), ""))
}

#[test]
fn a_file_is_utf_8_with_or_without_a_mark() {
    assert_eq!(said(GOOD.as_bytes()), None);
    assert_eq!(said(format!("\u{feff}{GOOD}").as_bytes()), None);
    let wide: Vec<u8> = format!("\u{feff}{GOOD}").encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(said(&wide).unwrap(), "case.yaml: this is UTF-16; the file must be UTF-8");
    let latin_1 = [GOOD.as_bytes(), b"# caf\xe9\n"].concat();
    assert_eq!(said(&latin_1).unwrap(), "case.yaml: not UTF-8 in line 11; the file must be UTF-8");
}

#[test]
fn a_file_has_at_most_a_mebibyte_and_no_more_of_it_is_read() {
    let too_long = "longer than 1048576 bytes, the most that a configuration may have";
    let padded = |length: usize| format!("{GOOD}{}\n", "#".repeat(length - GOOD.len() - 1));
    assert_eq!(said(padded(1 << 20).as_bytes()), None);
    assert_eq!(said(padded((1 << 20) + 1).as_bytes()).unwrap(), format!("case.yaml: {too_long}"));
    if cfg!(unix) {
        let endless = load(Path::new("/dev/zero"), &[]).unwrap_err().to_string();
        assert_eq!(endless, format!("/dev/zero: {too_long}"));
    }
}

#[test]
fn an_override_is_as_deep_as_a_file_may_be() {
    let deep = format!("{}=1", vec!["a"; 20_000].join("."));
    let said = from_str("case.yaml", GOOD, &[deep]).unwrap_err().to_string();
    assert!(said.len() < 500, "only the beginning of it is shown: {} bytes", said.len());
    assert!(said.ends_with("…: the path has 20000 names, allowed are 32"), "{said}");
    let longest = format!("{}=1", vec!["a"; 32].join("."));
    assert!(from_str("case.yaml", GOOD, &[longest]).unwrap_err().to_string().contains(": unknown key; "));
}

#[test]
fn messages_hold_no_control_characters() {
    let overrides = ["engine.model=\u{1b}[2J\u{7}".to_owned()];
    let said =
        from_str("a\u{1b}[2J.yaml", &format!("\u{1b}: 1\n{GOOD}"), &overrides).unwrap_err().to_string();
    assert!(!said.contains(|letter: char| letter.is_control() && letter != '\n'), "{said:?}");
    let overrides = ["engine.\u{1b}[2J\nmodel=1".to_owned()];
    let said = from_str("case.yaml", GOOD, &overrides).unwrap_err().to_string();
    assert!(said.starts_with(r"--set engine.\u{1b}[2J\nmodel=1: "), "{said}");
    assert!(!said.contains(char::is_control), "{said:?}");
}

/// As `<(zcat trace.gz)` gives one.
#[cfg(unix)]
#[test]
fn a_trace_may_be_a_pipe() {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    let (reader, mut writer) = std::io::pipe().unwrap();
    writeln!(writer, "{TRACE}\n{TRACE}").unwrap();
    drop(writer);
    let overrides = [format!("traffic.source.paths=[/dev/fd/{}]", reader.as_raw_fd())];
    let experiment = from_str("case.yaml", GOOD, &overrides).unwrap();
    assert_eq!(experiment.workload.open().unwrap().map(Result::unwrap).count(), 2);
}
