//! vLLM's endpoints beside OpenAI's: tokens, rendering, the cache, sleep, adapters.

mod common;

use common::http::{Options, Server};
use serde_json::{Value, json};
use windtunnel_live::text::ReplySource;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

#[test]
fn tokens_come_and_go_back() {
    let server = Server::usual();
    let told = server
        .post("/tokenize", &json!({"model": "m", "prompt": "one two", "return_token_strs": true}))
        .json();
    assert_eq!((&told["count"], &told["max_model_len"]), (&json!(2), &json!(4096)));
    assert_eq!(told["token_strs"], json!(["one", " two"]));
    let back = server.post("/detokenize", &json!({"tokens": told["tokens"]})).json();
    assert_eq!(back, json!({"prompt": "one two"}));
    let chat = server.post("/tokenize", &json!({"messages": user("one")})).json();
    let used = server.post(CHAT, &json!({"messages": user("one"), "max_tokens": 1})).json();
    assert_eq!(chat["count"], used["usage"]["prompt_tokens"]);
    assert_eq!(server.post("/detokenize", &json!({"tokens": [4_000_000]})).status, 400);
    assert_eq!(server.post("/tokenize", &json!({"model": "x", "prompt": "one"})).status, 404);
}

#[test]
fn what_is_rendered_is_what_is_generated_from() {
    let server = Server::usual();
    let body = json!({"messages": user("one"), "max_tokens": 4, "ignore_eos": true});
    let rendered = server.post("/v1/chat/completions/render", &body).json();
    let told = server.post("/tokenize", &json!({"messages": user("one")})).json();
    assert_eq!(rendered["token_ids"], told["tokens"]);
    assert_eq!(rendered["sampling_params"], json!({"max_tokens": 4, "ignore_eos": true}));
    let mut whole = body.clone();
    whole["return_token_ids"] = true.into();
    let expected = server.post(CHAT, &whole).json()["choices"][0]["token_ids"].clone();
    let generated = server.post("/inference/v1/generate", &rendered).json();
    assert_eq!(generated["choices"][0]["token_ids"], expected);
    assert_eq!(generated["choices"][0]["finish_reason"], "length");
    assert_eq!(generated["usage"]["completion_tokens"], 4);
    let mut streamed = rendered.clone();
    streamed["stream"] = true.into();
    let events = server.post("/inference/v1/generate", &streamed).events();
    let tokens: Vec<Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["token_ids"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(json!(tokens), expected);
    let rendered = server.post("/v1/completions/render", &json!({"prompt": ["one", "two six"]})).json();
    assert_eq!(rendered[1]["token_ids"].as_array().unwrap().len(), 2);
    let none = server.post("/inference/v1/generate", &json!({"token_ids": [], "sampling_params": {}}));
    assert_eq!(none.status, 400);
}

#[test]
fn the_cache_is_emptied_on_request() {
    let server = Server::usual();
    let prompt: Vec<u32> = (300..400).collect();
    let cached = || {
        let body = server.post(COMPLETIONS, &json!({"prompt": prompt, "max_tokens": 1})).json();
        body["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
    };
    assert_eq!((cached(), cached()), (json!(0), json!(96)));
    assert_eq!(server.post("/reset_prefix_cache", &json!({})).json(), json!({"success": true}));
    assert_eq!((cached(), cached()), (json!(0), json!(96)));
    // Counters go on.
    let stats = server.app.worker.stats()[0];
    assert_eq!((stats.prefix_queries, stats.prefix_hits), (400, 192));
}

#[test]
fn requests_wait_while_it_sleeps() {
    let server = Server::usual();
    assert_eq!(server.get("/is_sleeping").json(), json!({"is_sleeping": false}));
    assert_eq!(server.post("/sleep?level=3", &json!({})).status, 400);
    assert_eq!(server.post("/sleep?level=1", &json!({})).json(), json!({"status": "sleeping", "level": 1}));
    assert_eq!(server.get("/is_sleeping").json(), json!({"is_sleeping": true}));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| server.post(COMPLETIONS, &json!({"prompt": "one", "max_tokens": 1})));
        assert_eq!(server.get("/health").status, 200);
        assert_eq!(server.get("/load").json(), json!({"server_load": 0}));
        assert!(!waiting.is_finished());
        assert_eq!(server.post("/wake_up", &json!({})).status, 200);
        assert_eq!(waiting.join().unwrap().status, 200);
    });
    assert_eq!(server.post("/pause?mode=wait", &json!({})).status, 200);
    assert_eq!(server.get("/is_paused").json(), json!({"is_paused": true}));
    assert_eq!(server.post("/resume", &json!({})).status, 200);
    assert_eq!(server.post(COMPLETIONS, &json!({"prompt": "one", "max_tokens": 1})).status, 200);
}

#[test]
fn adapters_come_and_go_and_share_no_block() {
    let server = Server::usual();
    let prompt: Vec<u32> = (300..400).collect();
    let ask =
        |model: &str| server.post(COMPLETIONS, &json!({"model": model, "prompt": prompt, "max_tokens": 1}));
    assert_eq!(ask("a").status, 404);
    let load = json!({"lora_name": "a", "lora_path": "/adapters/a"});
    assert_eq!(server.post("/v1/load_lora_adapter", &load).status, 200);
    assert_eq!(server.post("/v1/load_lora_adapter", &load).status, 400);
    assert_eq!(server.post("/v1/load_lora_adapter", &json!({"lora_name": "b"})).status, 400);
    let cached = |model: &str| ask(model).json()["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!([cached("m"), cached("a"), cached("a"), cached("m")], [0, 0, 96, 96]);
    let models = server.get("/v1/models").json();
    assert_eq!((&models["data"][1]["id"], &models["data"][1]["parent"]), (&json!("a"), &json!("m")));
    assert_eq!(server.post("/v1/unload_lora_adapter", &json!({"lora_name": "a"})).status, 200);
    assert_eq!(server.post("/v1/unload_lora_adapter", &json!({"lora_name": "a"})).status, 404);
    assert_eq!(ask("a").status, 404);
}

/// H10 (llm-d-inference-sim#36), H19 (#633): 5 requests and 2 seats: 2 run, 3 wait, then none; and `/load`
/// goes back to 0 whatever happened.
#[test]
fn h10_h19_running_and_waiting_are_right() {
    let server = Server::start(Options {
        overrides: vec!["engine.workers.aggregated.scheduler.max_sequences=2".into()],
        no_delay: false,
        ..Options::default()
    });
    let body = json!({"prompt": "one two six", "max_tokens": 20, "ignore_eos": true});
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..5).map(|_| scope.spawn(|| server.post(COMPLETIONS, &body).status)).collect();
        // Each runs for 100 ms and 19 times 10 ms: there is a moment at which two run and the others wait.
        let seen = || {
            let stats = server.app.worker.stats()[0];
            (stats.running, stats.waiting)
        };
        while seen() != (2, 3) {
            assert!(!all.iter().all(|request| request.is_finished()), "2 and 3 were never seen");
            std::thread::yield_now();
        }
        assert!(all.into_iter().all(|request| request.join().unwrap() == 200));
        assert_eq!(seen(), (0, 0));
    });
    assert_eq!(server.app.worker.unfinished(), 0);
    assert_eq!(server.get("/load").json(), json!({"server_load": 0}));
}

/// Item 9: more than `max_num_queued_reqs` unfinished requests are answered 503.
#[test]
fn a_full_queue_is_503() {
    let server = Server::start(Options {
        overrides: vec!["engine.workers.aggregated.scheduler.max_num_queued_reqs=1".into()],
        no_delay: false,
        ..Options::default()
    });
    let body = json!({"prompt": "one two six", "max_tokens": 50, "ignore_eos": true});
    std::thread::scope(|scope| {
        let first = scope.spawn(|| server.post(COMPLETIONS, &body).status);
        while server.app.worker.unfinished() == 0 {
            std::thread::yield_now();
        }
        let second = server.post(COMPLETIONS, &body);
        assert_eq!(
            (second.status, &second.json()["error"]["type"]),
            (503, &json!("ServiceUnavailableError"))
        );
        assert_eq!(first.join().unwrap(), 200);
    });
}

/// The reply of a sleeping request that is given up says so.
#[test]
fn what_is_at_work_is_given_up_when_it_goes_to_sleep() {
    let server =
        Server::start(Options { no_delay: false, source: ReplySource::Random, ..Options::default() });
    let body = json!({"prompt": "one two six", "max_tokens": 2000, "ignore_eos": true});
    std::thread::scope(|scope| {
        let first = scope.spawn(|| server.post(COMPLETIONS, &body).json());
        while server.app.worker.stats()[0].running == 0 {
            std::thread::yield_now();
        }
        assert_eq!(server.post("/sleep", &json!({})).status, 200);
        assert_eq!(first.join().unwrap()["choices"][0]["finish_reason"], "abort");
    });
}

/// vLLM 0.33.0 (entrypoints/openai/completion/serving.py): with `echo` the log probabilities begin with the prompt's, of which
/// the first has none, and texts are counted from its beginning. It looks for no prefix of such a prompt in its cache.
#[test]
fn echoed_prompts_have_log_probabilities() {
    let server = Server::start(Options { source: ReplySource::Echo, ..Options::default() });
    let body = json!({"prompt": "one two", "echo": true, "logprobs": 2, "max_tokens": 2});
    let answer = server.post("/v1/completions", &body).json();
    let choice = &answer["choices"][0];
    let logprobs = &choice["logprobs"];
    assert_eq!(choice["text"], "one twoone two");
    assert_eq!(logprobs["tokens"], json!(["one", " two", "one", " two"]));
    assert_eq!(logprobs["text_offset"], json!([0, 3, 7, 10]));
    for list in ["token_logprobs", "top_logprobs"] {
        assert_eq!(logprobs[list].as_array().unwrap().iter().filter(|entry| entry.is_null()).count(), 1);
        assert!(logprobs[list][0].is_null());
    }
    // `prompt_logprobs` of a request with `echo` is its `logprobs` (completion/protocol.py).
    assert!(choice["prompt_logprobs"][0].is_null());
    assert_eq!(choice["prompt_logprobs"][1].as_object().unwrap().len(), 2);
    let mut streaming = body;
    streaming["stream"] = true.into();
    let pieces: Vec<Value> = server.post("/v1/completions", &streaming).events();
    let (mut tokens, mut offsets) = (Vec::new(), Vec::new());
    for logprobs in pieces.iter().map(|piece| &piece["choices"][0]["logprobs"]) {
        tokens.extend(logprobs["tokens"].as_array().into_iter().flatten().cloned());
        offsets.extend(logprobs["text_offset"].as_array().into_iter().flatten().cloned());
    }
    assert_eq!(
        (json!(tokens), json!(offsets)),
        (logprobs["tokens"].clone(), logprobs["text_offset"].clone())
    );
}

/// vLLM 0.33.0 (logprobs.py): none for the first token, then by number, the prompt's own token and others.
#[test]
fn prompts_have_log_probabilities_if_asked_for() {
    let server = Server::start(Options { source: ReplySource::Echo, ..Options::default() });
    let one =
        json!({"prompt": "one two six", "prompt_logprobs": 3, "max_tokens": 1, "return_token_ids": true});
    let choice = server.post("/v1/completions", &one).json()["choices"][0].clone();
    let told = choice["prompt_logprobs"].as_array().unwrap();
    assert_eq!((told.len(), &told[0]), (3, &Value::Null));
    let own = &told[2][choice["prompt_token_ids"][2].to_string()];
    assert_eq!((&own["rank"], &own["decoded_token"]), (&json!(1), &json!(" six")));
    assert_eq!(told[2].as_object().unwrap().len(), 3);
    let messages = json!([{"role": "user", "content": "one"}]);
    let chat = json!({"messages": messages, "prompt_logprobs": 0, "max_tokens": 1});
    let answer = server.post("/v1/chat/completions", &chat).json();
    assert_eq!(
        answer["prompt_logprobs"].as_array().map(Vec::len),
        answer["usage"]["prompt_tokens"].as_u64().map(|n| n as usize)
    );
    for (number, stream, words) in
        [(21, false, "allowed is 0 to 20"), (-1, false, "is -1"), (1, true, "in a stream")]
    {
        let body = json!({"prompt": "one", "prompt_logprobs": number, "stream": stream});
        let answer = server.post("/v1/completions", &body);
        assert_eq!(answer.status, 400, "{}", answer.body);
        assert!(
            answer.body.contains(words) && answer.body.contains("\"param\":\"prompt_logprobs\""),
            "{}",
            answer.body
        );
    }
}
