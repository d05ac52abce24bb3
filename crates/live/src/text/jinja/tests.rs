//! What templates make of chats, beside what Jinja2 and Python make of the same; and what they may take.

use super::*;
use crate::text::Message;

fn template(source: &str) -> Result<JinjaTemplate, String> {
    let special = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
    JinjaTemplate::new(
        &BTreeMap::from([("default".into(), source.to_owned())]),
        &special,
        ContentFormat::Auto,
    )
}

/// What a template makes of messages in JSON, and of the fields of a chat beside them.
fn with(source: &str, messages: &str, beside: Chat<'_>) -> Result<String, String> {
    let whole: Vec<Ordered> = serde_json::from_str(messages).unwrap();
    let joined: Vec<Message> = whole
        .iter()
        .map(|message| {
            let field = |name| message.get_attr(name).unwrap().as_str().unwrap_or("").to_owned();
            Message { role: field("role"), content: field("content"), calls: String::new() }
        })
        .collect();
    let whole: Vec<&Ordered> = whole.iter().collect();
    let chat = Chat { messages: &joined, whole: &whole, generate: !beside.go_on, ..beside };
    template(source)?.render(&chat)
}

const HI: &str = r#"[{"role": "user", "content": "hi"}]"#;
const CHATML: &str = "{% for m in messages %}
    {{- '<|im_start|>' + m['role'] + '\\n' + m.content | trim + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{% endif %}
";

/// Blocks take the line break behind them and the space before them along, expressions do not: what Jinja2 3.1.6
/// makes of it with the settings of `transformers`.
#[test]
fn blocks_leave_no_lines() {
    let text = with(CHATML, HI, Chat::default()).unwrap();
    assert_eq!(text, "<|im_start|>user\nhi<|im_end|>\n\n<|im_start|>assistant\n\n");
}

#[test]
fn special_tokens_and_what_is_passed_along_are_there() {
    let kwargs: Ordered = serde_json::from_str(r#"{"enable_thinking": false}"#).unwrap();
    let source = "{{ bos_token }}{{ enable_thinking }}{{ tools is none }}{{ eos_token is defined }}";
    let text = with(source, HI, Chat { kwargs: Some(&kwargs), ..Chat::default() }).unwrap();
    assert_eq!(text, "<s>FalseTrueFalse");
}

/// Python: `json.dumps({"b": 1, "a": [1.0, True, None, "é<"]}, ensure_ascii=False)` and so on.
#[test]
fn json_is_as_python_writes_it() {
    let tools: Ordered = serde_json::from_str(r#"{"b": 1, "a": [1.0, true, null, "é<"], "c": {}}"#).unwrap();
    let text = |source: &str| with(source, HI, Chat { tools: Some(&tools), ..Chat::default() }).unwrap();
    assert_eq!(text("{{ tools | tojson }}"), r#"{"b": 1, "a": [1.0, true, null, "é<"], "c": {}}"#);
    assert_eq!(
        text("{{ tools | tojson(sort_keys=true, ensure_ascii=true) }}"),
        r#"{"a": [1.0, true, null, "\u00e9<"], "b": 1, "c": {}}"#
    );
    assert_eq!(text("{{ tools.a | tojson(separators=(',', ':')) }}"), "[1.0,true,null,\"é<\"]");
    assert_eq!(
        text("{{ tools | tojson(indent=2) }}"),
        "{\n  \"b\": 1,\n  \"a\": [\n    1.0,\n    true,\n    null,\n    \"é<\"\n  ],\n  \"c\": {}\n}"
    );
}

/// Python 3.12: `json.dumps([1e-7, 1e16, 1e15, 0.0001, 1.5e300, 2**64, -(2**100)])`.
#[test]
fn numbers_are_as_python_writes_them() {
    let source = "{{ [1e-7, 1e16, 1e15, 0.0001, 1.5e300, 2**64, -(2**100)] | tojson }}";
    assert_eq!(
        with(source, HI, Chat::default()).unwrap(),
        "[1e-07, 1e+16, 1000000000000000.0, 0.0001, 1.5e+300, 18446744073709551616, -1267650600228229401496703205376]"
    );
    let indented = "{{ {'a': [], 'b': {}, 'c': [1]} | tojson(indent=1, separators=(';', '=')) }}";
    assert_eq!(
        with(indented, HI, Chat::default()).unwrap(),
        "{\n \"a\"=[];\n \"b\"={};\n \"c\"=[\n  1\n ]\n}"
    );
}

/// What Python 3.12 gives for each.
#[test]
fn methods_of_texts_are_pythons() {
    for (source, text) in [
        ("'ab'.ljust(5, '.') ~ 'ab'.rjust(5) ~ '|'", "ab...   ab|"),
        ("'ab'.center(5, '*') ~ 'a'.center(4, '*') ~ 'abc'.center(2)", "**ab**a**abc"),
        ("'-42'.zfill(6) ~ '42'.zfill(4) ~ '+1'.zfill(1)", "-000420042+1"),
        ("'abc'.removeprefix('a') ~ 'abc'.removesuffix('c') ~ 'abc'.removeprefix('x')", "bcababc"),
        ("'a.b.c'.partition('.') | tojson", "[\"a\", \".\", \"b.c\"]"),
        ("'a.b.c'.rpartition('.') | tojson", "[\"a.b\", \".\", \"c\"]"),
        (
            "'abc'.partition('.') | tojson ~ 'abc'.rpartition('.') | tojson",
            "[\"abc\", \"\", \"\"][\"\", \"\", \"abc\"]",
        ),
        ("'a.b.c'.rsplit('.', 1) | tojson", "[\"a.b\", \"c\"]"),
        (
            "' a  b c '.rsplit() | tojson ~ ' a  b c '.rsplit(None, 1) | tojson",
            "[\"a\", \"b\", \"c\"][\" a  b\", \"c\"]",
        ),
        ("'äbc'.index('c') ~ 'abcb'.rindex('b') ~ [4, 5].index(5)", "231"),
        ("'aBc'.swapcase() ~ 'Straße'.casefold()", "AbCstrasse"),
        ("'a\tbc\td'.expandtabs(4)", "a   bc  d"),
        ("'12'.isdecimal() ~ ''.isdecimal() ~ 'Ab Cd'.istitle() ~ 'AB'.istitle()", "TrueFalseTrueFalse"),
        ("', '.join(['a', 1]) ~ '{:>4}|{:.2f}'.format(7, 1.5)", "a, 1   7|1.50"),
    ] {
        assert_eq!(
            with(&format!("{{{{ {source} }}}}"), HI, Chat::default()).as_deref(),
            Ok(text),
            "{source}"
        );
    }
    assert!(with("{{ 'a'.index('b') }}", HI, Chat::default()).unwrap_err().contains("substring not found"));
}

#[test]
fn what_a_template_refuses_it_says_itself() {
    let source = "{% if messages|length < 2 %}{{ raise_exception('Say more!') }}{% endif %}";
    assert_eq!(with(source, HI, Chat::default()), Err("Say more!".into()));
    assert!(with("{{ messages[0].a.b }}", HI, Chat::default()).unwrap_err().contains("default:1"));
    assert!(template("{% for %}").unwrap_err().starts_with("chat template: "));
}

#[test]
fn arguments_of_calls_are_objects() {
    let calls = r#"[{"role": "assistant", "content": null, "tool_calls":
        [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": 2}"}}]}]"#;
    let source = "{% set c = messages[0].tool_calls[0].function %}{{ c.name }} {{ c.arguments.a }} \
                  {% for k, v in c.arguments.items() %}{{ k }}={{ v }};{% endfor %}{{ messages[0].content is defined }}";
    assert_eq!(with(source, calls, Chat::default()).unwrap(), "f 2 z=1;a=2;False");
}

#[test]
fn content_comes_in_parts_where_the_template_goes_through_them() {
    let parts =
        "{% for m in messages %}{%- for part in m['content'] -%}[{{ part.text }}]{% endfor %}{% endfor %}";
    assert_eq!(with(parts, HI, Chat::default()).unwrap(), "[hi]");
    assert!(goes_through_content("{%- for c in message.content | list %}"));
    assert!(goes_through_content("{% for c in content %}"));
    assert!(!goes_through_content(CHATML));
}

/// transformers 5.24, `_alias_reasoning_fields`.
#[test]
fn thoughts_have_each_of_their_names() {
    let messages = r#"[{"role": "assistant", "content": "a", "reasoning": "b"}]"#;
    let source = "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}{{ messages[0].reasoning }}";
    assert_eq!(with(source, messages, Chat::default()).unwrap(), "bbb");
}

/// vLLM 0.33.0 (renderers/chat_utils/chat_message.py): null, an empty text, no arguments, what is no JSON and what is no
/// object become `{}`; a list of no calls is none.
#[test]
fn calls_without_arguments_have_an_empty_object() {
    let source = "{% for c in messages[0].tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}";
    for arguments in ["\"\"", "null", "\"[1]\"", "\"{\\\"a\"", "[]", "0", "\"5\""] {
        let calls = format!(
            r#"[{{"role": "assistant", "tool_calls": [{{"function": {{"name": "f", "arguments": {arguments}}}}}]}}]"#
        );
        assert_eq!(with(source, &calls, Chat::default()).unwrap(), "{}", "{arguments}");
    }
    let missing = r#"[{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]"#;
    assert_eq!(with(source, missing, Chat::default()).unwrap(), "{}");
    let none = r#"[{"role": "assistant", "content": "a", "tool_calls": []}]"#;
    assert_eq!(with("{{ messages[0].tool_calls is defined }}", none, Chat::default()).unwrap(), "False");
}

/// vLLM 0.33.0 (`merge_kwargs`): fields of the request win over `chat_template_kwargs`, which are there for what it
/// does not say.
#[test]
fn what_a_request_says_wins_over_what_it_passes_along() {
    let kwargs: Ordered = serde_json::from_str(
        r#"{"messages": [], "add_generation_prompt": false, "tools": [1, 2], "documents": [3]}"#,
    )
    .unwrap();
    let own: Ordered = serde_json::from_str("[4]").unwrap();
    let source = "{{ messages | length }}{{ add_generation_prompt }}{{ tools }}{{ documents }}";
    let chat = Chat { kwargs: Some(&kwargs), tools: Some(&own), ..Chat::default() };
    assert_eq!(with(source, HI, chat).unwrap(), "1True[4][3]");
}

/// Nothing that a template does takes all time, all memory, or the stack.
#[test]
fn what_a_template_takes_is_bounded() {
    for source in [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}",
        "{{ 'x' * 10000000000 }}",
        "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
        "{{ 'x\ny' | indent(10000000000) }}",
        "{{ '%1000000000d' | format(5) }}",
        "{{ ('{0}' * 100000).format('x' * 100000) }}",
        "{{ 'x'.ljust(10000000000) }}{{ 'x'.zfill(10000000000) }}",
        "{{ 'x'.join(['x' * 1000000] * 100000) }}",
        "{{ ['x' * 1000000] * 100000 | tojson }}",
        "{{ (['x' * 1000000] * 100000) | tojson }}",
        "{{ ([{'b': 1, 'a': 2}] * 100000 | list * 1000) | tojson(sort_keys=true) }}",
        "{{ ('\t' * 100000).expandtabs(100000) }}",
    ] {
        let error = with(source, HI, Chat::default()).expect_err(source);
        assert!(error.contains("4000000 steps") || error.contains("operat"), "{source}: {error}");
    }
    for (source, words) in [
        ("{{ '{:>1000000000}'.format(5) }}", "a width of 1000000000, allowed is at most 4096"),
        ("{{ '{:.1000000000f}'.format(5.0) }}", "a width of 1000000000, allowed is at most 4096"),
        ("{{ messages | tojson(indent=1000000000) }}", "indent is 1000000000"),
    ] {
        let error = with(source, HI, Chat::default()).expect_err(source);
        assert!(error.contains(words), "{source}: {error}");
    }
    let nested = "{% set n = namespace(x=[]) %}{% for i in range(90000) %}{% set n.x = [n.x] %}{% endfor %}";
    assert_eq!(with(&format!("{nested}{{{{ 1 }}}}"), HI, Chat::default()).unwrap(), "1");
    let shown = with(&format!("{nested}{{{{ n.x | tojson | length }}}}"), HI, Chat::default());
    assert_eq!(shown.unwrap(), (2 * 90_001).to_string());
}

/// Expressions of any depth that a template has room for; longer ones are refused.
#[test]
fn deep_expressions_are_read() {
    assert_eq!(with(&format!("{{{{ 1{} }}}}", "+1".repeat(50_000)), HI, Chat::default()).unwrap(), "50001");
    for (operator, end) in [("not ", "1"), ("-", "1"), ("(", "1")] {
        let source = format!("{{{{ {}{end} }}}}", operator.repeat(50_000));
        // Whatever comes of it, it comes back.
        let _ = with(&source, HI, Chat::default());
    }
    let path = with(&format!("{{{{ messages{} }}}}", ".x".repeat(50_000)), HI, Chat::default());
    assert!(path.unwrap_err().contains("undefined"));
    let most = MOST_BYTES;
    let deepest = format!("{{{{ {}1 }}}}", "-".repeat(most - 7));
    let _ = with(&deepest, HI, Chat::default());
    let long = template(&"x".repeat(most + 1)).unwrap_err();
    assert_eq!(long, format!("the chat template has {} bytes, allowed are {most}", most + 1));
}

#[test]
fn a_last_message_stays_open() {
    let go_on = |messages: &str| with(CHATML, messages, Chat { go_on: true, ..Chat::default() });
    let open = go_on(r#"[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "well, "}]"#);
    assert_eq!(open.unwrap(), "<|im_start|>user\nhi<|im_end|>\n\n<|im_start|>assistant\nwell,");
    let kept = r#"[{"role": "assistant", "content": [{"type": "text", "text": "well, "}]}]"#;
    let parts = "{% for p in messages[0].content %}<{{ p.text }}>{% endfor %}";
    assert_eq!(with(parts, kept, Chat { go_on: true, ..Chat::default() }).unwrap(), "<well, ");
    let lost = with("lost", HI, Chat { go_on: true, ..Chat::default() });
    assert!(lost.unwrap_err().contains("does not repeat"));
}

#[test]
fn marks_for_training_print_nothing() {
    let source = "a{%- generation -%} b {%- endgeneration %}c{% if true %}d{% endif %}";
    assert_eq!(with(source, HI, Chat::default()).unwrap(), "abcd");
}

#[test]
fn python_is_understood() {
    let source = "{% set ns = namespace(n=0) %}{% for m in messages[::-1] %}{% set ns.n = ns.n + 1 %}\
                  {% if m.role.startswith('us') %}{% break %}{% endif %}{% endfor %}{{ ns.n }}\
                  {{ 'a.b'.split('.')[-1] ~ ' x '.strip() }}{{ strftime_now('%Y') | int > 2000 }}";
    assert_eq!(with(source, HI, Chat::default()).unwrap(), "1bxTrue");
}
