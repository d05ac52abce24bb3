//! (Invariant 8) Scheduled tokens never exceed the budget, running requests never the seats, chunks never the
//! threshold while more than one request is there, and contexts never the context length.

use crate::support::world::World;

pub fn check(world: &World, batch: &[(usize, u32, bool)], live_before: usize) {
    let (rank, config) = (&world.plain.rank, &world.case.config);
    let scheduled = rank.scheduled();
    assert!(scheduled.tokens <= u64::from(config.max_num_batched_tokens));
    assert_eq!(batch.iter().map(|&(_, tokens, _)| u64::from(tokens)).sum::<u64>(), scheduled.tokens);
    assert!(rank.running().count() <= config.max_num_seqs as usize);
    let seats = config.max_num_active_seqs.unwrap_or(config.max_num_seqs);
    assert!(rank.running().count() <= seats as usize);

    let mut threshold = if live_before > 1 { config.long_prefill_token_threshold } else { 0 };
    if threshold > 0 && config.long_prefill_token_threshold_adaptive {
        threshold = threshold.max(config.max_num_batched_tokens / live_before as u32);
    }
    for &(number, tokens, _) in batch {
        assert!(tokens > 0);
        assert!(threshold == 0 || tokens <= threshold, "request {number}: {tokens}");
        let request = &world.requests[number];
        assert!(rank.computed_tokens(request.slot) < config.max_model_len);
        if !config.chunked_prefill && config.long_prefill_token_threshold == 0 {
            let whole = request.known() - request.computed;
            let decodes = request.computed + 1 >= request.known();
            let joined = scheduled.admitted.iter().find(|a| a.slot == request.slot);
            assert!(decodes || joined.is_some_and(|a| tokens == whole - a.hit_tokens), "no prompt is split");
        }
    }
}
