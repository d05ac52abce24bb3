//! Replies that are more than words: thoughts, tool calls, answers of a file; whole and in pieces.

mod common;

use common::SGLANG;
use common::http::{Options, Server};
use serde_json::{Value, json};
use std::sync::Arc;
use windtunnel_live::text::{Dataset, ReplySource, Thinking};

fn chat(more: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "one two three"}]});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("one").clone());
    body
}

/// All pieces of one field of the deltas.
fn joined(events: &[Value], field: &str) -> String {
    let pieces = events.iter().filter_map(|event| event.pointer(&format!("/choices/0/delta{field}")));
    pieces.filter_map(Value::as_str).collect()
}

/// gllm#835: who reads the other field sees no first token. vLLM 0.33 has `reasoning`, SGLang 0.5.23
/// `reasoning_content`.
#[test]
fn h17_thoughts_are_in_the_field_of_the_engine() {
    let thinking = Some(Thinking { ratio: 0.5, start: None, end: None });
    for (yaml, field, other) in
        [(common::FIXED, "reasoning", "reasoning_content"), (SGLANG, "reasoning_content", "reasoning")]
    {
        let server = Server::start(Options { yaml, thinking, ..Options::default() });
        let body = chat(json!({"max_tokens": 20, "ignore_eos": true}));
        let whole = server.post("/v1/chat/completions", &body).json();
        let message = &whole["choices"][0]["message"];
        let (thought, said) =
            (message[field].as_str().expect("thoughts"), message["content"].as_str().expect("words"));
        // 10 tokens: a word each but for the two that begin and end it.
        assert_eq!(
            (thought.split_whitespace().count(), said.split_whitespace().count()),
            (8, 10),
            "{message}"
        );
        assert!(message[other].is_null(), "{message}");
        assert!(!thought.contains("think") && !said.starts_with(' '), "{message}");
        assert_eq!(whole["usage"]["completion_tokens"], 20);
        assert_eq!(whole["usage"]["completion_tokens_details"]["reasoning_tokens"], 10);

        let streamed = chat(json!({
            "max_tokens": 20, "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true},
        }));
        let events = server.post("/v1/chat/completions", &streamed).events();
        assert_eq!(joined(&events, &format!("/{field}")), thought);
        assert_eq!(joined(&events, "/content"), said);
        // A client that waits for any text sees some with the first word that is thought.
        let first =
            events.iter().position(|event| event.pointer(&format!("/choices/0/delta/{field}")).is_some());
        let content =
            |event: &Value| event.pointer("/choices/0/delta/content").is_some_and(|text| text != "");
        assert!(first <= events.iter().position(content));

        let hidden = chat(json!({"max_tokens": 20, "ignore_eos": true, "include_reasoning": false}));
        let hidden = server.post("/v1/chat/completions", &hidden).json();
        assert_eq!(hidden["choices"][0]["message"]["content"], said);
        assert!(hidden["choices"][0]["message"][field].is_null());
    }
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    }}}])
}

/// The finish reasons are those of vLLM 0.33.0 (entrypoints/openai/chat_completion/message_assembly.py,
/// `resolve_finish_reason`): a call that is cut stays a length, and a function that was named stays a stop.
#[test]
fn a_tool_call_that_is_insisted_on_is_made() {
    let server = Server::usual();
    let named = json!({"type": "function", "function": {"name": "weather"}});
    for (choice, finish) in [(json!("required"), "tool_calls"), (named, "stop")] {
        let body = chat(json!({"tools": tools(), "tool_choice": choice}));
        let whole = server.post("/v1/chat/completions", &body).json();
        let chosen = &whole["choices"][0];
        assert_eq!(chosen["finish_reason"], finish, "{chosen}");
        let call = &chosen["message"]["tool_calls"][0];
        assert_eq!((&call["type"], &call["function"]["name"]), (&json!("function"), &json!("weather")));
        let arguments = call["function"]["arguments"].as_str().expect("a text");
        assert_eq!(
            serde_json::from_str::<Value>(arguments).expect("JSON"),
            json!({"city": "text", "days": 1})
        );
        // The tokens of the text and the one that ends it.
        let tokens = server.post("/tokenize", &json!({"prompt": arguments})).json()["count"].as_u64();
        assert_eq!(whole["usage"]["completion_tokens"].as_u64(), tokens.map(|tokens| tokens + 1));

        let body = chat(json!({"tools": tools(), "tool_choice": choice, "stream": true}));
        let events = server.post("/v1/chat/completions", &body).events();
        assert_eq!(joined(&events, "/tool_calls/0/function/arguments"), arguments);
        assert_eq!(joined(&events, "/tool_calls/0/function/name"), "weather");
        assert_eq!(joined(&events, "/content"), "");
        assert_eq!(events[events.len() - 2]["choices"][0]["finish_reason"], finish);
    }
    let cut = chat(json!({"tools": tools(), "tool_choice": "required", "max_tokens": 3}));
    assert_eq!(server.post("/v1/chat/completions", &cut).json()["choices"][0]["finish_reason"], "length");
    let free = chat(json!({"tools": tools(), "max_tokens": 3}));
    assert!(
        server.post("/v1/chat/completions", &free).json()["choices"][0]["message"]["tool_calls"].is_null()
    );
    let wrong = chat(json!({"tool_choice": "required"}));
    assert_eq!(server.post("/v1/chat/completions", &wrong).status, 400);
}

#[test]
fn answers_come_from_a_file() {
    let path = std::env::temp_dir().join(format!("windtunnel-replies-{}.jsonl", std::process::id()));
    std::fs::write(
        &path,
        "{\"prompt\": \"one two three\", \"response\": \"four five\"}\n{\"response\": \"anything\"}\n",
    )
    .expect("a file");
    let dataset = Dataset::read(&path).expect("a dataset");
    std::fs::remove_file(&path).expect("it is there");
    let server =
        Server::start(Options { source: ReplySource::Dataset(Arc::new(dataset)), ..Options::default() });
    let answer = server.post("/v1/chat/completions", &chat(json!({}))).json();
    assert_eq!(answer["choices"][0]["message"]["content"], "four five");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let other =
        server.post("/v1/completions", &json!({"model": "m", "prompt": "seven", "max_tokens": 30})).json();
    let text = other["choices"][0]["text"].as_str().expect("a text");
    assert!(text == "four five" || text == "anything", "{text}");
    // Longer than it is: again from the beginning.
    let long = json!({"model": "m", "prompt": "one two three", "max_tokens": 12, "ignore_eos": true});
    assert_eq!(server.post("/v1/completions", &long).json()["usage"]["completion_tokens"], 12);
}
