//! Messages to a prompt.

/// One message of a chat, its parts joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who says it.
    pub role: String,
    /// What.
    pub content: String,
}

/// How messages become a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ChatTemplate {
    /// ChatML, the layout that many open models use.
    #[default]
    ChatMl,
}

impl ChatTemplate {
    /// The prompt. `generate`: it ends where the assistant begins. `go_on`: it ends inside the last message.
    pub fn render(&self, messages: &[Message], generate: bool, go_on: bool) -> String {
        let ChatTemplate::ChatMl = self;
        let mut prompt = String::new();
        for (at, message) in messages.iter().enumerate() {
            let open = go_on && at + 1 == messages.len();
            let end = if open { "" } else { "<|im_end|>\n" };
            prompt.push_str(&format!("<|im_start|>{}\n{}{end}", message.role, message.content));
        }
        if generate && !go_on {
            prompt.push_str("<|im_start|>assistant\n");
        }
        prompt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chatml() {
        let message = |role: &str, content: &str| Message { role: role.into(), content: content.into() };
        let chat = [message("system", "be brief"), message("user", "hi")];
        assert_eq!(
            ChatTemplate::ChatMl.render(&chat, true, false),
            "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        );
        assert_eq!(ChatTemplate::ChatMl.render(&chat[1..], false, true), "<|im_start|>user\nhi");
    }
}
