#!/usr/bin/env python3
"""Asks aiconfigurator-core for pass times, to compare ours with.

    python3 -m venv venv && venv/bin/pip install aiconfigurator-core==0.12.0
    venv/bin/python tools/perf/upstream.py > crates/perf/tests/upstream.jsonl
    venv/bin/python tools/perf/upstream.py --sparse > crates/perf/tests/upstream_sparse.jsonl

Each line is a deployment with its prefill and decode passes: batch, tokens (of decodes: context), tokens in
the cache before them, milliseconds. The package is Apache-2.0; only its answers are kept.
"""

import argparse
import json
import sys

from aiconfigurator_core import AicEngine
from aiconfigurator_core.sdk.engine import compile_engine

LLAMA, LLAMA70 = "meta-llama/Meta-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-70B"
QWEN, QWEN_MOE = "Qwen/Qwen3-32B", "Qwen/Qwen3-235B-A22B"
# model, accelerator, engine, version, (tensor, attention data, expert tensor, expert parallel),
# (products, experts, KV cache, attention)
BF16 = ("bfloat16", "bfloat16", "bfloat16", "bfloat16")
FP8 = ("fp8", "fp8", "bfloat16", "bfloat16")
CASES = [
    (LLAMA, "h200_sxm", "vllm", "0.24.0", (1, 1, 1, 1), BF16),
    (LLAMA, "a100_sxm", "vllm", "0.14.0", (1, 1, 1, 1), BF16),
    (LLAMA, "l40s", "vllm", "0.24.0", (1, 1, 1, 1), BF16),
    (LLAMA, "rtx_pro_6000_server", "vllm", "0.24.0", (1, 1, 1, 1), BF16),
    (LLAMA, "h100_sxm", "trtllm", "1.3.0rc20", (2, 1, 1, 2), BF16),
    (QWEN, "h100_sxm", "sglang", "0.5.14", (2, 1, 1, 2), BF16),
    (QWEN, "gb200", "trtllm", "1.3.0rc20", (2, 1, 1, 2), BF16),
    (LLAMA70, "h200_sxm", "vllm", "0.24.0", (4, 1, 1, 4), BF16),
    (LLAMA70, "h100_sxm", "vllm", "0.24.0", (4, 1, 1, 4), FP8),
    (LLAMA70, "b200_sxm", "trtllm", "1.3.0rc20", (8, 1, 1, 8), FP8),
    (LLAMA70, "h200_sxm", "trtllm", "1.3.0rc20", (4, 1, 1, 4), BF16),
    (QWEN_MOE, "h200_sxm", "vllm", "0.24.0", (8, 1, 8, 1), BF16),
    (QWEN_MOE, "b200_sxm", "sglang", "0.5.14", (4, 1, 1, 4), BF16),
    (QWEN_MOE, "h100_sxm", "trtllm", "1.3.0rc20", (8, 1, 1, 8), FP8),
    ("deepseek-ai/DeepSeek-V3", "h200_sxm", "trtllm", "1.3.0rc20", (8, 1, 1, 8), ("fp8_block", "fp8_block", "bfloat16", "bfloat16")),
    ("deepseek-ai/DeepSeek-V3", "b200_sxm", "trtllm", "1.3.0rc20", (8, 1, 1, 8), ("fp8_block", "fp8_block", "fp8", "bfloat16")),
    ("deepseek-ai/DeepSeek-V3", "h200_sxm", "sglang", "0.5.14", (8, 1, 1, 8), ("fp8_block", "fp8_block", "bfloat16", "bfloat16")),
    ("deepseek-ai/DeepSeek-V3", "b200_sxm", "sglang", "0.5.14", (8, 1, 8, 1), ("fp8_block", "fp8_block", "fp8", "bfloat16")),
]
# Models with sparse attention.
SPARSE = [
    ("zai-org/GLM-5-FP8", "h200_sxm", "sglang", "0.5.14", (8, 1, 8, 1), ("fp8_block", "fp8_block", "bfloat16", "bfloat16")),
    ("zai-org/GLM-5-FP8", "b200_sxm", "sglang", "0.5.14", (8, 1, 8, 1), ("fp8_block", "fp8_block", "fp8", "bfloat16")),
    ("deepseek-ai/DeepSeek-V3.2", "h200_sxm", "vllm", "0.24.0", (8, 1, 8, 1), ("fp8_block", "fp8_block", "bfloat16", "bfloat16")),
    ("deepseek-ai/DeepSeek-V3.2", "b200_sxm", "trtllm", "1.3.0rc20", (8, 1, 1, 8), ("fp8_block", "fp8_block", "fp8", "bfloat16")),
]
PREFILLS = [(1, 512, 0), (1, 2048, 0), (4, 2048, 0), (1, 8192, 0), (1, 2048, 6144)]
DECODES = [(1, 512), (8, 1024), (32, 2048), (64, 4096), (256, 2048)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", action="store_true", help="also the time of each operation of one pass")
    parser.add_argument("--sparse", action="store_true", help="the models with sparse attention")
    arguments = parser.parse_args()
    cases = SPARSE if arguments.sparse else CASES
    for model, system, backend, version, (tp, dp, moe_tp, moe_ep), (gemm, moe, kv, fmha) in cases:
        try:
            engine = AicEngine.from_spec(
                compile_engine(
                    model, system, backend, version, tp_size=tp, attention_dp_size=dp, moe_tp_size=moe_tp,
                    moe_ep_size=moe_ep, gemm_quant_mode=gemm, moe_quant_mode=moe, kvcache_quant_mode=kv,
                    fmha_quant_mode=fmha,
                )
            )
            prefill = [[b, s, p, round(engine.predict_prefill_latency(b, s + p, p), 4)] for b, s, p in PREFILLS]
            decode = [[b, s, round(engine.predict_decode_latency(b, s - 1, 2), 4)] for b, s in DECODES]
        except Exception as error:
            print(f"{model} {system} {backend}: {error}", file=sys.stderr)
            continue
        line = {
            "model": model, "system": system, "backend": backend, "version": version, "tensor": tp,
            "attention_data": dp, "moe_tensor": moe_tp, "moe_expert": moe_ep, "gemm": gemm, "experts": moe,
            "kv": kv, "prefill": prefill, "decode": decode,
        }
        if arguments.operations:
            context, generation = engine.run_static_per_op(32, 1, 2047, 2, 0, 1.0, 1.0)
            line["operations"] = {name: ms for name, ms, *_ in list(context) + list(generation)}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
