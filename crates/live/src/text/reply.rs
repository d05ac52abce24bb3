//! What a mock model says: the words of a reply, which depend on its request and nothing else.
//!
//! The same prompt, seed and choice give the same words, whatever else is going on.

use super::Tokenizer;
use super::plan::{Limits, Plan};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Where words come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ReplySource {
    /// Words at random; a reply ends by itself after 1 to 2·mean − 1 of them, all equally likely.
    #[default]
    Random,
    /// The last message of the user, or the prompt.
    Echo,
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
}

impl Reply {
    /// Plans one choice. `seed` is that of its request, if it has one; `echo` is what is repeated.
    pub fn plan(
        &self,
        tokenizer: &dyn Tokenizer,
        limits: &Limits,
        prompt: &[u32],
        echo: &[u32],
        (seed, choice): (Option<u64>, u32),
    ) -> Plan {
        let draws = Draws::new(self.seed, prompt, seed, choice);
        match self.source {
            ReplySource::Random => {
                let (first, others) = tokenizer.words();
                let span = u64::from(self.mean_tokens.max(1)) * 2 - 1;
                let own = (draws.at(0) % span + 1) as u32;
                let length = if limits.ignore_eos { u32::MAX } else { own.max(limits.min_tokens) };
                Plan::new(limits, tokenizer, |ordinal| {
                    let words = if ordinal == 1 { first } else { others };
                    let pick = draws.at(u64::from(ordinal)) as usize;
                    (ordinal <= length).then(|| words[pick % words.len()])
                })
            }
            ReplySource::Echo => Plan::new(limits, tokenizer, |ordinal| {
                let at = ordinal as usize - 1;
                let goes_on = at < echo.len() || limits.ignore_eos || ordinal <= limits.min_tokens;
                (goes_on && !echo.is_empty()).then(|| echo[at % echo.len()])
            }),
        }
    }
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
        let prompt = tokenizer.encode("one two six");
        let reply = Reply { source, mean_tokens: 8, seed: 0 };
        reply.plan(&tokenizer, limits, &prompt, &prompt, (seed, choice))
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

    #[test]
    fn an_echo_says_the_same_again() {
        let plan = reply(ReplySource::Echo, &limits(), None, 0);
        assert_eq!(plan.text(0, plan.shown(plan.len(), true)), "one two six");
        assert_eq!((plan.len(), plan.stop_after), (4, Some(4)));
    }
}
