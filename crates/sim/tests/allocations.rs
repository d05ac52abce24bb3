//! Memory that a run takes from the allocator: it goes with requests, not with the tokens that they give. Counted, not
//! timed.

mod common;

use allocation_counter::measure;
use common::Trial;
use windtunnel_sim::{Options, run};

/// Allocations of a run of 200 requests with so many output tokens each, and its passes.
fn allocations(engine: &str, outputs: u32) -> (u64, f64) {
    let traffic = format!(
        "traffic={{source: {{type: synthetic, input_tokens: 100, output_tokens: {outputs}}}, load: {{type: \
         constant_rate, requests_per_second: 20}}, stop: {{requests: 200}}}}"
    );
    let settings = [
        engine,
        &traffic,
        "engine.workers.aggregated.scheduler={max_sequences: 64}",
        "engine.workers.aggregated.kv_cache={block_size: 16, capacity: {type: fixed, blocks: 100000}}",
    ];
    let trial = Trial::load(common::SMALL, &settings, "").unwrap();
    let mut passes = None;
    let counted = measure(|| {
        let report = run(&trial.experiment, Options::default()).unwrap();
        passes = report.summary.get("passes").as_f64();
    });
    (counted.count_total, passes.unwrap())
}

#[test]
fn tokens_allocate_nothing() {
    for engine in ["engine.backend=vllm", "engine.backend=sglang", "engine.backend=trtllm"] {
        let (few, some_passes) = allocations(engine, 200);
        let (many, more_passes) = allocations(engine, 2000);
        assert!(more_passes > some_passes + 3000.0, "{engine}: {some_passes} {more_passes}");
        // 360,000 tokens more: longer lists of blocks, a few for each request.
        assert!(many < few + 200 * 8, "{engine}: {few} allocations, and {many} for ten times the tokens");
    }
}
