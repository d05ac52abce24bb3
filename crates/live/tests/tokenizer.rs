//! A tokenizer of Hugging Face's and a chat template in place of the built-in ones: what prompts, counts, replies and
//! hashes go by.
#![cfg(feature = "tokenizer")]

mod common;

use common::http::{Options, Server};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use windtunnel_live::http::{Dialect, ServerSettings};
use windtunnel_live::text::{
    self, ChatTemplate, ContentFormat, JinjaTemplate, Language, ReplySource, Tokenizer, TokenizerFiles,
};

/// Words that a merge each makes of their letters, with the space before them; some of them also without.
const WORDS: [&str; 6] = ["the", "sea", "sun", "boy", "dog", "red"];
const SPECIALS: [&str; 4] = ["<s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"];

/// How byte-level vocabularies write a byte (GPT-2's `bytes_to_unicode`): printable ones as they are, the others from
/// U+0100 on.
fn spelled(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let others = (0..byte).filter(|&before| !printable(before)).count() as u32;
    char::from_u32(256 + others).expect("a letter")
}

/// A byte-level BPE: the 256 bytes, merges for [`WORDS`], and special tokens, of which `<s>` begins a prompt.
fn byte_level() -> Value {
    let mut vocabulary: Vec<String> = (0..=255).map(|byte| spelled(byte).to_string()).collect();
    let (mut merges, spaced) = (Vec::new(), spelled(b' ').to_string());
    let mut merge = |left: &str, right: &str| {
        let whole = format!("{left}{right}");
        merges.push(json!([left, right]));
        if !vocabulary.contains(&whole) {
            vocabulary.push(whole);
        }
    };
    for word in WORDS {
        (1..word.len()).for_each(|at| merge(&word[..at], &word[at..=at]));
        merge(&spaced, word);
    }
    let added: Vec<Value> = (vocabulary.len()..)
        .zip(SPECIALS)
        .map(|(id, content)| {
            json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false})
        })
        .collect();
    let first = vocabulary.len();
    let numbered: Map<String, Value> =
        vocabulary.into_iter().zip(0..).map(|(token, id)| (token, json!(id))).collect();
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": level, "decoder": level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [first], "tokens": ["<s>"]}},
        },
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": numbered, "merges": merges},
    })
}

/// Pieces with `▁` for a space, as SentencePiece has them, bytes where there is no piece.
fn pieces() -> Value {
    let mut vocabulary: Vec<Value> = vec![json!(["<unk>", 0.0]), json!(["</s>", 0.0])];
    vocabulary.extend((0..=255).map(|byte| json!([format!("<0x{byte:02X}>"), -20.0])));
    vocabulary.extend(WORDS.map(|word| json!([format!("▁{word}"), -1.0])));
    vocabulary.extend(["▁", "h", "i", "s", "e", "a"].map(|letter| json!([letter, -10.0])));
    let meta = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": 1, "content": "</s>", "special": true, "single_word": false, "lstrip": false,
                          "rstrip": false, "normalized": false}],
        "normalizer": null, "pre_tokenizer": meta, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, meta]},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocabulary, "byte_fallback": true},
    })
}

fn write(folder: &Path, tokenizer: &Value, config: &Value) {
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).expect("it can be written");
    std::fs::write(folder.join("tokenizer_config.json"), config.to_string()).expect("it can be written");
}

fn open(tokenizer: &Value, config: &Value) -> Result<Arc<dyn Tokenizer>, String> {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), tokenizer, config);
    text::open(&TokenizerFiles::read(folder.path())?)
}

fn byte_level_tokenizer() -> Arc<dyn Tokenizer> {
    open(&byte_level(), &json!({"eos_token": "<|im_end|>", "bos_token": "<s>"})).expect("a good tokenizer")
}

fn server(source: ReplySource, template: &str) -> Server {
    let special = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
    let templates = BTreeMap::from([("default".to_owned(), template.to_owned())]);
    let template = JinjaTemplate::new(&templates, &special, ContentFormat::Auto).expect("a good template");
    let language =
        Language { tokenizer: byte_level_tokenizer(), template: ChatTemplate::Jinja(Arc::new(template)) };
    Server::start(Options { source, language, ..Options::default() })
}

const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if tools %}{{ tools | tojson }}{% endif %}{% if mode is defined %}{{ mode }}{% endif %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

#[test]
fn every_text_comes_back() {
    for tokenizer in [byte_level_tokenizer(), open(&pieces(), &json!({"eos_token": "</s>"})).unwrap()] {
        for text in ["the sea", "Äpfel 日本語 🙂  two  spaces", "<x>\n\tthe", "the sun the sun"] {
            let tokens = tokenizer.encode(text);
            assert_eq!(tokenizer.decode(&tokens, false), text);
            let (all, ends) = tokenizer.ends(&tokens, false);
            assert_eq!((all.as_str(), ends.len()), (text, tokens.len()));
            assert!(ends.windows(2).all(|pair| pair[0] <= pair[1]), "{ends:?}");
            assert!(ends.iter().all(|&end| text.is_char_boundary(end as usize)), "{ends:?}");
        }
    }
}

/// U+1F642 is four bytes, each a token here: nothing of it is shown before the last one.
#[test]
fn a_character_waits_for_its_last_byte() {
    let tokenizer = byte_level_tokenizer();
    let tokens = tokenizer.encode("a🙂b");
    assert_eq!(tokenizer.ends(&tokens, false), ("a🙂b".to_owned(), vec![1, 1, 1, 1, 5, 6]));
    // Cut off: what never becomes a character is U+FFFD in the end.
    let (text, ends) = tokenizer.ends(&tokens[..3], false);
    assert_eq!((text.as_str(), &ends[..2]), ("a\u{fffd}", &[1, 1][..]));
    // Bytes that no character has do not hold up for ever what comes behind them.
    let wrong = vec![0xff_u32; 1000];
    let (text, ends) = tokenizer.ends(&[wrong, tokenizer.encode("the")].concat(), false);
    assert!(text.ends_with("the") && ends[10] > 0, "{ends:?}");
}

/// The words of a reply are the same tokens when its client sends them again.
#[test]
fn replies_come_back_as_the_same_tokens() {
    for tokenizer in [byte_level_tokenizer(), open(&pieces(), &json!({"eos_token": "</s>"})).unwrap()] {
        let (first, others) = tokenizer.words();
        assert_eq!(others.len(), WORDS.len());
        let tokens: Vec<u32> = first[..1].iter().chain(others).chain(others.iter().rev()).copied().collect();
        let text = tokenizer.decode(&tokens, true);
        assert_eq!(text.split(' ').count(), tokens.len(), "{text}");
        assert_eq!(tokenizer.encode(&text), tokens);
    }
}

#[test]
fn counts_and_texts_go_by_it() {
    let server = server(ReplySource::Random, TEMPLATE);
    let tokenizer = &server.app.tokenizer;
    let asked = json!({"prompt": "the sea", "max_tokens": 5, "ignore_eos": true, "return_token_ids": true});
    let answer = server.post("/v1/completions", &asked).json();
    // `<s>` and two words.
    assert_eq!(answer["usage"]["prompt_tokens"], 3);
    assert_eq!(answer["choices"][0]["prompt_token_ids"][0], tokenizer.encode("<s>")[0]);
    let tokens: Vec<u32> = serde_json::from_value(answer["choices"][0]["token_ids"].clone()).unwrap();
    let text = answer["choices"][0]["text"].as_str().unwrap();
    assert_eq!((tokens.len(), tokenizer.encode(text)), (5, tokens));
    // It says the same to whoever asks for tokens.
    let asked = json!({"prompt": "the sea", "return_token_strs": true});
    let cut = server.post("/tokenize", &asked).json();
    assert_eq!((&cut["count"], &cut["token_strs"]), (&json!(3), &json!(["<s>", "the", "Ġsea"])));
    let bare = server.post("/tokenize", &json!({"prompt": "the sea", "add_special_tokens": false})).json();
    assert_eq!(bare["count"], 2);
    assert_eq!(server.post("/detokenize", &json!({"tokens": cut["tokens"]})).json()["prompt"], "<s>the sea");
    let beyond = server.post("/v1/completions", &json!({"prompt": [tokenizer.vocabulary()]}));
    assert_eq!(beyond.status, 400, "{}", beyond.body);
}

#[test]
fn prompts_of_chats_go_by_the_template() {
    let server = server(ReplySource::Echo, TEMPLATE);
    let chat = r#"{
        "messages": [{"role": "user", "content": [{"type": "text", "text": "the sea"}]}],
        "tools": [{"type": "function", "function": {"name": "f", "description": "d"}}],
        "chat_template_kwargs": {"mode": "red"}
    }"#;
    let tokens = server.post_text("/tokenize", chat).json()["tokens"].clone();
    // Keys of tools stand in the order in which they came.
    let prompt = "<s><|im_start|>user\nthe sea<|im_end|>\n\
                  [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"d\"}}]red\
                  <|im_start|>assistant\n";
    assert_eq!(server.post("/detokenize", &json!({"tokens": tokens})).json()["prompt"], prompt);
    let rendered = server.post_text("/v1/chat/completions/render", chat).json();
    assert_eq!(rendered["token_ids"], tokens);
    let answer = server.post_text("/v1/chat/completions", chat).json();
    assert_eq!(answer["choices"][0]["message"]["content"], "the sea");
    assert_eq!(answer["usage"]["prompt_tokens"], tokens.as_array().unwrap().len());
    assert_eq!(answer["usage"]["completion_tokens"], 3);
}

#[test]
fn what_a_template_refuses_is_a_bad_request() {
    let refusing =
        "{% if messages[0].role == 'system' %}{{ raise_exception('No system here.') }}{% endif %}x";
    let messages = json!([{"role": "system", "content": "a"}]);
    for yaml in [common::FIXED, common::SGLANG] {
        let templates = BTreeMap::from([("default".to_owned(), refusing.to_owned())]);
        let template = JinjaTemplate::new(&templates, &BTreeMap::new(), ContentFormat::Auto).unwrap();
        let language = Language { template: ChatTemplate::Jinja(Arc::new(template)), ..Language::default() };
        let settings = ServerSettings::new(Dialect::Vllm, "0", "m", 4096);
        let server = Server::start(Options { yaml, language, settings, ..Options::default() });
        let answer = server.post("/v1/chat/completions", &json!({"messages": messages}));
        let body: Value = answer.json();
        let message = body.pointer("/error/message").or(body.get("message")).unwrap();
        assert_eq!((answer.status, message), (400, &json!("No system here.")), "{}", answer.body);
    }
    let server = server(ReplySource::Random, TEMPLATE);
    for (field, value) in
        [("chat_template", json!("x")), ("chat_template_kwargs", json!([1])), ("tools", json!({"a": 1}))]
    {
        let mut asked = json!({"messages": messages});
        asked[field] = value;
        let answer = server.post("/v1/chat/completions", &asked);
        assert_eq!(answer.status, 400, "{}", answer.body);
        assert!(answer.body.contains(field), "{}", answer.body);
    }
}

/// A stop string ends its reply with the token that completes it, also amid a token.
#[test]
fn stop_strings_are_found_in_its_text() {
    let server = server(ReplySource::Echo, TEMPLATE);
    let asked =
        json!({"prompt": "the sea the sun", "max_tokens": 10, "stop": ["he s"], "add_special_tokens": false});
    let choice = &server.post("/v1/completions", &asked).json()["choices"][0];
    assert_eq!((&choice["text"], &choice["stop_reason"]), (&json!("t"), &json!("he s")));
}

#[test]
fn tokenizers_that_cannot_serve_are_refused() {
    let config = json!({"eos_token": "<|im_end|>"});
    let mut unframed = byte_level();
    unframed["added_tokens"] = json!([]);
    unframed["post_processor"] = Value::Null;
    for (tokenizer, config, words) in [
        (json!({"version": "1.0"}), &config, "is not a tokenizer"),
        (byte_level(), &json!({"eos_token": "<end>"}), "it has no such token"),
        (unframed, &json!({}), "nothing says which token ends a reply"),
    ] {
        let error = open(&tokenizer, config).err().expect(words);
        assert!(error.contains(words) && error.contains("tokenizer.json"), "{error}");
    }
}

/// A long text of one kind of character costs no more than its length.
#[test]
fn long_texts_are_cut_in_time() {
    let server = server(ReplySource::Random, TEMPLATE);
    for piece in [" ", "\n", "a", "the ", "🙂", "'", "1"] {
        let text = piece.repeat(200_000 / piece.len());
        let answer = server.post("/tokenize", &json!({"prompt": text})).json();
        assert!(answer["count"].as_u64().unwrap() > 1000, "{piece:?}");
    }
}
