//! Request files: the plan that a line makes of its outputs, and what a prediction refuses.

use std::io::Write;
use windtunnel_engine::{Content, Nanos};
use windtunnel_traffic::WorkloadSource;
use windtunnel_traffic::{
    Arrival, Format, LoadFail, RequestLine, RequestLines, Times, TraceFile, TrafficError, Whole,
};

fn file(lines: &[&str]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(lines.join("\n").as_bytes()).unwrap();
    file
}

fn predict(lines: &[&str]) -> Result<Vec<Arrival>, TrafficError> {
    let file = file(lines);
    let times = Times::Recorded { speedup: 2.0 };
    WorkloadSource::Trace(TraceFile {
        path: file.path().to_owned(),
        format: Format::Requests,
        times,
        limit: None,
    })
    .open()?
    .collect()
}

fn lines(lines: &[&str]) -> Result<Vec<RequestLine>, TrafficError> {
    RequestLines::open(file(lines).path())?.collect()
}

const GOOD: &str = r#"{"id":"a","prompt_token_ids":[1,2,3],"max_tokens":3,"arrival_ms":10.0}"#;

/// The error about `line` as the second line of a prediction.
fn refusal(line: &str) -> String {
    let error = predict(&[GOOD, line]).unwrap_err().to_string();
    error.split_once(", line 2: ").unwrap_or_else(|| panic!("{error}")).1.to_owned()
}

#[test]
fn a_line_becomes_a_request() {
    let all = predict(&[
        GOOD,
        r#"{"id":"b","prompt_token_ids":[9],"max_tokens":2,"output_token_ids":[7,8],"arrival_ms":11.5,"priority":4}"#,
    ])
    .unwrap();
    let (first, second) = (&all[0].request, &all[1].request);
    assert_eq!(first.content, Content::Tokens([1, 2, 3].into()));
    assert_eq!((first.prompt_tokens, first.id.0, first.priority), (3, 0, None));
    assert_eq!(first.output.tokens.as_deref(), Some(&[100_000, 100_001, 100_002][..]));
    assert_eq!((second.id.0, second.tie, second.priority), (1, 1, Some(4)));
    assert_eq!(second.output.tokens.as_deref(), Some(&[7, 8][..]));
    assert_eq!((all[0].at, all[1].at), (Nanos::ZERO, Nanos(750_000)), "from 0, twice as fast");
    assert_eq!((all[0].name.as_deref(), all[1].name.as_deref()), (Some("a"), Some("b")));
}

/// vLLM compares requests of one priority and one arrival by their ids, which are strings: "10" < "9".
#[test]
fn ties_of_one_time_follow_the_ids_as_strings() {
    let line = |id: &str, ms: f64| {
        format!(r#"{{"id":"{id}","prompt_token_ids":[1],"max_tokens":1,"arrival_ms":{ms}}}"#)
    };
    let made =
        [line("z", 0.0), line("9", 5.0), line("b", 5.0), line("10", 5.0), line("9", 5.0), line("a", 6.0)];
    let made: Vec<&str> = made.iter().map(String::as_str).collect();
    let ties = |all: &[Arrival]| all.iter().map(|one| one.request.tie).collect::<Vec<_>>();
    let all = predict(&made).unwrap();
    let ids: Vec<u64> = all.iter().map(|one| one.request.id.0).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5], "the order of the file stays");
    assert_eq!(ties(&all), [0, 2, 4, 1, 3, 5]);

    let file = file(&made);
    let read = |times, limit| {
        let path = file.path().to_owned();
        let trace = TraceFile { path, format: Format::Requests, times, limit };
        WorkloadSource::Trace(trace).open().unwrap().collect::<Result<Vec<_>, _>>().unwrap()
    };
    assert_eq!(ties(&read(Times::Ignored, None)), [0, 1, 2, 3, 4, 5], "without times there is no group");
    // A nanosecond holds many of these times; the earlier one is still the earlier one.
    assert_eq!(ties(&read(Times::Recorded { speedup: 1e9 }, None)), [0, 2, 4, 1, 3, 5]);
    assert_eq!(ties(&read(Times::Recorded { speedup: 1.0 }, Some(3))), [0, 1, 2]);
}

#[test]
fn a_bad_line_comes_after_the_requests_of_the_time_above_it() {
    let file = file(&[GOOD, GOOD, "{"]);
    let times = Times::Recorded { speedup: 1.0 };
    let trace = TraceFile { path: file.path().to_owned(), format: Format::Requests, times, limit: None };
    let mut stream = WorkloadSource::Trace(trace).open().unwrap();
    assert!(stream.next().unwrap().is_ok() && stream.next().unwrap().is_ok());
    let error = stream.next().unwrap().unwrap_err().to_string();
    assert!(error.contains(", line 3: "), "{error}");
    assert!(stream.next().is_none());
}

/// The output plan of a line, read as the request with this ordinal.
fn plan(line: &str, ordinal: u64) -> (Vec<u32>, Option<u32>) {
    let line = lines(&[line]).unwrap().remove(0);
    let output = line.into_request(ordinal, Nanos::ZERO).output;
    (output.tokens.unwrap().into_vec(), output.stop_after)
}

#[test]
fn outputs_that_are_not_given_follow_a_rule() {
    let line = r#"{"id":"a","prompt_token_ids":[1],"max_tokens":3}"#;
    assert_eq!(plan(line, 2).0, [101_994, 101_995, 101_996]);
    // 997·90 = 89730: the third hundred wraps at 90000.
    let long = r#"{"id":"a","prompt_token_ids":[1],"max_tokens":271,"output_token_ids":[]}"#;
    let (tokens, _) = plan(long, 90);
    assert_eq!((tokens[0], tokens[269], tokens[270]), (189_730, 189_999, 100_000));
    assert_eq!(plan(line, u64::MAX - 5).0.len(), 3, "no ordinal is too large");
}

#[test]
fn outputs_that_are_too_short_are_padded_and_too_long_are_cut() {
    let short = r#"{"id":"a","prompt_token_ids":[1],"max_tokens":4,"output_token_ids":[5,6]}"#;
    assert_eq!(plan(short, 0), (vec![5, 6, 199_999, 199_999], None));
    let long = r#"{"id":"a","prompt_token_ids":[1],"max_tokens":1,"output_token_ids":[5,6]}"#;
    assert_eq!(plan(long, 0), (vec![5], None));
}

#[test]
fn a_stop_token_ends_the_output_where_it_first_comes() {
    let line = |stop: &str| {
        format!(
            r#"{{"id":"a","prompt_token_ids":[1],"max_tokens":3,"output_token_ids":[5,6,6,9],"stop_token_ids":{stop}}}"#
        )
    };
    assert_eq!(plan(&line("[6]"), 0).1, Some(2));
    assert_eq!(plan(&line("[8, 5]"), 0).1, Some(1));
    assert_eq!(plan(&line("[9]"), 0).1, None, "behind max_tokens");
    assert_eq!(plan(&line("[]"), 0).1, None);
}

#[test]
fn the_reader_gives_every_field() {
    let line = r#"{"id":"a","prompt_token_ids":[1],"max_tokens":3,"output_token_ids":null,"arrival_step":4,
        "priority":-1,"stop_token_ids":[2],"abort_step":9,"abort_ms":1.5,"ignore_eos":true,"dp_rank":3,"session_id":"chat",
        "remote_prefill":true,"remote_decode":false,"load_ms":2.5,"send_ms":0,"load_fail":"request"}"#
        .replace('\n', " ");
    let expected = RequestLine {
        id: "a".into(),
        prompt_token_ids: vec![1],
        max_tokens: 3,
        output_token_ids: None,
        arrival_ms: None,
        arrival_step: Some(4),
        priority: Some(-1),
        stop_token_ids: Some(vec![2]),
        abort_step: Some(9),
        abort_ms: Some(1.5),
        ignore_eos: Some(true),
        dp_rank: Some(3),
        session_id: Some("chat".into()),
        remote_prefill: Some(true),
        remote_decode: Some(false),
        load_ms: Some(2.5),
        send_ms: Some(0.0),
        load_fail: Some(LoadFail::Whole(Whole::Request)),
    };
    assert_eq!(lines(&[&line]).unwrap(), [expected]);
}

#[test]
fn bad_lines_are_refused_with_field_value_and_remedy() {
    let with = |more: &str| format!(r#"{{"id":"b","prompt_token_ids":[1],"max_tokens":3,{more}}}"#);
    let cases = [
        (with(r#""arrival_ms":9"#), "arrival_ms: got 9; must not be before the line above (10)"),
        (with(r#""priority":0"#), "arrival_ms: missing; each line needs a time in milliseconds"),
        (with(r#""arrival_ms":-1"#), "arrival_ms: got -1; allowed is a number of milliseconds of at least 0"),
        (
            with(r#""arrival_step":3"#),
            "arrival_step: got 3; arrivals and aborts by scheduler step belong to conformance runs; a prediction has times",
        ),
        (
            with(r#""arrival_ms":10,"abort_step":3"#),
            "abort_step: got 3; arrivals and aborts by scheduler step belong to conformance runs; a prediction has times",
        ),
        (
            with(r#""arrival_ms":10,"abort_ms":12"#),
            "abort_ms: got 12; aborts are not supported in predictions yet",
        ),
        (with(r#""max_tokens":4"#), "max_tokens: given twice; allowed is once"),
        (
            with(r#""arrival_ms":10,"remote_decode":true"#),
            "remote_decode: got true; hand-offs by line belong to conformance runs; a prediction has its roles and kv_transfer",
        ),
        (
            with(r#""remote_prefill":true,"remote_decode":true"#),
            "remote_decode: got true; remote_prefill is true too; a request has one of them",
        ),
        (
            with(r#""load_fail":"all""#),
            "load_fail: got \"all\"; allowed are \"request\" and the number of a block, from 0",
        ),
        (
            with(r#""spec_k":3"#),
            "spec_k: unknown field; known are id, prompt_token_ids, max_tokens, output_token_ids, arrival_ms, arrival_step, priority, stop_token_ids, abort_step, abort_ms, ignore_eos, dp_rank, session_id, remote_prefill, remote_decode, load_ms, send_ms, load_fail",
        ),
        (
            with(r#""stop_tokens_ids":[]"#),
            "stop_tokens_ids: unknown field; did you mean stop_token_ids? known are id, prompt_token_ids, max_tokens, output_token_ids, arrival_ms, arrival_step, priority, stop_token_ids, abort_step, abort_ms, ignore_eos, dp_rank, session_id, remote_prefill, remote_decode, load_ms, send_ms, load_fail",
        ),
        (
            r#"{"id":"b","prompt_token_ids":[],"max_tokens":3}"#.into(),
            "prompt_token_ids: got 0 tokens; allowed are 1 to 16777216",
        ),
        (
            r#"{"id":"b","prompt_token_ids":[1,-1],"max_tokens":3}"#.into(),
            "prompt_token_ids[1]: got -1; allowed is an integer from 0 to 4294967295",
        ),
        (
            r#"{"id":"b","prompt_token_ids":[1],"max_tokens":0}"#.into(),
            "max_tokens: got 0; allowed is an integer from 1 to 16777216",
        ),
        (r#"{"id":7,"prompt_token_ids":[1],"max_tokens":1}"#.into(), "id: got 7; allowed is a string"),
        (r#"{"prompt_token_ids":[1],"max_tokens":1}"#.into(), "id: missing; each line needs it"),
        (r#"{"id":"b","max_tokens":1}"#.into(), "prompt_token_ids: missing; each line needs it"),
        ("{".into(), "not JSON at column 1: EOF while parsing an object; allowed is one JSON object a line"),
        ("id".into(), "got id; allowed is one JSON object a line"),
    ];
    for (line, expected) in cases {
        assert_eq!(refusal(&line), expected, "{line}");
    }
    assert!(matches!(predict(&[]), Err(TrafficError::Empty { .. })));
}
