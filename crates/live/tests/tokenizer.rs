//! A tokenizer of Hugging Face's and a chat template in place of the built-in ones: what prompts, counts, replies and
//! hashes go by.
#![cfg(feature = "tokenizer")]

mod common;

use common::http::{Options, Server};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
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
            let tokens = tokenizer.encode(text).unwrap();
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
    let tokens = tokenizer.encode("a🙂b").unwrap();
    assert_eq!(tokenizer.ends(&tokens, false), ("a🙂b".to_owned(), vec![1, 1, 1, 1, 5, 6]));
    // Cut off: what never becomes a character is U+FFFD in the end.
    let (text, ends) = tokenizer.ends(&tokens[..3], false);
    assert_eq!((text.as_str(), &ends[..2]), ("a\u{fffd}", &[1, 1][..]));
    // Bytes that no character has do not hold up for ever what comes behind them.
    let wrong = vec![0xff_u32; 1000];
    let (text, ends) = tokenizer.ends(&[wrong, tokenizer.encode("the").unwrap()].concat(), false);
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
        assert_eq!(tokenizer.encode(&text).unwrap(), tokens);
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
    assert_eq!(answer["choices"][0]["prompt_token_ids"][0], tokenizer.encode("<s>").unwrap()[0]);
    let tokens: Vec<u32> = serde_json::from_value(answer["choices"][0]["token_ids"].clone()).unwrap();
    let text = answer["choices"][0]["text"].as_str().unwrap();
    assert_eq!((tokens.len(), tokenizer.encode(text).unwrap()), (5, tokens));
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
        // The last two as vLLM 0.33.0 has it: renderers/hf.py, and what `apply_chat_template` is told already.
        [
            ("chat_template", json!("x")),
            ("chat_template_kwargs", json!([1])),
            ("tools", json!({"a": 1})),
            ("chat_template_kwargs", json!({"messages": [{"role": "user", "content": "b"}]})),
            ("chat_template_kwargs", json!({"tokenize": true})),
        ]
    {
        let mut asked = json!({"messages": messages});
        asked[field] = value;
        let answer = server.post("/v1/chat/completions", &asked);
        assert_eq!(answer.status, 400, "{}", answer.body);
        assert!(answer.body.contains(field), "{}", answer.body);
    }
    let hidden = json!({"messages": messages, "chat_template_kwargs": {"chat_template": "x"}});
    let answer = server.post("/v1/chat/completions", &hidden);
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("chat_template")));
    let endless = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}";
    let answer = self::server(ReplySource::Random, endless);
    let answer = answer.post("/v1/chat/completions", &json!({"messages": messages}));
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert!(answer.body.contains("takes more than 4000000 steps"), "{}", answer.body);
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

/// The library panics at each of these.
#[test]
fn tokenizers_that_the_library_gives_up_are_refused() {
    let with = |part: &str, value: Value| {
        let mut tokenizer = byte_level();
        tokenizer[part] = value;
        tokenizer
    };
    let unknown = json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "nope", "type_id": 0}}],
                         "pair": [], "special_tokens": {}});
    for tokenizer in [
        with("post_processor", unknown),
        with("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"})),
        with("normalizer", json!({"type": "Replace", "pattern": {"String": ""}, "content": "xx"})),
    ] {
        let error = open(&tokenizer, &json!({"eos_token": "<|im_end|>"})).err().expect("it is refused");
        assert!(error.contains("tokenizer.json: the library that reads it gives up: "), "{error}");
    }
}

/// What is wrong is said, not what comes of it.
#[test]
fn tokenizers_that_cut_nothing_or_otherwise_each_time_are_refused() {
    let config = json!({"eos_token": "<|im_end|>"});
    let mut empty = byte_level();
    (empty["added_tokens"], empty["post_processor"]) = (json!([]), Value::Null);
    (empty["model"]["vocab"], empty["model"]["merges"]) = (json!({}), json!([]));
    let mut drops = byte_level();
    drops["model"]["dropout"] = json!(0.5);
    for (tokenizer, words) in [(empty, "its vocabulary is empty"), (drops, "model.dropout is 0.5")] {
        let error = open(&tokenizer, &config).err().expect(words);
        assert!(error.contains(words), "{error}");
    }
}

/// At some texts the library panics while it serves: an error of the server in its own form, and it goes on.
#[test]
fn a_text_that_it_cannot_take_is_an_error() {
    let mut tokenizer = byte_level();
    tokenizer["normalizer"] = json!({"type": "Replace", "pattern": {"Regex": "(?=Z)"}, "content": "xx"});
    let tokenizer = open(&tokenizer, &json!({"eos_token": "<|im_end|>"})).expect("it takes the probe");
    let language = Language { tokenizer, ..Language::default() };
    let server = Server::start(Options { language, ..Options::default() });
    for (path, asked) in [
        ("/v1/completions", json!({"prompt": "ZZ"})),
        ("/v1/completions/render", json!({"prompt": "ZZ"})),
        ("/tokenize", json!({"prompt": "ZZ"})),
    ] {
        let answer = server.post(path, &asked);
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["type"]), (500, &json!("InternalServerError")), "{}", answer.body);
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with("the tokenizer cannot take the text: "), "{message}");
    }
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "the", "max_tokens": 1})).status, 200);
}

/// vLLM 0.33.0 (renderers/params.py, `_text_len_check`): more characters than the context has tokens, each as long as the
/// longest, are refused before they are cut; `/tokenize` asks for no context.
#[test]
fn texts_that_no_context_holds_are_refused_before_they_are_cut() {
    let server = server(ReplySource::Random, TEMPLATE);
    // The longest token is `<|endoftext|>`.
    let most = 4096 * 13;
    let asked = |length: usize| json!({"prompt": "é".repeat(length), "max_tokens": 1});
    let answer = server.post("/v1/completions", &asked(most + 1));
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("input_text")));
    assert!(answer.body.contains("has 53249 characters, allowed are 53248"), "{}", answer.body);
    let answer = server.post("/v1/completions", &asked(most));
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("input_tokens")));
    let chat = json!({"messages": [{"role": "user", "content": "a".repeat(most)}]});
    assert_eq!(server.post("/v1/chat/completions", &chat).json()["error"]["param"], "input_text");
    assert_eq!(server.post("/tokenize", &asked(most + 1)).status, 200);
    let mut kept = asked(most + 1);
    kept["truncate_prompt_tokens"] = json!(5);
    assert_eq!(server.post("/v1/completions", &kept).json()["usage"]["prompt_tokens"], 5);
}

/// A tokenizer that takes its time for long texts: until it is told to go on.
struct Slow {
    quick: windtunnel_live::text::BuiltinTokenizer,
    begun: Mutex<mpsc::Sender<()>>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl Tokenizer for Slow {
    fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        if text.len() > 70_000 {
            self.begun.lock().unwrap().send(()).unwrap();
            self.go_on.lock().unwrap().recv().unwrap();
            return self.quick.encode("late");
        }
        self.quick.encode(text)
    }

    fn longest_token(&self) -> u32 {
        1000
    }

    fn decode(&self, tokens: &[u32], skip_special: bool) -> String {
        self.quick.decode(tokens, skip_special)
    }

    fn ends(&self, tokens: &[u32], skip_special: bool) -> (String, Vec<u32>) {
        self.quick.ends(tokens, skip_special)
    }

    fn frame(&self) -> (&[u32], &[u32]) {
        self.quick.frame()
    }

    fn spelling(&self, token: u32) -> String {
        self.quick.spelling(token)
    }

    fn eos(&self) -> u32 {
        self.quick.eos()
    }

    fn thinking(&self) -> Option<(u32, u32)> {
        self.quick.thinking()
    }

    fn vocabulary(&self) -> u32 {
        self.quick.vocabulary()
    }

    fn words(&self) -> (&[u32], &[u32]) {
        self.quick.words()
    }
}

/// While a long text is cut, others are served: they would not come back before it does.
#[test]
fn nobody_waits_for_a_long_text() {
    let ((begun, has_begun), (go_on, told)) = (mpsc::channel(), mpsc::channel());
    let slow = Slow { quick: Default::default(), begun: Mutex::new(begun), go_on: Mutex::new(told) };
    let language = Language { tokenizer: Arc::new(slow), ..Language::default() };
    let server = Server::start(Options { language, ..Options::default() });
    let long = json!({"prompt": "a".repeat(80_000), "max_tokens": 1});
    std::thread::scope(|scope| {
        let late = scope.spawn(|| server.post("/v1/completions", &long));
        has_begun.recv().unwrap();
        assert_eq!(server.get("/health").status, 200);
        let short = json!({"prompt": "one", "max_tokens": 3, "ignore_eos": true, "stream": true});
        assert_eq!(server.post("/v1/completions", &short).status, 200);
        assert!(!late.is_finished());
        go_on.send(()).unwrap();
        assert_eq!(late.join().unwrap().status, 200);
    });
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
