//! A model's own chat template, in Jinja, with what Hugging Face's `transformers` puts into reach of one
//! (utils/chat_template_utils.py, version 5) and what vLLM 0.33 does to messages before
//! (entrypoints/chat_utils.py): arguments of calls become objects, and content is a text or its parts.

use super::charge::FUEL;
use super::guard::on_large_stack;
use super::strftime::DateTime;
use super::template::{Chat, Ordered};
use super::{methods, pyjson};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// Stands behind the last message while it is rendered, if the reply goes on with it. A space is its last character, so
/// that it shows whether the template trims.
const OPEN_END: &str = "\u{e000}THE LAST MESSAGE GOES ON\u{e000} ";
/// What clients call the thoughts of a message. Templates read the first or the second.
const THOUGHTS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Longest template, in bytes. Those of models have some ten thousand. Bounds how deep its expressions can go.
const MOST_BYTES: usize = 256 << 10;

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
        let long = templates.values().find(|source| source.len() > MOST_BYTES);
        if let Some(source) = long {
            return Err(format!("the chat template has {} bytes, allowed are {MOST_BYTES}", source.len()));
        }
        let compiled = on_large_stack(|| JinjaTemplate::compile(templates, special, format));
        compiled.unwrap_or_else(|panic| Err(format!("chat template: {panic}")))
    }

    fn compile(
        templates: &BTreeMap<String, String>,
        special: &BTreeMap<String, String>,
        format: ContentFormat,
    ) -> Result<JinjaTemplate, String> {
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
        // What a template nests, its values can nest as deep.
        let prompt = on_large_stack(|| self.rendered(chat)).unwrap_or_else(Err)?;
        if chat.go_on { before_the_open_end(prompt) } else { Ok(prompt) }
    }

    fn rendered(&self, chat: &Chat<'_>) -> Result<String, String> {
        let mut context: BTreeMap<String, Ordered> =
            self.special.iter().map(|(part, text)| (part.clone(), text.as_str().into())).collect();
        context.extend(["tools", "documents"].map(|name| (name.to_owned(), ().into())));
        context.extend(chat.kwargs.into_iter().flat_map(pairs));
        // What a request says in fields of their own counts more (vLLM 0.33, renderers/params.py, `merge_kwargs`).
        let fields = [("tools", chat.tools), ("documents", chat.documents)];
        let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.clone())));
        context.extend(fields);
        context.insert("add_generation_prompt".into(), chat.generate.into());
        // As `get_chat_template` has it: one for tools if there is such a one, or else the default one.
        let tools = context.get("tools").is_some_and(|tools| !tools.is_none());
        let wanted = if tools && self.names.contains_key("tool_use") { "tool_use" } else { "default" };
        let only = self.names.keys().next().map_or("default", String::as_str);
        let name = if self.names.contains_key(wanted) { wanted } else { only };
        let parts = self.names.get(name).copied().unwrap_or(false);
        context.insert("messages".into(), messages(chat, parts).into());
        let template = self.environment.get_template(name).map_err(|error| words(&error))?;
        template.render(Ordered::from_pairs(context)).map_err(|error| words(&error))
    }
}

/// What templates may use.
fn environment() -> Result<Environment<'static>, String> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|error| error.to_string())?);
    // Prompts are no HTML.
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(methods::call);
    environment.add_filter("tojson", pyjson::tojson);
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
        if one.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::OutOfFuel) {
            return format!(
                "the chat template takes more than {FUEL} steps, of which 64 bytes of text that it makes are one"
            );
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
            .filter(|(key, value)| key != "tool_calls" || value.is_true())
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

/// Calls whose arguments are objects; clients send them as a text. What is no object in it, or no JSON, or missing, is an
/// empty object, so that a chat goes on that has it in its past (vLLM 0.33, renderers/chat_utils/chat_message.py).
fn calls(calls: &Ordered) -> Ordered {
    let Ok(all) = calls.try_iter() else { return calls.clone() };
    let arguments = |value: Option<Ordered>| {
        let value = value.filter(Ordered::is_true);
        let parsed = match value.as_ref().map(|value| value.as_str()) {
            Some(Some(text)) => serde_json::from_str(text).ok(),
            _ => value,
        };
        let empty = || Ordered::from_pairs(std::iter::empty::<(String, Ordered)>());
        parsed.filter(|value: &Ordered| value.kind() == ValueKind::Map).unwrap_or_else(empty)
    };
    let function = |function: &Ordered| {
        let mut fields: Vec<(String, Ordered)> = pairs(function).collect();
        match fields.iter_mut().find(|(key, _)| key == "arguments") {
            Some((_, value)) => *value = arguments(Some(value.clone())),
            None => fields.push(("arguments".into(), arguments(None))),
        }
        Ordered::from_pairs(fields)
    };
    let call = |call: Ordered| {
        Ordered::from_pairs(pairs(&call).map(|(key, value)| match value.kind() {
            ValueKind::Map if key == "function" => (key, function(&value)),
            _ => (key, value),
        }))
    };
    all.map(call).collect::<Vec<_>>().into()
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

#[cfg(test)]
mod tests;
