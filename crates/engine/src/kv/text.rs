//! What a sequence says: the content of a prompt and its output, by position, in whatever form it is known.
//!
//! Two sequences are compared in runs, not token by token, wherever content has names: that is what makes
//! pages of one token cost nothing.

use crate::request::{Content, Request};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The content of one request, shared by everything that holds a piece of it.
#[derive(Debug)]
pub(crate) struct Text {
    prompt: Prompt,
    /// Tokens mean the same in texts of one scope only; 0 is none.
    scope: u64,
    prompt_len: u32,
    /// Output tokens, where others may say them too.
    output: Option<Box<[u32]>>,
    /// Names what is this request's own. Unique on its rank.
    own: u64,
}

#[derive(Debug)]
enum Prompt {
    Own,
    /// As [`Content::Prefixes`].
    Prefixes {
        ids: Box<[u64]>,
        id_tokens: u32,
    },
    Tokens(Box<[u32]>),
}

/// The content of a stretch of positions, up to where its form changes.
enum Piece<'a> {
    Own(u64),
    Prefixes(&'a [u64], u32),
    Tokens(&'a [u32]),
}

/// What tells the children of a node of a radix tree apart: the first page behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Symbol(pub(crate) u64);

/// The two top bits of a symbol say what it was made from.
const FORM_SHIFT: u32 = 62;
const FORM_MASK: u64 = (1 << FORM_SHIFT) - 1;

impl Symbol {
    fn new(form: u64, value: u64) -> Symbol {
        Symbol((form << FORM_SHIFT) | (value & FORM_MASK))
    }
}

impl Text {
    /// Takes the content of `request`. `own` is a number that no other text of the rank has.
    pub(crate) fn new(request: &mut Request, own: u64) -> Text {
        let (prompt, scope) = match std::mem::replace(&mut request.content, Content::Private) {
            Content::Private => (Prompt::Own, 0),
            Content::Prefixes { ids, id_tokens } => (Prompt::Prefixes { ids, id_tokens }, 0),
            Content::Tokens(tokens) => (Prompt::Tokens(tokens), 0),
            Content::Scoped { scope, tokens } => (Prompt::Tokens(tokens), scope),
        };
        Text { prompt, scope, prompt_len: request.prompt_tokens, output: request.output.tokens.take(), own }
    }

    /// Output tokens that have an identity.
    pub(crate) fn output(&self) -> Option<&[u32]> {
        self.output.as_deref()
    }

    /// What stands at `at`, and the position at which that form ends.
    fn piece(&self, at: u32) -> (Piece<'_>, u32) {
        if at < self.prompt_len {
            let piece = match &self.prompt {
                Prompt::Own => Piece::Own(self.own),
                Prompt::Prefixes { ids, id_tokens } => Piece::Prefixes(ids, *id_tokens),
                Prompt::Tokens(tokens) => Piece::Tokens(&tokens[at as usize..]),
            };
            return (piece, self.prompt_len);
        }
        match &self.output {
            Some(tokens) if at - self.prompt_len < tokens.len() as u32 => {
                let end = self.prompt_len + tokens.len() as u32;
                (Piece::Tokens(&tokens[(at - self.prompt_len) as usize..]), end)
            }
            _ => (Piece::Own(self.own), u32::MAX),
        }
    }

    /// The first position in `from..to` at which two texts that agree before it differ, or `to`.
    pub(crate) fn common(&self, other: &Text, from: u32, to: u32) -> u32 {
        if std::ptr::eq(self, other) {
            return to;
        }
        if self.scope != other.scope {
            return from;
        }
        let mut at = from;
        while at < to {
            let ((mine, my_end), (theirs, their_end)) = (self.piece(at), other.piece(at));
            let end = my_end.min(their_end).min(to);
            at = match (mine, theirs) {
                (Piece::Own(a), Piece::Own(b)) if a == b => end,
                (Piece::Prefixes(a, size), Piece::Prefixes(b, same)) if size == same => {
                    // An id names all that stands before its end, so ids that differ stay different.
                    let (first, last) = ((at / size) as usize, ((end - 1) / size) as usize);
                    let differ = (first..=last).find(|&i| a[i] != b[i]);
                    match differ {
                        Some(i) => return at.max(i as u32 * size),
                        None => end,
                    }
                }
                (Piece::Tokens(a), Piece::Tokens(b)) => {
                    let n = (end - at) as usize;
                    match a[..n].iter().zip(&b[..n]).position(|(a, b)| a != b) {
                        Some(i) => return at + i as u32,
                        None => end,
                    }
                }
                _ => return at,
            };
        }
        to
    }

    /// The symbol of the page `from..to`, of texts that agree before it. Symbols of different pages differ;
    /// of those made from tokens, two of which are alive at a time, by accident once in 2^62.
    pub(crate) fn symbol(&self, from: u32, to: u32) -> Symbol {
        let (first, end) = self.piece(from);
        if end >= to {
            return match first {
                Piece::Own(own) => Symbol::new(0, own),
                Piece::Prefixes(ids, size) => Symbol::new(1, ids[((to - 1) / size) as usize]),
                Piece::Tokens(tokens) if to - from == 1 && self.scope == 0 => {
                    Symbol::new(2, u64::from(tokens[0]))
                }
                Piece::Tokens(tokens) => self.hashed(tokens[..(to - from) as usize].iter()),
            };
        }
        // Two forms in one page: of tokens, or else with something of the request's own in it.
        match (first, self.piece(end)) {
            (Piece::Tokens(a), (Piece::Tokens(b), second_end)) if second_end >= to => {
                let tokens = a[..(end - from) as usize].iter();
                self.hashed(tokens.chain(&b[..(to - end) as usize]))
            }
            _ => Symbol::new(0, self.own),
        }
    }

    fn hashed<'a>(&self, tokens: impl Iterator<Item = &'a u32>) -> Symbol {
        let bytes: Vec<u8> = tokens.flat_map(|token| token.to_le_bytes()).collect();
        Symbol::new(3, xxh3_64_with_seed(&bytes, self.scope))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nanos::Nanos;
    use crate::request::{HandOff, OutputPlan, RequestId};

    fn text(own: u64, prompt_tokens: u32, content: Content, output: Option<&[u32]>) -> Text {
        let mut request = Request {
            id: RequestId(own),
            arrival: Nanos::ZERO,
            prompt_tokens,
            content,
            output: OutputPlan { tokens: output.map(Into::into), ..OutputPlan::of_length(8) },
            priority: None,
            tie: 0,
            hand_off: HandOff::None,
        };
        Text::new(&mut request, own)
    }

    fn tokens(own: u64, prompt: &[u32], output: &[u32]) -> Text {
        text(own, prompt.len() as u32, Content::Tokens(prompt.into()), Some(output))
    }

    fn prefixes(own: u64, ids: &[u64], prompt_tokens: u32) -> Text {
        text(own, prompt_tokens, Content::Prefixes { ids: ids.into(), id_tokens: 10 }, None)
    }

    #[test]
    fn tokens_are_compared_across_prompt_and_output() {
        let a = tokens(0, &[1, 2, 3], &[4, 5, 6]);
        let b = tokens(1, &[1, 2, 3, 4, 5, 9], &[]);
        assert_eq!((a.common(&b, 0, 6), b.common(&a, 0, 6), a.common(&b, 0, 4)), (5, 5, 4));
        assert_eq!(a.symbol(2, 4), b.symbol(2, 4));
        assert_ne!(a.symbol(2, 6), b.symbol(2, 6));
        assert_eq!(a.symbol(3, 4), b.symbol(3, 4));
    }

    #[test]
    fn scopes_part_equal_tokens() {
        let scoped = |own, scope| text(own, 4, Content::Scoped { scope, tokens: [1, 2, 3, 4].into() }, None);
        let (a, b, c, plain) = (scoped(0, 7), scoped(1, 7), scoped(2, 8), tokens(3, &[1, 2, 3, 4], &[]));
        assert_eq!((a.common(&b, 0, 4), a.common(&c, 0, 4), a.common(&plain, 0, 4)), (4, 0, 0));
        for to in [1, 4] {
            assert_eq!(a.symbol(0, to), b.symbol(0, to));
            assert!(a.symbol(0, to) != c.symbol(0, to) && a.symbol(0, to) != plain.symbol(0, to));
        }
    }

    #[test]
    fn ids_are_compared_by_name_and_outputs_are_the_requests_own() {
        let a = prefixes(0, &[7, 8, 9], 25);
        let b = prefixes(1, &[7, 8, 9], 28);
        let c = prefixes(2, &[7, 8, 1], 30);
        assert_eq!((a.common(&b, 0, 28), a.common(&c, 0, 28), b.common(&c, 12, 28)), (25, 20, 20));
        assert_eq!((a.symbol(20, 24), b.symbol(24, 25)), (b.symbol(20, 24), a.symbol(24, 25)));
        assert_ne!(a.symbol(20, 24), c.symbol(20, 24));
        assert_ne!(a.symbol(24, 28), b.symbol(24, 28));
        assert_eq!(a.common(&a, 3, 1000), 1000);
    }

    #[test]
    fn content_of_ones_own_agrees_with_itself_alone() {
        let (a, b) = (text(0, 5, Content::Private, None), text(1, 5, Content::Private, None));
        assert_eq!(a.common(&b, 0, 5), 0);
        assert_ne!(a.symbol(0, 1), b.symbol(0, 1));
    }
}
