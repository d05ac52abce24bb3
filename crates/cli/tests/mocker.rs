//! `windtunnel mocker` from outside: it serves, and it ends as it is told to.

mod common;

use common::{bash, err, windtunnel};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};

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
        let length = body.len();
        self.request(
            0,
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
            models.contains("\"id\":\"example-8b\"") && models.contains("\"max_model_len\":1000"),
            "{models}"
        );
    }
    assert_eq!(mocker.signal("TERM"), Some(0));
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
    ];
    for (arguments, message) in cases {
        let done = windtunnel(["mocker"]).args(*arguments).output().unwrap();
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {}", err(&done));
        assert!(err(&done).contains(message), "{arguments:?}: {}", err(&done));
    }
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
