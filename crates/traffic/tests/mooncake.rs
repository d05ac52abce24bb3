//! Mooncake traces: what a row means, and what is refused about one.

use std::io::Write;
use std::path::Path;
use windtunnel_engine::{Content, Nanos};
use windtunnel_traffic::{Arrival, Format, Times, TraceFile, TrafficError, WorkloadSource};

const RECORDED: Times = Times::Recorded { speedup: 1.0 };

fn trace(path: &Path, times: Times, limit: Option<u64>) -> WorkloadSource {
    let format = Format::Mooncake { block_size: 512 };
    WorkloadSource::Trace(TraceFile { path: path.to_owned(), format, times, limit })
}

/// Every arrival of a file with this content.
fn read_bytes(bytes: &[u8], times: Times) -> Result<Vec<Arrival>, TrafficError> {
    let mut file = tempfile::Builder::new().prefix("trace").tempfile().unwrap();
    file.write_all(bytes).unwrap();
    trace(file.path(), times, None).open()?.collect()
}

fn read(lines: &[&str]) -> Result<Vec<Arrival>, TrafficError> {
    read_bytes(lines.join("\n").as_bytes(), RECORDED)
}

fn row(timestamp: &str, input: u32, ids: &str) -> String {
    format!(r#"{{"timestamp": {timestamp}, "input_length": {input}, "output_length": 5, "hash_ids": {ids}}}"#)
}

/// The error of a file whose second line is `line`, without the name of the file.
fn refusal(line: &str) -> String {
    let error = read(&[&row("0", 1024, "[0, 1]"), line]).unwrap_err().to_string();
    let (file, problem) = error.split_once(", line 2: ").unwrap_or_else(|| panic!("{error}"));
    assert!(file.contains("trace"));
    problem.to_owned()
}

fn ids(arrival: &Arrival) -> &[u64] {
    match &arrival.request.content {
        Content::Prefixes { ids, id_tokens: 512 } => ids,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_row_becomes_a_request() {
    let all = read(&[
        &row("27000", 1300, "[0, 1, 2]"),
        r#"{"request_id": "chat-1", "created_time": 27000.5, "input_tokens": 1, "output_tokens": 9,
            "hash_ids": [7], "priority": -3, "session_id": null}"#
            .replace('\n', " ")
            .as_str(),
    ])
    .unwrap();
    let first = &all[0].request;
    assert_eq!((first.id.0, first.tie, first.arrival, first.prompt_tokens), (0, 0, Nanos::ZERO, 1300));
    assert_eq!((first.output.max_tokens, first.output.stop_after), (5, None));
    assert_eq!((ids(&all[0]), all[0].name.as_deref()), (&[0, 1, 2][..], None));
    let second = &all[1].request;
    assert_eq!((second.id.0, second.tie, second.prompt_tokens), (1, 1, 1));
    assert_eq!((all[1].at, second.arrival), (Nanos(500_000), Nanos(500_000)));
    assert_eq!((second.priority, all[1].name.as_deref()), (Some(-3), Some("chat-1")));
}

#[test]
fn a_row_without_a_length_has_whole_blocks() {
    let all = read(&[r#"{"timestamp": 0, "output_length": 1, "hash_ids": [0, 1]}"#]).unwrap();
    assert_eq!(all[0].request.prompt_tokens, 1024);
}

#[test]
fn ids_cover_every_started_block() {
    // 1300 tokens need three ids of 512, and 1024 need two.
    assert!(read(&[&row("0", 1300, "[0, 1, 2]"), &row("0", 1024, "[0, 1]")]).is_ok());
    assert_eq!(
        refusal(&row("0", 1300, "[0, 1]")),
        "hash_ids: got 2 ids; 1300 input tokens in blocks of 512 need 3, one for each started block"
    );
    assert_eq!(
        refusal(&row("0", 20, "[0, 1]")),
        "hash_ids: got 2 ids; 20 input tokens in blocks of 512 need 1, one for each started block"
    );
}

#[test]
fn an_id_under_a_second_parent_is_kept_apart() {
    let all = read(&[
        &row("0", 1024, "[0, 1]"),
        &row("0", 1024, "[2, 1]"),
        &row("0", 1536, "[2, 1, 3]"),
        &row("0", 512, "[1]"),
    ])
    .unwrap();
    let rows: Vec<_> = all.iter().map(ids).collect();
    assert_eq!(rows, [&[0, 1][..], &[2, 3], &[2, 3, 4], &[5]]);
}

#[test]
fn compressed_and_plain_files_are_read_alike() {
    let text = format!("{}\r\n\n{}\n\n", row("3", 512, "[0]"), row("4", 1024, "[0, 1]"));
    let plain = read_bytes(text.as_bytes(), RECORDED).unwrap();
    assert_eq!(plain.len(), 2);
    let gzip = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    assert_eq!(read_bytes(&gzip(text.as_bytes()), RECORDED).unwrap(), plain);
    let (first, second) = text.as_bytes().split_at(40);
    let members = [gzip(first), gzip(second)].concat();
    assert_eq!(read_bytes(&members, RECORDED).unwrap(), plain, "a file of several members");
    let whole = gzip(text.as_bytes());
    let cut = read_bytes(&whole[..whole.len() - 9], RECORDED).unwrap_err();
    assert!(matches!(cut, TrafficError::Read { .. }), "{cut}");
}

#[test]
fn a_limit_stops_the_reading() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{}\n{}\nnot json", row("0", 512, "[0]"), row("0", 512, "[1]")).unwrap();
    let limited = |limit| trace(file.path(), RECORDED, limit).open().unwrap();
    assert_eq!(limited(Some(2)).filter_map(Result::ok).count(), 2);
    assert!(limited(Some(3)).any(|arrival| arrival.is_err()));
    let mut stream = limited(None).skip(2);
    assert!(stream.next().unwrap().is_err());
    assert!(stream.next().is_none(), "nothing follows an error");
    assert_eq!(
        trace(file.path(), RECORDED, Some(0)).open().unwrap_err().to_string(),
        "limit: 0 must be at least 1"
    );
}

#[test]
fn times_that_are_ignored_may_be_missing_and_disordered() {
    let text = [
        &row("5", 512, "[0]"),
        r#"{"input_length": 1, "output_length": 1, "hash_ids": [1]}"#,
        &row("4", 512, "[0]"),
    ]
    .join("\n");
    let all = read_bytes(text.as_bytes(), Times::Ignored).unwrap();
    assert!(all.iter().all(|arrival| arrival.at == Nanos::ZERO));
}

#[test]
fn times_that_are_followed_must_be_there_and_in_order() {
    assert_eq!(
        refusal(r#"{"input_length": 1, "output_length": 1, "hash_ids": [1]}"#),
        "timestamp: missing; each line needs a time in milliseconds"
    );
    assert_eq!(
        refusal(r#"{"timestamp": null, "input_length": 1, "output_length": 1, "hash_ids": [1]}"#),
        "timestamp: missing; each line needs a time in milliseconds"
    );
    let disordered = read(&[&row("7", 512, "[0]"), &row("6.5", 512, "[0]")]).unwrap_err().to_string();
    assert!(
        disordered.ends_with(", line 2: timestamp: got 6.5; must not be before the line above (7)"),
        "{disordered}"
    );
}

#[test]
fn bad_rows_are_refused_with_field_value_and_remedy() {
    let cases = [
        (
            r#"{"timestamp": -1, "output_length": 1, "hash_ids": [1]}"#,
            "timestamp: got -1; allowed is a number of milliseconds of at least 0",
        ),
        (r#"{"timestamp": "1"}"#, "timestamp: got \"1\"; allowed is a number of milliseconds of at least 0"),
        (
            r#"{"timestamp": 1, "output_length": 0, "hash_ids": [1]}"#,
            "output_length: got 0; allowed is an integer from 1 to 16777216",
        ),
        (
            r#"{"timestamp": 1, "output_tokens": 1.5}"#,
            "output_tokens: got 1.5; allowed is an integer from 1 to 16777216",
        ),
        (
            r#"{"timestamp": 1, "input_length": 0, "output_length": 1, "hash_ids": []}"#,
            "input_length: got 0; allowed is an integer from 1 to 16777216",
        ),
        (
            r#"{"timestamp": 1, "input_length": 1, "hash_ids": [1]}"#,
            "output_length: missing; each line needs it",
        ),
        (
            r#"{"timestamp": 1, "input_length": 1, "output_length": 1}"#,
            "hash_ids: missing; each line needs it",
        ),
        (r#"{"hash_ids": [1, -2]}"#, "hash_ids[1]: got -2; allowed is an integer from 0 to 2^64 - 1"),
        (
            r#"{"hash_ids": [18446744073709551616]}"#,
            "hash_ids[0]: got 1.8446744073709552e+19; allowed is an integer from 0 to 2^64 - 1",
        ),
        (r#"{"hash_ids": 3}"#, "hash_ids: got 3; allowed is a list of integers"),
        (
            r#"{"input_length": 1, "input_tokens": 1}"#,
            "input_tokens: given as well; allowed is one of input_length and input_tokens",
        ),
        (r#"{"timestamp": 1, "timestamp": 1}"#, "timestamp: given twice; allowed is once"),
        (r#"{"session_id": "a"}"#, "session_id: got \"a\"; sessions of several turns are not supported yet"),
        (r#"{"delay_ms": 5}"#, "delay_ms: got 5; sessions of several turns are not supported yet"),
        (
            r#"{"policy_class": "x"}"#,
            "policy_class: got \"x\"; router queue classes are not supported yet; priority is",
        ),
        (
            r#"{"output_token_ids": [1]}"#,
            "output_token_ids: got [1]; outputs with content are supported in traces of format requests only",
        ),
        (
            r#"{"priority": 1e3}"#,
            "priority: got 1000.0; allowed is an integer from -2147483648 to 2147483647",
        ),
        (
            r#"{"inptu_length": 1}"#,
            "inptu_length: unknown field; did you mean input_length? known are timestamp, created_time, input_length, input_tokens, output_length, output_tokens, hash_ids, request_id, priority",
        ),
        (
            r#"{"x": 1}"#,
            "x: unknown field; known are timestamp, created_time, input_length, input_tokens, output_length, output_tokens, hash_ids, request_id, priority",
        ),
        ("[1, 2]", "got [1, 2]; allowed is one JSON object a line"),
        ("timestamp,input_length", "got timestamp,input_length; allowed is one JSON object a line"),
        (
            r#"{"timestamp": 1"#,
            "not JSON at column 15: EOF while parsing an object; allowed is one JSON object a line",
        ),
        (
            r#"{"timestamp": 1} {"timestamp": 2}"#,
            "not JSON at column 18: trailing characters; allowed is one JSON object a line",
        ),
    ];
    for (line, expected) in cases {
        assert_eq!(refusal(line), expected, "{line}");
    }
}

#[test]
fn a_file_without_requests_and_a_missing_file_are_errors() {
    for empty in ["", "\n\n  \n"] {
        let error = read_bytes(empty.as_bytes(), RECORDED).unwrap_err().to_string();
        assert!(error.ends_with(": holds no request; allowed is one JSON object a line"), "{error}");
    }
    let error = trace(Path::new("no/such/trace.jsonl"), RECORDED, None).open().unwrap_err().to_string();
    assert!(error.starts_with("no/such/trace.jsonl: cannot be opened: "), "{error}");
}

#[test]
fn a_speedup_must_be_a_finite_number_above_zero() {
    for speedup in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = read_bytes(b"", Times::Recorded { speedup }).unwrap_err().to_string();
        assert_eq!(error, format!("speedup: {speedup} must be a finite number above 0"));
    }
}
