//! SGLang's own endpoints, and TensorRT-LLM's subset.

mod common;

use common::SGLANG;
use common::http::{Options, Server};
use serde_json::{Value, json};
use windtunnel_live::text::ReplySource;

const TRTLLM: &str = "
engine:
  model: m
  hardware: h
  backend: trtllm
  context_length: 4096
  workers:
    aggregated:
      kv_cache: {block_size: 32, capacity: {type: fixed, blocks: 1024}}
      timing: {type: fixed, prefill_ms: 100, decode_ms: 10}
";

fn sglang(source: ReplySource, no_delay: bool) -> Server {
    Server::start(Options { yaml: SGLANG, source, no_delay, ..Options::default() })
}

#[test]
fn generate_says_what_sglang_says() {
    let server = sglang(ReplySource::Echo, true);
    let body = json!({"text": "one two six", "sampling_params": {"max_new_tokens": 16}, "rid": "r"});
    let told = server.post("/generate", &body).json();
    assert_eq!(told["text"], "one two six");
    assert_eq!(told["output_ids"].as_array().unwrap().len(), 4);
    let meta = &told["meta_info"];
    assert_eq!(
        (&meta["id"], &meta["prompt_tokens"], &meta["completion_tokens"]),
        (&json!("r"), &json!(3), &json!(4))
    );
    assert_eq!(meta["finish_reason"]["type"], "stop");
    let cut = server
        .post("/generate", &json!({"text": "one two six", "sampling_params": {"max_new_tokens": 2}}))
        .json();
    assert_eq!(cut["meta_info"]["finish_reason"], json!({"type": "length", "length": 2}));
    // Pages of one token: all of the prompt but its last token is found again.
    assert_eq!(cut["meta_info"]["cached_tokens"], 2);
    let stopped = json!({"text": "one two six", "sampling_params": {"stop": " six"}});
    let stopped = server.post("/generate", &stopped).json();
    assert_eq!(
        (&stopped["text"], &stopped["meta_info"]["finish_reason"]),
        (&json!("one two"), &json!({"type": "stop", "matched": " six"}))
    );
}

#[test]
fn a_stream_repeats_its_text_from_the_beginning() {
    let server = sglang(ReplySource::Echo, true);
    let events = server.post("/generate", &json!({"text": "one two six", "stream": true})).events();
    let (done, chunks) = events.split_last().unwrap();
    assert_eq!(done, "[DONE]");
    let texts: Vec<&str> = chunks.iter().map(|chunk| chunk["text"].as_str().unwrap()).collect();
    assert!(texts.windows(2).all(|pair| pair[1].starts_with(pair[0])), "{texts:?}");
    assert_eq!(texts.last(), Some(&"one two six"));
    let counts: Vec<u64> =
        chunks.iter().map(|chunk| chunk["meta_info"]["completion_tokens"].as_u64().unwrap()).collect();
    assert!(counts.is_sorted() && counts.last() == Some(&4), "{counts:?}");
    let (last, others) = chunks.split_last().unwrap();
    assert!(others.iter().all(|chunk| chunk["meta_info"]["finish_reason"].is_null()));
    assert_eq!(last["meta_info"]["finish_reason"]["type"], "stop");
}

#[test]
fn batches_are_lists() {
    let server = sglang(ReplySource::Echo, true);
    let told = server.post("/generate", &json!({"text": ["one", "two six"]})).json();
    let texts: Vec<&str> = told.as_array().unwrap().iter().map(|one| one["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["one", "two six"]);
    let told = server.post("/generate", &json!({"input_ids": [[300, 301], [302]], "stream": true})).events();
    let indices: Vec<&Value> =
        told.iter().map(|chunk| &chunk["index"]).filter(|index| !index.is_null()).collect();
    assert!(indices.contains(&&json!(0)) && indices.contains(&&json!(1)));
}

#[test]
fn errors_are_sglangs() {
    let server = sglang(ReplySource::Echo, true);
    let native = server.post("/generate", &json!({}));
    assert_eq!(native.status, 400);
    assert!(native.json()["error"]["message"].is_string());
    let flat = server.post("/v1/chat/completions", &json!({"messages": []})).json();
    assert_eq!((&flat["object"], &flat["code"]), (&json!("error"), &json!(400)));
    assert_eq!(server.post("/generate", &json!({"text": "x", "return_logprob": true})).status, 501);
}

#[test]
fn what_a_server_tells_of_itself() {
    let server = sglang(ReplySource::Echo, true);
    for path in ["/health", "/health_generate", "/ready"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    assert_eq!(server.get("/model_info").json()["model_path"], "m");
    assert_eq!(server.get("/get_model_info").json()["is_generation"], true);
    for path in ["/server_info", "/get_server_info"] {
        let info = server.get(path).json();
        assert_eq!((&info["page_size"], &info["dp_size"]), (&json!(1), &json!(1)));
        assert_eq!(info["max_total_num_tokens"], 16384);
    }
    let loads = server.get("/v1/loads").json();
    assert_eq!(
        (&loads["loads"][0]["num_running_reqs"], &loads["loads"][0]["dp_rank"]),
        (&json!(0), &json!(0))
    );
    assert_eq!(server.get("/v1/models").json()["data"][0]["owned_by"], "sglang");
    assert_eq!(
        server.post("/tokenize", &json!({"prompt": ["one", "two six"]})).json()["count"],
        json!([1, 2])
    );
    assert_eq!(
        server.post("/detokenize", &json!({"tokens": [300]})).json()["text"],
        json!(server.app.tokenizer.decode(&[300], true))
    );
}

#[test]
fn the_cache_is_flushed_when_nothing_is_at_work() {
    let server = sglang(ReplySource::Echo, true);
    let cached = || {
        let told = server.post("/generate", &json!({"text": "one two six"})).json();
        told["meta_info"]["cached_tokens"].clone()
    };
    assert_eq!((cached(), cached()), (json!(0), json!(2)));
    assert_eq!(server.post("/flush_cache", &json!({})).status, 200);
    assert_eq!(cached(), 0);
}

#[test]
fn requests_are_aborted_by_name() {
    let server = sglang(ReplySource::Random, false);
    let body = json!({"text": "one two", "sampling_params": {"max_new_tokens": 3000, "ignore_eos": true}, "rid": "long-1"});
    std::thread::scope(|scope| {
        let request = scope.spawn(|| server.post("/generate", &body).json());
        while server.app.worker.stats()[0].running == 0 {
            std::thread::yield_now();
        }
        assert_eq!(server.post("/flush_cache", &json!({})).status, 400);
        assert_eq!(server.post("/abort_request", &json!({"rid": "other"})).status, 200);
        assert_eq!(server.post("/abort_request", &json!({"rid": "long"})).status, 200);
        assert_eq!(request.join().unwrap()["meta_info"]["finish_reason"]["type"], "abort");
    });
}

#[test]
fn trtllm_serves_openais_endpoints() {
    let server = Server::start(Options { yaml: TRTLLM, source: ReplySource::Echo, ..Options::default() });
    let body = json!({"messages": [{"role": "user", "content": "one two"}], "max_tokens": 8});
    let told = server.post("/v1/chat/completions", &body).json();
    assert_eq!(told["choices"][0]["message"]["content"], "one two");
    let stopped = server.post("/v1/completions", &json!({"prompt": "one two six", "stop": " six"})).json();
    assert_eq!(
        (&stopped["choices"][0]["text"], &stopped["choices"][0]["stop_reason"]),
        (&json!("one two"), &json!(" six"))
    );
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.get("/v1/models").json()["data"][0]["owned_by"], "tensorrt_llm");
    let flat = server.post("/v1/completions", &json!({"prompt": ""})).json();
    assert_eq!((&flat["object"], &flat["code"]), (&json!("error"), &json!(400)));
    assert_eq!(server.get("/load").status, 404);
}

/// SGLang 0.5.23 (entrypoints/openai/protocol.py): `no_stop_trim`, here as on `/generate`; vLLM's name it does not know.
#[test]
fn stop_strings_stay_if_they_shall() {
    let server = sglang(ReplySource::Echo, true);
    for (field, text) in [("no_stop_trim", "one two"), ("include_stop_str_in_output", "one")] {
        let mut asked = json!({"prompt": "one two six", "stop": " two"});
        asked[field] = true.into();
        assert_eq!(server.post("/v1/completions", &asked).json()["choices"][0]["text"], text, "{field}");
        let mut chat = json!({"messages": [{"role": "user", "content": "one two six"}], "stop": " two"});
        chat[field] = true.into();
        let answer = server.post("/v1/chat/completions", &chat).json();
        assert_eq!(answer["choices"][0]["message"]["content"], text, "{field}");
    }
}

/// Errors name the field that the client sent.
#[test]
fn no_new_tokens_are_refused_by_their_own_name() {
    let server = sglang(ReplySource::Echo, true);
    let asked = json!({"text": "one", "sampling_params": {"max_new_tokens": 0}});
    let answer = server.post("/generate", &asked);
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert!(answer.body.contains("max_new_tokens is 0, allowed is 1 or more"), "{}", answer.body);
}
