//! What a mock model says: the words of a reply, which depend on its request and nothing else.
//!
//! The same prompt, seed and choice give the same words, whatever else is going on.

use super::Tokenizer;
use super::dataset::Dataset;
use super::plan::{Limits, Plan};
use std::sync::Arc;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Where words come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ReplySource {
    /// Words at random; a reply ends by itself after 1 to 2·mean − 1 of them, all equally likely.
    #[default]
    Random,
    /// The last message of the user, or the prompt.
    Echo,
    /// The answers of a file.
    Dataset(Arc<Dataset>),
}

/// The model thinks before it answers: the first part of a random reply.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thinking {
    /// Part of the reply's tokens, the two that begin and end it among them, 0 to 1.
    pub ratio: f64,
    /// The token that begins it; the tokenizer's own if not given.
    pub start: Option<u32>,
    /// The token that ends it.
    pub end: Option<u32>,
}

impl Thinking {
    /// How many tokens of a reply of `length`: at least the two that begin and end it, or none.
    fn tokens(&self, length: u32) -> u32 {
        let part = (f64::from(length) * self.ratio) as u32;
        if length < 2 || part == 0 { 0 } else { part.clamp(2, length) }
    }
}

/// Plans replies.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Where words come from.
    pub source: ReplySource,
    /// Mean length of a random reply that may end by itself, in tokens, at least 1.
    pub mean_tokens: u32,
    /// Seed of the model.
    pub seed: u64,
    /// Whether random replies begin with thoughts.
    pub thinking: Option<Thinking>,
}

impl Reply {
    /// What is said depends on what was said last.
    pub fn answers(&self) -> bool {
        self.source != ReplySource::Random
    }

    /// The most tokens that a reply has, unless a dataset has a longer one, when it would have to repeat `echo` tokens.
    pub fn expected(&self, limits: &Limits, echo: usize) -> u32 {
        let own = self.mean_tokens.saturating_mul(2).max(u32::try_from(echo).unwrap_or(u32::MAX));
        if limits.ignore_eos { u32::MAX } else { own.max(limits.min_tokens) }
    }

    /// Plans one choice. `seed` is that of its request, if it has one; `echo` is what is repeated.
    ///
    /// # Errors
    /// The tokenizer cannot take what it shall say.
    pub fn plan(
        &self,
        tokenizer: &dyn Tokenizer,
        limits: &Limits,
        prompt: &[u32],
        echo: &[u32],
        (seed, choice): (Option<u64>, u32),
    ) -> Result<Plan, String> {
        let draws = Draws::new(self.seed, prompt, seed, choice);
        Ok(match &self.source {
            ReplySource::Random => {
                let (first, others) = tokenizer.words();
                let span = u64::from(self.mean_tokens.max(1)) * 2 - 1;
                let own = (draws.at(0) % span + 1) as u32;
                let length = if limits.ignore_eos { u32::MAX } else { own.max(limits.min_tokens) };
                let (thoughts, [start, end]) = self.thoughts(tokenizer, length.min(limits.max_tokens));
                let plan = Plan::new(limits, tokenizer, |ordinal| {
                    if thoughts > 0 && (ordinal == 1 || ordinal == thoughts) {
                        return Some(if ordinal == 1 { start } else { end });
                    }
                    let words = if ordinal == 1 || ordinal == thoughts + 1 { first } else { others };
                    let pick = draws.at(u64::from(ordinal)) as usize;
                    (ordinal <= length).then(|| words[pick % words.len()])
                });
                plan.thinking_for(thoughts)
            }
            ReplySource::Echo => said(limits, tokenizer, echo),
            ReplySource::Dataset(dataset) => {
                let answer = dataset.response(&tokenizer.decode(echo, false), draws.at(0));
                said(limits, tokenizer, &tokenizer.encode(answer)?)
            }
        })
    }

    /// How many tokens of a reply the model thinks, and between which two.
    fn thoughts(&self, tokenizer: &dyn Tokenizer, length: u32) -> (u32, [u32; 2]) {
        let Some(thinking) = &self.thinking else { return (0, [0; 2]) };
        let (start, end) = tokenizer.thinking().unzip();
        match (thinking.start.or(start), thinking.end.or(end)) {
            (Some(start), Some(end)) => (thinking.tokens(length), [start, end]),
            _ => (0, [0; 2]),
        }
    }
}

/// A reply of certain tokens, again and again if it may not end.
fn said(limits: &Limits, tokenizer: &dyn Tokenizer, tokens: &[u32]) -> Plan {
    Plan::new(limits, tokenizer, |ordinal| {
        let at = ordinal as usize - 1;
        let goes_on = at < tokens.len() || limits.ignore_eos || ordinal <= limits.min_tokens;
        (goes_on && !tokens.is_empty()).then(|| tokens[at % tokens.len()])
    })
}

/// Random numbers of one choice, by place.
#[derive(Clone, Copy)]
struct Draws(u64);

impl Draws {
    fn new(model: u64, prompt: &[u32], seed: Option<u64>, choice: u32) -> Draws {
        let bytes: Vec<u8> = prompt.iter().flat_map(|token| token.to_le_bytes()).collect();
        let mut own = [0; 21];
        own[..8].copy_from_slice(&xxh3_64_with_seed(&bytes, model).to_le_bytes());
        own[8..16].copy_from_slice(&seed.unwrap_or(0).to_le_bytes());
        own[16] = u8::from(seed.is_some());
        own[17..].copy_from_slice(&choice.to_le_bytes());
        Draws(xxh3_64(&own))
    }

    fn at(self, place: u64) -> u64 {
        xxh3_64_with_seed(&place.to_le_bytes(), self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::BuiltinTokenizer;
    use super::*;

    fn reply(source: ReplySource, limits: &Limits, seed: Option<u64>, choice: u32) -> Plan {
        let tokenizer = BuiltinTokenizer::default();
        let prompt = tokenizer.encode("one two six").unwrap();
        let reply = Reply { source, mean_tokens: 8, seed: 0, thinking: None };
        reply.plan(&tokenizer, limits, &prompt, &prompt, (seed, choice)).unwrap()
    }

    fn limits() -> Limits {
        Limits { max_tokens: 64, skip_special: true, ..Limits::default() }
    }

    #[test]
    fn random_replies_depend_on_seed_and_choice_alone() {
        let one = reply(ReplySource::Random, &limits(), None, 0);
        assert_eq!(one, reply(ReplySource::Random, &limits(), None, 0));
        assert_ne!(one, reply(ReplySource::Random, &limits(), None, 1));
        assert_ne!(one, reply(ReplySource::Random, &limits(), Some(0), 0));
        // 1 to 15 words, and the token that ends them.
        assert!((2..=16).contains(&one.len()) && one.stop_after == Some(one.len()));
    }

    /// H11 (llm-d-inference-sim#186).
    #[test]
    fn h11_ignore_eos_gives_exactly_max_tokens() {
        for source in [ReplySource::Random, ReplySource::Echo] {
            let plan = reply(source, &Limits { ignore_eos: true, ..limits() }, None, 0);
            assert_eq!((plan.len(), plan.stop_after), (64, None));
        }
    }

    #[test]
    fn min_tokens_holds_the_end_off() {
        for source in [ReplySource::Random, ReplySource::Echo] {
            let plan = reply(source, &Limits { min_tokens: 30, ..limits() }, None, 0);
            assert_eq!(plan.stop_after, Some(31));
        }
    }

    /// AISimulate's mocker (reference-surface.md §2.1): floor(length · ratio), 2 at least, none if there is no room.
    #[test]
    fn thoughts_are_a_part_of_the_reply() {
        let thinking = Thinking { ratio: 0.3, start: None, end: None };
        for (length, tokens) in [(1, 0), (3, 0), (4, 2), (9, 2), (10, 3), (100, 30)] {
            assert_eq!(thinking.tokens(length), tokens, "{length}");
        }
        let all = Thinking { ratio: 1.0, ..thinking };
        assert_eq!((all.tokens(1), all.tokens(5)), (0, 5));

        let tokenizer = BuiltinTokenizer::default();
        let (start, end) = tokenizer.thinking().unwrap();
        let reply = Reply { source: ReplySource::Random, mean_tokens: 8, seed: 0, thinking: Some(thinking) };
        let plan = reply.plan(
            &tokenizer,
            &Limits { ignore_eos: true, max_tokens: 10, ..limits() },
            &[0],
            &[],
            (None, 0),
        );
        let plan = plan.unwrap();
        assert_eq!((plan.tokens[0], plan.tokens[2], plan.len()), (start, end, 10));
        assert_eq!(plan.tokens.iter().filter(|token| [start, end].contains(token)).count(), 2);
        assert_eq!(plan.thinking(), 3);
        // One word was thought; the answer begins without a space.
        let (thought, answer) = plan.text(0, usize::MAX).split_at(plan.thought());
        assert_eq!(thought.split_whitespace().count(), 1);
        assert_eq!((answer.split_whitespace().count(), answer.starts_with(' ')), (7, false));
    }

    #[test]
    fn an_echo_says_the_same_again() {
        let plan = reply(ReplySource::Echo, &limits(), None, 0);
        assert_eq!(plan.text(0, plan.shown(plan.len(), true)), "one two six");
        assert_eq!((plan.len(), plan.stop_after), (4, Some(4)));
    }
}
