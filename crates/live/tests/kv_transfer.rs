//! Prefill and decode on workers of their own: what they say in answers, how long transfers take, and what becomes of
//! a request whose KV does not come. Times are logical, so they are exact.

mod common;

use common::http::{Answer, Options, Server};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::time::Duration;
use windtunnel_config::KvTransfer;
use windtunnel_engine::vllm::KvRole;
use windtunnel_live::kv_transfer::{PullSettings, TransferSettings, Way};

/// A megabyte a token, a gigabyte a second: a millisecond a token.
fn settings(role: KvRole) -> TransferSettings {
    TransferSettings {
        role,
        way: Way::Pull(PullSettings {
            engine_id: format!("engine-{role:?}"),
            host: "127.0.0.1".into(),
            port: 0,
            lease: Duration::from_secs(30),
        }),
        law: KvTransfer { bytes_per_token: 1_000_000, bandwidth: Some(1.0), ..KvTransfer::default() },
        tensor: 2,
        block_size: 16,
        no_delay: false,
    }
}

fn server(settings: TransferSettings, overrides: &[&str]) -> Server {
    let overrides = overrides.iter().map(|text| (*text).to_owned()).collect();
    Server::start(Options { transfers: Some(settings), no_delay: false, overrides, ..Options::default() })
}

/// 64 tokens.
fn prompt(first: u32) -> Vec<u32> {
    (first..first + 64).collect()
}

/// What a router asks the prefill worker (llm-d's sidecar and vllm-router alike).
fn prefill(server: &Server, prompt: &[u32]) -> Value {
    let answer = server.post(
        "/v1/completions",
        &json!({
            "model": "m", "prompt": prompt, "max_tokens": 1, "min_tokens": 1, "stream": false,
            "kv_transfer_params": {
                "do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
                "remote_block_ids": null, "remote_host": null, "remote_port": null,
            },
        }),
    );
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["kv_transfer_params"].clone()
}

fn decode(server: &Server, prompt: &[u32], params: &Value) -> Answer {
    let body = json!({
        "model": "m", "prompt": prompt, "max_tokens": 4, "ignore_eos": true, "kv_transfer_params": params,
    });
    server.post("/v1/completions", &body)
}

fn used_blocks(server: &Server) -> u32 {
    server.app.worker.stats()[0].used_blocks
}

/// Waits until no block is in use.
fn wait_for_free_blocks(server: &Server) {
    for _ in 0..1000 {
        if used_blocks(server) == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{} blocks are in use", used_blocks(server));
}

/// The fields are those of vLLM 0.33.0 (nixl/pull_scheduler.py `request_finished`, and `remote_prefill_cached_tokens`
/// of v1/core/sched/scheduler.py).
#[test]
fn a_prompt_that_was_computed_elsewhere_is_read_and_not_computed_again() {
    let source = server(settings(KvRole::Producer), &[]);
    let reader = server(settings(KvRole::Consumer), &[]);
    let params = prefill(&source, &prompt(0));
    assert_eq!(params["do_remote_prefill"], true);
    assert_eq!(params["do_remote_decode"], false);
    // 64 tokens of the prompt; the one that was given is not computed.
    assert_eq!(params["remote_num_tokens"], 64);
    assert_eq!(params["remote_block_ids"][0].as_array().map(Vec::len), Some(4));
    assert_eq!((&params["remote_engine_id"], &params["tp_size"]), (&json!("engine-Producer"), &json!(2)));
    assert_eq!(used_blocks(&source), 4, "held until they are read");
    assert_eq!(source.post("/reset_prefix_cache", &json!({})).json()["success"], false);

    let answer = decode(&reader, &prompt(0), &params);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answer = answer.json();
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    // The prefill worker had none of it cached; what was read counts as neither.
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(answer["kv_transfer_params"], Value::Null);
    wait_for_free_blocks(&source);

    // 4 blocks of 16 tokens at a millisecond each. The pass that reports the end takes no time; then one token behind
    // loaded KV is a decode of 10 ms, and so are the three after it.
    let times = reader.log.times()[0];
    let since = |at: Option<windtunnel_engine::Nanos>| at.expect("it came").since(times.arrival).as_ms();
    assert_eq!((since(times.first_token), since(times.last_token)), (74.0, 104.0));
    assert_eq!((times.cached_tokens, times.loaded_tokens), (0, 64));
}

#[test]
fn what_the_decode_worker_has_is_not_read_again() {
    let source = server(settings(KvRole::Producer), &[]);
    let reader = server(settings(KvRole::Consumer), &[]);
    for _ in 0..2 {
        let params = prefill(&source, &prompt(0));
        assert_eq!(decode(&reader, &prompt(0), &params).status, 200);
    }
    wait_for_free_blocks(&source);
    // 3 of 4 blocks are hit (one token at least is to be computed); one is read.
    let times = reader.log.times()[1];
    assert_eq!((times.cached_tokens, times.loaded_tokens), (48, 16));
    assert_eq!(times.first_token.expect("it came").since(times.arrival).as_ms(), 26.0);
}

#[test]
fn the_last_chunk_of_a_stream_says_where_the_kv_is() {
    let source = server(settings(KvRole::Producer), &[]);
    let body = json!({
        "model": "m", "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 1, "stream": true,
        "kv_transfer_params": {"do_remote_decode": true},
    });
    let events = source.post("/v1/chat/completions", &body).events();
    let with: Vec<&Value> = events.iter().filter(|event| event.get("kv_transfer_params").is_some()).collect();
    assert_eq!(with.len(), 1);
    assert_eq!(with[0]["choices"][0]["finish_reason"], "length");
    assert_eq!(with[0]["kv_transfer_params"]["do_remote_prefill"], true);
}

#[test]
fn a_lease_ends_and_who_comes_later_gets_an_error() {
    let mut short = settings(KvRole::Producer);
    let Way::Pull(pull) = &mut short.way else { unreachable!("vLLM pulls") };
    pull.lease = Duration::from_millis(50);
    let source = server(short, &[]);
    let reader = server(settings(KvRole::Consumer), &[]);
    let params = prefill(&source, &prompt(0));
    wait_for_free_blocks(&source);
    let answer = decode(&reader, &prompt(0), &params);
    assert_eq!(answer.status, 500, "{}", answer.body);
    assert_eq!(answer.json()["error"]["type"], "InternalServerError");
    // The worker goes on.
    wait_for_free_blocks(&reader);
    assert_eq!(decode(&reader, &prompt(0), &Value::Null).status, 200);
}

#[test]
fn a_decode_worker_whose_prefill_worker_died_fails_the_request() {
    let reader = server(settings(KvRole::Consumer), &[]);
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("one").port();
    let params = json!({
        "do_remote_prefill": true, "remote_engine_id": "e", "remote_request_id": "r", "remote_host": "127.0.0.1",
        "remote_port": port, "remote_block_ids": [[1, 2, 3, 4]],
    });
    let answer = decode(&reader, &prompt(0), &params);
    assert_eq!(answer.status, 500, "{}", answer.body);
    wait_for_free_blocks(&reader);
}

#[test]
fn a_prefill_worker_that_dies_amid_the_transfer_fails_the_request() {
    let reader = server(settings(KvRole::Consumer), &[]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("one").port();
    let dying = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a claim");
        let mut line = String::new();
        BufReader::new(stream.try_clone().expect("a copy")).read_line(&mut line).expect("a line");
        stream.write_all(b"{\"held\":{\"prompt_tokens\":64,\"computed_for\":0}}\n").expect("it reads");
        // Gone, long before the 64 ms of the transfer are over.
        line
    });
    let params = json!({
        "do_remote_prefill": true, "remote_engine_id": "e", "remote_request_id": "r", "remote_host": "127.0.0.1",
        "remote_port": port, "remote_block_ids": [[1, 2, 3, 4]],
    });
    // A transfer that nobody could sit out.
    let answer = decode(&reader, &prompt(0), &params);
    let asked: Value = serde_json::from_str(&dying.join().expect("no panic")).expect("JSON");
    assert_eq!(asked, json!({"claim": {"engine_id": "e", "request_id": "r"}}));
    assert_eq!(answer.status, 500, "{}", answer.body);
    wait_for_free_blocks(&reader);
}

/// vLLM's `kv_load_failure_policy: recompute`.
#[test]
fn a_worker_told_to_recompute_computes_what_does_not_come() {
    let transfers = Some(settings(KvRole::Consumer));
    let reader = Server::start(Options { transfers, no_delay: false, recompute: true, ..Options::default() });
    let params = json!({
        "do_remote_prefill": true, "remote_engine_id": "e", "remote_request_id": "r", "remote_host": "127.0.0.1",
        "remote_port": 1, "remote_block_ids": [[1]],
    });
    let answer = decode(&reader, &prompt(0), &params);
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.json()["usage"]["completion_tokens"], 4);
}

#[test]
fn a_request_that_ends_before_its_load_lets_go_of_what_is_held_for_it() {
    let source = server(settings(KvRole::Producer), &[]);
    let reader = server(settings(KvRole::Consumer), &["engine.workers.aggregated.scheduler.max_sequences=1"]);
    // The only seat is taken for as long as the test lasts, so that no load starts.
    let seat = json!({"model": "m", "prompt": "hi", "max_tokens": 4000, "ignore_eos": true, "stream": true});
    let mut busy = reader.connect();
    let body = seat.to_string();
    write!(busy, "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .expect("it reads");
    while reader.app.worker.stats()[0].running == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let params = prefill(&source, &prompt(0));
    let mut waiting = reader.connect();
    let body = json!({"model": "m", "prompt": prompt(0), "kv_transfer_params": params}).to_string();
    write!(
        waiting,
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("it reads");
    while reader.app.worker.stats()[0].waiting == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(waiting);
    // Long before the lease of 30 s ends.
    wait_for_free_blocks(&source);
}

#[test]
fn params_that_name_no_kv_are_refused() {
    let reader = server(settings(KvRole::Both), &[]);
    let good = json!({
        "do_remote_prefill": true, "remote_engine_id": "e", "remote_request_id": "r", "remote_host": "h",
        "remote_port": 1, "remote_block_ids": [[1]],
    });
    for missing in ["remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids"]
    {
        let mut params = good.clone();
        params.as_object_mut().expect("an object").remove(missing);
        let answer = decode(&reader, &prompt(0), &params);
        assert_eq!(answer.status, 400, "{missing}");
        assert!(answer.body.contains(missing), "{}", answer.body);
    }
    for wrong in [json!("nixl"), json!({"do_remote_prefill": true, "do_remote_decode": true})] {
        assert_eq!(decode(&reader, &prompt(0), &wrong).status, 400, "{wrong}");
    }
    let two = json!({"model": "m", "prompt": "a", "n": 2, "kv_transfer_params": {"do_remote_decode": true}});
    assert_eq!(reader.post("/v1/completions", &two).status, 400);
}

/// As vLLM does without a connector.
#[test]
fn a_worker_that_takes_no_part_ignores_params() {
    let plain = Server::usual();
    let answer = decode(&plain, &prompt(0), &json!({"do_remote_prefill": true}));
    assert_eq!((answer.status, &answer.json()["kv_transfer_params"]), (200, &Value::Null));
}

/// What is no claim, or one on something else, is turned away; the worker stays up.
#[test]
fn strangers_at_the_side_channel_change_nothing() {
    let source = server(settings(KvRole::Producer), &[]);
    let params = prefill(&source, &prompt(0));
    let port = params["remote_port"].as_u64().expect("a port") as u16;
    let ask = |bytes: &[u8]| {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it accepts");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        // It may hang up before all is written.
        let _ = stream.write_all(bytes);
        let mut line = String::new();
        let _ = BufReader::new(stream).read_line(&mut line);
        line
    };
    assert_eq!(ask(b"GET / HTTP/1.1\r\n\r\n"), "");
    assert_eq!(ask(&[0xff; 200_000]), "");
    let other = ask(b"{\"claim\":{\"engine_id\":\"engine-Producer\",\"request_id\":\"nobody\"}}\n");
    assert!(other.contains("refused"), "{other}");
    let restarted = ask(b"{\"claim\":{\"engine_id\":\"before\",\"request_id\":\"nobody\"}}\n");
    assert!(restarted.contains("this is engine engine-Producer"), "{restarted}");
    assert_eq!(used_blocks(&source), 4);
    let reader = server(settings(KvRole::Consumer), &[]);
    assert_eq!(decode(&reader, &prompt(0), &params).status, 200);
}
