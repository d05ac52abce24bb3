//! What one choice of a request will be: its tokens, their text, and where and why it ends.
//!
//! The rules are those of vLLM 0.33.0 (v1/engine/detokenizer.py, sampling_params.py): a stop token ends the
//! reply and is counted, but gives no text; a stop string ends it at the token that completes the string, and
//! its text ends before the string; neither counts before `min_tokens`.

use super::Tokenizer;

/// Bounds of one choice, as its client gave them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Most tokens, what the context has room for already heeded.
    pub max_tokens: u32,
    /// Fewest tokens before it may stop.
    pub min_tokens: u32,
    /// The end-of-sequence token does not end it.
    pub ignore_eos: bool,
    /// Strings that end it.
    pub stop: Vec<String>,
    /// Tokens that end it.
    pub stop_token_ids: Vec<u32>,
    /// The stop string or token is part of the text.
    pub include_stop: bool,
    /// Special tokens give no text.
    pub skip_special: bool,
}

/// What stopped a reply, where it was not the end-of-sequence token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// A string of `stop`.
    Text(String),
    /// A token of `stop_token_ids`.
    Token(u32),
}

/// One choice, planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// All tokens that it can give.
    pub tokens: Vec<u32>,
    /// The tokens before the end by `max_tokens` of which the last is a stop token.
    pub stop_after: Option<u32>,
    /// The same for the one that completes a stop string.
    pub abort_after: Option<u32>,
    /// What it is stopped by, if it is, and not by the end-of-sequence token.
    pub stop_reason: Option<StopReason>,
    text: String,
    /// Where the text of the first 1, 2, … tokens ends.
    ends: Vec<u32>,
    /// Where the text ends in the end, if it is stopped.
    stopped_at: Option<usize>,
    /// Tokens that are thoughts, at the beginning.
    thinking: u32,
    /// Characters that are held back while more may come, since they may be part of a stop string.
    held: usize,
}

impl Plan {
    /// Plans a reply whose own words `content` gives, `None` being its natural end.
    pub fn new(
        limits: &Limits,
        tokenizer: &dyn Tokenizer,
        mut content: impl FnMut(u32) -> Option<u32>,
    ) -> Plan {
        let mut tokens = Vec::new();
        let (mut stop_after, mut stop_reason) = (None, None);
        while tokens.len() < limits.max_tokens as usize {
            let ordinal = tokens.len() as u32 + 1;
            let token = content(ordinal);
            tokens.push(token.unwrap_or_else(|| tokenizer.eos()));
            let may_stop = ordinal > limits.min_tokens;
            match token {
                None => stop_after = Some(ordinal),
                Some(token) if may_stop && limits.stop_token_ids.contains(&token) => {
                    (stop_after, stop_reason) = (Some(ordinal), Some(StopReason::Token(token)));
                }
                Some(_) => continue,
            }
            break;
        }
        let silent = stop_after.is_some() && !limits.include_stop;
        let (text, mut ends) =
            tokenizer.ends(&tokens[..tokens.len() - usize::from(silent)], limits.skip_special);
        ends.resize(tokens.len(), ends.last().copied().unwrap_or(0));
        let held = if limits.include_stop {
            0
        } else {
            limits.stop.iter().map(|stop| stop.chars().count().saturating_sub(1)).max().unwrap_or(0)
        };
        let mut plan = Plan {
            tokens,
            stop_after,
            abort_after: None,
            stop_reason,
            text,
            ends,
            stopped_at: None,
            thinking: 0,
            held,
        };
        plan.find_stop(limits);
        plan
    }

    /// Plans a reply that says just this text, and then ends, whatever else was asked of its end.
    ///
    /// # Errors
    /// The tokenizer cannot take it.
    pub fn whole(limits: &Limits, tokenizer: &dyn Tokenizer, text: &str) -> Result<Plan, String> {
        let tokens = tokenizer.encode(text)?;
        let limits = Limits { max_tokens: limits.max_tokens, skip_special: true, ..Limits::default() };
        Ok(Plan::new(&limits, tokenizer, |ordinal| tokens.get(ordinal as usize - 1).copied()))
    }

    /// It stops, of itself or at what its client named, with its token of this number.
    pub fn ends_with(&self, ordinal: u32) -> bool {
        self.stop_after == Some(ordinal) || self.abort_after == Some(ordinal)
    }

    /// Finds the first token that completes a stop string.
    fn find_stop(&mut self, limits: &Limits) {
        let first = |stop: &String| {
            self.text.match_indices(stop.as_str()).find_map(|(start, _)| {
                let end = start + stop.len();
                let token = self.ends.partition_point(|&at| (at as usize) < end) as u32 + 1;
                (token > limits.min_tokens).then_some((token, start, end))
            })
        };
        let found = limits.stop.iter().filter(|stop| !stop.is_empty());
        let found =
            found.filter_map(|stop| first(stop).map(|at| (at, stop))).min_by_key(|((token, ..), _)| *token);
        if let Some(((token, start, end), stop)) = found {
            self.abort_after = Some(token);
            self.stop_after = None;
            self.stop_reason = Some(StopReason::Text(stop.clone()));
            self.stopped_at = Some(if limits.include_stop { end } else { start });
            self.tokens.truncate(token as usize);
            self.ends.truncate(token as usize);
        }
    }

    /// The same, of which the first tokens are thoughts.
    pub(super) fn thinking_for(mut self, tokens: u32) -> Plan {
        self.thinking = tokens.min(self.len());
        self
    }

    /// Tokens that are thoughts.
    pub fn thinking(&self) -> u32 {
        self.thinking
    }

    /// Where the text of thoughts ends.
    pub fn thought(&self) -> usize {
        match self.thinking {
            0 => 0,
            n => self.ends[n as usize - 1] as usize,
        }
    }

    /// Tokens that it gives if nobody ends it.
    pub fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// It gives none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Where the text that may be shown ends when `tokens` have been given, and it has `ended` or goes on.
    pub fn shown(&self, tokens: u32, ended: bool) -> usize {
        let end = match tokens {
            0 => 0,
            n => self.ends[(n as usize).min(self.ends.len()) - 1] as usize,
        };
        if ended {
            return self.stopped_at.filter(|_| tokens >= self.len()).unwrap_or(end);
        }
        let held = self.text[..end].char_indices().rev().take(self.held).last();
        held.map_or(end, |(at, _)| at)
    }

    /// The text between two such places.
    pub fn text(&self, from: usize, to: usize) -> &str {
        self.text.get(from..to.min(self.text.len())).unwrap_or("")
    }
}

#[cfg(test)]
mod tests {
    use super::super::BuiltinTokenizer;
    use super::*;

    fn plan(text: &str, limits: Limits) -> Plan {
        let tokenizer = BuiltinTokenizer::default();
        let content = tokenizer.encode(text).unwrap();
        Plan::new(&limits, &tokenizer, |ordinal| content.get(ordinal as usize - 1).copied())
    }

    fn limits() -> Limits {
        Limits { max_tokens: 100, skip_special: true, ..Limits::default() }
    }

    fn whole(plan: &Plan) -> &str {
        plan.text(0, plan.shown(plan.len(), true))
    }

    #[test]
    fn a_natural_end_counts_its_token_and_shows_nothing_of_it() {
        let plan = plan("one two", limits());
        assert_eq!((plan.len(), plan.stop_after, plan.abort_after), (3, Some(3), None));
        assert_eq!(whole(&plan), "one two");
    }

    #[test]
    fn max_tokens_cuts() {
        let plan = plan("one two six", Limits { max_tokens: 2, ..limits() });
        assert_eq!((plan.len(), plan.stop_after), (2, None));
        assert_eq!(whole(&plan), "one two");
    }

    #[test]
    fn a_stop_token_is_counted_and_not_shown() {
        let tokens = BuiltinTokenizer::default().encode("one two six").unwrap();
        let stop = Limits { stop_token_ids: vec![tokens[1]], ..limits() };
        let stopped = plan("one two six", stop.clone());
        assert_eq!((stopped.len(), stopped.stop_after), (2, Some(2)));
        assert_eq!(
            (whole(&stopped), stopped.stop_reason.clone()),
            ("one", Some(StopReason::Token(tokens[1])))
        );
        let included = plan("one two six", Limits { include_stop: true, ..stop.clone() });
        assert_eq!(whole(&included), "one two");
        let late = plan("one two six", Limits { min_tokens: 2, ..stop });
        assert_eq!(late.stop_after, Some(4));
    }

    #[test]
    fn a_stop_string_ends_before_itself_and_is_held_back_until_then() {
        let stopped = plan("one two six ten", Limits { stop: vec!["o si".into()], ..limits() });
        assert_eq!((stopped.len(), stopped.abort_after, stopped.stop_after), (3, Some(3), None));
        assert_eq!(whole(&stopped), "one tw");
        // "o si" has four characters: three are held back while it may come.
        assert_eq!(stopped.text(0, stopped.shown(1, false)), "");
        assert_eq!(stopped.text(0, stopped.shown(2, false)), "one ");
        let included =
            plan("one two six ten", Limits { stop: vec!["o si".into()], include_stop: true, ..limits() });
        assert_eq!(whole(&included), "one two si");
        let late = plan("one two six ten", Limits { stop: vec!["o si".into()], min_tokens: 3, ..limits() });
        assert_eq!((late.abort_after, whole(&late)), (None, "one two six ten"));
    }

    #[test]
    fn the_stop_string_that_is_complete_first_wins() {
        let stopped = plan("one two six ten", Limits { stop: vec!["ten".into(), "two".into()], ..limits() });
        assert_eq!(stopped.stop_reason, Some(StopReason::Text("two".into())));
        assert_eq!(whole(&stopped), "one ");
    }
}
