//! However passes are computed, the results are the same: every decision, every token, every event, every
//! counter and every place in every queue.

use windtunnel_engine::vllm::Rank;
use windtunnel_engine::{BlockKey, KeySpace, KvEvent, KvEvents, Outcome, Scheduled, Token};

/// What one call of `schedule` decided. Whom a rank stops naming in each pass is its own affair.
pub fn decisions(plain: &Scheduled, fast: &Scheduled) {
    assert_eq!((fast.tokens, fast.prefill_tokens), (plain.tokens, plain.prefill_tokens));
    assert_eq!(fast.prefill, plain.prefill);
    assert_eq!(fast.decode, plain.decode);
    assert_eq!(fast.admitted, plain.admitted);
    assert_eq!(fast.preempted, plain.preempted);
    assert_eq!(fast.lookups, plain.lookups);
    assert!(plain.parked.is_empty(), "the plain stepper names everyone in every pass");
}

/// What one pass made visible: of the tokens, some may be given by number only.
pub fn outcomes(plain: &Outcome, fast: &Outcome) {
    assert_eq!(plain.steady_tokens, 0, "the plain stepper names every token");
    assert_eq!(fast.finished, plain.finished);
    let named = |token: &Token| fast.tokens.contains(token);
    let (named, unnamed): (Vec<_>, Vec<_>) = plain.tokens.iter().copied().partition(named);
    assert_eq!(fast.tokens, named, "the same tokens in the same order, each once");
    assert_eq!(fast.steady_tokens, unnamed.len() as u64);
    let mut second = fast.second.clone();
    second.sort_unstable();
    let mut expected: Vec<_> = unnamed.iter().filter(|t| t.ordinal == 2).map(|t| t.slot).collect();
    expected.sort_unstable();
    assert_eq!(second, expected);
}

/// Everything that can be seen of a rank between two calls.
pub fn states(plain: &Rank, fast: &Rank) {
    assert_eq!(fast.stats(), plain.stats());
    assert_eq!((fast.in_flight(), fast.has_work()), (plain.in_flight(), plain.has_work()));
    assert!(fast.running().eq(plain.running()));
    assert!(fast.waiting().eq(plain.waiting()));
    assert_eq!(fast.batch(), plain.batch());
    for slot in plain.running().chain(plain.waiting()) {
        assert_eq!(fast.id(slot), plain.id(slot));
        assert_eq!(fast.computed_tokens(slot), plain.computed_tokens(slot), "{slot:?}");
        assert_eq!(fast.is_prefill_chunk(slot), plain.is_prefill_chunk(slot), "{slot:?}");
        assert_eq!(fast.preemptions(slot), plain.preemptions(slot));
        assert_eq!(fast.blocks(slot), plain.blocks(slot));
    }
    assert_eq!(fast.free_queue(), plain.free_queue());
    assert_eq!(fast.cached_copies(), plain.cached_copies());
}

/// What a rank that tells shared identities only, those of a stretch when it ends, is to tell: the keys that
/// were stored (true) or removed (false), since it was last compared.
#[derive(Default)]
pub struct SharedEvents(Vec<(bool, BlockKey)>);

impl SharedEvents {
    /// Takes in the events of a rank that tells all.
    pub fn note(&mut self, all: &KvEvents) {
        self.0.extend(changes(all).filter(|(_, key)| key.space() != KeySpace::Private));
    }

    /// Compares.
    pub fn check(&mut self, told: &KvEvents) {
        assert_eq!(changes(told).collect::<Vec<_>>(), self.0);
        self.0.clear();
    }
}

fn changes(events: &KvEvents) -> impl Iterator<Item = (bool, BlockKey)> + '_ {
    events.iter().flat_map(|event| {
        let (stored, blocks) = match event {
            KvEvent::Stored { blocks, .. } => (true, blocks),
            KvEvent::Removed { blocks, .. } => (false, blocks),
            KvEvent::Cleared => (false, &[][..]),
        };
        blocks.iter().map(move |&key| (stored, key))
    })
}

/// The events of the prefix cache, in order.
pub fn events(plain: &KvEvents, fast: &KvEvents) {
    let (plain, fast): (Vec<KvEvent>, Vec<KvEvent>) = (plain.iter().collect(), fast.iter().collect());
    assert_eq!(fast, plain);
}
