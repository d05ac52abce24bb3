//! The timing laws against published numbers and numbers worked out by hand. Durations only: whether
//! a scheduler forms these passes is tested where the scheduler is.

use windtunnel_engine::{Chunk, DecodeSet, MAX_NANOS, Shape};
use windtunnel_perf::{Composition, Fixed, Law, Linear, PerfError, Polynomial, Speedup, TimingModel};

fn chunks(list: &[(u32, u32)]) -> Vec<Chunk> {
    list.iter().map(|&(new_tokens, before)| Chunk { new_tokens, before }).collect()
}

fn decodes(contexts: &[u64]) -> DecodeSet {
    DecodeSet {
        count: contexts.len() as u64,
        sum_context: contexts.iter().sum(),
        sum_context_squared: contexts.iter().map(|&c| u128::from(c) * u128::from(c)).sum(),
    }
}

/// Nanoseconds of a pass with these (new, before) chunks and these decode contexts.
fn pass(model: &TimingModel, prefill: &[(u32, u32)], contexts: &[u64]) -> u64 {
    model.pass_duration(&Shape { prefill: &chunks(prefill), decode: decodes(contexts) }).0
}

fn fixed(prefill_ms: f64, decode_ms: f64, speedup: Speedup) -> TimingModel {
    TimingModel::new(Law::Fixed(Fixed { prefill_ms, decode_ms }), None, speedup).unwrap()
}

fn polynomial(capacity_tokens: u64) -> TimingModel {
    TimingModel::new(Law::Polynomial(Polynomial { capacity_tokens }), None, Speedup::NONE).unwrap()
}

const LINEAR: Linear = Linear {
    base_ms: 10.0,
    per_new_token_ms: 0.05,
    per_new_times_context_ms: 0.001,
    per_sequence_ms: 0.25,
    per_context_token_ms: 0.002,
};

fn linear(composition: Option<Composition>, speedup: Speedup) -> TimingModel {
    TimingModel::new(Law::Linear(LINEAR), composition, speedup).unwrap()
}

#[test]
fn fixed_charges_prefill_and_decode_work_once_each() {
    let model = fixed(60.0, 12.0, Speedup::NONE);
    assert_eq!(pass(&model, &[(8, 0)], &[]), 60_000_000);
    assert_eq!(pass(&model, &[(8, 0), (100, 50)], &[]), 60_000_000);
    assert_eq!(pass(&model, &[], &[9, 10, 11]), 12_000_000);
    assert_eq!(pass(&model, &[(8, 0)], &[9]), 72_000_000, "a mixed pass pays both");
    assert_eq!(pass(&model, &[], &[]), 0);
    assert_eq!(pass(&model, &[(0, 8)], &[]), 0, "a chunk without a token is no work");
}

#[test]
fn speedups_divide_prefill_once_and_decode_twice() {
    // Probe P15: 10 and 2 ms, speedup 2, decode speedup 4.
    let model = fixed(10.0, 2.0, Speedup { ratio: 2.0, decode_ratio: 4.0 });
    assert_eq!(pass(&model, &[(8, 0)], &[]), 5_000_000);
    assert_eq!(pass(&model, &[], &[9]), 250_000);
    assert_eq!(pass(&model, &[(8, 0)], &[9]), 5_250_000);
}

#[test]
fn each_term_of_a_sum_is_rounded_on_its_own() {
    // 0.5 ns and 0.5 ns round to 1 each; their sum would have rounded to 1.
    let model = fixed(0.000_000_5, 0.000_000_5, Speedup::NONE);
    assert_eq!(pass(&model, &[(1, 0)], &[2]), 2);
}

#[test]
fn polynomial_prefill_has_the_published_values() {
    let model = polynomial(1 << 20);
    assert_eq!(pass(&model, &[(1024, 0)], &[]), 32_490_712);
    assert_eq!(pass(&model, &[(8192, 0)], &[]), 169_136_918);
    assert_eq!(pass(&model, &[(1024, 4096)], &[]), 32_490_712, "cached tokens are not charged");
}

#[test]
fn polynomial_prefill_floors_the_means() {
    let model = polynomial(1 << 20);
    // Lengths 4 and 3, nothing before: 2·⌊7/2⌋ = 6 of 7 tokens.
    assert_eq!(pass(&model, &[(4, 0), (3, 0)], &[]), pass(&model, &[(6, 0)], &[]));
    // Σ(before + new) = 7 + 4 = 11, Σbefore = 5: 2·(5 − 2) = 6 of 6.
    assert_eq!(pass(&model, &[(2, 5), (4, 0)], &[]), pass(&model, &[(6, 0)], &[]));
    // Σ(before + new) = 3, Σbefore = 1 over two chunks: 2·(1 − 0) = 2.
    assert_eq!(pass(&model, &[(1, 1), (1, 0)], &[]), pass(&model, &[(2, 0)], &[]));
    // Σ(before + new) = 7, Σbefore = 3 over four chunks: 4·(1 − 0) = 4.
    assert_eq!(pass(&model, &[(1, 0), (1, 0), (1, 0), (1, 3)], &[]), pass(&model, &[(4, 0)], &[]));
    // Σ(before + new) = 5, Σbefore = 2 over three chunks: 3·(1 − 0) = 3.
    assert_eq!(pass(&model, &[(1, 2), (1, 0), (1, 0)], &[]), pass(&model, &[(3, 0)], &[]));
}

#[test]
fn polynomial_decode_has_the_published_values() {
    let model = polynomial(1000);
    assert_eq!(pass(&model, &[], &[500]), 26_310_000);
    assert_eq!(pass(&model, &[], &[250, 250]), 26_310_000, "the batch size does not matter");
    assert_eq!(pass(&model, &[], &[1000]), 34_010_000);
    assert_eq!(pass(&model, &[], &[900, 900]), 34_010_000, "the fill is capped at 1");
    // An almost empty cache: x → 0 gives 5.74.
    assert_eq!(pass(&polynomial(u64::MAX), &[], &[1]), 5_740_000);
}

#[test]
fn probe_16() {
    // One prompt of 1024 and 3 output tokens, 64 blocks of 64: contexts 1025 and 1026.
    let model = polynomial(64 * 64);
    assert_eq!(pass(&model, &[(1024, 0)], &[]), 32_490_712);
    let gaps = pass(&model, &[], &[1025]) + pass(&model, &[], &[1026]);
    assert_eq!((gaps as f64 / 2.0).round(), 17_648_812.0, "mean of the two gaps");
}

#[test]
fn probe_41() {
    // Prompts of 64 and 128 together, 8 blocks of 64: n = 192, x = (65 + 129) / 512.
    let model = polynomial(8 * 64);
    assert_eq!(pass(&model, &[(64, 0), (128, 0)], &[]), 19_432_160);
    assert_eq!(pass(&model, &[], &[65, 129]), 22_509_236);
}

#[test]
fn linear_is_mixed_by_default_and_pays_its_base_once() {
    let model = linear(None, Speedup::NONE);
    assert_eq!(model.composition(), Composition::Mixed);
    // N = 10 + 20 + 2, Q = 10·10 + 20·50, S = 4, C = 100 + 200.
    let ms = 10.0 + 0.05 * 32.0 + 0.001 * 1100.0 + 0.25 * 4.0 + 0.002 * 300.0;
    assert_eq!(pass(&model, &[(10, 0), (20, 30)], &[100, 200]), (ms * 1e6f64).round() as u64);
    assert_eq!(pass(&model, &[(10, 0), (20, 30)], &[100, 200]), 14_300_000);
    assert_eq!(pass(&model, &[], &[]), 0, "not even the base");
}

#[test]
fn linear_as_a_sum_pays_its_base_for_each_term() {
    let speedup = Speedup { ratio: 2.0, decode_ratio: 5.0 };
    let model = linear(Some(Composition::Sum), speedup);
    // Prefill: 10 + 0.05·30 + 0.001·1100 + 0.25·2 = 13.1. Decode: 10 + 0.05·2 + 0.25·2 + 0.002·300 = 11.2.
    assert_eq!(pass(&model, &[(10, 0), (20, 30)], &[100, 200]), 6_550_000 + 1_120_000);
    assert_eq!(pass(&model, &[(10, 0), (20, 30)], &[]), 6_550_000);
    assert_eq!(pass(&model, &[], &[100, 200]), 1_120_000);
}

#[test]
fn linear_without_extras_is_the_clock_of_the_oracle() {
    // base + per_token · n of the whole batch.
    let law = Linear { base_ms: 10.0, per_new_token_ms: 0.05, ..Linear::default() };
    let model = TimingModel::new(Law::Linear(law), None, Speedup::NONE).unwrap();
    assert_eq!(pass(&model, &[(137, 512)], &[40, 41, 42]), 17_000_000);
    // In f64, 10 + 0.05·n is not exact for most n; the result is the nearest nanosecond all the same.
    for n in 1..4096u32 {
        assert_eq!(pass(&model, &[(n, 0)], &[]), 10_000_000 + 50_000 * u64::from(n));
    }
}

#[test]
fn times_beyond_the_longest_run_are_capped() {
    let model = fixed(1e300, 1e300, Speedup::NONE);
    assert_eq!(pass(&model, &[(1, 0)], &[]), MAX_NANOS);
}

fn refusal(law: Law, composition: Option<Composition>, ratio: f64, decode_ratio: f64) -> String {
    let error: PerfError = TimingModel::new(law, composition, Speedup { ratio, decode_ratio }).unwrap_err();
    error.to_string()
}

#[test]
fn settings_without_meaning_are_refused() {
    let fixed = |prefill_ms, decode_ms| Law::Fixed(Fixed { prefill_ms, decode_ms });
    assert_eq!(
        refusal(fixed(-1.0, 2.0), None, 1.0, 1.0),
        "prefill_ms: -1 must be a finite number of at least 0"
    );
    assert_eq!(
        refusal(fixed(1.0, f64::NAN), None, 1.0, 1.0),
        "decode_ms: NaN must be a finite number of at least 0"
    );
    assert_eq!(
        refusal(Law::Linear(Linear { base_ms: f64::INFINITY, ..LINEAR }), None, 1.0, 1.0),
        "base_ms: inf must be a finite number of at least 0"
    );
    assert_eq!(
        refusal(Law::Polynomial(Polynomial { capacity_tokens: 0 }), None, 1.0, 1.0),
        "capacity_tokens: 0 must be at least 1"
    );
    assert_eq!(
        refusal(fixed(1.0, 1.0), None, 0.0, 1.0),
        "speedup_ratio: 0 is not accepted: AISimulate 0.13 treats 0 as unscaled, so leave the key out"
    );
    assert_eq!(
        refusal(fixed(1.0, 1.0), None, 1.0, -2.0),
        "decode_speedup_ratio: -2 must be a finite number above 0"
    );
    assert_eq!(
        refusal(fixed(1.0, 1.0), None, 1e300, 1e300),
        "decode_speedup_ratio: 1e300 times speedup_ratio must be a finite number above 0"
    );
    assert_eq!(
        refusal(fixed(1.0, 1.0), Some(Composition::Mixed), 1.0, 1.0),
        "composition: mixed is not defined for fixed timing, allowed is sum"
    );
    assert_eq!(
        refusal(Law::Linear(LINEAR), None, 1.0, 2.0),
        "decode_speedup_ratio: 2 needs composition sum: a mixed pass has no decode term of its own"
    );
}
