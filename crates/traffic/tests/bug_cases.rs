//! Public bug reports about trace readers and load generators, each as a small case with the right value
//! (sources abbreviated: dynamo#N is ai-dynamo/dynamo, aisim#N
//! ai-dynamo/aisimulate, blis#N inference-sim/inference-sim, gllm#N vllm-project/guidellm, iperf#N
//! kubernetes-sigs/inference-perf).
//!
//! | case | test |
//! |---|---|
//! | L1 | l1_a_prompt_has_one_id_for_each_started_block |
//! | L2 | l2_ids_that_the_length_does_not_need_are_refused_with_the_row |
//! | L3 | l3_a_missing_arrival_is_refused_with_the_row |
//! | L4 | l4_a_file_has_one_origin_of_time |
//! | L5 | not yet: there is no format with a time of sending beside one of scheduling; such a field is refused |
//! | L6 | l6_a_trace_that_begins_at_eight_in_the_morning_begins_at_zero |
//! | L7 | l7_a_workload_without_horizon_ends |
//! | L8 | l8_seven_point_three_a_second_for_ten_seconds_are_73_requests |
//! | L9 | not yet: there are no stages and tenants |
//! | L10, L11 | l10_l11_sessions_are_refused_not_ignored; their values need sessions |
//! | L12 | l12_outputs_come_from_the_row_under_either_name |
//! | L13, L14, L16, L18, L19 | crates/sim/tests/bug_cases.rs: they show in a run |
//! | L15 | not yet: there is no hand-off |
//! | L17 | l17_prompts_given_as_tokens_are_taken_token_by_token |

use std::io::Write;
use windtunnel_engine::Content;
use windtunnel_traffic::{
    Arrival, Arrivals, Format, Synthetic, Times, TraceFile, TrafficError, WorkloadSource,
};

fn read(format: Format, lines: &[String]) -> Result<Vec<Arrival>, TrafficError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(lines.join("\n").as_bytes()).unwrap();
    let times = Times::Recorded { speedup: 1.0 };
    let trace = TraceFile { path: file.path().to_owned(), format, times, limit: None };
    WorkloadSource::Trace(trace).open()?.collect()
}

fn mooncake(lines: &[String]) -> Result<Vec<Arrival>, TrafficError> {
    read(Format::Mooncake { block_size: 512 }, lines)
}

fn row(timestamp: &str, input: u32, ids: &str) -> String {
    format!(r#"{{"timestamp": {timestamp}, "input_length": {input}, "output_length": 5, "hash_ids": {ids}}}"#)
}

/// The error about a Mooncake file, from the line number on.
fn refusal(lines: &[String]) -> String {
    let error = mooncake(lines).unwrap_err().to_string();
    error.split_once(", ").unwrap().1.to_owned()
}

fn milliseconds(arrivals: &[Arrival]) -> Vec<f64> {
    arrivals.iter().map(|arrival| arrival.at.as_ms()).collect()
}

/// dynamo#10095. 1300 tokens in blocks of 512 have 3 ids (rounded up; rounding down gave 2), 1024 have 2.
#[test]
fn l1_a_prompt_has_one_id_for_each_started_block() {
    let all = mooncake(&[row("0", 1300, "[0, 1, 2]"), row("0", 1024, "[3, 4]"), row("0", 1, "[5]")]).unwrap();
    let lengths: Vec<_> = all.iter().map(|arrival| arrival.request.prompt_tokens).collect();
    assert_eq!(lengths, [1300, 1024, 1]);
    let needs_three = "hash_ids: got 2 ids; 1300 input tokens in blocks of 512 need 3";
    assert!(refusal(&[row("0", 1300, "[0, 1]")]).contains(needs_three));
}

/// gllm#948, review. Two ids stand for 513 to 1024 tokens; a row that says 20 is refused by its line.
#[test]
fn l2_ids_that_the_length_does_not_need_are_refused_with_the_row() {
    assert_eq!(
        refusal(&[row("0", 512, "[0]"), row("0", 20, "[0, 1]")]),
        "line 2: hash_ids: got 2 ids; 20 input tokens in blocks of 512 need 1, one for each started block"
    );
    for fits in [513, 1024] {
        assert!(mooncake(&[row("0", fits, "[0, 1]")]).is_ok());
    }
    assert!(mooncake(&[row("0", 512, "[0, 1]")]).is_err());
}

/// aisim#285(2), #289 and #183 disagree about arrivals [missing, 100]: 0 for the missing one, or a refusal.
/// Here it is refused, with line and field; nothing is shifted in silence, nothing stalls.
#[test]
fn l3_a_missing_arrival_is_refused_with_the_row() {
    let without = r#"{"input_length": 5, "output_length": 5, "hash_ids": [0]}"#.to_owned();
    let expected = "timestamp: missing; each line needs a time in milliseconds";
    assert_eq!(refusal(&[without.clone(), row("100", 5, "[0]")]), format!("line 1: {expected}"));
    assert_eq!(refusal(&[row("100", 5, "[0]"), without]), format!("line 2: {expected}"));
}

/// blis#1606, #1611: one time relative, another since 1970, and every request timed out. Here a row has one
/// time, and the first row is the origin of all. A file that mixes both origins is refused: the second row
/// comes before the first, or (in the microseconds of that report) after the longest run.
#[test]
fn l4_a_file_has_one_origin_of_time() {
    let epoch = |ms: &str| row(ms, 5, "[0]");
    let all = mooncake(&[epoch("1787000000000"), epoch("1787000000023.5")]).unwrap();
    assert_eq!(milliseconds(&all), [0.0, 23.5]);
    assert!(refusal(&[epoch("1787000000000"), epoch("23.5")]).starts_with("line 2: timestamp: got 23.5; "));
    assert!(refusal(&[epoch("23.5"), epoch("1787000000000000")]).contains("must be within"));
    let two_times =
        r#"{"timestamp": 23, "created_time": 1787000000000, "output_length": 1, "hash_ids": [0]}"#;
    let expected = "line 1: created_time: given as well; allowed is one of timestamp and created_time";
    assert_eq!(refusal(&[two_times.to_owned()]), expected);
}

/// blis#1176, #1183. Windows that start at 28,800 s: the run does not idle for eight hours, and the gaps are
/// kept.
#[test]
fn l6_a_trace_that_begins_at_eight_in_the_morning_begins_at_zero() {
    let at = |ms: u32| row(&ms.to_string(), 5, "[0]");
    let all = mooncake(&[at(28_800_000), at(28_800_250), at(28_803_000)]).unwrap();
    assert_eq!(milliseconds(&all), [0.0, 250.0, 3000.0]);
}

/// blis#1131, #1132. After the last request there is none, with every kind of arrival and every file.
#[test]
fn l7_a_workload_without_horizon_ends() {
    let rate = 1000.0;
    for arrivals in [
        Arrivals::AtOnce,
        Arrivals::Constant { requests_per_second: rate },
        Arrivals::Poisson { requests_per_second: rate, seed: 1 },
    ] {
        let plan = Synthetic {
            input_tokens: 1,
            output_tokens: 1,
            shortest_share: None,
            length_seed: 42,
            requests: 5,
            arrivals,
        };
        let mut stream = WorkloadSource::Synthetic(plan).open().unwrap();
        assert_eq!(stream.by_ref().take(100).filter(Result::is_ok).count(), 5);
        assert!(stream.next().is_none());
    }
    assert_eq!(mooncake(&[row("0", 5, "[0]")]).unwrap().len(), 1);
}

/// blis#978, #985. 7.3 requests a second for 10 s are 73, not the 81 that nine rounded-up clients sent: the
/// 74th of an endless stream would come at 10 s. (They are one client here.)
#[test]
fn l8_seven_point_three_a_second_for_ten_seconds_are_73_requests() {
    let arrivals = Arrivals::Constant { requests_per_second: 7.3 };
    let plan = Synthetic {
        input_tokens: 1,
        output_tokens: 1,
        shortest_share: None,
        length_seed: 42,
        requests: 81,
        arrivals,
    };
    let stream = WorkloadSource::Synthetic(plan).open().unwrap();
    let times: Vec<f64> = stream.map(|arrival| arrival.unwrap().at.as_seconds()).collect();
    assert_eq!(times.iter().filter(|&&seconds| seconds < 10.0).count(), 73);
    assert_eq!(times[73], 10.0);
}

/// blis#880, #896 (turns sent at their recorded times) and blis#1046, #1150 (growing context) need sessions,
/// which are not there yet. Their fields are refused by name; ignored, a turn would be sent as if it stood
/// alone.
#[test]
fn l10_l11_sessions_are_refused_not_ignored() {
    let with = |field: &str| {
        format!(r#"{{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [0], {field}}}"#)
    };
    for field in ["session_id", "delay", "delay_ms"] {
        assert_eq!(
            refusal(&[row("0", 5, "[0]"), with(&format!(r#""{field}": 10"#))]),
            format!("line 2: {field}: got 10; sessions of several turns are not supported yet")
        );
    }
}

/// dynamo#14254. `output_tokens` was read where the rows had `output_length`, and every output had length 0.
/// Both names are known, one is needed, and 0 is refused.
#[test]
fn l12_outputs_come_from_the_row_under_either_name() {
    let with =
        |output: &str| vec![format!(r#"{{"timestamp": 0, "input_length": 5, {output} "hash_ids": [0]}}"#)];
    for name in ["output_length", "output_tokens"] {
        let all = mooncake(&with(&format!(r#""{name}": 37,"#))).unwrap();
        assert_eq!(all[0].request.output.max_tokens, 37);
        assert!(refusal(&with(&format!(r#""{name}": 0,"#))).starts_with(&format!("line 1: {name}: got 0; ")));
    }
    assert_eq!(refusal(&with("")), "line 1: output_length: missing; each line needs it");
}

/// iperf#490, #491. Prefix and suffix were joined as text with a space: 1007 tokens instead of 1006, and
/// another token at the joint. Prompts given as tokens are these tokens, one for one.
#[test]
fn l17_prompts_given_as_tokens_are_taken_token_by_token() {
    let prefix: Vec<u32> = (0..1000).collect();
    let joined = |suffix: u32| prefix.iter().copied().chain(suffix..suffix + 6).collect::<Vec<_>>();
    let line = |suffix: u32| {
        let tokens = joined(suffix);
        format!(r#"{{"id": "{suffix}", "prompt_token_ids": {tokens:?}, "max_tokens": 1, "arrival_ms": 0}}"#)
    };
    let all = read(Format::Requests, &[line(5000), line(6000)]).unwrap();
    for (arrival, suffix) in all.iter().zip([5000, 6000]) {
        assert_eq!(arrival.request.prompt_tokens, 1006);
        assert_eq!(arrival.request.content, Content::Tokens(joined(suffix).into()));
    }
}
