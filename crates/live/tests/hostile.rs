//! Clients that mean no good, or are gone: the server stays up. And faults that it makes on purpose.

mod common;

use common::http::{Answer, Options, Server};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::time::Duration;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn still_up(server: &Server) {
    let answer = server.post(COMPLETIONS, &json!({"prompt": "one", "max_tokens": 1}));
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// Sends what may be refused before it is sent whole, and gives what came back until the server closed, if
/// anything did.
fn send(server: &Server, bytes: &[u8]) -> String {
    let mut stream = server.connect();
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// The fields of an object in their order are no request: vLLM 0.33 answers 400 to a body that is an array.
#[test]
fn a_body_that_is_an_array_is_refused() {
    let server = Server::usual();
    for path in [COMPLETIONS, CHAT] {
        let answer = server.post(path, &json!([null, "hi"]));
        assert_eq!(answer.status, 400, "{}", answer.body);
        assert!(answer.body.contains("got a list, allowed is an object"), "{}", answer.body);
    }
    still_up(&server);
}

/// Bodies with every object that a request may have within, by dialect. SGLang and TensorRT-LLM share OpenAI's.
fn nested() -> [(&'static str, &'static str, Value); 9] {
    let chat = json!({
        "stream": true, "stream_options": {"include_usage": true},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            ]},
        ],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "documents": [{"title": "a"}],
        "chat_template_kwargs": {"a": 1}, "response_format": {"type": "text"}, "kv_transfer_params": {"a": 1},
        "max_tokens": 2,
    });
    let render =
        json!({"messages": [{"role": "user", "content": "hi"}], "response_format": {"type": "text"}});
    let completion = json!({"prompt": "hi", "max_tokens": 2, "stream": true, "stream_options": {},
                            "response_format": {"type": "text"}, "kv_transfer_params": {}});
    let generate = json!({"token_ids": [1], "sampling_params": {"max_tokens": 2, "response_format": {"type": "text"}},
                          "kv_transfer_params": {}});
    [
        ("vllm", CHAT, chat.clone()),
        ("vllm", COMPLETIONS, completion.clone()),
        ("vllm", "/inference/v1/generate", generate),
        ("vllm", "/tokenize", render.clone()),
        ("vllm", "/v1/chat/completions/render", render),
        ("sglang", CHAT, chat),
        ("sglang", COMPLETIONS, completion),
        ("sglang", "/generate", json!({"text": "hi", "sampling_params": {"max_new_tokens": 2}})),
        ("sglang", "/generate", json!({"text": ["hi"], "sampling_params": [{"max_new_tokens": 2}]})),
    ]
}

/// Places of all objects within a value.
fn objects(value: &Value, at: &str, found: &mut Vec<String>) {
    if value.is_object() && !at.is_empty() {
        found.push(at.to_owned());
    }
    let fields = value.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), value));
    let items =
        value.as_array().into_iter().flatten().enumerate().map(|(item, value)| (item.to_string(), value));
    fields.chain(items).for_each(|(key, value)| objects(value, &format!("{at}/{key}"), found));
}

/// A list of fields in their order is no object, at any depth: `serde` would read one, vLLM 0.33 and SGLang 0.5.23
/// answer 400 (or 422).
#[test]
fn a_list_in_place_of_an_object_is_refused() {
    let servers = [
        ("vllm", Server::usual()),
        ("sglang", Server::start(Options { yaml: common::SGLANG, ..Options::default() })),
    ];
    for (dialect, path, body) in nested() {
        let server = &servers.iter().find(|(name, _)| *name == dialect).unwrap().1;
        let whole = server.post(path, &body);
        assert_eq!(whole.status, 200, "{path}: {}", whole.body);
        let mut places = Vec::new();
        objects(&body, "", &mut places);
        assert!(!places.is_empty());
        for place in places {
            for instead in [json!([]), json!([3]), json!([true]), json!([null, "hi"]), json!([{}, 1])] {
                let mut wrong = body.clone();
                *wrong.pointer_mut(&place).unwrap() = instead.clone();
                let answer = server.post(path, &wrong);
                if place == "/sampling_params" && dialect == "sglang" && instead == json!([]) {
                    continue;
                }
                assert_eq!(answer.status, 400, "{path} {place} {instead}: {}", answer.body);
                assert_words(&answer.body);
            }
        }
    }
    servers.iter().for_each(|(_, server)| still_up(server));
}

/// No error names a type of Rust or how this program reads.
fn assert_words(body: &str) {
    for leak in ["enum", "struct", "serde", "variant", "u32", "u64", "i64", "f64", "OpenAi", "column"] {
        assert!(!body.contains(leak), "{leak}: {body}");
    }
}

/// Values of the wrong type, for every field that means something.
#[test]
fn errors_of_form_are_in_words() {
    let server = Server::usual();
    for (path, body, words) in [
        (COMPLETIONS, json!({"prompt": {"a": 1}}), "prompt: allowed is a text, a list of texts"),
        (COMPLETIONS, json!({"prompt": 1.5}), "prompt: allowed is a text"),
        (COMPLETIONS, json!({"prompt": "a", "n": "two"}), "n: got \"two\", allowed is a whole number from 0"),
        (
            COMPLETIONS,
            json!({"prompt": "a", "max_tokens": "x"}),
            "max_tokens: got \"x\", allowed is a whole number",
        ),
        (COMPLETIONS, json!({"prompt": "a", "stop": 1}), "stop: allowed is a text or a list of texts"),
        (
            COMPLETIONS,
            json!({"prompt": "a", "temperature": "hot"}),
            "temperature: got \"hot\", allowed is a number",
        ),
        (COMPLETIONS, json!({"prompt": "a", "stream": 1}), "stream: got 1, allowed is true or false"),
        (CHAT, json!({"messages": "hi"}), "messages: got \"hi\", allowed is a list"),
        (CHAT, json!({"messages": ["hi"]}), "messages[0]: got \"hi\", allowed is an object"),
        (CHAT, json!({"messages": [{"content": "hi"}]}), "messages[0]: role is missing"),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": 1}]}),
            "messages[0]: content: allowed is a text",
        ),
        ("/detokenize", json!({"tokens": "x"}), "tokens: allowed is a list of tokens"),
        ("/tokenize", json!({"prompt": 1}), "allowed is a text"),
    ] {
        let answer = server.post(path, &body);
        let message = answer.json()["error"]["message"].as_str().unwrap_or("").to_owned();
        assert!(answer.status == 400 && message.contains(words), "{body}: {}", answer.body);
        assert_words(&message);
    }
    still_up(&server);
}

#[test]
fn bodies_that_are_too_large_are_refused() {
    let server = Server::usual();
    // Told: refused at once. Not told: refused when it has become too long.
    let told = send(
        &server,
        format!(
            "POST {CHAT} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 99999999999\r\n\r\n"
        )
        .as_bytes(),
    );
    assert!(told.starts_with("HTTP/1.1 413"), "{told}");
    let mut chunked =
        format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n")
            .into_bytes();
    let piece = vec![b' '; 1 << 16];
    for _ in 0..20 {
        chunked.extend(format!("{:x}\r\n", piece.len()).bytes());
        chunked.extend(&piece);
        chunked.extend(b"\r\n");
    }
    chunked.extend(b"0\r\n\r\n");
    let answer = send(&server, &chunked);
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    still_up(&server);
}

#[test]
fn what_is_not_json_or_not_utf8_is_refused() {
    let server = Server::usual();
    let deep = "[".repeat(500_000);
    let bodies: [&[u8]; 6] = [
        b"\xff\xfe\x00",
        b"{\"prompt\": \"\xc3\x28\"}",
        b"{\"prompt\": \"\\ud800\"}",
        b"{\"prompt\": \"x\", \"max_tokens\": 1e400}",
        b"{\"prompt\": [-1]}",
        deep.as_bytes(),
    ];
    for body in bodies {
        let mut request = format!(
            "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend(body);
        let answer = send(&server, &request);
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    let other = server.send(&format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\n{{}}"
    ));
    assert_eq!(other.status, 415);
    still_up(&server);
}

#[test]
fn heads_that_are_too_large_are_refused() {
    let server = Server::usual();
    let many: String = (0..100_000).map(|i| format!("h{i}: x\r\n")).collect();
    let answer = send(
        &server,
        format!("GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{many}\r\n").as_bytes(),
    );
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    let long = "x".repeat(4 << 20);
    let answer = send(
        &server,
        format!("GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\nh: {long}\r\n\r\n").as_bytes(),
    );
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    let answer =
        send(&server, format!("GET /{long} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes());
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    send(&server, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n");
    send(&server, b"GET / HTTP/9.9\r\n\r\n\0\0\0");
    still_up(&server);
}

/// A body that does not come is given up; meanwhile others are served.
#[test]
fn slow_bodies_are_given_up() {
    let mut options = Options::default();
    options.settings.body_timeout = Duration::from_millis(200);
    let server = Server::start(options);
    let mut slow: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = server.connect();
            let head = format!(
                "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 100\r\n\r\n{{"
            );
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    still_up(&server);
    let answer = Answer::read(slow.pop().unwrap());
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (408, &json!(408)));
    // A head that never ends keeps nobody from being served.
    let mut heads: Vec<_> = (0..100).map(|_| server.connect()).collect();
    for stream in &mut heads {
        stream.write_all(b"GET /health HTTP/1.1\r\nx").unwrap();
    }
    still_up(&server);
}

/// H21 (dynamo#11917): a client that is gone ends its request and frees its blocks, streaming or not, and a
/// request of the same name gets nothing of it.
#[test]
fn h21_clients_that_are_gone_free_everything() {
    let server = Server::start(Options { no_delay: false, ..Options::default() });
    for stream in [true, false] {
        let body = json!({
            "prompt": "one two six", "max_tokens": 3000, "ignore_eos": true, "stream": stream, "request_id": "same",
        });
        let body = body.to_string();
        let mut client = server.connect();
        let head = format!(
            "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        client.write_all(format!("{head}{body}").as_bytes()).unwrap();
        while server.app.worker.stats()[0].running == 0 {
            std::thread::yield_now();
        }
        drop(client);
        // It would take 30 s by itself.
        let begun = std::time::Instant::now();
        while server.app.worker.stats()[0].running > 0 || server.app.worker.stats()[0].used_blocks > 0 {
            assert!(begun.elapsed() < Duration::from_secs(20), "it goes on without its client");
            std::thread::yield_now();
        }
        assert_eq!(server.app.worker.unfinished(), 0);
        let again = json!({"prompt": "ten", "max_tokens": 2, "ignore_eos": true, "request_id": "same"});
        assert_eq!(server.post(COMPLETIONS, &again).json()["usage"]["completion_tokens"], 2);
    }
}

/// H7 (llm-d-inference-sim#631): a reader that is slow loses nothing.
#[test]
fn h7_slow_readers_get_every_token() {
    let server = Server::usual();
    let body = json!({"prompt": "one", "max_tokens": 4000, "ignore_eos": true, "stream": true, "return_token_ids": true});
    let body = body.to_string();
    let mut clients: Vec<_> = (0..50)
        .map(|_| {
            let mut client = server.connect();
            let head = format!(
                "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            client.write_all(format!("{head}{body}").as_bytes()).unwrap();
            client
        })
        .collect();
    // All tokens are made before anyone reads the first.
    while server.app.worker.stats()[0].running + server.app.worker.stats()[0].waiting > 0
        || server.app.worker.stats()[0].prefix_queries < 50
    {
        std::thread::yield_now();
    }
    for client in clients.drain(..) {
        let events = Answer::read(client).events();
        let tokens: usize =
            events.iter().filter_map(|event| event["choices"][0]["token_ids"].as_array().map(Vec::len)).sum();
        assert_eq!((tokens, events.last()), (4000, Some(&json!("[DONE]"))));
    }
}

#[test]
fn faults_are_made_as_a_header_says() {
    let server = Server::usual();
    let change =
        json!({"timeout_ms": 10, "slow_first_token_ms": 10, "stall_ms": 10, "fault_after_tokens": 2});
    assert_eq!(server.post("/admin/config", &change).status, 200);
    let ask = |kind: &str, stream: bool| {
        let body = json!({"prompt": "one", "max_tokens": 8, "ignore_eos": true, "stream": stream});
        server.post_with(COMPLETIONS, &format!("x-return-error: {kind}\r\n"), &body)
    };
    let statuses = [
        ("rate_limit", 429),
        ("invalid_api_key", 401),
        ("context_length", 400),
        ("invalid_request", 400),
        ("model_not_found", 404),
        ("server_error", 500),
        ("unavailable", 503),
        ("timeout", 504),
        ("nothing", 400),
    ];
    for (kind, status) in statuses {
        for stream in [false, true] {
            let answer = ask(kind, stream);
            assert_eq!((answer.status, &answer.json()["error"]["code"]), (status, &json!(status)), "{kind}");
        }
    }
    assert_eq!(ask("slow_first_token", true).events().last(), Some(&json!("[DONE]")));
    assert_eq!(ask("stall", true).events().last(), Some(&json!("[DONE]")));
    assert_eq!(ask("stall", false).json()["usage"]["completion_tokens"], 8);
    let cut = ask("cut", true);
    assert!(cut.status == 200 && !cut.body.contains("[DONE]"), "{}", cut.body);
    assert!(ask("cut", false).body.is_empty());
    still_up(&server);
    assert_eq!(server.get("/load").json(), json!({"server_load": 0}));
}

#[test]
fn faults_are_drawn_at_a_rate_that_can_be_changed() {
    let server = Server::usual();
    let failed = || {
        let body = json!({"prompt": "one", "max_tokens": 1});
        (0..60).filter(|_| server.post(COMPLETIONS, &body).status == 500).count()
    };
    assert_eq!(failed(), 0);
    let changed =
        server.post("/admin/config", &json!({"failure_rate": 0.5, "failure_types": ["server_error"]}));
    assert_eq!(changed.json()["failure_rate"], 0.5);
    assert!((10..50).contains(&failed()));
    let wrong = [
        json!({"failure_rate": 2}),
        json!({"failure_types": ["rain"]}),
        json!({"failure_types": []}),
        json!({"speedup_ratio": -1}),
        json!({"other": 1}),
    ];
    for body in wrong {
        assert_eq!(server.post("/admin/config", &body).status, 400, "{body}");
    }
    assert_eq!(server.get("/admin/config").json()["failure_rate"], 0.5);
    assert_eq!(server.post("/admin/config", &json!({"failure_rate": 0})).status, 200);
    assert_eq!(failed(), 0);
}

/// Speed and limits change while it runs.
#[test]
fn speed_and_limits_change_at_run_time() {
    let server = Server::start(Options { no_delay: false, ..Options::default() });
    assert_eq!(server.post("/admin/config", &json!({"speedup_ratio": 1e6})).status, 200);
    let body = json!({"prompt": "one", "max_tokens": 3000, "ignore_eos": true});
    // 30 s at the speed of the law, 30 µs at this one.
    let answer = server.post(COMPLETIONS, &body).json();
    assert_eq!(answer["usage"]["completion_tokens"], 3000);
    assert_eq!(server.post("/admin/config", &json!({"max_concurrent_requests": 0})).status, 200);
    let refused = server.post(COMPLETIONS, &body);
    assert_eq!((refused.status, &refused.json()["error"]["type"]), (429, &json!("RateLimitError")));
}

/// A server that starts or ends takes no request; what is at work is served.
#[test]
fn starting_and_draining_are_503() {
    let mut options = Options::default();
    options.settings.startup = Duration::from_secs(3600);
    let server = Server::start(options);
    assert_eq!(server.get("/health").status, 503);
    let answer = server.post(COMPLETIONS, &json!({"prompt": "one"}));
    assert_eq!((answer.status, &answer.json()["error"]["type"]), (503, &json!("ServiceUnavailableError")));
    let server = Server::start(Options { no_delay: false, ..Options::default() });
    let body = json!({"prompt": "one", "max_tokens": 30, "ignore_eos": true, "stream": true});
    std::thread::scope(|scope| {
        let request = scope.spawn(|| server.post(COMPLETIONS, &body));
        while server.app.worker.stats()[0].running == 0 {
            std::thread::yield_now();
        }
        server.stop();
        assert_eq!(request.join().unwrap().events().last(), Some(&Value::from("[DONE]")));
    });
    server.join();
}
