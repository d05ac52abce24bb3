//! scratch
use std::num::NonZeroU32;
use windtunnel_config::*;
use windtunnel_engine::vllm;
use windtunnel_perf::*;
use windtunnel_sim::*;
use windtunnel_traffic::*;
fn main() {
    let plain = std::env::args().any(|a| a == "plain");
    for path in std::env::args().skip(1).filter(|a| a.ends_with(".json")) {
        let text = std::fs::read_to_string(&path).unwrap();
        let v: serde_json::Value = serde_json::from_str(&text).unwrap();
        let e = &v["engine"];
        let blocks = e["num_gpu_blocks"].as_u64().unwrap() as u32;
        let bs = e["block_size"].as_u64().unwrap() as u32;
        let mut c = vllm::Config::new(blocks + 1, bs, 1 << 30);
        c.async_scheduling = std::env::args().any(|a| a == "async");
        c.max_num_batched_tokens = e["max_num_batched_tokens"].as_u64().unwrap() as u32;
        c.resumed_work = vllm::ResumedWork::PromptAndDecode;
        c.max_num_seqs = e["max_num_seqs"].as_u64().unwrap() as u32;
        let law = if e["timing_model"]["type"] == "polynomial" {
            Law::Polynomial(Polynomial { capacity_tokens: u64::from(blocks) * u64::from(bs) })
        } else {
            Law::Fixed(Fixed {
                prefill_ms: e["timing_model"]["prefill_ms"].as_f64().unwrap(),
                decode_ms: e["timing_model"]["decode_ms"].as_f64().unwrap(),
            })
        };
        let timing = TimingModel::new(law, Some(Composition::Sum), Speedup::NONE).unwrap();
        let source = if let Some(m) = v["input"]["mooncake"].as_str() {
            let f =
                if m.contains("conv") { "mooncake_conversation_trace" } else { "mooncake_synthetic_trace" };
            WorkloadSource::Trace(TraceFile {
                path: format!("/work/shared/datasets/{f}.jsonl.gz").into(),
                format: windtunnel_traffic::Format::Mooncake { block_size: 512 },
                times: Times::Recorded { speedup: 1.0 },
                limit: None,
            })
        } else {
            let s = &v["input"]["synthetic"];
            WorkloadSource::Synthetic(Synthetic {
                input_tokens: s["isl"].as_u64().unwrap() as u32,
                output_tokens: s["osl"].as_u64().unwrap() as u32,
                requests: s["n"].as_u64().unwrap(),
                arrivals: Arrivals::Constant { requests_per_second: s["rps"].as_f64().unwrap() },
            })
        };
        let ex = Experiment {
            deployment: Deployment {
                semantics: Semantics::Aisimulate013,
                model: "m".into(),
                hardware: "h".into(),
                backend_version: None,
                role: "aggregated",
                replicas: NonZeroU32::new(v["workers"].as_u64().unwrap() as u32).unwrap(),
                startup: windtunnel_engine::Nanos::ZERO,
                parallelism: Parallelism { tensor: 1, moe_tensor: 1, moe_expert: 1 },
                gpus_per_worker: 1,
                engine: c,
                timing,
                kv_bytes_per_token: None,
                router: windtunnel_router::Policy::RoundRobin,
            },
            workload: Workload { source, pace: Pace::Arrivals, max_virtual_time: None },
            sla: None,
            effective: serde_json::Value::Null,
        };
        let t = std::time::Instant::now();
        let o = run(
            &ex,
            Options { stepper: if plain { Stepper::Plain } else { Stepper::Fast }, ..Options::default() },
        )
        .unwrap();
        let el = t.elapsed().as_secs_f64();
        let g = |n: &str| o.summary.get(n).as_f64().unwrap_or(f64::NAN);
        println!(
            "{:40} {:.3}s dur {:.6} passes {} ttft {:.6} p50 {:.2} p99 {:.2} itl {:.7} e2e {:.4} reuse {:.6} first {:.6} pre {} preempt {}",
            v["name"].as_str().unwrap(),
            el,
            g("duration_ms"),
            g("passes"),
            g("mean_ttft_ms"),
            g("median_ttft_ms"),
            g("p99_ttft_ms"),
            g("mean_itl_ms"),
            g("mean_e2e_latency_ms"),
            g("prefix_cache_reused_ratio"),
            g("first_admission_prefix_cache_reused_ratio"),
            g("committed_prefill_tokens"),
            g("preemptions")
        );
    }
    println!(
        "{}",
        std::fs::read_to_string("/proc/self/status")
            .unwrap()
            .lines()
            .find(|l| l.starts_with("VmHWM"))
            .unwrap()
    );
}
