//! The host tier of SGLang's radix cache (HiCache), in cases small enough to be followed by hand. The right value is
//! what SGLang 0.5.23 does (mem_cache/unified_radix_cache.py, unified_cache/unified_tree_core.py); that whole runs agree
//! step by step is shown by the traces in tests/golden/sglang_hicache.
//!
//! | case | test |
//! |---|---|
//! | S16 (sgl#4987): to make room, the host drops as much as is needed and less than a node more | s16_the_host_drops_what_is_needed |

mod support;

use support::bench::{SglangBench as Bench, prompt};
use windtunnel_engine::sglang::{Config, HostTier, WritePolicy};
use windtunnel_engine::{HostJob, KvEvent, KvEventScope, Tier};

/// A synchronous rank with pages of one token.
fn tiered(pool: u32, pages: u32, write_policy: WritePolicy) -> Config {
    Config {
        overlap: false,
        kv_events: KvEventScope::All,
        host: Some(HostTier { pages, write_policy }),
        ..Config::new(pool, 1, 100_000)
    }
}

/// Runs a request to its end; copies end with the pass that starts them. Tells which they were: (from the host,
/// tokens, waited for).
fn serve(bench: &mut Bench, first: u32, tokens: u32) -> Vec<(bool, u32, bool)> {
    bench.submit(prompt(first..first + tokens, 1)).expect("it fits");
    let mut copies = Vec::new();
    for _ in 0..6 {
        bench.rank.schedule();
        let scheduled = bench.rank.scheduled();
        let (jobs, awaited) = (scheduled.host_jobs.clone(), scheduled.flush.clone());
        note(&mut copies, bench, &jobs, &awaited);
        let jobs = bench.rank.complete().host_jobs.clone();
        note(&mut copies, bench, &jobs, &[]);
    }
    assert_eq!((bench.rank.unfinished(), bench.rank.host_transfers()), (0, (0, 0)));
    copies
}

fn note(copies: &mut Vec<(bool, u32, bool)>, bench: &mut Bench, jobs: &[HostJob], awaited: &[u64]) {
    for job in jobs {
        let is_awaited = awaited.contains(&job.job);
        copies.push((job.load, job.tokens, is_awaited));
        if !is_awaited {
            bench.rank.job_done(job.job);
        }
    }
}

/// Tokens removed from the host, as told in events since the last call.
fn dropped(bench: &mut Bench) -> usize {
    let gone = bench.rank.events().iter().map(|event| match event {
        KvEvent::Removed { tier: Tier::Host, blocks } => blocks.len(),
        _ => 0,
    });
    let gone = gone.sum();
    bench.rank.clear_events();
    gone
}

fn host_free(bench: &Bench) -> u64 {
    bench.rank.host_tokens().expect("there is a host tier").0
}

/// A node is written when it is entered, with write-through. A prompt that was forgotten on the device is loaded, but
/// for its last token, which is computed.
#[test]
fn write_through_copies_at_once_and_loads_back() {
    let mut bench = Bench::new(tiered(60, 200, WritePolicy::WriteThrough));
    assert_eq!(serve(&mut bench, 0, 40), [(false, 40, false)]);
    assert_eq!(serve(&mut bench, 1000, 50), [(false, 50, false)]);
    assert_eq!(host_free(&bench), 200 - 90);
    // The prompt's node is split at 39 by the look-up.
    assert_eq!(serve(&mut bench, 0, 40), [(true, 39, false)]);
    let stats = bench.rank.stats();
    assert_eq!((stats.host_hits, stats.prefix_hits), (39, 39));
    assert_eq!((stats.host_blocks, stats.host_used_blocks), (200, 90));
}

/// `load_back_threshold` is 10: nine tokens are computed again, ten are loaded.
#[test]
fn less_than_ten_tokens_are_not_loaded() {
    for (tokens, loaded) in [(10, vec![]), (11, vec![(true, 10, false)])] {
        let mut bench = Bench::new(tiered(60, 200, WritePolicy::WriteThrough));
        serve(&mut bench, 0, tokens);
        serve(&mut bench, 1000, 50);
        assert_eq!(serve(&mut bench, 0, tokens), loaded, "{tokens}");
    }
}

/// With write-through-selective the second use makes a copy due.
#[test]
fn selective_copies_what_is_used_again() {
    let mut bench = Bench::new(tiered(200, 200, WritePolicy::WriteThroughSelective));
    assert_eq!(serve(&mut bench, 0, 40), []);
    // What is found is used for the second time; the last token, computed again, is entered in what is there.
    assert_eq!(serve(&mut bench, 0, 40), [(false, 40, false)]);
    assert_eq!(serve(&mut bench, 0, 40), []);
}

/// With write-back a node is copied when it has to go, and the scheduler waits for that.
#[test]
fn write_back_waits_for_the_copy() {
    let mut bench = Bench::new(tiered(60, 200, WritePolicy::WriteBack));
    assert_eq!(serve(&mut bench, 0, 40), []);
    assert_eq!(serve(&mut bench, 1000, 50), [(false, 40, true)]);
    assert_eq!(serve(&mut bench, 0, 40), [(false, 50, true), (true, 39, false)]);
}

/// Ten nodes of 10 tokens fill the host; of most of them the device has forgotten its own. 15 tokens more need 15: two
/// of those go, not all.
#[test]
fn s16_the_host_drops_what_is_needed() {
    let mut bench = Bench::new(tiered(40, 100, WritePolicy::WriteThrough));
    for node in 0..10 {
        serve(&mut bench, node * 1000, 10);
    }
    assert_eq!(host_free(&bench), 0);
    dropped(&mut bench);
    serve(&mut bench, 30_000, 15);
    assert_eq!((dropped(&mut bench), host_free(&bench)), (20, 5));
}

/// What is on the device keeps its copy with write-through: a host full of such copies takes nothing more, and what has
/// no copy is dropped.
#[test]
fn a_host_full_of_what_the_device_has_takes_nothing() {
    let mut bench = Bench::new(tiered(100, 40, WritePolicy::WriteThrough));
    assert_eq!(serve(&mut bench, 0, 40), [(false, 40, false)]);
    assert_eq!(serve(&mut bench, 1000, 30), []);
    assert_eq!((host_free(&bench), dropped(&mut bench)), (0, 0));
}

/// A node that is being written is held: what a request may take is what is left beside it.
#[test]
fn what_is_being_copied_cannot_go() {
    let mut bench = Bench::new(tiered(60, 200, WritePolicy::WriteThrough));
    bench.submit(prompt(0..40, 1)).expect("it fits");
    bench.rank.schedule();
    let jobs = bench.rank.complete().host_jobs.clone();
    assert_eq!((jobs.len(), bench.rank.evictable_tokens(), bench.rank.protected_tokens()), (1, 0, 40));
    bench.rank.job_done(jobs[0].job);
    bench.rank.schedule();
    assert_eq!((bench.rank.evictable_tokens(), bench.rank.protected_tokens()), (40, 0));
}

#[test]
fn settings_that_do_not_go_together_are_refused() {
    let base = tiered(60, 10, WritePolicy::WriteBack);
    let problem = |config: Config| config.validate().map_err(|error| error.to_string()).unwrap_err();
    let uncached = problem(Config { radix_cache: false, ..base.clone() });
    assert!(uncached.contains("needs the radix cache"), "{uncached}");
    let none = problem(tiered(60, 0, WritePolicy::WriteBack));
    assert!(none.contains("must be at least 1"), "{none}");
}
