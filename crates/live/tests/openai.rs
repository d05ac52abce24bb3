//! The OpenAI endpoints as vLLM serves them, seen byte by byte.

mod common;

use common::http::{Options, Server};
use serde_json::{Value, json};
use windtunnel_live::text::ReplySource;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

fn echo() -> Server {
    Server::start(Options { source: ReplySource::Echo, ..Options::default() })
}

#[test]
fn a_completion_has_every_field() {
    let server = echo();
    let answer = server.post(COMPLETIONS, &json!({"model": "m", "prompt": "one two six"}));
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let body = answer.json();
    let choice = &body["choices"][0];
    assert_eq!((&body["object"], &body["model"]), (&json!("text_completion"), &json!("m")));
    assert_eq!(choice["text"], "one two six");
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &Value::Null));
    // Three words, and the token that ends the reply.
    let usage = json!({
        "prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 0}
    });
    assert_eq!(body["usage"], usage);
}

/// H13 (llm-d-inference-sim#275).
#[test]
fn h13_ids_begin_as_their_endpoints_do() {
    let server = echo();
    let id = |path: &str, body: Value| server.post(path, &body).json()["id"].as_str().unwrap().to_owned();
    assert!(id(COMPLETIONS, json!({"prompt": "one"})).starts_with("cmpl-"));
    assert!(id(CHAT, json!({"messages": user("one")})).starts_with("chatcmpl-"));
}

/// H2 (llm-d-inference-sim#33, #545): the reason stands in the last chunk with tokens, exactly once.
#[test]
fn h2_finish_reason_once_and_right() {
    let server = echo();
    for (max_tokens, reason) in [(2, "length"), (4, "stop"), (100, "stop")] {
        let body = json!({"messages": user("one two six"), "max_tokens": max_tokens, "stream": true});
        let events = server.post(CHAT, &body).events();
        let reasons: Vec<&Value> = events[..events.len() - 1]
            .iter()
            .map(|event| &event["choices"][0]["finish_reason"])
            .filter(|reason| !reason.is_null())
            .collect();
        assert_eq!(reasons, [reason]);
        assert_eq!(events[events.len() - 2]["choices"][0]["finish_reason"], reason);
        let whole =
            server.post(CHAT, &json!({"messages": user("one two six"), "max_tokens": max_tokens})).json();
        assert_eq!(whole["choices"][0]["finish_reason"], reason);
        assert_eq!(whole["usage"]["completion_tokens"], max_tokens.min(4));
    }
}

/// H3 (llm-d-inference-sim#95).
#[test]
fn h3_a_stream_without_options_has_no_usage() {
    let server = echo();
    let events = server.post(CHAT, &json!({"messages": user("one two"), "stream": true})).events();
    assert!(events.iter().all(|event| event.get("usage").is_none()), "{events:?}");
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let text: String =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "one two");
    assert_eq!(events.last(), Some(&json!("[DONE]")));
}

/// H4 (ogx#6541, VidaiMock#1): the last chunk before `[DONE]` has the usage and no choice, the others null.
#[test]
fn h4_usage_comes_last() {
    let server = echo();
    for path in [CHAT, COMPLETIONS] {
        let body = json!({
            "messages": user("one two six"), "prompt": "one two six", "stream": true,
            "stream_options": {"include_usage": true},
        });
        let events = server.post(path, &body).events();
        let (done, chunks) = events.split_last().unwrap();
        let (last, others) = chunks.split_last().unwrap();
        assert_eq!((done, &last["choices"]), (&json!("[DONE]"), &json!([])));
        assert_eq!(last["usage"]["completion_tokens"], 4);
        assert_eq!(last["usage"]["prompt_tokens_details"], json!({"cached_tokens": 0}));
        assert!(others.iter().all(|chunk| chunk["usage"].is_null() && chunk["choices"][0].is_object()));
        assert!(others.iter().all(|chunk| chunk.get("usage").is_some()));
    }
}

#[test]
fn continuous_usage_counts_up() {
    let server = echo();
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let body = json!({"prompt": "one two six", "stream": true, "stream_options": options});
    let events = server.post(COMPLETIONS, &body).events();
    let counts: Vec<u64> =
        events.iter().filter_map(|event| event["usage"]["completion_tokens"].as_u64()).collect();
    assert!(counts.is_sorted() && counts.last() == Some(&4), "{counts:?}");
    assert!(events[..events.len() - 1].iter().all(|event| event["usage"]["prompt_tokens"] == 3));
}

/// H5 (llm-d-inference-sim#598): a request that fails before its first token has a real status.
#[test]
fn h5_a_failing_stream_has_a_real_status() {
    let server = echo();
    let long = "one ".repeat(5000);
    let answer = server.post(COMPLETIONS, &json!({"prompt": long, "stream": true}));
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["code"], 400);
    let small = vec!["engine.workers.aggregated.kv_cache.capacity.blocks=10".to_owned()];
    let server = Server::start(Options { overrides: small, ..Options::default() });
    let body = json!({"prompt": "one ".repeat(200), "stream": true});
    let answer = server.post(COMPLETIONS, &body);
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("KV blocks"));
}

/// H6 (llm-d-inference-sim#530): every error has vLLM's form.
#[test]
fn h6_errors_have_one_form() {
    let server = echo();
    let text = |body: &str| {
        server.send(&format!(
            "POST {CHAT} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))
    };
    let cases = [
        (
            server.post(CHAT, &json!({"model": "other", "messages": user("x")})),
            404,
            "NotFoundError",
            json!("model"),
        ),
        (text("{\"messages\":"), 400, "Bad Request", Value::Null),
        (text("{\"messages\": 3}"), 400, "Bad Request", Value::Null),
        (text("\u{1}"), 400, "Bad Request", Value::Null),
        (server.post(CHAT, &json!({})), 400, "Bad Request", Value::Null),
        (server.post(CHAT, &json!({"messages": []})), 400, "BadRequestError", json!("messages")),
        (
            server.post(CHAT, &json!({"messages": user("x"), "max_tokens": 0})),
            400,
            "BadRequestError",
            json!("max_tokens"),
        ),
        (server.post(CHAT, &json!({"messages": user("x"), "n": 0})), 400, "BadRequestError", json!("n")),
        (
            server.post(CHAT, &json!({"messages": user("x"), "temperature": -1})),
            400,
            "BadRequestError",
            json!("temperature"),
        ),
        (
            server.post(CHAT, &json!({"messages": user("x"), "min_tokens": 9, "max_tokens": 3})),
            400,
            "BadRequestError",
            json!("min_tokens"),
        ),
        (
            server.post(CHAT, &json!({"messages": user("x"), "stream_options": {}})),
            400,
            "BadRequestError",
            json!("stream_options"),
        ),
        (
            server.post(CHAT, &json!({"messages": user("x"), "use_beam_search": true})),
            501,
            "NotImplementedError",
            json!("use_beam_search"),
        ),
        (
            server.post(CHAT, &json!({"messages": user("x"), "tool_choice": "required"})),
            400,
            "BadRequestError",
            json!("tools"),
        ),
        (server.post(COMPLETIONS, &json!({"prompt": ""})), 400, "BadRequestError", json!("prompt")),
        (server.post(COMPLETIONS, &json!({"prompt": [999_999]})), 400, "BadRequestError", json!("prompt")),
        (
            server.post(COMPLETIONS, &json!({"prompt": "x", "max_tokens": 5000})),
            400,
            "BadRequestError",
            json!("max_tokens"),
        ),
        (server.get("/nothing"), 404, "Not Found", Value::Null),
        (server.get(CHAT), 405, "Method Not Allowed", Value::Null),
    ];
    for (answer, status, kind, param) in cases {
        let body = answer.json();
        let error = &body["error"];
        assert_eq!((answer.status, &error["code"]), (status, &json!(status)), "{body}");
        assert_eq!((&error["type"], &error["param"]), (&json!(kind), &param), "{body}");
        assert!(error["message"].is_string() && body.as_object().unwrap().len() == 1);
    }
}

/// H11 (llm-d-inference-sim#186).
#[test]
fn h11_ignore_eos_gives_exactly_max_tokens() {
    let server = Server::usual();
    for stream in [false, true] {
        let body = json!({
            "messages": user("x"), "ignore_eos": true, "max_tokens": 64, "stream": stream, "return_token_ids": true,
        });
        let answer = server.post(CHAT, &body);
        let tokens: usize = match stream {
            false => answer.json()["choices"][0]["token_ids"].as_array().unwrap().len(),
            true => answer
                .events()
                .iter()
                .filter_map(|event| event["choices"][0]["token_ids"].as_array().map(Vec::len))
                .sum(),
        };
        assert_eq!(tokens, 64);
    }
}

/// H12 (llm-d-inference-sim#243): a prompt of 100 in a context of 128 leaves room for 28 tokens.
#[test]
fn h12_max_tokens_is_cut_to_the_room() {
    let mut options = Options::default();
    options.settings.max_model_len = 128;
    options.overrides = vec!["engine.context_length=128".into()];
    let server = Server::start(options);
    let body = json!({"prompt": vec![300; 100], "max_tokens": 64, "ignore_eos": true});
    let body = server.post(COMPLETIONS, &body).json();
    assert_eq!(
        (&body["usage"]["completion_tokens"], &body["choices"][0]["finish_reason"]),
        (&json!(28), &json!("length"))
    );
}

/// H14 (llm-d-inference-sim#559, #430).
#[test]
fn h14_cached_tokens_are_said() {
    let server = echo();
    let prompt: Vec<u32> = (300..400).collect();
    let cached = |stream: bool| {
        let mut body = json!({"prompt": prompt, "max_tokens": 1, "stream": stream});
        if stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        let answer = server.post(COMPLETIONS, &body);
        let usage = match stream {
            false => answer.json()["usage"].clone(),
            true => answer.events().iter().rev().nth(1).unwrap()["usage"].clone(),
        };
        usage["prompt_tokens_details"]["cached_tokens"].clone()
    };
    // 100 tokens are 6 whole blocks of 16, all of which may be found again.
    assert_eq!((cached(false), cached(false), cached(true)), (json!(0), json!(96), json!(96)));
}

/// H18 (llm-d-inference-sim#580, #446): content in parts; a reply without text.
#[test]
fn h18_parts_and_empty_replies() {
    let server = echo();
    let parts = json!([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]);
    let body = server.post(CHAT, &json!({"messages": [{"role": "user", "content": parts}]})).json();
    assert_eq!(body["choices"][0]["message"]["content"], "one\ntwo");
    for stream in [false, true] {
        let answer = server.post(CHAT, &json!({"messages": user(""), "stream": stream}));
        assert_eq!(answer.status, 200);
        if stream {
            assert_eq!(answer.events().last(), Some(&json!("[DONE]")));
        } else {
            assert_eq!(answer.json()["choices"][0]["message"]["content"], "");
            assert_eq!(answer.json()["usage"]["completion_tokens"], 1);
        }
    }
    let picture = json!([{"type": "image_url", "image_url": {"url": "http://x"}}]);
    let answer = server.post(CHAT, &json!({"messages": [{"role": "user", "content": picture}]}));
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("messages")));
}

/// H20 (dynamo#11629): fields of other servers are taken and ignored, as vLLM does.
#[test]
fn h20_unknown_fields_are_no_error() {
    let server = echo();
    let body = json!({"messages": user("one"), "nvext": {"ignore_eos": true}, "anything": [1, 2]});
    assert_eq!(server.post(CHAT, &body).status, 200);
}

/// H24 (llm-d-inference-sim#442).
#[test]
fn h24_models_have_vllms_fields() {
    let server = echo();
    let body = server.get("/v1/models").json();
    let card = body["data"][0].as_object().unwrap();
    let keys: Vec<&String> = card.keys().collect();
    assert_eq!(
        keys,
        ["created", "id", "max_model_len", "object", "owned_by", "parent", "permission", "root"]
    );
    assert_eq!(
        (&card["id"], &card["owned_by"], &card["max_model_len"]),
        (&json!("m"), &json!("vllm"), &json!(4096))
    );
    assert_eq!(server.get("/v1/models/m").json()["id"], "m");
    assert_eq!(server.get("/v1/models/x").status, 404);
}

#[test]
fn what_a_server_tells_of_itself() {
    let server = echo();
    let health = server.get("/health");
    assert_eq!((health.status, health.body.as_str()), (200, ""));
    assert_eq!(server.get("/ping").status, 200);
    assert_eq!(server.get("/version").json(), json!({"version": "0.33.0"}));
    assert_eq!(server.get("/load").json(), json!({"server_load": 0}));
}

#[test]
fn stop_strings_and_stop_tokens_say_what_stopped() {
    let server = echo();
    let choice = |extra: Value| {
        let mut body = json!({"prompt": "one two six ten", "max_tokens": 50});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        server.post(COMPLETIONS, &body).json()["choices"][0].clone()
    };
    let stopped = choice(json!({"stop": [" six"]}));
    assert_eq!((&stopped["text"], &stopped["stop_reason"]), (&json!("one two"), &json!(" six")));
    assert_eq!(stopped["finish_reason"], "stop");
    let included = choice(json!({"stop": " six", "include_stop_str_in_output": true}));
    assert_eq!(included["text"], "one two six");
    let tokens =
        server.post(COMPLETIONS, &json!({"prompt": "one two six ten", "return_token_ids": true})).json();
    let six = &tokens["choices"][0]["token_ids"][2];
    let stopped = choice(json!({"stop_token_ids": [six]}));
    assert_eq!((&stopped["text"], &stopped["stop_reason"]), (&json!("one two"), six));
    // The text of a stream never shows what is then taken back.
    let body = json!({"prompt": "one two six ten", "stop": [" six"], "stream": true});
    let events = server.post(COMPLETIONS, &body).events();
    let text: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, "one two");
}

#[test]
fn several_choices_and_prompts() {
    let server = Server::usual();
    let body = json!({"prompt": ["one two", "six"], "n": 2, "max_tokens": 5, "ignore_eos": true});
    let whole = server.post(COMPLETIONS, &body).json();
    let indices: Vec<u64> =
        whole["choices"].as_array().unwrap().iter().map(|choice| choice["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert_ne!(whole["choices"][0]["text"], whole["choices"][1]["text"]);
    assert_eq!(
        (&whole["usage"]["prompt_tokens"], &whole["usage"]["completion_tokens"]),
        (&json!(3), &json!(20))
    );
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let events = server.post(COMPLETIONS, &streamed).events();
    for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
        let own = events.iter().filter(|event| event["choices"][0]["index"] == index);
        let text: String = own.filter_map(|event| event["choices"][0]["text"].as_str()).collect();
        assert_eq!(text, choice["text"].as_str().unwrap());
    }
}

#[test]
fn logprobs_have_an_entry_for_each_token() {
    let server = echo();
    let body = json!({"prompt": "one two six", "logprobs": 2, "max_tokens": 3});
    let logprobs = server.post(COMPLETIONS, &body).json()["choices"][0]["logprobs"].clone();
    assert_eq!(logprobs["tokens"], json!(["one", " two", " six"]));
    assert_eq!(logprobs["text_offset"], json!([0, 3, 7]));
    assert_eq!(logprobs["top_logprobs"][1].as_object().unwrap().len(), 2);
    let body = json!({"messages": user("one two"), "logprobs": true, "top_logprobs": 3, "max_tokens": 2});
    let content = server.post(CHAT, &body).json()["choices"][0]["logprobs"]["content"].clone();
    assert_eq!((&content[0]["token"], &content[1]["bytes"]), (&json!("one"), &json!(b" two")));
    assert_eq!(content[0]["top_logprobs"].as_array().unwrap().len(), 3);
}

#[test]
fn echo_puts_the_prompt_before_the_reply() {
    let server = echo();
    let body = json!({"prompt": "one two", "echo": true, "max_tokens": 1});
    assert_eq!(server.post(COMPLETIONS, &body).json()["choices"][0]["text"], "one twoone");
}

#[test]
fn keys_guard_what_is_below_v1() {
    let mut options = Options::default();
    options.settings.api_keys = vec!["secret".into()];
    let server = Server::start(options);
    let body = json!({"messages": user("x")});
    assert_eq!(server.post(CHAT, &body).status, 401);
    assert_eq!(server.post_with(CHAT, "authorization: Bearer wrong\r\n", &body).status, 401);
    assert_eq!(server.post_with(CHAT, "authorization: Bearer secret\r\n", &body).status, 200);
    assert_eq!(server.get("/v1/models").status, 401);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn request_ids_come_back() {
    let mut options = Options::default();
    options.settings.request_id_headers = true;
    let server = Server::start(options);
    let answer = server.post_with(CHAT, "x-request-id: abc\r\n", &json!({"messages": user("x")}));
    assert_eq!((answer.header("x-request-id"), &answer.json()["id"]), (Some("abc"), &json!("chatcmpl-abc")));
}

/// The reply and the prompt it answers are the beginning of the next prompt: all of it is cached.
#[test]
fn a_conversation_hits_its_own_past() {
    let server = Server::usual();
    let question = "tell me of the old sea ".repeat(8);
    let first =
        server.post(CHAT, &json!({"messages": user(&question), "max_tokens": 64, "ignore_eos": true})).json();
    let reply = first["choices"][0]["message"]["content"].clone();
    let messages = json!([
        {"role": "user", "content": question}, {"role": "assistant", "content": reply}, {"role": "user", "content": "go on"},
    ]);
    let second = server.post(CHAT, &json!({"messages": messages, "max_tokens": 1})).json();
    let past = first["usage"]["total_tokens"].as_u64().unwrap() - 1;
    assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"], past / 16 * 16);
}

/// Requests with different salts share no block, and with the same one they do.
#[test]
fn cache_salts_part_equal_prompts() {
    let server = echo();
    let prompt: Vec<u32> = (300..400).collect();
    let cached = |salt: Value| {
        let body = json!({"prompt": prompt, "max_tokens": 1, "cache_salt": salt});
        server.post(COMPLETIONS, &body).json()["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
    };
    let got: Vec<Value> = [Value::Null, "a".into(), "b".into(), "a".into(), Value::Null].map(cached).into();
    assert_eq!(got, [0, 0, 0, 96, 96]);
}
