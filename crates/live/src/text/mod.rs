//! Text and tokens: tokenizers, and what a request will say.
//!
//! A reply is planned when its request comes: tokens, their text, where it stops. Nothing here knows of passes
//! or sockets.

mod builtin;
mod charge;
mod dataset;
mod files;
pub mod guard;
#[cfg(feature = "tokenizer")]
mod huggingface;
mod jinja;
mod methods;
mod plan;
mod pyjson;
mod replay;
mod reply;
mod strftime;
mod template;
#[cfg(feature = "tokenizer")]
mod words;

pub use builtin::BuiltinTokenizer;
pub use dataset::Dataset;
pub use files::TokenizerFiles;
#[cfg(feature = "tokenizer")]
pub use huggingface::HuggingFaceTokenizer;
pub use jinja::{ContentFormat, JinjaTemplate};
pub use plan::{Limits, Plan, StopReason};
pub use replay::Replays;
pub use reply::{Reply, ReplySource, Thinking};
pub use template::{Chat, ChatTemplate, Message, Ordered};

use std::fmt;
use std::sync::Arc;

/// How a model reads and writes: built in, unless files or flags say otherwise.
#[derive(Clone)]
pub struct Language {
    /// Text to tokens and back.
    pub tokenizer: Arc<dyn Tokenizer>,
    /// Messages to a prompt.
    pub template: ChatTemplate,
}

impl Default for Language {
    fn default() -> Self {
        Language { tokenizer: Arc::new(BuiltinTokenizer::default()), template: ChatTemplate::default() }
    }
}

impl fmt::Debug for Language {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vocabulary = self.tokenizer.vocabulary();
        formatter.debug_struct("Language").field("vocabulary", &vocabulary).finish_non_exhaustive()
    }
}

/// The tokenizer that files describe.
///
/// # Errors
/// What is wrong with them.
#[cfg(feature = "tokenizer")]
pub fn open(files: &TokenizerFiles) -> Result<Arc<dyn Tokenizer>, String> {
    Ok(Arc::new(HuggingFaceTokenizer::open(files)?))
}

/// The tokenizer that files describe.
///
/// # Errors
/// Always: this program was built without the library that reads them.
#[cfg(not(feature = "tokenizer"))]
pub fn open(_: &TokenizerFiles) -> Result<Arc<dyn Tokenizer>, String> {
    Err("this program was built without the feature \"tokenizer\"".into())
}

/// Text to tokens and back.
pub trait Tokenizer: Send + Sync {
    /// The tokens of a text. Special tokens that are spelled in it become themselves.
    ///
    /// # Errors
    /// It cannot take this text.
    fn encode(&self, text: &str) -> Result<Vec<u32>, String>;

    /// The most characters of a text that can become one token.
    fn longest_token(&self) -> u32;

    /// A text of some KiB takes it no longer than a request takes anyway.
    fn is_quick(&self) -> bool {
        false
    }

    /// The text of tokens, special ones left out if `skip_special`. Bytes that are not UTF-8 become U+FFFD.
    fn decode(&self, tokens: &[u32], skip_special: bool) -> String;

    /// Where the text of the first 1, 2, … tokens ends in the text of all of them. A token that does not complete
    /// a character ends where the one before it does.
    fn ends(&self, tokens: &[u32], skip_special: bool) -> (String, Vec<u32>);

    /// The tokens that stand before and behind every prompt that is a plain text.
    fn frame(&self) -> (&[u32], &[u32]);

    /// A token as its vocabulary spells it.
    fn spelling(&self, token: u32) -> String;

    /// The token that ends a reply.
    fn eos(&self) -> u32;

    /// The tokens between which the model thinks, if it has any.
    fn thinking(&self) -> Option<(u32, u32)>;

    /// Tokens there are: from 0 to below this.
    fn vocabulary(&self) -> u32;

    /// Word tokens that can follow each other in any order such that their text gives the same tokens again: the
    /// first of a reply, and all others.
    fn words(&self) -> (&[u32], &[u32]);
}
