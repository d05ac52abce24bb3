//! The flags of `windtunnel mocker`, as docs/live.md has them: each is given to the program. And what the ones of
//! Dynamo's launcher do.

mod common;

use common::{err, root, windtunnel};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};

/// A mocker that runs, and the addresses that it has said so far.
struct Mocker {
    child: Child,
    addresses: Vec<String>,
}

impl Mocker {
    /// One that starts, or what it says instead.
    fn start(arguments: &[&str], workers: usize) -> Result<Mocker, String> {
        let mut command = windtunnel(["mocker", "--port", "0"]);
        command.env("VLLM_NIXL_SIDE_CHANNEL_PORT", "0").args(arguments);
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let mut said = String::new();
        let mut addresses = Vec::new();
        while addresses.len() < workers {
            match lines.next() {
                Some(line) => match line.split_once(" at http://") {
                    Some((_, address)) => addresses.push(address.to_owned()),
                    None => said += &format!("{line}\n"),
                },
                None => {
                    let code = child.wait().unwrap().code();
                    return Err(format!("{code:?} {said}"));
                }
            }
        }
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Mocker { child, addresses })
    }

    fn sent(&self, worker: usize, head: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.addresses[worker]).unwrap();
        let length = body.len();
        let request = format!(
            "{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn get(&self, worker: usize, path: &str) -> String {
        self.sent(worker, &format!("GET {path}"), "")
    }

    fn completed(&self, body: &Value) -> Value {
        let answer = self.sent(0, "POST /v1/completions", &body.to_string());
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }
}

impl Drop for Mocker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";

/// What the names in the document stand for, as it says itself.
fn stand_ins(document: &str, folder: &Path) -> Vec<(String, Vec<String>)> {
    let lines = document.lines().filter_map(|line| line.strip_prefix("- `"));
    let pairs = lines.filter_map(|line| {
        let (name, rest) = line.split_once("` stands for ")?;
        let mut texts = rest.split('`').skip(1).step_by(2);
        if rest.starts_with("a folder with") {
            while let (Some(file), Some(text)) = (texts.next(), texts.next()) {
                std::fs::write(folder.join(file), text).unwrap();
            }
            return Some((name.to_owned(), vec![folder.to_str().unwrap().to_owned()]));
        }
        let text = texts.next()?;
        if !rest.starts_with("a file with") {
            return Some((name.to_owned(), text.split(' ').map(str::to_owned).collect()));
        }
        let file = folder.join(name);
        std::fs::write(&file, text).unwrap();
        Some((name.to_owned(), vec![file.to_str().unwrap().to_owned()]))
    });
    pairs.collect()
}

#[test]
fn every_flag_of_the_document_is_there_or_refused_as_it_says() {
    let document = std::fs::read_to_string(root().join("docs/live.md")).unwrap();
    let section = document.split("\n## Flags\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let stand_ins = stand_ins(section, folder.path());
    assert_eq!(stand_ins.len(), 5);
    let mut rows = 0;
    for line in section.lines().filter(|line| line.starts_with('|') && line.contains("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [flag, tried, here] = cells[..] else { panic!("{line}") };
        let words = tried.trim_matches('`').split(' ').flat_map(|word| {
            let found = stand_ins.iter().find(|(name, _)| name == word);
            found.map_or_else(|| vec![word.to_owned()], |(_, words)| words.clone())
        });
        let given: Vec<String> = words.collect();
        let given: Vec<&str> = given.iter().map(String::as_str).collect();
        for name in flag.split('`').filter(|name| name.starts_with("--")) {
            let tried = given.join(" ");
            assert!(tried.contains(name.trim_end_matches('…')), "{flag}: is not what is tried: {tried}");
        }
        rows += 1;
        if given == ["--version"] {
            assert!(windtunnel(["mocker", "--version"]).output().unwrap().status.success());
            continue;
        }
        match (Mocker::start(&given, 1), here.strip_prefix("refused: ")) {
            (Ok(_), None) => assert!(here == "accepted" || here.starts_with("accepted: "), "{here}"),
            (Err(said), Some(words)) => {
                assert!(said.starts_with("Some(2)") && said.contains(words), "{tried}: {said}");
            }
            (Ok(_), Some(_)) => panic!("{tried}: is accepted"),
            (Err(said), None) => panic!("{tried}: {said}"),
        }
    }
    assert_eq!(rows, 117);
}

/// A number that a series of `/metrics` has as a label.
fn label(metrics: &str, name: &str) -> String {
    let series = metrics.lines().find(|line| line.starts_with("vllm:cache_config_info{")).unwrap();
    series.split_once(&format!("{name}=\"")).unwrap().1.split('"').next().unwrap().to_owned()
}

/// reference-surface.md §2.2: the keys of a rank, those around them, and `dynamo`.
#[test]
fn an_engine_configuration_of_aisimulate_is_what_its_flags_are() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("engine.json");
    let config = json!({
        "engine": {
            "backend": "vllm", "num_gpu_blocks": 77, "block_size": 32, "max_model_len": 2000, "max_num_seqs": 9,
            "max_num_batched_tokens": 512, "enable_prefix_caching": true, "enable_chunked_prefill": true,
            "speedup_ratio": 2.0, "decode_speedup_ratio": 2.0, "worker_type": "aggregated",
            "preemption_mode": "lifo", "aic_mtp_seed": 42, "prefill_decode_interval": 0, "g3_offload": null,
            "timing_model": {"type": "fixed", "prefill_ms": 400.0, "decode_ms": 80.0},
        },
        "dp_size": 1, "tensor_parallel_size": 1, "num_gpu_blocks_is_explicit": true,
        "dynamo": {"enable_local_indexer": false, "handoff_session_timeout_ms": 300_000, "zmq_kv_events_port": 0},
    });
    std::fs::write(&file, config.to_string()).unwrap();
    let mocker = Mocker::start(&["--extra-engine-args", file.to_str().unwrap()], 1).unwrap();
    let metrics = mocker.get(0, "/metrics");
    assert_eq!(
        (label(&metrics, "num_gpu_blocks"), label(&metrics, "block_size")),
        ("77".into(), "32".into())
    );
    assert!(mocker.get(0, "/v1/models").contains("\"max_model_len\":2000"));
    assert!(mocker.get(0, "/kv_event_sources").contains("\"enable_kv_cache_events\":true"));
    // 400 / 2 and three of 80 / 4, in logical time: the histogram of the whole request has it in one bucket.
    mocker.completed(&json!({"prompt": "a b c", "max_tokens": 4, "ignore_eos": true}));
    let metrics = mocker.get(0, "/metrics");
    let sum = metrics.lines().find(|line| line.starts_with("vllm:time_to_first_token_seconds_sum")).unwrap();
    let seconds: f64 = sum.rsplit(' ').next().unwrap().parse().unwrap();
    assert!((seconds - 0.2).abs() < 1e-9, "{sum}");
    let sum = metrics.lines().find(|line| line.starts_with("vllm:request_decode_time_seconds_sum")).unwrap();
    let seconds: f64 = sum.rsplit(' ').next().unwrap().parse().unwrap();
    assert!((seconds - 0.06).abs() < 1e-9, "{sum}");
}

#[test]
fn what_an_engine_configuration_has_beside_that_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("engine.json");
    for (config, words) in [
        (json!({"engine": {"blocks": 1}}), "unknown field `blocks`"),
        (json!({"speedup": 1}), "unknown field `speedup`"),
        (json!({"engine": {"aic_nextn": 1}}), "engine.aic_nextn: speculative decoding"),
        (json!({"engine": {"g3_offload": {}}}), "engine.g3_offload: live workers have no tier"),
        (json!({"engine": {"state_cache": {"bytes_per_request": 1}}}), "engine.state_cache: "),
        (json!({"engine": {"worker_type": "encoder"}}), "engine.worker_type: got \"encoder\""),
        (json!({"engine": {"emit_kv_events": true}}), "engine.emit_kv_events: KV events are published where"),
        (
            json!({"dynamo": {"router_queue_policy": "fcfs"}}),
            "dynamo.router_queue_policy: is router.queue_policy",
        ),
        (
            json!({"engine": {"timing_model": {"type": "external", "provider": "x", "config": {}}}}),
            "provider",
        ),
        (json!({"engine": {"block_size": 0}}), "kv_cache.block_size"),
    ] {
        std::fs::write(&file, config.to_string()).unwrap();
        let said = Mocker::start(&["--extra-engine-args", file.to_str().unwrap()], 1).err().unwrap();
        assert!(said.starts_with("Some(2)") && said.contains(words), "{config}: {said}");
    }
    let said = Mocker::start(&["--extra-engine-args", "nowhere.json"], 1).err().unwrap();
    assert!(said.contains("--extra-engine-args: nowhere.json: cannot be read"), "{said}");
}

/// 0.33's memory model gives another number of blocks with half the memory, and with two accelerators.
#[test]
fn calibrated_flags_give_the_capacity_of_model_and_accelerator() {
    let blocks = |more: &[&str]| -> u64 {
        let mocker = Mocker::start(&[&["--model", MODEL, "--ais-perf-model"], more].concat(), 1).unwrap();
        label(&mocker.get(0, "/metrics"), "num_gpu_blocks").parse().unwrap()
    };
    let usual = blocks(&[]);
    assert!(usual > blocks(&["--gpu-memory-utilization", "0.5"]));
    assert!(usual < blocks(&["--ais-tp-size", "2"]));
    assert!(usual > blocks(&["--ais-system", "h100_sxm"]));
    assert_eq!(blocks(&["--num-gpu-blocks-override", "99"]), 99);
    let config = json!({"model": MODEL, "system": "h200_sxm", "backend": "vllm", "tp": 2}).to_string();
    let mocker = Mocker::start(&["--ais-perf-config", &config], 1).unwrap();
    assert!(label(&mocker.get(0, "/metrics"), "num_gpu_blocks").parse::<u64>().unwrap() > usual);
}

/// A prompt as long as the first point of the grid takes what was measured there.
#[test]
fn a_profile_of_dynamo_gives_the_times() {
    let mocker = Mocker::start(&["--planner-profile-data", "examples/profile.json"], 1).unwrap();
    let profile: Value =
        serde_json::from_str(&std::fs::read_to_string(root().join("examples/profile.json")).unwrap())
            .unwrap();
    let (isl, ttft) = (&profile["prefill_isl"], &profile["prefill_ttft_ms"]);
    let tokens = vec![300; isl[0].as_f64().unwrap() as usize];
    mocker.completed(&json!({"prompt": tokens, "max_tokens": 1}));
    let metrics = mocker.get(0, "/metrics");
    let sum = metrics.lines().find(|line| line.starts_with("vllm:time_to_first_token_seconds_sum")).unwrap();
    let seconds: f64 = sum.rsplit(' ').next().unwrap().parse().unwrap();
    assert!((seconds * 1e3 - ttft[0].as_f64().unwrap()).abs() < 1e-6, "{sum}, {ttft}");
}

#[test]
fn a_reply_of_a_trace_is_given_to_who_asks_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.jsonl");
    let rows = "{\"request_id\": \"a\", \"output_token_ids\": [300, 301, 302]}\n\
                {\"session_id\": \"s\", \"output_length\": 1, \"output_token_ids\": [303]}\n";
    std::fs::write(&file, rows).unwrap();
    let flags = ["--speedup-ratio", "0", "--response-replay-trace-path", file.to_str().unwrap()];
    let mocker = Mocker::start(&flags, 1).unwrap();
    let asked = |key: &str, most: u32| {
        let annotations = json!({"annotations": [format!("output_replay_id:{key}")]});
        mocker.completed(
            &json!({"prompt": "x", "max_tokens": most, "return_token_ids": true, "nvext": annotations}),
        )
    };
    let whole = asked("a", 100);
    assert_eq!(whole["choices"][0]["token_ids"], json!([300, 301, 302]));
    assert_eq!(
        (&whole["choices"][0]["finish_reason"], &whole["usage"]["completion_tokens"]),
        (&json!("length"), &json!(3))
    );
    assert_eq!(asked("a", 2)["choices"][0]["token_ids"], json!([300, 301]));
    assert_eq!(asked("s:0", 9)["choices"][0]["token_ids"], json!([303]));
    assert!(asked("b", 9)["error"]["message"].as_str().unwrap().contains("no reply with the key \"b\""));
    // Others get a reply as ever.
    let other = mocker.completed(&json!({"prompt": "x", "max_tokens": 5, "ignore_eos": true}));
    assert_eq!(other["usage"]["completion_tokens"], 5);

    std::fs::write(&file, "{\"request_id\": \"a\", \"output_token_ids\": [4000000000]}").unwrap();
    let said = Mocker::start(&flags, 1).err().unwrap();
    assert!(said.contains("token 4000000000 does not exist, the vocabulary has"), "{said}");
}

/// The first worker is ready at once, the second when its turn has come.
#[test]
fn workers_start_one_after_the_other() {
    let mocker = Mocker::start(&["--num-workers", "2", "--stagger-delay", "600"], 2).unwrap();
    assert!(mocker.get(0, "/health").starts_with("HTTP/1.1 200"));
    assert!(mocker.get(1, "/health").starts_with("HTTP/1.1 503"));
    for (flags, words) in [
        (
            &["mocker", "--stagger-delay", "-2"][..],
            "--stagger-delay: got -2, allowed is -1, or 0 to 3600 seconds",
        ),
        (&["serve", "--stagger-delay", "1"], "--stagger-delay: serve has one server"),
        (&["serve", "--zmq-kv-events-ports", "0"], "--zmq-kv-events-ports: serve publishes as one worker"),
    ] {
        let output = windtunnel(flags).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(err(&output).contains(words), "{}", err(&output));
    }
}

/// Each worker's rank r publishes at the worker's port and r.
#[test]
fn ports_of_kv_events_are_of_each_worker_and_their_ranks_behind_them() {
    let free = |_| std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let ports: Vec<String> = (0..2).map(free).map(|port| port.to_string()).collect();
    let flags = ["--num-workers", "2", "--zmq-kv-events-ports", &ports.join(",")];
    let mocker = Mocker::start(&flags, 2).unwrap();
    for (worker, port) in ports.iter().enumerate() {
        let answer = mocker.get(worker, "/kv_event_sources");
        let sources: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert!(sources.to_string().contains(&format!("tcp://127.0.0.1:{port}")), "{sources}");
    }
}
