//! A tokenizer of Hugging Face's format (`tokenizer.json`), by their own library.
//!
//! Prompts are cut as a real engine cuts them. What a reply says is made of words that come back as the same tokens
//! when a client sends them again.

use super::Tokenizer;
use super::files::TokenizerFiles;
use super::guard::caught;
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
    /// Characters of the longest token.
    longest: u32,
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
        caught(|| HuggingFaceTokenizer::read(files)).map_err(|panic| wrong(gave_up(&panic)))?.map_err(wrong)
    }

    fn read(files: &TokenizerFiles) -> Result<HuggingFaceTokenizer, String> {
        let bytes = std::fs::read(&files.tokenizer).map_err(|error| format!("cannot be read: {error}"))?;
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(&bytes)
            .map_err(|error| format!("is not a tokenizer: {error}"))?;
        // Engines ask for whole texts and for nothing around them.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
        let spellings = tokenizer.get_vocab(true);
        // As vLLM has it (tokenizers/hf.py, 0.33.0): of the token as its vocabulary spells it.
        let longest = spellings.keys().map(|text| text.chars().count()).max().unwrap_or(0);
        let longest = u32::try_from(longest).unwrap_or(u32::MAX);
        let vocabulary = spellings.values().max().map_or(0, |last| last.saturating_add(1));
        if vocabulary == 0 {
            return Err("its vocabulary is empty".into());
        }
        refuse_dropout(&tokenizer)?;
        let frame = frame(&tokenizer)?;
        let eos = eos(&tokenizer, files, vocabulary)?;
        let words = Words::default();
        let mut own = HuggingFaceTokenizer { tokenizer, eos, vocabulary, longest, frame, words };
        let known = own.tokenizer.get_vocab(true).into_values().collect();
        own.words = words::choose(&own, known)?;
        Ok(own)
    }
}

/// A tokenizer cuts a text in one way only. Engines train nothing, and no two of their prompts would be alike.
fn refuse_dropout(tokenizer: &tokenizers::Tokenizer) -> Result<(), String> {
    match tokenizer.get_model() {
        tokenizers::ModelWrapper::BPE(model) if model.dropout.is_some_and(|share| share > 0.0) => {
            Err(format!(
                "model.dropout is {}: the same text would give other tokens each time; allowed is null",
                model.dropout.unwrap_or(0.0)
            ))
        }
        _ => Ok(()),
    }
}

/// The library panicked.
fn gave_up(panic: &str) -> String {
    format!("the library that reads it gives up: {panic}")
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
    fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        match caught(|| self.tokenizer.encode_fast(text, false)) {
            Ok(Ok(encoding)) => Ok(encoding.get_ids().to_vec()),
            Ok(Err(error)) => Err(format!("the tokenizer cannot take the text: {error}")),
            Err(panic) => Err(format!("the tokenizer cannot take the text: {panic}")),
        }
    }

    fn longest_token(&self) -> u32 {
        self.longest
    }

    fn frame(&self) -> (&[u32], &[u32]) {
        (&self.frame.0, &self.frame.1)
    }

    fn decode(&self, tokens: &[u32], skip_special: bool) -> String {
        let text = caught(|| self.tokenizer.decode(tokens, skip_special));
        text.ok().and_then(Result::ok).unwrap_or_default()
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
