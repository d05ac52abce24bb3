//! `windtunnel mocker` from outside: it serves, and it ends as it is told to.

mod common;

use common::{bash, err, windtunnel};
use serde_json::json;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

/// A running mocker and the address of its first worker.
struct Mocker {
    child: Child,
    addresses: Vec<String>,
}

impl Mocker {
    fn start(arguments: &[&str], workers: usize) -> Mocker {
        Mocker::run("mocker", arguments, workers)
    }

    fn run(command: &str, arguments: &[&str], workers: usize) -> Mocker {
        let mut command = windtunnel([command, "--port", "0"]);
        // Any port also where other workers ask for KV.
        command.env("VLLM_NIXL_SIDE_CHANNEL_PORT", "0");
        let mut child = command.args(arguments).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let addresses = (0..workers)
            .map(|_| {
                let line = lines.next().expect("it says where it listens").unwrap();
                line.split_once("http://").unwrap_or_else(|| panic!("{line}")).1.to_owned()
            })
            .collect();
        // What it says later must have somewhere to go.
        std::thread::spawn(move || lines.for_each(drop));
        Mocker { child, addresses }
    }

    fn request(&self, worker: usize, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.addresses[worker]).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    fn get(&self, worker: usize, path: &str) -> String {
        let mut answer = String::new();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        self.request(worker, &request).read_to_string(&mut answer).unwrap();
        answer
    }

    fn complete(&self, body: &str) -> TcpStream {
        self.complete_at(0, body)
    }

    /// The body of the answer.
    fn completed_at(&self, worker: usize, body: &serde_json::Value) -> serde_json::Value {
        let mut answer = String::new();
        self.complete_at(worker, &body.to_string()).read_to_string(&mut answer).unwrap();
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    fn complete_at(&self, worker: usize, body: &str) -> TcpStream {
        let length = body.len();
        self.request(
            worker,
            &format!(
                "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
            ),
        )
    }

    fn signal(&mut self, signal: &str) -> Option<i32> {
        let sent = bash(&format!("kill -{signal} {}", self.child.id()), Path::new("."));
        assert!(sent.status.success(), "{}", err(&sent));
        self.child.wait().unwrap().code()
    }
}

impl Drop for Mocker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_serves_what_a_file_says_and_flags_change() {
    let mut mocker = Mocker::start(&["-c", "examples/quickstart.yaml", "--max-model-len", "1000"], 2);
    for worker in 0..2 {
        let models = mocker.get(worker, "/v1/models");
        assert!(
            models.contains("\"id\":\"meta-llama/Llama-3.1-8B-Instruct\"")
                && models.contains("\"max_model_len\":1000"),
            "{models}"
        );
    }
    assert_eq!(mocker.signal("TERM"), Some(0));
}

/// `--chat-template` in place of ChatML, as a file and in itself.
#[test]
fn a_chat_template_makes_the_prompts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("template.jinja");
    std::fs::write(&file, "{{ messages[0].content }}!").unwrap();
    for given in [file.to_str().unwrap(), "{{ messages[0].content }}!"] {
        let mocker = Mocker::start(&["--chat-template", given], 1);
        let asked = json!({"messages": [{"role": "user", "content": "the sea"}]}).to_string();
        let mut answer = String::new();
        let request = format!(
            "POST /tokenize HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{asked}",
            asked.len()
        );
        mocker.request(0, &request).read_to_string(&mut answer).unwrap();
        assert!(answer.contains("\"count\":3"), "{answer}");
    }
}

#[test]
fn what_is_no_tokenizer_or_template_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    let folder = folder.path().to_str().unwrap();
    for (arguments, words) in [
        (&["--tokenizer", "nowhere"][..], "--tokenizer: nowhere: there is no such file"),
        (&["--tokenizer", folder], "is not a tokenizer"),
        (&["--chat-template", "nowhere.jinja"], "--chat-template: nowhere.jinja: cannot be read"),
        (&["--chat-template", "{% for %}"], "--chat-template: chat template: syntax error"),
        (&["--chat-template-content-format", "string"], "there is no chat template"),
    ] {
        let output = windtunnel([&["mocker", "--port", "0"][..], arguments].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", err(&output));
        assert!(err(&output).contains(words), "{}", err(&output));
    }
}

/// `serve`: two workers behind one address. The same prompt meets each of them once before it is found again.
#[test]
fn serve_is_one_address_for_all_workers() {
    let mocker =
        Mocker::run("serve", &["--num-workers", "2", "--block-size", "16", "--speedup-ratio", "0"], 1);
    let cached: Vec<bool> = (0..4)
        .map(|_| {
            let prompt = vec!["300"; 64].join(",");
            let mut answer = String::new();
            mocker
                .complete(&format!("{{\"prompt\": [{prompt}], \"max_tokens\": 1}}"))
                .read_to_string(&mut answer)
                .unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            answer.contains("\"cached_tokens\":48")
        })
        .collect();
    assert_eq!(cached, [false, false, true, true]);
}

/// H23 (dynamo#8752, kthena#1129): dashboards made for an engine find its own names at a mock worker.
#[test]
fn h23_dashboards_find_the_engines_own_names() {
    for (engine, names) in [
        ("vllm", ["vllm:num_requests_running{", "vllm:kv_cache_usage_perc{"]),
        ("sglang", ["sglang:num_running_reqs{", "sglang:token_usage{"]),
        ("trtllm", ["trtllm_num_requests_running{", "trtllm_kv_cache_utilization{"]),
    ] {
        let more: &[&str] = if engine == "sglang" { &["--enable-metrics"] } else { &[] };
        let mocker = Mocker::start(&[&["--engine", engine][..], more].concat(), 1);
        let metrics = mocker.get(0, "/metrics");
        for name in names {
            assert!(metrics.lines().any(|line| line.starts_with(name)), "{name}: {metrics}");
        }
    }
}

/// `serve` with the router's own index of prefix caches: every prompt again goes to the worker that has it.
#[test]
fn serve_places_by_what_workers_have_cached() {
    let router = "router={policy: kv_router}";
    let flags = ["--num-workers", "4", "--block-size", "16", "--speedup-ratio", "0", "--set", router];
    let mocker = Mocker::run("serve", &flags, 1);
    for turn in 0..3 {
        for prompt in 0..6 {
            let prompt = vec![300 + prompt; 64];
            let answer = mocker.completed_at(0, &json!({"prompt": prompt, "max_tokens": 2}));
            let cached = if turn == 0 { 0 } else { 48 };
            assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], cached, "{answer}");
        }
    }
    // All four have had work: a prompt that nobody has goes where least is going on, or was drawn among equals.
    let metrics = mocker.get(0, "/metrics");
    let hits = "vllm:prefix_cache_hits_total{";
    let hits: Vec<&str> = metrics.lines().filter(|line| line.starts_with(hits)).collect();
    assert_eq!(hits.len(), 4, "{metrics}");
    let sum: f64 = hits.iter().map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum();
    assert_eq!(sum, 12.0 * 48.0);
}

/// A router with a queue lets requests go when others have got on, and those whose client has gone never.
#[test]
fn serve_holds_requests_back_and_lets_them_go() {
    let router = "router={policy: kv_router, queue_threshold: 0.001}";
    let timing = "engine.workers.aggregated.timing={type: fixed, prefill_ms: 150, decode_ms: 1}";
    let mocker = Mocker::run("serve", &["--num-workers", "2", "--set", router, "--set", timing], 1);
    let prompt = |first: u32| json!({"prompt": (first..first + 200).collect::<Vec<u32>>(), "max_tokens": 3});
    let begun: Vec<TcpStream> =
        (0..6).map(|number| mocker.complete(&prompt(300 * number).to_string())).collect();
    drop(mocker.complete(&prompt(3000).to_string()));
    for mut stream in begun {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let answer = mocker.completed_at(0, &prompt(6000));
    assert_eq!(answer["usage"]["prompt_tokens"], 200, "{answer}");
}

/// What a router does: the prompt to a prefill worker, what that says to a decode worker.
fn hand_over(prefill: &Mocker, decode: (&Mocker, usize)) -> serde_json::Value {
    let prompt: Vec<u32> = (300..364).collect();
    let first = prefill.completed_at(
        0,
        &json!({"prompt": prompt, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": true}}),
    );
    let params = &first["kv_transfer_params"];
    assert_eq!(params["do_remote_prefill"], true, "{first}");
    decode.0.completed_at(
        decode.1,
        &json!({"prompt": prompt, "max_tokens": 3, "ignore_eos": true, "kv_transfer_params": params}),
    )
}

/// Two processes; the decode worker computes one token of the prompt, as its metrics tell.
#[test]
fn prefill_and_decode_are_processes_of_their_own() {
    let mut prefill = Mocker::start(&["--disaggregation-mode", "prefill", "--speedup-ratio", "0"], 1);
    let config = r#"{"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}"#;
    let decode = Mocker::start(&["--kv-transfer-config", config, "--speedup-ratio", "0"], 1);
    let answer = hand_over(&prefill, (&decode, 0));
    assert_eq!(answer["usage"]["completion_tokens"], 3, "{answer}");
    let metrics = decode.get(0, "/metrics");
    let external = "source=\"external_kv_transfer\"} 64.0";
    assert!(metrics.lines().any(|line| line.ends_with(external)), "{metrics}");

    // The prefill worker dies with the blocks that it holds: an error, and the decode worker goes on.
    let prompt: Vec<u32> = (500..564).collect();
    let body = json!({"prompt": prompt, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": true}});
    let params = prefill.completed_at(0, &body)["kv_transfer_params"].clone();
    assert_eq!(prefill.signal("KILL"), None);
    let body = json!({"prompt": prompt, "max_tokens": 3, "kv_transfer_params": params});
    assert_eq!(decode.completed_at(0, &body)["error"]["code"], 500);
    assert_eq!(
        decode.completed_at(0, &json!({"prompt": prompt, "max_tokens": 1}))["usage"]["prompt_tokens"],
        64
    );
}

/// Workers of TensorRT-LLM as processes of their own, asked as its disaggregated server asks them.
#[test]
fn prefill_and_decode_of_trtllm_are_processes_of_their_own() {
    let start = |role| {
        let flags = ["--engine", "trtllm", "--speedup-ratio", "0", "--disaggregation-mode"];
        Mocker::start(&[&flags[..], &[role]].concat(), 1)
    };
    let (prefill, decode) = (start("prefill"), start("decode"));
    let mut body = json!({
        "prompt": (300..364).collect::<Vec<u32>>(), "max_tokens": 4, "ignore_eos": true,
        "disaggregated_params": {"request_type": "context_only"},
    });
    let first = prefill.completed_at(0, &body);
    assert_eq!(first["usage"]["completion_tokens"], 1, "{first}");
    body["disaggregated_params"] = first["choices"][0]["disaggregated_params"].clone();
    body["disaggregated_params"]["request_type"] = json!("generation_only");
    let second = decode.completed_at(0, &body);
    assert_eq!(second["usage"]["completion_tokens"], 4, "{second}");
}

/// A file with two prefill workers and one that decodes.
fn both_roles() -> String {
    both_roles_of("vllm")
}

fn both_roles_of(backend: &str) -> String {
    let worker =
        "kv_cache: {capacity: {type: fixed, blocks: 256}, block_size: 16}, timing: {type: polynomial}";
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("both_roles_{backend}.yaml"));
    let text = format!(
        "engine:\n  mode: disaggregated\n  backend: {backend}\n  model: m\n  hardware: h\n  context_length: 4096\n  \
         workers:\n    prefill: {{parallelism: {{replicas: 2}}, {worker}}}\n    decode: {{{worker}}}\n"
    );
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Behind one address, of all three engines: the answers of one worker that does all, with prefixes found on the workers
/// that compute prompts, also for several choices.
#[test]
fn serve_hands_over_from_prefill_to_decode() {
    for backend in ["vllm", "sglang", "trtllm"] {
        let file = both_roles_of(backend);
        let mut flags = vec!["-c", &file, "--speedup-ratio", "0", "--set", "router={policy: cache_aware}"];
        if backend == "sglang" {
            flags.extend(["--disaggregation-bootstrap-port", "0"]);
        }
        let cluster = Mocker::run("serve", &flags, 1);
        let alone = Mocker::start(
            &["--engine", backend, "--speedup-ratio", "0", "--block-size", "16", "--max-model-len", "4096"],
            1,
        );
        let mut body = json!({
            "prompt": (300..364).collect::<Vec<u32>>(), "max_tokens": 5, "ignore_eos": true, "n": 2,
        });
        let texts = |answer: &serde_json::Value| -> Vec<String> {
            let choices = answer["choices"].as_array().unwrap_or_else(|| panic!("{backend}: {answer}"));
            choices.iter().map(|choice| choice["text"].to_string()).collect()
        };
        let (first, expected) = (cluster.completed_at(0, &body), alone.completed_at(0, &body));
        assert_eq!(texts(&first), texts(&expected), "{backend}");
        assert_eq!(first["usage"]["completion_tokens"], 10, "{backend}: {first}");
        assert!(first.get("kv_transfer_params").is_none_or(serde_json::Value::is_null), "{backend}: {first}");
        body["n"] = json!(1);
        let again = cluster.completed_at(0, &body);
        // TensorRT-LLM finds parts of blocks, too.
        let cached = if backend == "trtllm" { 63 } else { 48 };
        assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], cached, "{backend}: {again}");
        // What no worker can take is refused before anything is computed.
        let long = json!({"prompt": vec![300; 5000], "max_tokens": 5});
        let refused = cluster.completed_at(0, &long);
        assert!(refused.to_string().contains("5000"), "{backend}: {refused}");
        assert!(cluster.get(0, "/health").starts_with("HTTP/1.1 200"), "{backend}");
    }
}

/// A file with both: the prefill workers have the first ports.
#[test]
fn a_file_with_prefill_and_decode_workers_runs_both() {
    let file = both_roles();
    let mocker = Mocker::start(&["-c", &file, "--speedup-ratio", "0"], 3);
    let answer = hand_over(&mocker, (&mocker, 2));
    assert_eq!(answer["usage"]["completion_tokens"], 3, "{answer}");
}

/// A file with a worker of SGLang that does all by itself.
fn sglang_alone() -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sglang_alone.yaml");
    let text = "engine:\n  model: m\n  hardware: h\n  backend: sglang\n  context_length: 4096\n  workers:\n    aggregated: \
                {kv_cache: {capacity: {type: fixed, blocks: 256}}, timing: {type: polynomial}}\n";
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Workers of SGLang as processes of their own, which a request meets in a room; their metrics tell their part, and with
/// the first token from the prefill worker the decode worker has three passes for four tokens.
#[test]
fn prefill_and_decode_of_sglang_meet_in_a_room() {
    let flags = ["--engine", "sglang", "--speedup-ratio", "0", "--enable-metrics", "--disaggregation-mode"];
    let start = |role: &'static str| {
        let port = ["--disaggregation-bootstrap-port", "0"];
        Mocker::start(&[&flags[..], &[role], &port[..]].concat(), 1)
    };
    let (prefill, decode) = (start("prefill"), start("decode"));
    let info = prefill.get(0, "/server_info");
    let info: serde_json::Value = serde_json::from_str(info.split_once("\r\n\r\n").unwrap().1).unwrap();
    let port = &info["disaggregation_bootstrap_port"];
    let body = json!({
        "prompt": (300..364).collect::<Vec<u32>>(), "max_tokens": 4, "ignore_eos": true,
        "bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": 5,
    });
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| prefill.completed_at(0, &body));
        let second = decode.completed_at(0, &body);
        (first.join().unwrap(), second)
    });
    assert_eq!(first["usage"]["completion_tokens"], 1, "{first}");
    assert_eq!(second["usage"]["completion_tokens"], 4, "{second}");
    let value = |metrics: &str, name: &str| -> f64 {
        let line = metrics
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_else(|| panic!("{name}: {metrics}"));
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    for (worker, role) in [(&prefill, "prefill"), (&decode, "decode")] {
        let metrics = worker.get(0, "/metrics");
        assert!(metrics.contains(&format!("engine_type=\"{role}\"")), "{metrics}");
        for queue in ["prefill_bootstrap", "prefill_inflight", "decode_prealloc", "decode_transfer"] {
            assert_eq!(value(&metrics, &format!("sglang:num_{queue}_queue_reqs{{")), 0.0, "{role} {queue}");
        }
        let first_tokens = metrics.lines().find(|line| {
            line.starts_with("sglang:time_to_first_token_seconds_count")
                && line.contains("is_streaming=\"false\"")
        });
        assert!(first_tokens.is_some_and(|line| line.ends_with(" 1.0")), "{role}: {first_tokens:?}");
    }
}

#[test]
fn sigterm_lets_requests_at_work_end() {
    let mut mocker = Mocker::start(
        &["--set", "engine.workers.aggregated.timing={type: fixed, prefill_ms: 300, decode_ms: 1}"],
        1,
    );
    let mut stream = mocker
        .complete("{\"prompt\": \"one two\", \"max_tokens\": 5, \"ignore_eos\": true, \"stream\": true}");
    // The request is in the engine when the load says so.
    while !mocker.get(0, "/load").contains("\"server_load\":1") {
        std::thread::yield_now();
    }
    let code = mocker.signal("TERM");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("data: [DONE]"), "{answer}");
    assert_eq!(code, Some(0));
}

#[test]
fn what_cannot_end_in_time_is_cut_off() {
    let mut mocker = Mocker::start(&["--speedup-ratio", "0.001", "--shutdown-timeout", "0.05"], 1);
    let _stream = mocker.complete("{\"prompt\": \"one two\", \"max_tokens\": 1000, \"ignore_eos\": true}");
    while !mocker.get(0, "/load").contains("\"server_load\":1") {
        std::thread::yield_now();
    }
    assert_eq!(mocker.signal("TERM"), Some(1));
}

#[test]
fn ctrl_c_ends_it_at_once_with_130() {
    let mut mocker = Mocker::start(&["--speedup-ratio", "0"], 1);
    assert!(mocker.get(0, "/health").starts_with("HTTP/1.1 200"));
    assert_eq!(mocker.signal("INT"), Some(130));
}

#[test]
fn wrong_input_exits_with_2() {
    let cases: &[(&[&str], &str)] = &[
        (&["--speedup-ratio=-1"], "--speedup-ratio: got -1, allowed is a number above 0"),
        (&["--shutdown-timeout=-1"], "--shutdown-timeout: got -1"),
        (&["--block-size", "0"], "block_size"),
        (&["--port", "65535", "--num-workers", "2"], "reach port 65536"),
        (&["--failure-rate", "2"], "--failure-rate: failure_rate is 2, allowed is 0 to 1"),
        (&["--failure-types", "rain"], "--failure-types: got \"rain\", allowed are rate_limit, "),
        (&["--lora-modules", "x"], "--lora-modules: got \"x\", allowed is NAME=PATH"),
        (&["--startup-time", "1e300"], "--startup-time: got 1"),
        (&["-c", "nothing.yaml"], "nothing.yaml: cannot be read"),
        (&["--engine", "sglang", "--max-num-queued-reqs", "3"], "max_num_queued_reqs"),
        (&["--response", "dataset"], "--response: dataset needs --dataset"),
        (&["--dataset", "x"], "--dataset: belongs to --response dataset"),
        (&["--response", "dataset", "--dataset", "nothing.jsonl"], "nothing.jsonl: cannot be read"),
        (&["--reasoning", "{\"thinking_ratio\": 2}"], "thinking_ratio: got 2, allowed is 0 to 1"),
        (
            &["--reasoning", "{\"thinking_ratio\": 0.5, \"start_thinking_token_id\": 999999}"],
            "--reasoning: token 999999 does not exist",
        ),
        (&["--kv-transfer-config", "{}"], "--kv-transfer-config: kv_connector: missing"),
        (&["--kv-transfer-bandwidth", "3"], "need --disaggregation-mode or --kv-transfer-config"),
        (
            &["--disaggregation-mode", "decode", "--kv-transfer-bandwidth", "3"],
            "--kv-transfer-bandwidth: needs --kv-bytes-per-token",
        ),
        (
            &[
                "--disaggregation-mode",
                "decode",
                "--kv-transfer-config",
                "{\"kv_connector\": \"NixlConnector\", \"kv_role\": \"kv_producer\"}",
            ],
            "kv_role is that of the other side",
        ),
        (&["-c", &both_roles(), "--disaggregation-mode", "agg"], "--disaggregation-mode: got agg"),
        (&["--disaggregation-bootstrap-port", "1"], "--disaggregation-bootstrap-port: only SGLang has it"),
        (&["--engine", "sglang", "--bootstrap-ports", "1"], "--bootstrap-ports: needs --disaggregation-mode"),
        (
            &["--engine", "sglang", "--disaggregation-mode", "prefill", "--bootstrap-ports", "1,2"],
            "--bootstrap-ports: got 2, allowed is one for each of 1 workers",
        ),
        (
            &["--engine", "sglang", "--disaggregation-mode", "decode", "--bootstrap-ports", "1"],
            "--bootstrap-ports: decode workers have no bootstrap server",
        ),
        (
            &[
                "--engine",
                "sglang",
                "--disaggregation-mode",
                "decode",
                "--kv-transfer-config",
                "{\"kv_connector\": \"NixlConnector\", \"kv_role\": \"kv_consumer\"}",
            ],
            "--kv-transfer-config: only vLLM has it",
        ),
        (&["-c", &sglang_alone(), "--disaggregation-mode", "decode"], "a file has to have engine.mode"),
    ];
    for (arguments, message) in cases {
        let done = windtunnel(["mocker"]).args(*arguments).output().unwrap();
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {}", err(&done));
        assert!(err(&done).contains(message), "{arguments:?}: {}", err(&done));
    }
}

/// Times of SGLang's environment variables.
#[test]
fn a_time_that_is_none_exits_with_2() {
    for variable in ["SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT"] {
        let flags = ["mocker", "--engine", "sglang", "--disaggregation-mode", "decode"];
        let done = windtunnel(flags).env(variable, "soon").output().unwrap();
        assert_eq!(done.status.code(), Some(2), "{}", err(&done));
        assert!(err(&done).contains(&format!("{variable}: got \"soon\"")), "{}", err(&done));
    }
}

#[test]
fn what_serve_cannot_do_exits_with_2() {
    let both = both_roles_of("sglang");
    let cases: &[(&[&str], &str)] = &[
        (
            &["--disaggregation-mode", "decode"],
            "--disaggregation-mode: got decode, and serve runs both sides",
        ),
        (&["-c", &both, "--bootstrap-ports", "1,2"], "--bootstrap-ports: serve has one bootstrap server"),
        (&["--num-workers", "100000"], "got 100000 ranks of all workers, allowed are 10000"),
    ];
    for (arguments, message) in cases {
        let done = windtunnel(["serve"]).args(*arguments).output().unwrap();
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {}", err(&done));
        assert!(err(&done).contains(message), "{arguments:?}: {}", err(&done));
    }
}

/// The example, whose transfers share interfaces, behind one address.
#[test]
fn serve_runs_the_example_of_prefill_and_decode() {
    let mut cluster = Mocker::run("serve", &["-c", "examples/disaggregated.yaml"], 1);
    let answer = cluster.completed_at(
        0,
        &json!({"prompt": (300..364).collect::<Vec<u32>>(), "max_tokens": 3, "ignore_eos": true}),
    );
    assert_eq!(answer["usage"]["completion_tokens"], 3, "{answer}");
    assert_eq!(cluster.signal("TERM"), Some(0));
}

/// Who starts thousands of workers can be told to end before they are there.
#[test]
fn it_ends_while_it_starts() {
    let mut command = windtunnel(["serve", "--port", "0", "--num-workers", "9000"]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    // Bit 14 of the signals that it catches is SIGTERM.
    let catches = || {
        let status = std::fs::read_to_string(&status).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim().to_owned();
        u64::from_str_radix(&mask, 16).unwrap() & (1 << 14) != 0
    };
    while !catches() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let sent = bash(&format!("kill -TERM {}", child.id()), Path::new("."));
    assert!(sent.status.success(), "{}", err(&sent));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{said}");
    assert!(!said.contains("http://"), "{said}");
}

/// A port that is taken is not the input's fault.
#[test]
fn a_port_that_is_taken_exits_with_1() {
    let mocker = Mocker::start(&[], 1);
    let port = mocker.addresses[0].rsplit_once(':').unwrap().1;
    let done = windtunnel(["mocker", "--port", port]).output().unwrap();
    assert_eq!(done.status.code(), Some(1));
    assert!(err(&done).contains("cannot listen on"), "{}", err(&done));
}
