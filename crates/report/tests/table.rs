//! The table as a reader sees it.

mod common;

use common::{finish, ms, request};
use windtunnel_engine::{Nanos, Rejection, RequestId};
use windtunnel_report::{Collector, CollectorOptions, RankRow, Refusal, Report, Role, RunEnd, Sla, table};

fn row(role: Role, worker: u32, rank: u32) -> RankRow {
    RankRow {
        passes: 285_402,
        prefill_passes: 11_591,
        decode_passes: 285_379,
        prefill_tokens: 137_209_073,
        decode_tokens: 4_122_048,
        prefix_cache_queries: 1000,
        prefix_cache_hits: 374,
        peak_kv_blocks: 4095,
        preemptions: 173,
        evicted_blocks: 2_139_801,
        busy: Nanos(4_000_000_000_000),
        ..RankRow::new(role, worker, rank, 4096)
    }
}

/// Long latencies, the widest numbers that a real run prints.
fn report(rows: Vec<RankRow>) -> Report {
    let sla = Some(Sla::E2e(ms(4_000_000.0)));
    let mut collector = Collector::new(CollectorOptions { sla, capture: false });
    finish(&mut collector, &[1_040_939.9, 1_041_821.4, 1_174_965.2], 0);
    finish(&mut collector, &[169.136918, 174.877, 4_590_602.3], 1);
    rows.into_iter().for_each(|row| collector.rank(row));
    Report::new([collector], &RunEnd { unfinished: 3, ..RunEnd::default() })
}

/// Two workers, one of them with two ranks; one request in three was refused.
fn small() -> Report {
    let sla = Some(Sla::Tokens { ttft: Some(ms(200.0)), itl: None });
    let mut collector = Collector::new(CollectorOptions { sla, capture: false });
    finish(&mut collector, &[169.136918, 175.0, 181.0, 1381.0], 0);
    let tokens: Vec<f64> = (0..500).map(|i| 438.0 + 12.0 * f64::from(i)).collect();
    finish(&mut collector, &tokens, 1);
    collector.cancelled(&request(2, &[]));
    for (worker, rank) in [(0, 0), (1, 0), (1, 1)] {
        collector.rank(RankRow {
            passes: 1200,
            prefill_passes: 2,
            decode_passes: 1199,
            prefill_tokens: 6758,
            decode_tokens: 500,
            peak_kv_blocks: 120,
            busy: Nanos(1_000_000_000),
            ..RankRow::new(Role::Aggregated, worker, rank, 4096)
        });
    }
    Report::new([collector], &RunEnd { end: ms(6_426.0), ..RunEnd::default() })
}

#[test]
fn a_small_run_reads_like_this() {
    let want = "
                                    Windtunnel | LLM Metrics
─────────────────────────────────────────────────────────────────────────────────────────────────
Metric                            avg       min       max       p99       p90       p75       std
─────────────────────────────────────────────────────────────────────────────────────────────────
Time To First Token (ms)       303.57    169.14    438.00    435.31    411.11    370.78    134.43
Time To Second Token (ms)        8.93      5.86     12.00     11.94     11.39     10.47      3.07
Request Latency (ms)          3,903.5   1,381.0   6,426.0   6,375.6   5,921.5   5,164.8   2,522.5
Time Per Output Token (ms)     207.98     12.00    403.95    400.03    364.76    305.97    195.98
Inter Token Latency (ms)        14.34      5.86   1,200.0     12.00     12.00     12.00     52.97
Output Token Throughput         83.51     0.833    170.56     83.33     83.33     83.33      6.52
 Per User (tokens/sec/user)
Output Token Throughput         78.43         -         -         -         -         -         -
 (tokens/sec)
Request Throughput              0.311         -         -         -         -         -         -
 (requests/sec)
Request Count (requests)            2         -         -         -         -         -         -
─────────────────────────────────────────────────────────────────────────────────────────────────
Duration              6.43 s (virtual)
Not completed         1 cancelled
Tokens                16 in, 504 out
Prefix cache reuse    0.00 % of the prompt tokens (0.00 % at first admission)
Passes                3,600 (6 with prefill, 3,597 with decode)
Preemptions           0
KV cache              2.93 % used at the peak, 0 blocks evicted
Goodput               0.156 requests/sec, 0.622 tokens/sec (50.00 % of the requests)

────────────────────────────────────────────────────────────────────────────────────────────
Worker   ranks   passes   prefill   decode   hit rate   peak KV   preempted   evicted   busy
                           tokens   tokens        (%)       (%)                blocks    (%)
────────────────────────────────────────────────────────────────────────────────────────────
0            1    1,200     6,758      500          -       2.9           0         0   15.6
1            2    2,400    13,516    1,000          -       2.9           0         0   15.6
────────────────────────────────────────────────────────────────────────────────────────────
";
    let got = table(&small(), false);
    assert_eq!(format!("\n{got}"), want, "\n{got}");
}

fn refused(reasons: &[(u64, Rejection)]) -> String {
    let mut collector = Collector::new(CollectorOptions::default());
    for &(count, reason) in reasons {
        for id in 0..count {
            collector.rejected(&Refusal {
                id: RequestId(id),
                name: None,
                placed: None,
                arrival: Nanos::ZERO,
                refused: Nanos::ZERO,
                input_tokens: 1,
                requested_output_tokens: 1,
                reason,
            });
        }
    }
    table(&Report::new([collector], &RunEnd::default()), false)
}

#[test]
fn rejections_come_with_their_reasons() {
    let long = Rejection::PromptTooLong { prompt_tokens: 9, max_model_len: 8, longest: 7 };
    let full = Rejection::QueueFull { max_num_queued_reqs: 1 };
    let one = refused(&[(20, long)]);
    assert!(one.contains("\nNot completed         20 rejected (prompt too long)\n"), "{one}");
    let two = refused(&[(2, long), (5, full)]);
    assert!(two.contains("\nNot completed         7 rejected (5 queue full, 2 prompt too long)\n"), "{two}");
    let all = refused(&[
        (6, Rejection::EmptyPrompt),
        (5, Rejection::NoOutput),
        (4, long),
        (3, Rejection::LargerThanPool { needed_blocks: 2, usable_blocks: 1 }),
        (2, full),
        (1, Rejection::QueuedTokensFull { max_num_queued_tokens: 1 }),
    ]);
    let want = "
Not completed         21 rejected (6 empty prompt, 5 no output, 4 prompt too long,
                      3 larger than pool, 2 queue full, 1 queued tokens full)
";
    assert!(all.contains(want), "{all}");
}

#[test]
fn colour_is_only_for_those_who_ask() {
    let (plain, coloured) = (table(&small(), false), table(&small(), true));
    assert!(!plain.contains('\x1b'));
    assert_eq!(coloured.replace("\x1b[1m", "").replace("\x1b[0m", ""), plain);
    assert!(coloured.contains("\x1b[1mWindtunnel | LLM Metrics\x1b[0m"));
}

#[test]
fn many_workers_are_one_line() {
    let rows = |n: u32| (0..n).map(|worker| row(Role::Aggregated, worker, 0)).collect();
    assert_eq!(table(&report(rows(16)), false).matches("137.21M").count(), 16);
    let many = table(&report(rows(17)), false);
    assert!(!many.contains("137.21M"));
    assert!(many.ends_with("Workers               17, each computed 141,331,121 to 141,331,121 tokens\n"));
}

#[test]
fn nothing_is_wider_than_a_hundred_columns() {
    for workers in [0, 1, 2, 16, 17, 1000] {
        let rows = (0..workers).map(|worker| row(Role::Prefill, worker, 0)).collect();
        let text = table(&report(rows), false);
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}
