//! Which tables a pack has, and how a row of a public file becomes a key and a position on the axis.
//! Files and columns are those of aiconfigurator-core 0.12.0 (`systems/data/<system>/<family>/<framework>/
//! <version>/<file>`).

use super::columns::Columns;
use crate::packs::CHUNKS_BEHIND;

/// A table.
pub(super) struct Spec {
    pub(super) name: &'static str,
    /// Folder of the operation, file without its ending.
    pub(super) family: &'static str,
    pub(super) file: &'static str,
    pub(super) keys: &'static str,
    pub(super) axis: &'static str,
    /// Columns that are read, beside `latency` and `kernel_source`.
    pub(super) columns: &'static [&'static str],
    /// So many leading fields of a key name what one kernel serves as a whole; none: rows count one by one,
    /// and the first one of a key and position wins.
    pub(super) kernel_fields: Option<usize>,
    /// Microseconds of a unit of the file.
    pub(super) unit: f64,
    /// Key and position of a row; none for a row that is not used.
    pub(super) place: fn(&Columns, usize) -> Option<(String, u64)>,
}

/// All tables, in the order in which they stand in a pack.
pub(super) const SPECS: &[Spec] = &[
    Spec {
        name: "gemm",
        family: "gemm",
        file: "gemm_perf",
        keys: "dtype,n,k",
        axis: "m",
        columns: &["gemm_dtype", "m", "n", "k"],
        kernel_fields: None,
        unit: 1e3,
        place: |c, row| {
            let (n, k) = (c.number("n", row)?, c.number("k", row)?);
            Some((format!("{},{n},{k}", c.text("gemm_dtype", row)?), c.number("m", row)?))
        },
    },
    Spec {
        name: "context_attention",
        family: "attention",
        file: "context_attention_perf",
        keys: "dtype,kv_dtype,head_dim,window,kv_heads,heads,batch",
        axis: "tokens",
        columns: &[
            "attn_dtype",
            "kv_cache_dtype",
            "head_dim",
            "window_size",
            "num_key_value_heads",
            "num_heads",
            "batch_size",
            "isl",
            "step",
        ],
        kernel_fields: Some(5),
        unit: 1e3,
        place: |c, row| {
            let dtype = c.text("attn_dtype", row)?;
            Some((format!("{dtype},{}", grouped(c, row)?), whole_prompt(c, row)?))
        },
    },
    Spec {
        name: "generation_attention",
        family: "attention",
        file: "generation_attention_perf",
        keys: "kv_dtype,head_dim,window,kv_heads,heads,batch",
        axis: "context",
        columns: &[
            "kv_cache_dtype",
            "head_dim",
            "window_size",
            "num_key_value_heads",
            "num_heads",
            "batch_size",
            "isl",
            "step",
        ],
        kernel_fields: Some(4),
        unit: 1e3,
        place: |c, row| Some((grouped(c, row)?, c.number("isl", row)? + c.number("step", row)?)),
    },
    Spec {
        name: "moe",
        family: "moe",
        file: "moe_perf",
        keys: "dtype,distribution,hidden,inter,topk,experts,moe_tp,moe_ep",
        axis: "tokens",
        columns: MOE,
        kernel_fields: None,
        unit: 1e3,
        place: |c, row| {
            if c.text("kernel_source", row) == Some(LOW_LATENCY) { None } else { experts(c, row) }
        },
    },
    Spec {
        name: "moe_low_latency",
        family: "moe",
        file: "moe_perf",
        keys: "dtype,distribution,hidden,inter,topk,experts,moe_tp,moe_ep",
        axis: "tokens",
        columns: MOE,
        kernel_fields: None,
        unit: 1e3,
        place: |c, row| {
            if c.text("kernel_source", row) == Some(LOW_LATENCY) { experts(c, row) } else { None }
        },
    },
    Spec {
        name: "mla_context_module",
        family: "mla",
        file: "mla_context_module_perf",
        keys: "dtype,kv_dtype,gemm_dtype,heads,batch",
        axis: "tokens",
        columns: MODULE,
        kernel_fields: None,
        unit: 1e3,
        place: |c, row| Some((module(c, row)?, whole_prompt(c, row)?)),
    },
    Spec {
        name: "mla_generation_module",
        family: "mla",
        file: "mla_generation_module_perf",
        keys: "dtype,kv_dtype,gemm_dtype,heads,batch",
        axis: "context",
        columns: MODULE,
        kernel_fields: None,
        unit: 1e3,
        place: |c, row| Some((module(c, row)?, c.number("isl", row)? + c.number("step", row)?)),
    },
    Spec {
        name: "sparse_context_module",
        family: "sparse_attention",
        file: "dsa_context_module_perf",
        keys: SPARSE_KEYS,
        axis: "tokens",
        columns: SPARSE,
        kernel_fields: None,
        unit: 1e3,
        place: |c, row| Some((sparse(c, row)?, whole_prompt(c, row)?)),
    },
    Spec {
        // Chunks behind so many tokens: enough for what a chunk costs and how that grows with what lies before it.
        name: "sparse_chunk_module",
        family: "sparse_attention",
        file: "dsa_context_module_perf",
        keys: "model,part,before,kv_dtype,gemm_dtype,heads,batch",
        axis: "tokens",
        columns: SPARSE,
        kernel_fields: None,
        unit: 1e3,
        place: |c, row| {
            let before = c
                .number("step", row)
                .filter(|before| CHUNKS_BEHIND.iter().any(|kept| u64::from(*kept) == *before))?;
            let key = sparse(c, row)?;
            let (model, rest) = key.split_once(',')?;
            let (part, rest) = rest.split_once(',')?;
            Some((format!("{model},{part},{before},{rest}"), c.number("isl", row)?))
        },
    },
    Spec {
        name: "sparse_generation_module",
        family: "sparse_attention",
        file: "dsa_generation_module_perf",
        keys: SPARSE_KEYS,
        axis: "context",
        columns: SPARSE,
        kernel_fields: None,
        unit: 1e3,
        place: |c, row| Some((sparse(c, row)?, c.number("isl", row)? + c.number("step", row)?)),
    },
    Spec {
        name: "context_mla",
        family: "mla",
        file: "context_mla_perf",
        keys: "dtype,kv_dtype,heads,batch",
        axis: "tokens",
        columns: &["mla_dtype", "kv_cache_dtype", "num_heads", "batch_size", "isl", "step"],
        kernel_fields: None,
        unit: 1e3,
        place: |c, row| {
            Some((format!("{},{}", c.text("mla_dtype", row)?, latent(c, row)?), whole_prompt(c, row)?))
        },
    },
    Spec {
        name: "generation_mla",
        family: "mla",
        file: "generation_mla_perf",
        keys: "kv_dtype,heads,batch",
        axis: "context",
        columns: &["kv_cache_dtype", "num_heads", "batch_size", "isl", "step"],
        kernel_fields: None,
        unit: 1e3,
        place: |c, row| Some((latent(c, row)?, c.number("isl", row)? + c.number("step", row)?)),
    },
    Spec {
        name: "mla_bmm",
        family: "mla_bmm",
        file: "mla_bmm_perf",
        keys: "dtype,part,heads",
        axis: "tokens",
        columns: &["bmm_dtype", "op_name", "num_heads", "num_tokens"],
        kernel_fields: None,
        unit: 1e3,
        place: |c, row| {
            let (dtype, part) = (c.text("bmm_dtype", row)?, c.text("op_name", row)?);
            Some((format!("{dtype},{part},{}", c.number("num_heads", row)?), c.number("num_tokens", row)?))
        },
    },
    Spec {
        name: "gated_delta",
        family: "linear_attention",
        file: "gdn_perf",
        keys: "kernel,phase,hidden,k_heads,v_heads,batch",
        axis: "tokens",
        columns: &["phase", "d_model", "num_k_heads", "num_v_heads", "batch_size", "seq_len"],
        kernel_fields: None,
        unit: 1e3,
        place: |c, row| {
            let (kernel, phase) = (c.text("kernel_source", row)?, c.text("phase", row)?);
            let (hidden, keys) = (c.number("d_model", row)?, c.number("num_k_heads", row)?);
            let (values, batch) = (c.number("num_v_heads", row)?, c.number("batch_size", row)?);
            // A decode step computes one token of each sequence, whatever the file says about its length.
            let tokens = if phase == "generation" { 1 } else { c.number("seq_len", row)? };
            Some((format!("{kernel},{phase},{hidden},{keys},{values},{batch}"), tokens))
        },
    },
    Spec {
        name: "quantize",
        family: "quantize",
        file: "computescale_perf",
        keys: "part,dtype,k",
        axis: "m",
        columns: &["quant_dtype", "m", "k"],
        kernel_fields: None,
        unit: 1e3,
        place: |c, row| quantize(c, row, "scale"),
    },
    Spec {
        name: "quantize",
        family: "quantize",
        file: "scale_matrix_perf",
        keys: "part,dtype,k",
        axis: "m",
        columns: &["quant_dtype", "m", "k"],
        kernel_fields: None,
        unit: 1e3,
        place: |c, row| quantize(c, row, "matrix"),
    },
    Spec {
        name: "all_reduce",
        family: "comm",
        file: "custom_allreduce_perf",
        keys: "dtype,gpus",
        axis: "elements",
        columns: &["allreduce_dtype", "num_gpus", "message_size"],
        kernel_fields: None,
        unit: 1e3,
        place: |c, row| {
            // Engines capture it in CUDA graphs.
            if c.text("kernel_source", row).is_some_and(|kernel| kernel.ends_with("_eager")) {
                return None;
            }
            let dtype = c.text("allreduce_dtype", row)?;
            Some((format!("{dtype},{}", c.number("num_gpus", row)?), c.number("message_size", row)?))
        },
    },
    Spec {
        name: "nccl",
        family: "comm",
        file: "nccl_perf",
        keys: "operation,dtype,gpus",
        axis: "elements",
        columns: &["op_name", "nccl_dtype", "num_gpus", "message_size"],
        kernel_fields: None,
        unit: 1e3,
        place: |c, row| {
            let (operation, dtype) = (c.text("op_name", row)?, c.text("nccl_dtype", row)?);
            let gpus = c.number("num_gpus", row)?;
            Some((format!("{operation},{dtype},{gpus}"), c.number("message_size", row)?))
        },
    },
    Spec {
        name: "expert_exchange",
        family: "comm",
        file: "trtllm_alltoall_perf",
        keys: "kernel,part,dtype,hidden,topk,experts,ep",
        axis: "tokens",
        columns: &["op_name", "moe_dtype", "hidden_size", "topk", "num_experts", "moe_ep_size", "num_tokens"],
        kernel_fields: None,
        unit: 1e3,
        place: |c, row| {
            let (kernel, part) = (c.text("kernel_source", row)?, c.text("op_name", row)?);
            let (dtype, hidden) = (c.text("moe_dtype", row)?, c.number("hidden_size", row)?);
            let (topk, experts) = (c.number("topk", row)?, c.number("num_experts", row)?);
            let ep = c.number("moe_ep_size", row)?;
            Some((
                format!("{kernel},{part},{dtype},{hidden},{topk},{experts},{ep}"),
                c.number("num_tokens", row)?,
            ))
        },
    },
];

/// The kernel of TensorRT-LLM for few tokens, beside the usual one.
const LOW_LATENCY: &str = "moe_torch_flow_min_latency";

const MOE: &[&str] = &[
    "moe_dtype",
    "num_tokens",
    "hidden_size",
    "inter_size",
    "topk",
    "num_experts",
    "moe_tp_size",
    "moe_ep_size",
    "distribution",
];

const MODULE: &[&str] =
    &["mla_dtype", "kv_cache_dtype", "gemm_type", "num_heads", "batch_size", "isl", "step"];

const SPARSE_KEYS: &str = "model,part,kv_dtype,gemm_dtype,heads,batch";

const SPARSE: &[&str] =
    &["op_name", "architecture", "kv_cache_dtype", "gemm_type", "num_heads", "batch_size", "isl", "step"];

/// Sparse attention: the sizes are those of the model's architecture; layers that take over what the layer before them
/// chose were measured apart.
fn sparse(c: &Columns, row: usize) -> Option<String> {
    let model = match c.text("architecture", row)? {
        "DeepseekV32ForCausalLM" => "deepseek_v32",
        "GlmMoeDsaForCausalLM" => "glm_moe_dsa",
        _ => return None,
    };
    let part = if c.text("op_name", row)?.ends_with("_skip_indexer") { "skips" } else { "chooses" };
    let (kv_dtype, gemm) = (c.text("kv_cache_dtype", row)?, c.text("gemm_type", row)?);
    let (heads, batch) = (c.number("num_heads", row)?, c.number("batch_size", row)?);
    Some(format!("{model},{part},{kv_dtype},{gemm},{heads},{batch}"))
}

/// The length of a prompt without anything before it.
fn whole_prompt(c: &Columns, row: usize) -> Option<u64> {
    if c.number("step", row).unwrap_or(0) > 0 { None } else { c.number("isl", row) }
}

fn grouped(c: &Columns, row: usize) -> Option<String> {
    let (kv_dtype, dim) = (c.text("kv_cache_dtype", row)?, c.number("head_dim", row)?);
    let window = c.number("window_size", row).unwrap_or(0);
    let (kv_heads, heads) = (c.number("num_key_value_heads", row)?, c.number("num_heads", row)?);
    // As many KV heads as heads are one curve over the heads, like each other number of KV heads.
    let kv_heads = if kv_heads == heads { 0 } else { kv_heads };
    Some(format!("{kv_dtype},{dim},{window},{kv_heads},{heads},{}", c.number("batch_size", row)?))
}

fn latent(c: &Columns, row: usize) -> Option<String> {
    let kv_dtype = c.text("kv_cache_dtype", row)?;
    Some(format!("{kv_dtype},{},{}", c.number("num_heads", row)?, c.number("batch_size", row)?))
}

fn module(c: &Columns, row: usize) -> Option<String> {
    let (dtype, kv_dtype) = (c.text("mla_dtype", row)?, c.text("kv_cache_dtype", row)?);
    let (gemm, heads) = (c.text("gemm_type", row)?, c.number("num_heads", row)?);
    Some(format!("{dtype},{kv_dtype},{gemm},{heads},{}", c.number("batch_size", row)?))
}

fn quantize(c: &Columns, row: usize, part: &str) -> Option<(String, u64)> {
    let (dtype, k) = (c.text("quant_dtype", row)?, c.number("k", row)?);
    Some((format!("{part},{dtype},{k}"), c.number("m", row)?))
}

fn experts(c: &Columns, row: usize) -> Option<(String, u64)> {
    let dtype = match (c.text("moe_dtype", row)?, c.text("kernel_source", row)) {
        // Two kernels go by one type name each; the second one of each has a name of its own here.
        ("w4a8_mxfp4_mxfp8", Some("sglang_mxfp4_flashinfer_trtllm_moe")) => "w4a8_mxfp4_mxfp8_trtllm",
        ("w4a16_mxfp4", Some("sglang_flashinfer_cutlass_moe")) => "w4a16_mxfp4_cutlass",
        (dtype, _) => dtype,
    };
    let distribution = c.text("distribution", row)?;
    let numbers = ["hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"];
    let mut key = format!("{dtype},{distribution}");
    for name in numbers {
        key = format!("{key},{}", c.number(name, row)?);
    }
    Some((key, c.number("num_tokens", row)?))
}
