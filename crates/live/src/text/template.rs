//! Messages to a prompt: by a model's own template, or by ChatML.

use super::jinja::JinjaTemplate;
use std::sync::Arc;

/// JSON whose objects keep the order of their keys, as templates see it.
pub type Ordered = minijinja::Value;

/// One message of a chat, its parts joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Who says it.
    pub role: String,
    /// What.
    pub content: String,
    /// The calls that it makes, as ChatML has them behind its content.
    pub calls: String,
}

/// What a prompt is made of.
#[derive(Clone, Debug, Default)]
pub struct Chat<'a> {
    /// Messages, their parts joined.
    pub messages: &'a [Message],
    /// The same as they came.
    pub whole: &'a [&'a Ordered],
    /// Tools, if there are any.
    pub tools: Option<&'a Ordered>,
    /// Documents, if there are any.
    pub documents: Option<&'a Ordered>,
    /// What else its template is told.
    pub kwargs: Option<&'a Ordered>,
    /// It ends where the assistant begins.
    pub generate: bool,
    /// It ends inside the last message.
    pub go_on: bool,
}

/// How messages become a prompt.
#[derive(Clone, Debug, Default)]
pub enum ChatTemplate {
    /// ChatML, the layout that many open models use.
    #[default]
    ChatMl,
    /// A model's own.
    Jinja(Arc<JinjaTemplate>),
}

impl ChatTemplate {
    /// The prompt.
    ///
    /// # Errors
    /// What a template of a model has against these messages.
    pub fn render(&self, chat: &Chat<'_>) -> Result<String, String> {
        match self {
            ChatTemplate::ChatMl => Ok(chat_ml(chat)),
            ChatTemplate::Jinja(template) => template.render(chat),
        }
    }
}

fn chat_ml(chat: &Chat<'_>) -> String {
    let mut prompt = String::new();
    for (at, message) in chat.messages.iter().enumerate() {
        let open = chat.go_on && at + 1 == chat.messages.len();
        let end = if open { "" } else { "<|im_end|>\n" };
        let Message { role, content, calls } = message;
        prompt.push_str(&format!("<|im_start|>{role}\n{content}{calls}{end}"));
    }
    if chat.generate && !chat.go_on {
        prompt.push_str("<|im_start|>assistant\n");
    }
    prompt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chatml() {
        let message = |role: &str, content: &str| Message {
            role: role.into(),
            content: content.into(),
            ..Message::default()
        };
        let chat = [message("system", "be brief"), message("user", "hi")];
        let render = |messages, generate, go_on| {
            ChatTemplate::ChatMl.render(&Chat { messages, generate, go_on, ..Chat::default() }).unwrap()
        };
        assert_eq!(
            render(&chat, true, false),
            "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        );
        assert_eq!(render(&chat[1..], false, true), "<|im_start|>user\nhi");
    }
}
