//! What the public benchmark sets: most measured deployments are runs of InferenceX (SemiAnalysisAI/InferenceX, whose
//! scripts say how each engine is started and how it is loaded), the others of a load generator of aiconfigurator's
//! authors, of whose settings nothing is known.

use super::points::Point;

/// Settings of a measured deployment that its row does not hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Settings {
    /// Sequences of a rank at once.
    pub(super) seats: u32,
    /// Other keys of the scheduler, each after a comma.
    pub(super) scheduler: String,
    /// Memory fraction, where it is not the engine's own.
    pub(super) memory_fraction: Option<f64>,
    /// The KV cache has 8 bits.
    pub(super) fp8_kv: bool,
    /// Passes for which a request waits by a setting that the simulated scheduler does not have: before it is looked
    /// for (SGLang's scheduler_recv_interval), or until more can be computed together (TensorRT-LLM's
    /// batch_wait_timeout_iters and attention_dp_config.timeout_iters).
    pub(super) waited_passes: f64,
}

/// The share of the longest wait of TensorRT-LLM that requests wait on average; it ends when enough have come.
const TRTLLM_WAIT_SHARE: f64 = 0.65;

/// SGLang looks for requests every so many passes, and so they wait for half as many.
const SGLANG_WAIT_SHARE: f64 = 0.5;

impl Settings {
    /// Of a deployment.
    pub(super) fn of(point: &Point) -> Settings {
        let ranks = point.spread.attention_data.max(1);
        let share = point.concurrency.div_ceil(ranks);
        let usual = Settings { seats: share.max(256), ..Settings::default() };
        if !point.drawn {
            return usual;
        }
        match point.backend.as_str() {
            "vllm" => of_vllm(point, share, usual),
            "trtllm" => of_trtllm(point, share, usual),
            _ => of_sglang(point, usual),
        }
    }
}

fn of_vllm(point: &Point, share: u32, usual: Settings) -> Settings {
    let is = |name: &str| point.model.contains(name);
    if is("Llama") || is("gpt-oss") {
        // --max-num-seqs $CONC --max-num-batched-tokens 8192 --gpu-memory-utilization 0.9
        let blackwell_llama = is("Llama") && point.is_blackwell();
        return Settings {
            seats: share,
            scheduler: ", max_batched_tokens: 8192".into(),
            memory_fraction: Some(0.9),
            fp8_kv: blackwell_llama,
            ..usual
        };
    }
    Settings { memory_fraction: is("MiniMax").then_some(0.95), ..usual }
}

fn of_trtllm(point: &Point, share: u32, usual: Settings) -> Settings {
    let is = |name: &str| point.model.contains(name);
    let short = point.input_tokens == 1024 && point.output_tokens == 1024;
    if is("gpt-oss") {
        // --max_batch_size $CONC --max_num_tokens 20000
        let scheduler = ", max_batched_tokens: 20000".into();
        return Settings { seats: share, scheduler, memory_fraction: Some(0.85), ..usual };
    }
    // --max_num_tokens: at least a prompt and a token of each other request, at least 8192
    let tokens = (point.concurrency + point.input_tokens + 64).next_multiple_of(64).max(8192);
    let waits = if is("DeepSeek") {
        match (point.spread.attention_data > 1, short && point.concurrency >= 64) {
            // attention_dp_config.timeout_iters
            (true, _) => 60.0,
            // batch_wait_timeout_iters
            (false, true) => 40.0,
            (false, false) => 0.0,
        }
    } else if short && point.spread.tensor < 8 {
        20.0
    } else {
        0.0
    };
    Settings {
        scheduler: format!(", max_batched_tokens: {tokens}"),
        fp8_kv: true,
        memory_fraction: is("DeepSeek").then_some(0.8),
        waited_passes: waits * TRTLLM_WAIT_SHARE,
        ..usual
    }
}

fn of_sglang(point: &Point, usual: Settings) -> Settings {
    if point.model.contains("GLM-5") {
        // --mem-fraction-static 0.85, and of the newer generation --kv-cache-dtype fp8_e4m3 --max-running-requests $CONC
        // --chunked-prefill-size 32768 --max-prefill-tokens 32768; of the older one nothing else
        let usual = Settings { memory_fraction: Some(0.85), ..usual };
        if !point.is_blackwell() {
            return usual;
        }
        let scheduler = ", max_prefill_tokens: 32768, chunked_prefill_size: 32768".into();
        return Settings { seats: point.concurrency, scheduler, fp8_kv: true, ..usual };
    }
    // --chunked-prefill-size 32768 --max-prefill-tokens 32768 --mem-fraction-static 0.82, and on eight accelerators
    // of the newer generation --scheduler-recv-interval
    let waits = match (point.is_blackwell(), point.concurrency >= 16) {
        (true, true) => 30.0,
        (true, false) => 10.0,
        (false, _) => 0.0,
    };
    Settings {
        scheduler: ", max_prefill_tokens: 32768, chunked_prefill_size: 32768".into(),
        fp8_kv: point.is_blackwell(),
        memory_fraction: Some(0.82),
        waited_passes: waits * SGLANG_WAIT_SHARE,
        ..usual
    }
}
