//! How the model reads and writes: tokenizer and chat template, as vLLM's flags name them.

use crate::exit::Failure;
use clap::{Args, ValueEnum};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use windtunnel_live::text::{ChatTemplate, ContentFormat, JinjaTemplate, Language, TokenizerFiles};

/// Tokenizer and chat template.
#[derive(Debug, Args)]
pub struct TextArguments {
    /// Tokenizer: a `tokenizer.json` of Hugging Face, or a folder with one; beside it, special tokens and the chat
    /// template are read. Without one, there is a built-in tokenizer
    #[arg(long, alias = "tokenizer-path", value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    /// Chat template in Jinja: a file, or the template itself; wins over that of the tokenizer
    #[arg(long, value_name = "FILE|TEMPLATE")]
    chat_template: Option<String>,
    /// How the template reads what a message says
    #[arg(long, value_enum, default_value_t = Format::Auto)]
    chat_template_content_format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// As the template shows
    Auto,
    /// A text
    String,
    /// A list of parts
    Openai,
}

impl TextArguments {
    /// Reads the files that they name.
    pub(super) fn language(&self) -> Result<Language, Failure> {
        let mut language = Language::default();
        let mut files = TokenizerFiles::default();
        if let Some(path) = &self.tokenizer {
            let wrong = |message| Failure::Input(format!("--tokenizer: {message}"));
            files = TokenizerFiles::read(path).map_err(wrong)?;
            language.tokenizer = windtunnel_live::text::open(&files).map_err(wrong)?;
        }
        if let Some(given) = &self.chat_template {
            files.templates = BTreeMap::from([("default".into(), template(given)?)]);
        }
        let format = match self.chat_template_content_format {
            Format::Auto => ContentFormat::Auto,
            Format::String => ContentFormat::String,
            Format::Openai => ContentFormat::OpenAi,
        };
        if !files.templates.is_empty() {
            let flag = if self.chat_template.is_some() { "--chat-template" } else { "--tokenizer" };
            let template = JinjaTemplate::new(&files.templates, &files.special, format);
            let template = template.map_err(|message| Failure::Input(format!("{flag}: {message}")))?;
            language.template = ChatTemplate::Jinja(Arc::new(template));
        } else if format != ContentFormat::Auto {
            let message = "--chat-template-content-format: there is no chat template but the built-in one";
            return Err(Failure::Input(message.into()));
        }
        Ok(language)
    }
}

/// A file, or, as for vLLM, a text with braces or more than one line.
fn template(given: &str) -> Result<String, Failure> {
    let path = Path::new(given);
    if !path.is_file() && given.contains(['{', '}', '\n']) {
        return Ok(given.to_owned());
    }
    std::fs::read_to_string(path)
        .map_err(|error| Failure::Input(format!("--chat-template: {given}: cannot be read: {error}")))
}
