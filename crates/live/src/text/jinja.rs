//! A model's own chat template, in Jinja, with what Hugging Face's `transformers` puts into reach of one
//! (utils/chat_template_utils.py, version 5) and what vLLM 0.33 does to messages before
//! (entrypoints/chat_utils.py): arguments of calls become objects, and content is a text or its parts.

use super::strftime::DateTime;
use super::template::{Chat, Ordered};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// Stands behind the last message while it is rendered, if the reply goes on with it. A space is its last character, so
/// that it shows whether the template trims.
const OPEN_END: &str = "\u{e000}THE LAST MESSAGE GOES ON\u{e000} ";
/// What clients call the thoughts of a message. Templates read the first or the second.
const THOUGHTS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// How a template reads what a message says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentFormat {
    /// As the template shows: parts if it goes through them, or else a text.
    #[default]
    Auto,
    /// A text.
    String,
    /// A list of parts.
    OpenAi,
}

/// Templates of a model.
#[derive(Debug)]
pub struct JinjaTemplate {
    environment: Environment<'static>,
    /// By name: whether it takes content in parts.
    names: BTreeMap<String, bool>,
    special: BTreeMap<String, String>,
}

/// What a template itself has against messages (`raise_exception`).
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl JinjaTemplate {
    /// Templates by name, of which `default` must be one or there is only one, and the special tokens that they may
    /// name.
    ///
    /// # Errors
    /// What is wrong with a template, and where.
    pub fn new(
        templates: &BTreeMap<String, String>,
        special: &BTreeMap<String, String>,
        format: ContentFormat,
    ) -> Result<JinjaTemplate, String> {
        if !templates.contains_key("default") && templates.len() != 1 {
            let names: Vec<&str> = templates.keys().map(String::as_str).collect();
            return Err(format!("none of the chat templates ({}) is called default", names.join(", ")));
        }
        let mut environment = environment()?;
        let mut names = BTreeMap::new();
        for (name, source) in templates {
            let parts = match format {
                ContentFormat::Auto => goes_through_content(source),
                ContentFormat::String => false,
                ContentFormat::OpenAi => true,
            };
            let added = environment.add_template_owned(name.clone(), without_generation_tags(source));
            added.map_err(|error| format!("chat template: {}", words(&error)))?;
            names.insert(name.clone(), parts);
        }
        Ok(JinjaTemplate { environment, names, special: special.clone() })
    }

    /// The prompt.
    ///
    /// # Errors
    /// What the template has against these messages, or what goes wrong in it.
    pub fn render(&self, chat: &Chat<'_>) -> Result<String, String> {
        // As `get_chat_template` has it: one for tools if there is such a one, or else the default one.
        let wanted =
            if chat.tools.is_some() && self.names.contains_key("tool_use") { "tool_use" } else { "default" };
        let only = self.names.keys().next().map_or("default", String::as_str);
        let name = if self.names.contains_key(wanted) { wanted } else { only };
        let parts = self.names.get(name).copied().unwrap_or(false);
        let mut context: BTreeMap<&str, Ordered> =
            self.special.iter().map(|(part, text)| (part.as_str(), Ordered::from(text.as_str()))).collect();
        context.insert("messages", messages(chat, parts).into());
        context.insert("tools", chat.tools.cloned().unwrap_or(().into()));
        context.insert("documents", chat.documents.cloned().unwrap_or(().into()));
        context.insert("add_generation_prompt", chat.generate.into());
        let more: Vec<(String, Ordered)> = match chat.kwargs {
            Some(kwargs) => pairs(kwargs).collect(),
            None => Vec::new(),
        };
        context.extend(more.iter().map(|(key, value)| (key.as_str(), value.clone())));
        let template = self.environment.get_template(name).map_err(|error| words(&error))?;
        let prompt = template.render(Ordered::from_pairs(context)).map_err(|error| words(&error))?;
        if chat.go_on { before_the_open_end(prompt) } else { Ok(prompt) }
    }
}

/// What templates may use.
fn environment() -> Result<Environment<'static>, String> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|error| error.to_string())?);
    // Prompts are no HTML.
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", |message: String| -> Result<Ordered, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
    });
    environment.add_function("strftime_now", |format: String| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let text = DateTime::from_unix(now).format(&format);
        text.map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
    });
    Ok(environment)
}

/// What went wrong, and where; only what the template says, if it says it itself.
fn words(error: &Error) -> String {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(one) = cause {
        if let Some(Raised(message)) = one.downcast_ref() {
            return message.clone();
        }
        cause = one.source();
    }
    error.to_string()
}

/// Messages as a template gets them: without fields that say nothing, and thoughts under each of their names.
fn messages(chat: &Chat<'_>, parts: bool) -> Vec<Ordered> {
    let count = chat.messages.len();
    let message = |(at, (whole, joined)): (usize, (&&Ordered, &super::Message))| {
        let end = if chat.go_on && at + 1 == count { OPEN_END } else { "" };
        let given = pairs(whole).filter(|(_, value)| !value.is_none());
        let mut fields: Vec<(String, Ordered)> = given
            .map(|(key, value)| {
                let value = match key.as_str() {
                    "content" if parts => in_parts(&value, end),
                    "content" => Ordered::from(format!("{}{end}", joined.content)),
                    "tool_calls" => calls(&value),
                    _ => value,
                };
                (key, value)
            })
            .collect();
        let thoughts = THOUGHTS.iter().find_map(|name| fields.iter().find(|(key, _)| key == name)).cloned();
        if let Some((_, thoughts)) = thoughts {
            for name in ["reasoning_content", "thinking"] {
                if fields.iter().all(|(key, _)| key != name) {
                    fields.push((name.to_owned(), thoughts.clone()));
                }
            }
        }
        Ordered::from_pairs(fields)
    };
    chat.whole.iter().zip(chat.messages).enumerate().map(message).collect()
}

/// Key and value of each field.
fn pairs(object: &Ordered) -> impl Iterator<Item = (String, Ordered)> {
    let keys = object.try_iter().into_iter().flatten();
    keys.filter_map(|key| Some((key.as_str()?.to_owned(), object.get_item(&key).ok()?)))
}

/// Content as a list of parts, with an end behind the last text.
fn in_parts(content: &Ordered, end: &str) -> Ordered {
    let part = |text: &str| {
        Ordered::from_pairs([
            ("type", Ordered::from("text")),
            ("text", Ordered::from(format!("{text}{end}"))),
        ])
    };
    if let Some(text) = content.as_str() {
        return vec![part(text)].into();
    }
    let mut parts: Vec<Ordered> = content.try_iter().into_iter().flatten().collect();
    let text = |part: &Ordered| part.get_attr("text").ok()?.as_str().map(str::to_owned);
    if let Some((at, last)) = parts.iter().enumerate().rev().find_map(|(at, part)| Some((at, text(part)?))) {
        parts[at] = part(&last);
    }
    parts.into()
}

/// Calls whose arguments are objects; clients send them as a text.
fn calls(calls: &Ordered) -> Ordered {
    let Ok(all) = calls.try_iter() else { return calls.clone() };
    let replaced = |object: Ordered, name: &str, with: &dyn Fn(Ordered) -> Ordered| {
        let fields =
            pairs(&object).map(|(key, value)| if key == name { (key, with(value)) } else { (key, value) });
        Ordered::from_pairs(fields)
    };
    let arguments = |value: Ordered| match value.as_str() {
        Some(text) => serde_json::from_str(text).unwrap_or(value),
        None => value,
    };
    let function = |value: Ordered| match value.kind() {
        ValueKind::Map => replaced(value, "arguments", &arguments),
        _ => value,
    };
    all.map(|call| replaced(call, "function", &function)).collect::<Vec<_>>().into()
}

/// The prompt up to the mark behind what its last message says.
fn before_the_open_end(mut prompt: String) -> Result<String, String> {
    let Some(at) = prompt.rfind(OPEN_END.trim_end()) else {
        return Err("continue_final_message: the chat template does not repeat the last message".into());
    };
    // A template that trims what a message says takes the space behind the mark along.
    let trimmed = !prompt[at..].starts_with(OPEN_END);
    prompt.truncate(at);
    Ok(if trimmed { prompt.trim_end().to_owned() } else { prompt })
}

/// A loop in it goes through the content of a message, or through a variable of that name.
fn goes_through_content(source: &str) -> bool {
    let blocks = source.split("{%").skip(1).filter_map(|block| block.split("%}").next());
    let loops = blocks.filter_map(|block| {
        block
            .trim_matches(['-', '+'])
            .trim_start()
            .strip_prefix("for ")?
            .split_once(" in ")
            .map(|(_, over)| over)
    });
    loops.into_iter().any(|over| {
        let over = over.trim().trim_end_matches('-').trim();
        let over = over.split(['|', ' ']).next().unwrap_or("");
        over == "content"
            || [".content", "['content']", "[\"content\"]"].iter().any(|end| over.ends_with(end))
    })
}

/// Without the tags that mark, for training, what the assistant says. They print nothing.
fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    for (at, piece) in source.split("{%").enumerate() {
        let (tag, rest) = piece.split_once("%}").filter(|_| at > 0).unwrap_or(("", piece));
        let name = tag.trim_matches(['-', '+']).trim();
        let instead = match name {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => {
                text.push_str(if at > 0 { "{%" } else { "" });
                text.push_str(piece);
                continue;
            }
        };
        text.push_str(&format!("{{%{}%}}{rest}", tag.replacen(name, instead, 1)));
    }
    text
}

/// As Python's `json.dumps(value, ensure_ascii=False)` writes it.
fn tojson(value: &Ordered, options: Kwargs) -> Result<String, Error> {
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let indent = options.get::<Option<Ordered>>("indent")?.filter(|indent| !indent.is_none());
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    options.assert_all_used()?;
    let wrong = |message: String| Error::new(ErrorKind::InvalidOperation, format!("tojson: {message}"));
    let value = if sorted { in_key_order(value) } else { value.clone() };
    let mut bytes = Vec::new();
    let written = match indent {
        Some(indent) => {
            let indent =
                indent.as_usize().ok_or_else(|| wrong(format!("indent is {indent}, not a number")))?;
            let indent = " ".repeat(indent.min(64));
            let formatter = PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter))
        }
        None => {
            let [between, behind_key] = match separators.as_deref() {
                None => [", ", ": "].map(str::to_owned),
                Some([between, behind_key]) => [between.clone(), behind_key.clone()],
                Some(_) => return Err(wrong("separators are not two texts".into())),
            };
            let formatter = Spaced { between, behind_key };
            value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter))
        }
    };
    written.map_err(|error| wrong(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|error| wrong(error.to_string()))?;
    Ok(if ascii { escaped(&text) } else { text })
}

/// The same with all keys in order.
fn in_key_order(value: &Ordered) -> Ordered {
    match value.kind() {
        ValueKind::Map => {
            let sorted: BTreeMap<String, Ordered> =
                pairs(value).map(|(key, value)| (key, in_key_order(&value))).collect();
            Ordered::from_pairs(sorted)
        }
        ValueKind::Seq => {
            value.try_iter().into_iter().flatten().map(|item| in_key_order(&item)).collect::<Vec<_>>().into()
        }
        _ => value.clone(),
    }
}

/// Characters beyond ASCII as `\uXXXX`. They stand in strings only.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() {
            text.push(character);
        } else {
            character
                .encode_utf16(&mut [0; 2])
                .iter()
                .for_each(|unit| text.push_str(&format!("\\u{unit:04x}")));
        }
    }
    text
}

/// Python's separators.
struct Spaced {
    between: String,
    behind_key: String,
}

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(self.between.as_bytes()) }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(self.between.as_bytes()) }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.behind_key.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Message;
    use super::*;

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
                Message { role: field("role"), content: field("content") }
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
        let tools: Ordered =
            serde_json::from_str(r#"{"b": 1, "a": [1.0, true, null, "é<"], "c": {}}"#).unwrap();
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
        let parts = "{% for m in messages %}{%- for part in m['content'] -%}[{{ part.text }}]{% endfor %}{% endfor %}";
        assert_eq!(with(parts, HI, Chat::default()).unwrap(), "[hi]");
        assert!(goes_through_content("{%- for c in message.content | list %}"));
        assert!(goes_through_content("{% for c in content %}"));
        assert!(!goes_through_content(CHATML));
    }

    /// transformers 5.24, `_alias_reasoning_fields`.
    #[test]
    fn thoughts_have_each_of_their_names() {
        let messages = r#"[{"role": "assistant", "content": "a", "reasoning": "b"}]"#;
        let source =
            "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}{{ messages[0].reasoning }}";
        assert_eq!(with(source, messages, Chat::default()).unwrap(), "bbb");
    }

    #[test]
    fn a_last_message_stays_open() {
        let go_on = |messages: &str| with(CHATML, messages, Chat { go_on: true, ..Chat::default() });
        let open =
            go_on(r#"[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "well, "}]"#);
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
}
