//! A tokenizer of Hugging Face's format (`tokenizer.json`), by their own library.
//!
//! Prompts are cut as a real engine cuts them. What a reply says is made of words that come back as the same tokens
//! when a client sends them again.

use super::Tokenizer;
use super::files::TokenizerFiles;
use super::words::{self, Words};

/// Tokens that may have to wait for what completes their character: one for each byte of the longest.
const LONGEST_CHARACTER: usize = 4;
/// Tokens that the text of the next one may depend on, at most. Bounds the work for each.
const LONGEST_CONTEXT: usize = 32;
/// Tokens that end a reply in models that many use, in case no file says which one does.
const KNOWN_ENDS: [&str; 8] =
    ["<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "</s>", "<eos>", "[SEP]"];
/// A text with letters, digits, spaces, and characters that few vocabularies have.
const PROBE: &str = "Probe 12\n\t  \u{1}äß 日本語 🙂 \u{10fffd} \u{fffd} <|x|>";

/// A tokenizer that was read from a file.
pub struct HuggingFaceTokenizer {
    tokenizer: tokenizers::Tokenizer,
    eos: u32,
    vocabulary: u32,
    /// Tokens before and behind a prompt.
    frame: (Vec<u32>, Vec<u32>),
    words: Words,
}

impl HuggingFaceTokenizer {
    /// Reads a tokenizer.
    ///
    /// # Errors
    /// What is wrong with its file, or what it lacks.
    pub fn open(files: &TokenizerFiles) -> Result<HuggingFaceTokenizer, String> {
        let wrong = |message: String| format!("{}: {message}", files.tokenizer.display());
        let bytes =
            std::fs::read(&files.tokenizer).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(&bytes)
            .map_err(|error| wrong(format!("is not a tokenizer: {error}")))?;
        // Engines ask for whole texts and for nothing around them.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| wrong(error.to_string()))?;
        let frame = frame(&tokenizer).map_err(wrong)?;
        let vocabulary = tokenizer.get_vocab(true).into_values().max().map_or(0, |last| last + 1);
        let eos = eos(&tokenizer, files, vocabulary).map_err(wrong)?;
        let mut own = HuggingFaceTokenizer { tokenizer, eos, vocabulary, frame, words: Words::default() };
        let known = own.tokenizer.get_vocab(true).into_values().collect();
        own.words = words::choose(&own, known).map_err(wrong)?;
        Ok(own)
    }
}

/// What stands around a prompt: what is there beside the tokens of a text itself. The text tells whether it takes any.
fn frame(tokenizer: &tokenizers::Tokenizer) -> Result<(Vec<u32>, Vec<u32>), String> {
    let encoded = |framed| {
        let encoding = tokenizer.encode_fast(PROBE, framed);
        encoding.map_err(|error| format!("cannot take every text: {error}"))
    };
    let (bare, framed) = (encoded(false)?, encoded(true)?);
    tokenizer.decode(framed.get_ids(), false).map_err(|error| error.to_string())?;
    let (bare, framed) = (bare.get_ids(), framed.get_ids());
    let at = framed.windows(bare.len().max(1)).position(|window| window == bare);
    match at {
        Some(at) => Ok((framed[..at].to_vec(), framed[at + bare.len()..].to_vec())),
        None => Err("what it puts around a text changes the text's own tokens".into()),
    }
}

/// The token that ends a reply.
fn eos(tokenizer: &tokenizers::Tokenizer, files: &TokenizerFiles, vocabulary: u32) -> Result<u32, String> {
    if let Some(text) = files.special.get("eos_token") {
        let known = tokenizer.token_to_id(text);
        return known.ok_or_else(|| format!("eos_token is \"{text}\", and it has no such token"));
    }
    if let Some(&token) = files.eos_ids.first() {
        let known = (token < vocabulary).then_some(token);
        return known.ok_or_else(|| format!("eos_token_id is {token}, and it has {vocabulary} tokens"));
    }
    KNOWN_ENDS.iter().find_map(|text| tokenizer.token_to_id(text)).ok_or_else(|| {
        "nothing says which token ends a reply; eos_token of tokenizer_config.json beside it does".to_owned()
    })
}

impl Tokenizer for HuggingFaceTokenizer {
    /// A text that it cannot take, of which the probe knew nothing, gives no tokens, and no tokens are no prompt.
    fn encode(&self, text: &str) -> Vec<u32> {
        let encoding = self.tokenizer.encode_fast(text, false);
        encoding.map_or_else(|_| Vec::new(), |encoding| encoding.get_ids().to_vec())
    }

    fn frame(&self) -> (&[u32], &[u32]) {
        (&self.frame.0, &self.frame.1)
    }

    fn decode(&self, tokens: &[u32], skip_special: bool) -> String {
        self.tokenizer.decode(tokens, skip_special).unwrap_or_default()
    }

    /// As vLLM's incremental detokenizer does it: the text of a window of tokens with the next one, less the text
    /// without it. The window holds what was shown last, since spaces and characters depend on it.
    fn ends(&self, tokens: &[u32], skip_special: bool) -> (String, Vec<u32>) {
        let (mut text, mut ends) = (String::new(), Vec::with_capacity(tokens.len()));
        let (mut from, mut read, mut shown) = (0, 0, String::new());
        for at in 0..tokens.len() {
            let now = self.decode(&tokens[from..=at], skip_special);
            let open = now.ends_with('\u{fffd}') && at + 1 - read < LONGEST_CHARACTER;
            if !open || at + 1 == tokens.len() {
                let before = text.len();
                match now.strip_prefix(shown.as_str()) {
                    Some(new) => text.push_str(new),
                    // A decoder that says what it said in other words begins anew.
                    None => text.push_str(&self.decode(&tokens[read..=at], skip_special)),
                }
                // Tokens without a text are no context for the next one.
                if text.len() > before || at + 1 - from >= LONGEST_CONTEXT {
                    (from, read) = (read, at + 1);
                    shown = self.decode(&tokens[from..read], skip_special);
                }
            }
            ends.push(u32::try_from(text.len()).unwrap_or(u32::MAX));
        }
        (text, ends)
    }

    fn spelling(&self, token: u32) -> String {
        self.tokenizer.id_to_token(token).unwrap_or_default()
    }

    fn eos(&self) -> u32 {
        self.eos
    }

    fn thinking(&self) -> Option<(u32, u32)> {
        self.tokenizer.token_to_id("<think>").zip(self.tokenizer.token_to_id("</think>"))
    }

    fn vocabulary(&self) -> u32 {
        self.vocabulary
    }

    fn words(&self) -> (&[u32], &[u32]) {
        (&self.words.first, &self.words.others)
    }
}
