//! Prefill and decode of SGLang: who meets whom in which room, what the bootstrap server says, and what becomes of a
//! request whose other side is not there.

mod common;

use common::http::{Answer, Options, Server};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use windtunnel_config::KvTransfer;
use windtunnel_engine::vllm::KvRole;
use windtunnel_live::kv_transfer::{RoomSettings, TransferSettings, Way};
use windtunnel_live::observer::Lengths;

const LONG: Duration = Duration::from_secs(300);

/// A transfer takes a millisecond a token.
fn settings(role: KvRole) -> TransferSettings {
    TransferSettings {
        role,
        way: Way::Rooms(rooms()),
        law: KvTransfer { bytes_per_token: 1_000_000, bandwidth: Some(1.0), ..KvTransfer::default() },
        tensor: 2,
        block_size: 16,
        no_delay: false,
    }
}

fn rooms() -> RoomSettings {
    RoomSettings {
        host: "127.0.0.1".parse().expect("an address"),
        ports: vec![0],
        told_host: None,
        http_port: Some(30000),
        ranks: 1,
        attempts: 1,
        bootstrap_timeout: LONG,
        waiting_timeout: LONG,
    }
}

fn server(role: KvRole, change: impl FnOnce(&mut RoomSettings)) -> Server {
    let mut rooms = rooms();
    change(&mut rooms);
    let transfers = TransferSettings { way: Way::Rooms(rooms), ..settings(role) };
    Server::start(Options::apart("sglang", transfers))
}

fn prefill_server() -> Server {
    server(KvRole::Producer, |_| {})
}

fn decode_server() -> Server {
    server(KvRole::Consumer, |_| {})
}

fn bootstrap_port(server: &Server) -> u64 {
    server.get("/server_info").json()["disaggregation_bootstrap_port"].as_u64().expect("a port")
}

/// 64 tokens.
fn prompt() -> Vec<u32> {
    (300..364).collect()
}

fn generate(port: u64, room: u64) -> Value {
    json!({
        "input_ids": prompt(), "sampling_params": {"max_new_tokens": 4, "ignore_eos": true},
        "bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room,
    })
}

/// Sends a request to both sides at once, as a router does.
fn both(prefill: &Server, decode: &Server, path: &str, body: &Value) -> (Answer, Answer) {
    std::thread::scope(|scope| {
        let first = scope.spawn(|| prefill.post(path, body));
        let second = decode.post(path, body);
        (first.join().expect("no panic"), second)
    })
}

/// Waits until no page is in use, and nothing is at work.
fn wait_for_rest(server: &Server) {
    for _ in 0..1000 {
        let stats = server.app.worker.stats()[0];
        if stats.used_blocks == 0 && stats.running + stats.waiting + stats.hand_offs.sending == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{:?}", server.app.worker.stats()[0]);
}

fn wait_for_waiting(server: &Server) {
    while server.app.worker.stats()[0].waiting == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A request of which nobody reads the answer yet.
fn begin(server: &Server, path: &str, body: &Value) -> TcpStream {
    let body = body.to_string();
    let mut stream = server.connect();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("it reads");
    stream
}

/// The prefill side samples the first token (srt/disaggregation/decode.py:2699), and a replay of a plan goes on where it
/// was handed over (dynamo#13058: the prefill worker gave a token of its own).
#[test]
fn l15_the_first_token_is_that_of_the_prefill_worker() {
    let (prefill, decode) = (prefill_server(), decode_server());
    let body = generate(bootstrap_port(&prefill), 7);
    let (first, second) = both(&prefill, &decode, "/generate", &body);
    assert_eq!((first.status, second.status), (200, 200), "{} {}", first.body, second.body);
    let (first, second) = (first.json(), second.json());
    let tokens = second["output_ids"].as_array().expect("tokens");
    assert_eq!(tokens.len(), 4);
    assert_eq!(first["output_ids"], json!([tokens[0]]));
    // `FINISH_LENGTH(length=0)`: the other side counts.
    assert_eq!(first["meta_info"]["finish_reason"], json!({"type": "length", "length": 0}));
    assert_eq!(second["meta_info"]["finish_reason"], json!({"type": "length", "length": 4}));
    wait_for_rest(&prefill);
    wait_for_rest(&decode);

    let (given, got) = (prefill.log.times()[0], decode.log.times()[0]);
    assert_eq!((given.output_tokens, got.output_tokens), (1, 4));
    assert_eq!((got.loaded_tokens, got.cached_tokens), (64, 0));
    let since = |from, at: Option<windtunnel_engine::Nanos>| at.expect("it came").since(from).as_ms();
    // A pass of 100 ms there, a transfer of 64 ms; no decode pass gives the first token, and three give the others. What is
    // between the two workers takes time of the wall clock.
    assert_eq!(since(given.first_admit.expect("it ran"), given.first_token), 100.0);
    assert!(since(got.arrival, got.first_token) >= 164.0, "{got:?}");
    assert_eq!(since(got.first_token.expect("it came"), got.last_token), 30.0);
}

/// metrics_reporter.py: what waits for KV on the decode side is work for decodes, by its length.
#[test]
fn what_waits_for_kv_is_work_for_decodes() {
    let (prefill, decode) = (prefill_server(), decode_server());
    let mut running = generate(1, 1);
    running["bootstrap_host"] = json!("2.2.2.2");
    running["sampling_params"]["max_new_tokens"] = json!(3000);
    let _running = begin(&decode, "/generate", &running);
    // The prefill worker never hears of it.
    let _waiting = begin(&decode, "/generate", &generate(bootstrap_port(&prefill), 5));
    let expected = (Lengths::default(), Lengths { count: 1, sum: 64, squares: 64 * 64 });
    for _ in 0..1000 {
        if decode.log.queued() == expected {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{:?}", decode.log.queued());
}

#[test]
fn a_prefill_worker_answers_when_its_kv_has_been_read() {
    let (prefill, decode) = (prefill_server(), decode_server());
    let body = generate(bootstrap_port(&prefill), 1 << 62);
    let asked = begin(&prefill, "/generate", &body);
    wait_for_waiting(&prefill);
    assert_eq!(prefill.app.worker.stats()[0].hand_offs.bootstrapping, 1);
    let loads = prefill.get("/v1/loads").json();
    assert_eq!(loads["loads"][0]["disaggregation"]["prefill_bootstrap_queue_reqs"], 1);
    assert_eq!(decode.post("/generate", &body).status, 200);
    assert_eq!(Answer::read(asked).status, 200);
    let log = prefill.log.lines();
    assert!(log.iter().any(|line| line.starts_with("handed over")), "{log:?}");
    wait_for_rest(&prefill);
}

#[test]
fn every_endpoint_and_several_prompts_meet() {
    let (prefill, decode) = (prefill_server(), decode_server());
    let port = bootstrap_port(&prefill);
    let meeting = |mut body: Value, room: Value| {
        let fields = body.as_object_mut().expect("an object");
        fields.extend([
            ("bootstrap_host".to_owned(), json!("127.0.0.1")),
            ("bootstrap_port".to_owned(), json!(port)),
            ("bootstrap_room".to_owned(), room),
        ]);
        body
    };
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "one two"}], "max_tokens": 3, "ignore_eos": true});
    let (first, second) = both(&prefill, &decode, "/v1/chat/completions", &meeting(chat, json!(1)));
    assert_eq!((first.status, second.status), (200, 200), "{} {}", first.body, second.body);
    assert_eq!(second.json()["usage"]["completion_tokens"], 3);
    let stream = json!({
        "model": "m", "prompt": "one two six", "max_tokens": 3, "ignore_eos": true, "stream": true,
        "stream_options": {"include_usage": true},
    });
    let (first, second) = both(&prefill, &decode, "/v1/completions", &meeting(stream, json!(2)));
    assert_eq!((first.status, second.status), (200, 200), "{} {}", first.body, second.body);
    let events = second.events();
    assert_eq!(events[events.len() - 2]["usage"]["completion_tokens"], 3);
    // As sglang-router sends several prompts: a list for each field.
    let mut batch = json!({"input_ids": [[1, 2, 3], [4, 5]], "sampling_params": {"max_new_tokens": 2, "ignore_eos": true}});
    let fields = batch.as_object_mut().expect("an object");
    fields.insert("bootstrap_host".into(), json!(["127.0.0.1", "127.0.0.1"]));
    fields.insert("bootstrap_port".into(), json!([port, port]));
    fields.insert("bootstrap_room".into(), json!([3, 9]));
    let (first, second) = both(&prefill, &decode, "/generate", &batch);
    assert_eq!((first.status, second.status), (200, 200), "{} {}", first.body, second.body);
    assert_eq!(second.json().as_array().map(Vec::len), Some(2));
    // One room for several prompts is that of the first; the others have the next ones (io_struct.py:929).
    fields_of(&mut batch, json!("127.0.0.1"), json!(port), json!(20));
    let (first, second) = both(&prefill, &decode, "/generate", &batch);
    assert_eq!((first.status, second.status), (200, 200), "{} {}", first.body, second.body);
}

fn fields_of(body: &mut Value, host: Value, port: Value, room: Value) {
    let fields = body.as_object_mut().expect("an object");
    fields.insert("bootstrap_host".into(), host);
    fields.insert("bootstrap_port".into(), port);
    fields.insert("bootstrap_room".into(), room);
}

/// `follow_bootstrap_room_scheduler` (srt/managers/data_parallel_controller.py), unless the request names a rank.
#[test]
fn a_room_belongs_to_a_rank_of_the_prefill_worker() {
    let transfers = TransferSettings {
        way: Way::Rooms(RoomSettings { ranks: 2, ..rooms() }),
        ..settings(KvRole::Producer)
    };
    let two = "engine.workers.prefill.parallelism.attention_data=2".to_owned();
    let prefill = Server::start(Options::apart("sglang", transfers).with([two]));
    let decode = decode_server();
    let port = bootstrap_port(&prefill);
    for (room, named, rank) in [(6, None, 0), (7, None, 1), (8, Some(1), 1)] {
        let mut body = generate(port, room);
        if let Some(named) = named {
            body["routed_dp_rank"] = json!(named);
        }
        let first = begin(&prefill, "/generate", &body);
        assert_eq!(decode.post("/generate", &generate(port, room)).status, 200);
        let first = Answer::read(first).json();
        assert_eq!(first["meta_info"]["dp_rank"], rank, "room {room}: {first}");
    }
}

/// `usage` counts what the prefill worker had cached; a decode worker keeps no prefixes.
#[test]
fn cached_tokens_are_those_of_the_prefill_worker() {
    let (prefill, decode) = (prefill_server(), decode_server());
    let port = bootstrap_port(&prefill);
    let cached: Vec<Value> = (0..2)
        .map(|room| {
            let (_, answer) = both(&prefill, &decode, "/generate", &generate(port, room));
            answer.json()["meta_info"]["cached_tokens"].clone()
        })
        .collect();
    // Of 64 tokens all but one may be found, in pages of 16.
    assert_eq!(cached, [json!(0), json!(48)]);
}

#[test]
fn a_worker_of_one_part_says_so_and_is_healthy() {
    for (role, mode) in [(KvRole::Producer, "prefill"), (KvRole::Consumer, "decode")] {
        let server = server(role, |_| {});
        assert_eq!(server.get("/server_info").json()["disaggregation_mode"], mode);
        assert_eq!(server.get("/model_info").json()["disaggregation_mode"], mode);
        assert_eq!(server.get("/v1/loads").json()["loads"][0]["disaggregation"]["mode"], mode);
        // A probe has no other side (FAKE_BOOTSTRAP_HOST).
        assert_eq!(server.get("/health_generate").status, 200);
        let mut fake = generate(1, 0);
        fake["bootstrap_host"] = json!("2.2.2.2");
        assert_eq!(server.post("/generate", &fake).status, 200);
        wait_for_rest(&server);
    }
    let plain = Server::start(Options { yaml: common::SGLANG, ..Options::default() });
    assert_eq!(plain.get("/server_info").json()["disaggregation_mode"], "null");
    // It does all by itself, and ignores what it is told of rooms.
    assert_eq!(plain.post("/generate", &generate(1, 0)).status, 200);
}

/// srt/managers/scheduler.py: "Disaggregated request received without bootstrap room id", 400.
#[test]
fn what_says_no_room_or_a_wrong_one_is_refused() {
    let decode = decode_server();
    let with = |key: &str, value: Value| {
        let mut body = generate(1, 1);
        body[key] = value;
        body
    };
    let cases = [
        (with("bootstrap_room", Value::Null), "bootstrap_room"),
        (with("bootstrap_room", json!(-1)), "bootstrap_room is -1"),
        (with("bootstrap_room", json!("x")), "bootstrap_room"),
        (with("bootstrap_room", json!([1, 2])), "2 values for 1 prompts"),
        (with("bootstrap_host", json!(7)), "bootstrap_host is 7"),
        (with("bootstrap_port", json!(70000)), "bootstrap_port is 70000"),
        (with("sampling_params", json!({"n": 2})), "one choice"),
    ];
    for (body, words) in cases {
        let answer = decode.post("/generate", &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
        assert!(answer.body.contains(words), "{body}: {}", answer.body);
    }
    let chat = json!({"model": "m", "prompt": "one"});
    assert_eq!(decode.post("/v1/completions", &chat).status, 400);
    // Headers say the same, and win (srt/entrypoints/request_headers.py).
    let header = |name: &str, value: &str| format!("x-override-bootstrap-{name}: {value}\r\n");
    let wrong = decode.post_with("/generate", &header("room", "x"), &generate(1, 1));
    assert_eq!(wrong.status, 400, "{}", wrong.body);
    let prefill = prefill_server();
    let mut body = generate(bootstrap_port(&prefill), 1);
    body["bootstrap_room"] = Value::Null;
    body["bootstrap_host"] = json!("nowhere.invalid");
    let headers = header("room", "12") + &header("host", "127.0.0.1");
    std::thread::scope(|scope| {
        let first = scope.spawn(|| prefill.post("/generate", &generate(bootstrap_port(&prefill), 12)));
        let second = decode.post_with("/generate", &headers, &body);
        assert_eq!(second.status, 200, "{}", second.body);
        assert_eq!(first.join().expect("no panic").status, 200);
    });
}

#[test]
fn a_decode_worker_that_finds_no_prefill_worker_fails_the_request() {
    let decode = decode_server();
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("one").port();
    let answer = decode.post("/generate", &generate(port.into(), 1));
    assert_eq!(answer.status, 500, "{}", answer.body);
    wait_for_rest(&decode);
}

#[test]
fn a_decode_worker_whose_prefill_worker_has_no_such_request_gives_it_up_in_time() {
    let prefill = prefill_server();
    let decode = server(KvRole::Consumer, |rooms| rooms.waiting_timeout = Duration::from_millis(100));
    let answer = decode.post("/generate", &generate(bootstrap_port(&prefill), 1));
    assert_eq!(answer.status, 500, "{}", answer.body);
    wait_for_rest(&decode);
}

#[test]
fn a_prefill_worker_whose_decode_worker_never_comes_gives_the_request_up_in_time() {
    let prefill = server(KvRole::Producer, |rooms| rooms.bootstrap_timeout = Duration::from_millis(100));
    let answer = prefill.post("/generate", &generate(bootstrap_port(&prefill), 1));
    assert_eq!(answer.status, 500, "{}", answer.body);
    wait_for_rest(&prefill);
    // It goes on, and the room is free.
    let decode = decode_server();
    let (first, second) = both(&prefill, &decode, "/generate", &generate(bootstrap_port(&prefill), 1));
    assert_eq!((first.status, second.status), (200, 200), "{} {}", first.body, second.body);
}

/// Where the ranks of a worker hear who enters.
fn door(bootstrap_port: u16) -> u16 {
    let route = "/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0";
    let place: Value = serde_json::from_str(&ask(bootstrap_port, "GET", route, "").1).expect("JSON");
    place["rank_port"].as_u64().expect("a port") as u16
}

/// Somebody who is in a room, and has no space yet. Two come, one is let in.
fn enter(bootstrap_port: u16, room: u64) -> TcpStream {
    let door = door(bootstrap_port);
    let mut both = [0, 1].map(|_| TcpStream::connect(("127.0.0.1", door)).expect("it listens"));
    for peer in &mut both {
        writeln!(peer, "{}", json!({"enter": {"room": room}})).expect("it reads");
        peer.set_read_timeout(Some(Duration::from_millis(10))).expect("a timeout");
    }
    let [first, second] = both;
    for _ in 0..3000 {
        for (refused, inside) in [(&first, &second), (&second, &first)] {
            if refused.peek(&mut [0]).is_ok() {
                let inside = inside.try_clone().expect("a copy");
                inside.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
                return inside;
            }
        }
    }
    panic!("nobody is turned away from room {room}");
}

fn hear(peer: &TcpStream) -> Value {
    let mut line = String::new();
    BufReader::new(peer.try_clone().expect("a copy")).read_line(&mut line).expect("a line");
    serde_json::from_str(&line).expect("JSON")
}

#[test]
fn a_client_that_leaves_one_side_fails_the_other() {
    // Nobody waits for long here, and nothing else ends the requests.
    let (prefill, decode) = (prefill_server(), decode_server());
    let port = bootstrap_port(&prefill);
    let peer = enter(port as u16, 1);
    let waiting = begin(&prefill, "/generate", &generate(port, 1));
    wait_for_waiting(&prefill);
    drop(waiting);
    wait_for_rest(&prefill);
    assert_eq!(hear(&peer), "left");
    // The other way round.
    let peer = enter(port as u16, 2);
    let asked = begin(&prefill, "/generate", &generate(port, 2));
    wait_for_waiting(&prefill);
    drop(peer);
    assert_eq!(Answer::read(asked).status, 500);
    // A decode worker whose client leaves has nothing to do any more.
    let waiting = begin(&decode, "/generate", &generate(port, 3));
    wait_for_waiting(&decode);
    drop(waiting);
    wait_for_rest(&decode);
}

/// The decode worker dies amid the transfer: the prefill worker lets go of the KV at once, and says so.
#[test]
fn a_decode_worker_that_dies_amid_the_transfer_fails_the_request() {
    let prefill = prefill_server();
    let port = bootstrap_port(&prefill);
    let asked = begin(&prefill, "/generate", &generate(port, 5));
    let mut peer = enter(port as u16, 5);
    peer.write_all(b"{\"ready\":{\"bytes\":0}}\n").expect("it reads");
    let told = hear(&peer);
    assert_eq!(told["computed"]["prompt_tokens"], 64);
    assert_eq!(prefill.app.worker.stats()[0].hand_offs.sending, 1);
    drop(peer);
    assert_eq!(Answer::read(asked).status, 500);
    wait_for_rest(&prefill);
}

#[test]
fn a_prefill_worker_that_dies_amid_the_transfer_fails_the_request() {
    let decode = decode_server();
    // A bootstrap server and a rank that dies when it has told of the prompt.
    let (registry, door) = (
        TcpListener::bind("127.0.0.1:0").expect("a port"),
        TcpListener::bind("127.0.0.1:0").expect("a port"),
    );
    let (port, rank_port) =
        (registry.local_addr().expect("one").port(), door.local_addr().expect("one").port());
    std::thread::spawn(move || {
        for body in [json!({"page_size": 16}), json!({"rank_ip": "127.0.0.1", "rank_port": rank_port})] {
            let (mut stream, _) = registry.accept().expect("a question");
            let mut head = BufReader::new(stream.try_clone().expect("a copy"));
            let mut line = String::new();
            while head.read_line(&mut line).is_ok() && line.trim_end() != "" {
                line.clear();
            }
            let body = body.to_string();
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
                .expect("it reads");
        }
    });
    let dying = std::thread::spawn(move || {
        let (mut stream, _) = door.accept().expect("somebody");
        let mut lines = BufReader::new(stream.try_clone().expect("a copy")).lines();
        let heard = [lines.next(), lines.next()].map(|line| line.expect("a line").expect("UTF-8"));
        let told = json!({
            "computed": {"worker": 0, "prompt_tokens": 64, "cached_tokens": 0, "computed_for": 0},
        });
        writeln!(stream, "{told}").expect("it reads");
        heard
    });
    let answer = decode.post("/generate", &generate(port.into(), 9));
    // 64 tokens of a megabyte.
    let ready = "{\"ready\":{\"bytes\":64000000}}";
    assert_eq!(dying.join().expect("no panic"), ["{\"enter\":{\"room\":9}}", ready]);
    assert_eq!(answer.status, 500, "{}", answer.body);
    wait_for_rest(&decode);
}

#[test]
fn two_requests_in_one_room_do_not_meet() {
    let prefill = prefill_server();
    let port = bootstrap_port(&prefill);
    let first = begin(&prefill, "/generate", &generate(port, 1));
    wait_for_waiting(&prefill);
    assert_eq!(prefill.post("/generate", &generate(port, 1)).status, 500);
    // The first one is still there.
    let decode = decode_server();
    assert_eq!(decode.post("/generate", &generate(port, 1)).status, 200);
    assert_eq!(Answer::read(first).status, 200);
}

/// srt/disaggregation/common/conn.py: both servers must use the same page size.
#[test]
fn sides_with_different_pages_do_not_fit_together() {
    let prefill = prefill_server();
    let other = TransferSettings { block_size: 32, ..settings(KvRole::Consumer) };
    let overrides = ["prefill", "decode"].map(|role| format!("engine.workers.{role}.kv_cache.block_size=32"));
    let decode = Server::start(Options::apart("sglang", other).with(overrides));
    assert_eq!(decode.post("/generate", &generate(bootstrap_port(&prefill), 1)).status, 500);
    wait_for_rest(&decode);
}

/// Asks a server; status and body.
fn ask(port: u16, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

/// Routes, fields and words of `CommonKVBootstrapServer` (srt/disaggregation/common/conn.py, 0.5.23).
#[test]
fn the_bootstrap_server_says_where_ranks_are() {
    let prefill = prefill_server();
    let port = bootstrap_port(&prefill) as u16;
    let route = |numbers: [i32; 4]| {
        let [dp, cp, tp, pp] = numbers;
        format!("/route?prefill_dp_rank={dp}&prefill_cp_rank={cp}&target_tp_rank={tp}&target_pp_rank={pp}")
    };
    assert_eq!(ask(port, "GET", "/health", ""), (200, "OK".into()));
    let (status, worker) = ask(port, "GET", &route([-1; 4]), "");
    let worker: Value = serde_json::from_str(&worker).expect("JSON");
    assert_eq!(status, 200);
    let expected = json!({
        "attn_tp_size": 2, "attn_cp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": 16, "kv_cache_dtype": null,
        "follow_bootstrap_room": true, "enable_dsa_cache_layer_split": false, "decode_allocation_policy": "early",
        "enable_kv_cache_sharding": false, "prefill_http_port": 30000, "target_tp_rank": null, "target_tp_ranks": null,
        "target_cp_ranks": null, "target_pp_ranks": null, "required_dst_info_num": null,
        "required_prefill_response_num": null,
    });
    assert_eq!(worker, expected);
    for tensor_rank in [0, 1] {
        let (status, place) = ask(port, "GET", &route([0, 0, tensor_rank, 0]), "");
        let place: Value = serde_json::from_str(&place).expect("JSON");
        assert_eq!((status, &place["rank_ip"]), (200, &json!("127.0.0.1")));
    }
    assert_eq!(ask(port, "GET", &route([3, 0, 0, 0]), "").0, 404);
    assert_eq!(
        ask(port, "GET", "/route?prefill_dp_rank=0", ""),
        (400, "Missing inputs for bootstrap server.".into())
    );
    assert_eq!(ask(port, "GET", &route([-1; 4]).replace("-1", "x"), "").0, 400);
    assert_eq!(ask(port, "DELETE", "/route", ""), (405, "Method not allowed".into()));
    assert_eq!(
        ask(port, "POST", "/register_dp_rank", r#"{"bootstrap_room": 77, "dp_rank": 3}"#),
        (200, "OK".into())
    );
    assert_eq!(
        ask(port, "POST", "/query_dp_ranks", r#"{"bootstrap_rooms": [77, 78]}"#),
        (200, r#"{"77":3}"#.into())
    );
    assert_eq!(ask(port, "POST", "/query_dp_ranks", "[").0, 400);
    let row = json!({
        "attn_tp_size": 2, "attn_tp_rank": 1, "attn_cp_size": 1, "attn_cp_rank": 0, "attn_dp_size": 1, "attn_dp_rank": 0,
        "pp_size": 1, "pp_rank": 0, "system_dp_size": 1, "system_dp_rank": 0, "rank_ip": "10.0.0.9", "rank_port": 99,
        "page_size": 16, "kv_cache_dtype": "auto",
    });
    assert_eq!(ask(port, "PUT", "/route", &row.to_string()), (200, "OK".into()));
    let (_, place) = ask(port, "GET", &route([0, 0, 1, 0]), "");
    assert_eq!(
        serde_json::from_str::<Value>(&place).expect("JSON"),
        json!({"rank_ip": "10.0.0.9", "rank_port": 99})
    );
    let mut other = row;
    other["decode_allocation_policy"] = json!("prefill_complete");
    assert_eq!(ask(port, "PUT", "/route", &other.to_string()).0, 400);
    assert_eq!(ask(port, "PUT", "/route", "{}").0, 400);
}

/// What is no other side is turned away; the worker stays up.
#[test]
fn strangers_at_the_door_change_nothing() {
    let (prefill, decode) = (prefill_server(), decode_server());
    let port = bootstrap_port(&prefill) as u16;
    let door = door(port);
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 200_000], b"{\"ready\":{\"bytes\":0}}\n"] {
        let mut stream = TcpStream::connect(("127.0.0.1", door)).expect("it accepts");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        // It may hang up before all is written.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty());
    }
    let (first, second) = both(&prefill, &decode, "/generate", &generate(port.into(), 1));
    assert_eq!((first.status, second.status), (200, 200), "{} {}", first.body, second.body);
}
