//! A tokenizer without a file: tokens are bytes, and short runs of letters and digits, by arithmetic.
//!
//! About three letters a token, as the tokenizers of real models have for English text. Every text has exactly
//! one list of tokens, and it decodes to that text again.

use super::Tokenizer;

/// Special tokens, from [`SPECIAL`] on.
const SPECIALS: [&str; 8] = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|pad|>",
];

/// Bytes come first.
const SPECIAL: u32 = 256;
const PAIR: u32 = SPECIAL + SPECIALS.len() as u32;
const TRIPLE: u32 = PAIR + 26 * 26;
const SPACE_ONE: u32 = TRIPLE + 26 * 26 * 26;
const SPACE_PAIR: u32 = SPACE_ONE + 26;
const SPACE_TRIPLE: u32 = SPACE_PAIR + 26 * 26;
const DIGIT_PAIR: u32 = SPACE_TRIPLE + 26 * 26 * 26;
const DIGIT_TRIPLE: u32 = DIGIT_PAIR + 100;
const VOCABULARY: u32 = DIGIT_TRIPLE + 1000;

/// Ends a reply.
const IM_END: u32 = SPECIAL + 2;

/// What replies are made of.
const WORDS: &str = "the and for are but not you all any can had her was one our out day get has him his how man \
    new now old see two way who boy did its let put say she too use air arm art ask bad bag bar bed big bit box \
    buy car cat cow cry cup cut dog dry ear eat egg end eye far few fit fly fun gas hat hit hot ice ill job key \
    kid lay leg lie lot low map mix net oil own pay pen pet pot ran red rid row run sea set sit six sky son sun \
    tax tea ten tie tip top toy try van war wet why win yes yet";

/// The built-in tokenizer.
#[derive(Clone, Debug)]
pub struct BuiltinTokenizer {
    first: Vec<u32>,
    others: Vec<u32>,
}

impl Default for BuiltinTokenizer {
    fn default() -> Self {
        let words = || WORDS.split_whitespace().map(|word| letters(word.as_bytes()));
        BuiltinTokenizer {
            first: words().map(|word| TRIPLE + word).collect(),
            others: words().map(|word| SPACE_TRIPLE + word).collect(),
        }
    }
}

/// Letters as a number in base 26.
fn letters(run: &[u8]) -> u32 {
    run.iter().fold(0, |number, letter| number * 26 + u32::from(letter - b'a'))
}

fn push_letters(mut number: u32, count: u32, into: &mut Vec<u8>) {
    let start = into.len();
    for _ in 0..count {
        into.push(b'a' + (number % 26) as u8);
        number /= 26;
    }
    into[start..].reverse();
}

/// The length of the run at the start, three at most.
fn run(bytes: &[u8], kind: fn(&u8) -> bool) -> usize {
    bytes.iter().take(3).take_while(|byte| kind(byte)).count()
}

/// The token at the start of a text that is not empty, and how many bytes it takes.
fn next(bytes: &[u8]) -> (u32, usize) {
    let first = bytes[0];
    match first {
        b'<' => {
            let special = SPECIALS.iter().position(|text| bytes.starts_with(text.as_bytes()));
            special.map_or((u32::from(first), 1), |at| (SPECIAL + at as u32, SPECIALS[at].len()))
        }
        b' ' => match run(&bytes[1..], u8::is_ascii_lowercase) {
            0 => (u32::from(first), 1),
            n => ([SPACE_ONE, SPACE_PAIR, SPACE_TRIPLE][n - 1] + letters(&bytes[1..=n]), n + 1),
        },
        b'a'..=b'z' => match run(bytes, u8::is_ascii_lowercase) {
            1 => (u32::from(first), 1),
            n => ([PAIR, TRIPLE][n - 2] + letters(&bytes[..n]), n),
        },
        b'0'..=b'9' => match run(bytes, u8::is_ascii_digit) {
            1 => (u32::from(first), 1),
            n => {
                let number = bytes[..n].iter().fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
                ([DIGIT_PAIR, DIGIT_TRIPLE][n - 2] + number, n)
            }
        },
        _ => (u32::from(first), 1),
    }
}

/// Appends the bytes of a token. One that does not exist has none.
fn push(token: u32, skip_special: bool, into: &mut Vec<u8>) {
    match token {
        0..SPECIAL => into.push(token as u8),
        SPECIAL..PAIR if skip_special => {}
        SPECIAL..PAIR => into.extend_from_slice(SPECIALS[(token - SPECIAL) as usize].as_bytes()),
        PAIR..TRIPLE => push_letters(token - PAIR, 2, into),
        TRIPLE..SPACE_ONE => push_letters(token - TRIPLE, 3, into),
        SPACE_ONE..DIGIT_PAIR => {
            into.push(b' ');
            match token {
                SPACE_ONE..SPACE_PAIR => push_letters(token - SPACE_ONE, 1, into),
                SPACE_PAIR..SPACE_TRIPLE => push_letters(token - SPACE_PAIR, 2, into),
                _ => push_letters(token - SPACE_TRIPLE, 3, into),
            }
        }
        DIGIT_PAIR..DIGIT_TRIPLE => into.extend(format!("{:02}", token - DIGIT_PAIR).bytes()),
        DIGIT_TRIPLE..VOCABULARY => into.extend(format!("{:03}", token - DIGIT_TRIPLE).bytes()),
        _ => {}
    }
}

impl Tokenizer for BuiltinTokenizer {
    fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        let mut rest = text.as_bytes();
        let mut tokens = Vec::with_capacity(rest.len() / 3);
        while !rest.is_empty() {
            let (token, taken) = next(rest);
            tokens.push(token);
            rest = &rest[taken..];
        }
        Ok(tokens)
    }

    /// That of a special token.
    fn longest_token(&self) -> u32 {
        SPECIALS.iter().map(|text| text.len() as u32).max().unwrap_or(0)
    }

    fn is_quick(&self) -> bool {
        true
    }

    fn decode(&self, tokens: &[u32], skip_special: bool) -> String {
        let mut bytes = Vec::with_capacity(tokens.len() * 4);
        tokens.iter().for_each(|&token| push(token, skip_special, &mut bytes));
        String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    fn ends(&self, tokens: &[u32], skip_special: bool) -> (String, Vec<u32>) {
        let (mut text, mut open) = (String::new(), Vec::new());
        let mut ends = Vec::with_capacity(tokens.len());
        for (at, &token) in tokens.iter().enumerate() {
            push(token, skip_special, &mut open);
            // Whole characters go out; what may become one waits, unless nothing follows.
            loop {
                match std::str::from_utf8(&open) {
                    Ok(whole) => {
                        text.push_str(whole);
                        open.clear();
                        break;
                    }
                    Err(error) => {
                        let valid = error.valid_up_to();
                        text.push_str(&String::from_utf8_lossy(&open[..valid]));
                        match error.error_len() {
                            Some(wrong) => {
                                text.push('\u{fffd}');
                                open.drain(..valid + wrong);
                            }
                            None => {
                                open.drain(..valid);
                                break;
                            }
                        }
                    }
                }
            }
            if at + 1 == tokens.len() && !open.is_empty() {
                text.push('\u{fffd}');
            }
            ends.push(u32::try_from(text.len()).unwrap_or(u32::MAX));
        }
        (text, ends)
    }

    fn frame(&self) -> (&[u32], &[u32]) {
        (&[], &[])
    }

    fn spelling(&self, token: u32) -> String {
        self.decode(&[token], false)
    }

    fn eos(&self) -> u32 {
        IM_END
    }

    fn thinking(&self) -> Option<(u32, u32)> {
        Some((SPECIAL + 3, SPECIAL + 4))
    }

    fn vocabulary(&self) -> u32 {
        VOCABULARY
    }

    fn words(&self) -> (&[u32], &[u32]) {
        (&self.first, &self.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_comes_back() {
        let tokenizer = BuiltinTokenizer::default();
        for text in [
            "",
            "hello world",
            "  two spaces, Capitals and 1234567 digits 7",
            "<|im_start|>user\nÄpfel 日本語 🙂<|im_end|>\n",
            "< |im_start|> <|im_star",
            "a ab abc abcd abcde 1 12 123 1234",
        ] {
            let tokens = tokenizer.encode(text).unwrap();
            assert_eq!(tokenizer.decode(&tokens, false), text);
            assert!(tokens.iter().all(|&token| token < VOCABULARY));
            let (all, ends) = tokenizer.ends(&tokens, false);
            assert_eq!(all, text);
            assert_eq!(ends.len(), tokens.len());
            assert!(ends.iter().all(|&end| text.is_char_boundary(end as usize)));
        }
    }

    #[test]
    fn words_come_back_as_the_same_tokens() {
        let tokenizer = BuiltinTokenizer::default();
        let (first, others) = tokenizer.words();
        let tokens: Vec<u32> = first[..1].iter().chain(others).copied().collect();
        let text = tokenizer.decode(&tokens, true);
        assert!(text.starts_with("the the and for"), "{text}");
        assert_eq!(tokenizer.encode(&text).unwrap(), tokens);
    }

    #[test]
    fn no_token_is_spelled_twice() {
        let tokenizer = BuiltinTokenizer::default();
        for token in 256..VOCABULARY {
            let text = tokenizer.decode(&[token], false);
            assert_eq!(tokenizer.encode(&text).unwrap(), [token], "{text:?}");
        }
        assert_eq!(tokenizer.decode(&[VOCABULARY, u32::MAX], false), "");
    }

    #[test]
    fn half_a_character_waits_for_its_rest() {
        let tokenizer = BuiltinTokenizer::default();
        // U+00E4 is c3 a4; the last byte stands alone.
        let (text, ends) = tokenizer.ends(&[0xc3, 0xa4, 0xc3], false);
        assert_eq!((text.as_str(), &ends[..]), ("ä\u{fffd}", &[0, 2, 5][..]));
        let (text, ends) = tokenizer.ends(&[0xc3, u32::from(b'x')], false);
        assert_eq!((text.as_str(), &ends[..]), ("\u{fffd}x", &[0, 4][..]));
    }
}
