//! Prefill and decode of TensorRT-LLM, as its disaggregated server asks two workers for the parts of a request
//! (tensorrt_llm/serve/openai_disagg_service.py). Read, and compared with nothing.

mod common;

use common::http::{Answer, Options, Server};
use serde_json::{Value, json};
use std::time::Duration;
use windtunnel_config::KvTransfer;
use windtunnel_engine::vllm::KvRole;
use windtunnel_live::kv_transfer::{PullSettings, TransferSettings, Way};

/// A transfer takes a millisecond a token.
fn server(role: KvRole, lease: Duration) -> Server {
    let engine_id = format!("engine-{role:?}");
    let transfers = TransferSettings {
        role,
        way: Way::Pull(PullSettings { engine_id, host: "127.0.0.1".into(), port: 0, lease }),
        law: KvTransfer { bytes_per_token: 1_000_000, bandwidth: Some(1.0), ..KvTransfer::default() },
        tensor: 1,
        block_size: 16,
        no_delay: false,
    };
    Server::start(Options::apart("trtllm", transfers))
}

fn both() -> (Server, Server) {
    let long = Duration::from_secs(60);
    (server(KvRole::Producer, long), server(KvRole::Consumer, long))
}

/// What the disaggregated server asks a context worker: the client's request, with other params.
fn context(server: &Server, path: &str, body: &Value) -> Answer {
    let mut body = body.clone();
    body["disaggregated_params"] =
        json!({"request_type": "context_only", "disagg_request_id": 4_398_046_511_104_u64});
    server.post(path, &body)
}

/// The next request: what the context worker said, and the prompt as tokens.
fn following(body: &Value, answer: &Value) -> Value {
    let mut body = body.clone();
    let mut params = answer["choices"][0]["disaggregated_params"].clone();
    params["request_type"] = json!("generation_only");
    params["ctx_usage"] = answer["usage"].clone();
    body["disaggregated_params"] = params;
    let prompt = if body.get("messages").is_some() { "prompt_token_ids" } else { "prompt" };
    body[prompt] = answer["prompt_token_ids"].clone();
    body
}

fn prompt() -> Vec<u32> {
    (300..364).collect()
}

fn completion() -> Value {
    json!({"model": "m", "prompt": prompt(), "max_tokens": 4, "ignore_eos": true, "return_token_ids": true})
}

fn wait_for_free_blocks(server: &Server) {
    for _ in 0..1000 {
        if server.app.worker.stats()[0].used_blocks == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{:?}", server.app.worker.stats()[0]);
}

/// The context worker gives one token only, and the reply goes on behind it (dynamo#13058 of TensorRT-LLM's way).
#[test]
fn l15_a_reply_goes_on_behind_the_token_of_the_context_worker() {
    let (prefill, decode) = both();
    let first = context(&prefill, "/v1/completions", &completion());
    assert_eq!(first.status, 200, "{}", first.body);
    let first = first.json();
    let params = &first["choices"][0]["disaggregated_params"];
    assert_eq!(params["request_type"], "context_only");
    assert_eq!(params["first_gen_tokens"].as_array().map(Vec::len), Some(1));
    assert_eq!(first["choices"][0]["finish_reason"], "length");
    assert_eq!(first["usage"]["completion_tokens"], 1);
    assert_eq!(first["prompt_token_ids"], json!(prompt()));
    // Held until they are read.
    assert_ne!(prefill.app.worker.stats()[0].used_blocks, 0);

    let second = decode.post("/v1/completions", &following(&completion(), &first));
    assert_eq!(second.status, 200, "{}", second.body);
    let second = second.json();
    let tokens = second["choices"][0]["token_ids"].as_array().expect("tokens");
    assert_eq!(tokens.len(), 4);
    assert_eq!(json!([tokens[0]]), params["first_gen_tokens"]);
    assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    wait_for_free_blocks(&prefill);
    wait_for_free_blocks(&decode);

    // 4 blocks at a millisecond a token, then no pass for the first token and three for the others.
    let times = decode.log.times()[0];
    let since = |at: Option<windtunnel_engine::Nanos>| at.expect("it came").since(times.arrival).as_ms();
    assert_eq!(times.loaded_tokens, 64);
    assert_eq!((since(times.first_token), since(times.last_token)), (64.0, 94.0));
}

#[test]
fn chats_go_on_with_the_tokens_of_their_prompt() {
    let (prefill, decode) = both();
    let body = json!({
        "model": "m", "messages": [{"role": "user", "content": "one two six"}], "max_tokens": 3, "ignore_eos": true,
    });
    let first = context(&prefill, "/v1/chat/completions", &body);
    assert_eq!(first.status, 200, "{}", first.body);
    let mut next = following(&body, &first.json());
    next["stream"] = json!(true);
    next["stream_options"] = json!({"include_usage": true});
    let second = decode.post("/v1/chat/completions", &next);
    assert_eq!(second.status, 200, "{}", second.body);
    let events = second.events();
    let usage = &events[events.len() - 2]["usage"];
    assert_eq!(usage["completion_tokens"], 3);
    assert_eq!(usage["prompt_tokens"], first.json()["usage"]["prompt_tokens"]);
}

/// `_need_gen`: what stops with its first token goes to no other worker.
#[test]
fn a_reply_that_is_over_is_held_for_nobody() {
    let (prefill, _) = both();
    let told = context(&prefill, "/v1/completions", &completion()).json();
    let token = told["choices"][0]["disaggregated_params"]["first_gen_tokens"][0].clone();
    let mut body = completion();
    body["stop_token_ids"] = json!([token]);
    let answer = context(&prefill, "/v1/completions", &body).json();
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert!(answer["choices"][0].get("disaggregated_params").is_none(), "{answer}");
}

#[test]
fn kv_that_is_not_held_any_more_fails_the_request() {
    let prefill = server(KvRole::Producer, Duration::from_millis(50));
    let (_, decode) = both();
    let first = context(&prefill, "/v1/completions", &completion()).json();
    wait_for_free_blocks(&prefill);
    let answer = decode.post("/v1/completions", &following(&completion(), &first));
    assert_eq!(answer.status, 500, "{}", answer.body);
    wait_for_free_blocks(&decode);
    // It goes on, also by itself.
    assert_eq!(decode.post("/v1/completions", &completion()).status, 200);
}

#[test]
fn a_client_that_leaves_lets_go_of_what_is_held_for_it() {
    use std::io::Write;
    let (prefill, decode) = both();
    let first = context(&prefill, "/v1/completions", &completion()).json();
    let body = following(&completion(), &first).to_string();
    let mut leaving = decode.connect();
    write!(
        leaving,
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("it reads");
    while decode.app.worker.stats()[0].used_blocks == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(leaving);
    // Long before the 60 s that the prefill worker holds it.
    wait_for_free_blocks(&decode);
    wait_for_free_blocks(&prefill);
}

#[test]
fn params_that_a_worker_cannot_serve_are_refused() {
    let (prefill, decode) = both();
    let with = |params: Value| {
        let mut body = completion();
        body["disaggregated_params"] = params;
        body
    };
    let first = context(&prefill, "/v1/completions", &completion()).json();
    let good = following(&completion(), &first);
    let changed = |key: &str, value: Value| {
        let mut body = good.clone();
        body["disaggregated_params"][key] = value;
        body
    };
    let mut streaming = with(json!({"request_type": "context_only"}));
    streaming["stream"] = json!(true);
    let mut two = with(json!({"request_type": "context_only"}));
    two["n"] = json!(2);
    let cases = [
        (&prefill, with(json!("context_only")), "not an object"),
        (&prefill, with(json!({})), "request_type"),
        (&prefill, with(json!({"request_type": "both"})), "allowed are context_only"),
        (&prefill, streaming, "does not stream"),
        (&prefill, two, "one choice"),
        (&prefill, good.clone(), "--disaggregation-mode decode"),
        (&decode, with(json!({"request_type": "context_only"})), "--disaggregation-mode prefill"),
        (&decode, changed("first_gen_tokens", json!([])), "first_gen_tokens is missing"),
        (&decode, changed("first_gen_tokens", json!([1])), "this worker's reply begins with"),
        (&decode, changed("ctx_request_id", Value::Null), "ctx_request_id is missing"),
        (&decode, changed("encoded_opaque_state", Value::Null), "encoded_opaque_state is missing"),
        (&decode, changed("encoded_opaque_state", json!("AQID")), "not that of a mock worker"),
    ];
    for (server, body, words) in cases {
        let answer = server.post("/v1/completions", &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
        assert!(answer.body.contains(words), "{words}: {}", answer.body);
    }
    // Both parts at once are what a worker does anyway.
    let whole = decode.post("/v1/completions", &with(json!({"request_type": "context_and_generation"})));
    assert_eq!(whole.status, 200, "{}", whole.body);
    // It is no field of the others' servers, which ignore what they do not know.
    assert_eq!(Server::usual().post("/v1/completions", &with(json!({"request_type": "x"}))).status, 200);
}
