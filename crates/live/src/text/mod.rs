//! Text and tokens: tokenizers, and what a request will say.
//!
//! A reply is planned when its request comes: tokens, their text, where it stops. Nothing here knows of passes
//! or sockets.

mod builtin;
mod dataset;
mod plan;
mod reply;
mod template;

pub use builtin::BuiltinTokenizer;
pub use dataset::Dataset;
pub use plan::{Limits, Plan, StopReason};
pub use reply::{Reply, ReplySource, Thinking};
pub use template::{ChatTemplate, Message};

/// Text to tokens and back.
pub trait Tokenizer: Send + Sync {
    /// The tokens of a text. Special tokens that are spelled in it become themselves.
    fn encode(&self, text: &str) -> Vec<u32>;

    /// The text of tokens, special ones left out if `skip_special`. Bytes that are not UTF-8 become U+FFFD.
    fn decode(&self, tokens: &[u32], skip_special: bool) -> String;

    /// Where the text of the first 1, 2, … tokens ends in the text of all of them. A token that does not complete
    /// a character ends where the one before it does.
    fn ends(&self, tokens: &[u32], skip_special: bool) -> (String, Vec<u32>);

    /// The token that begins a prompt, if every prompt begins with one.
    fn bos(&self) -> Option<u32>;

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
