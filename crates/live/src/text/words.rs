//! Which tokens of a vocabulary a mock model speaks in: words that can stand in any order and come back as the same
//! tokens when their text is tokenized again.

use super::Tokenizer;

/// Words that are enough.
const MOST_WORDS: usize = 256;
/// Candidates that are looked at, each way of writing words.
const MOST_CANDIDATES: usize = 4 * MOST_WORDS;
/// Orders in which all of them are tried.
const TRIALS: usize = 16;

/// The first word of a reply, and all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// Those that can begin a reply.
    pub first: Vec<u32>,
    /// Those that can follow any other.
    pub others: Vec<u32>,
}

/// Chooses among the tokens that there are: whole words if it has any, or else whatever comes back.
///
/// # Errors
/// Nothing that it says comes back.
pub(super) fn choose(tokenizer: &dyn Tokenizer, mut tokens: Vec<u32>) -> Result<Words, String> {
    // Frequent words have low numbers.
    tokens.sort_unstable();
    let candidates = |fits: &dyn Fn(&str) -> bool| -> Vec<u32> {
        let fitting = tokens.iter().copied().filter(|&token| fits(&tokenizer.decode(&[token], true)));
        fitting.take(MOST_CANDIDATES).collect()
    };
    let word = |text: &str| text.len() >= 3 && text.bytes().all(|byte| byte.is_ascii_lowercase());
    let printable = |text: &str| {
        !text.trim().is_empty() && !text.contains('\u{fffd}') && !text.chars().any(char::is_control)
    };
    // Byte-level vocabularies have the space before a word in the token, and mostly another token for a word without
    // one, which a reply begins with; others have it in no text of a token alone.
    let bare = candidates(&word);
    let spaced = candidates(&|text| text.strip_prefix(' ').is_some_and(word));
    let words = [(&bare, &spaced), (&bare, &bare), (&spaced, &spaced)];
    let found = words.into_iter().find_map(|(first, others)| that_return(tokenizer, first, others));
    let found = found.or_else(|| {
        let any = candidates(&printable);
        that_return(tokenizer, &any, &any)
    });
    found.ok_or_else(|| {
        "no reply can be made of its tokens that it cuts into the same tokens again".to_owned()
    })
}

/// Those that come back wherever they stand, if there are any.
fn that_return(tokenizer: &dyn Tokenizer, first: &[u32], others: &[u32]) -> Option<Words> {
    let mut first: Vec<u32> = first.iter().copied().filter(|&word| comes_back(tokenizer, &[word])).collect();
    let begin = *first.first()?;
    let alone = |word: &u32| comes_back(tokenizer, &[begin, *word, *word]);
    let mut others: Vec<u32> = others.iter().copied().filter(alone).take(MOST_WORDS).collect();
    // Every round puts at least one aside.
    while let Some(out) = (0..TRIALS).find_map(|trial| misfits(tokenizer, begin, &others, trial)) {
        others.retain(|word| !out.contains(word));
    }
    let next = *others.first()?;
    first.retain(|&word| comes_back(tokenizer, &[word, next]));
    first.truncate(MOST_WORDS);
    (!first.is_empty()).then_some(Words { first, others })
}

/// The first word that does not come back when all stand in one order, and the one before it.
fn misfits(tokenizer: &dyn Tokenizer, begin: u32, words: &[u32], trial: usize) -> Option<[u32; 2]> {
    let stride = 2 * trial + 1;
    let mut order = vec![begin];
    order.extend((0..words.len()).map(|at| words[at * stride % words.len()]));
    let again = tokenizer.encode(&tokenizer.decode(&order, true)).unwrap_or_default();
    let at = (1..order.len()).find(|&at| again.get(at) != Some(&order[at]))?;
    Some([order[at], order[at - 1]])
}

fn comes_back(tokenizer: &dyn Tokenizer, tokens: &[u32]) -> bool {
    tokenizer.encode(&tokenizer.decode(tokens, true)).is_ok_and(|again| again == tokens)
}
