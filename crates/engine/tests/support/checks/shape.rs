//! The shape of a pass, which is all that a timing source gets to see, follows from its batch: a request is
//! prefilling from its admission until a chunk reaches its last known token, and decodes from then on.

use crate::support::world::{Flown, World};
use std::collections::VecDeque;
use windtunnel_engine::vllm::ResumedWork;
use windtunnel_engine::{Chunk, DecodeSet};

pub fn check(world: &World, batch: &[(usize, u32, bool)]) {
    let rank = &world.plain.rank;
    let scheduled = rank.scheduled();
    let (mut prefill, mut decode) = (Vec::new(), DecodeSet::default());
    for &(number, new_tokens, samples) in batch {
        let request = &world.requests[number];
        let joined = scheduled.admitted.iter().find(|a| a.slot == request.slot);
        let before = joined.map_or(request.computed, |a| a.hit_tokens);
        let end = before + new_tokens;
        assert_eq!(rank.computed_tokens(request.slot), end);
        let awaited = samples_in_flight(&world.flights, number);
        assert_eq!(samples, end == request.known() + awaited, "a token follows the last known one only");
        assert!(end <= request.known() + awaited, "nothing is computed that was not sampled");
        if joined.is_some() || request.mid_prefill {
            prefill.push(Chunk { new_tokens, before });
        } else {
            assert_eq!(new_tokens, 1);
            decode.add(end);
        }
    }
    let tokens: u64 = prefill.iter().map(|chunk| u64::from(chunk.new_tokens)).sum();
    assert_eq!(scheduled.prefill_tokens, tokens);
    assert_eq!(scheduled.tokens, tokens + decode.count);
    if world.case.config.resumed_work == ResumedWork::Prefill {
        assert_eq!(scheduled.prefill, prefill);
        assert_eq!(scheduled.decode, decode);
        assert_eq!(scheduled.shape().tokens(), scheduled.tokens);
    }
}

/// Output tokens of a request that passes in flight will give.
fn samples_in_flight(flights: &VecDeque<Flown>, number: usize) -> u32 {
    let gives = |flown: &&Flown| flown.batch.iter().any(|&(other, _, samples)| other == number && samples);
    flights.iter().filter(gives).count() as u32
}
