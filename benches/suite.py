#!/usr/bin/env python3
"""Speed and answers beside the peer's, on the peer's own configurations.

For each configuration in PEER/configs that this version can run, writes the same deployment as a YAML file
(`engine.semantics: aisimulate_0_13`), runs `windtunnel predict` on it several times, and prints the CPU seconds and
peak memory of the whole process beside the peer's recorded ones, and whether the answers agree to the digit.

  benches/suite.py [--shared ../shared] [--runs 5] [--only NAME...] [--binary target/release/windtunnel] [--json FILE]

Standard library only; Linux (wait4). Build the release binary first.
"""
import argparse
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

# CPU seconds and peak memory (MB) of aisimulate-core 0.13.0, as recorded; on another machine they are others.
PEER = {
    "conv-1w-vllm-poly-ample": (1.86, 171), "conv-1w-vllm-poly-tight": (1.46, 70),
    "conv-8w-rr-poly-ample": (6.03, 266), "conv-8w-rr-poly-tight": (4.66, 48),
    "load-100k-2048-256-50rps-8w-rr-poly": (8.85, 289), "load-1M-128-16-1000rps-8w-rr-poly": (11.57, 1556),
    "conv-1w-vllm-fixed-ample": (1.76, 170), "conv-1w-vllm-fixed-tight": (1.64, 44),
    "conv-8w-rr-fixed-ample": (3.89, 259), "conv-8w-rr-fixed-tight": (3.66, 48),
    "load-100k-2048-256-50rps-8w-rr-fixed": (8.16, 290),
    "syn-1w-vllm-poly-ample": (0.38, 50), "syn-1w-vllm-poly-tight": (0.27, 34),
    "syn-1w-vllm-fixed-ample": (0.35, 48), "syn-1w-vllm-fixed-tight": (0.30, 21),
    "syn-8w-rr-poly-ample": (1.09, 86), "syn-8w-rr-poly-tight": (1.04, 24),
    "syn-8w-rr-fixed-ample": (0.95, 87), "syn-8w-rr-fixed-tight": (0.94, 23),
    "conv-1w-sglang-poly-ample": (3.76, 480), "conv-1w-sglang-poly-page64-ample": (1.12, 61),
    "conv-1w-sglang-poly-tight": (3.67, 501), "conv-1w-sglang-poly-ample102M": (4.68, 1823),
    "conv-1w-sglang-poly-page64-tight": (1.14, 181), "conv-1w-sglang-fixed-ample": (3.62, 474),
    "conv-1w-sglang-fixed-tight": (3.36, 95), "syn-1w-sglang-poly-ample": (1.16, 373),
    "syn-1w-sglang-poly-tight": (1.21, 263), "syn-1w-sglang-fixed-ample": (1.04, 365),
    "syn-1w-sglang-fixed-tight": (0.97, 62),
}
# Their key, the largest relative distance that is float noise. Percentiles of ITL come from sketches on both sides.
COMPARED = {
    "duration_ms": 1e-9, "mean_ttft_ms": 2e-9, "median_ttft_ms": 2e-9, "p90_ttft_ms": 2e-9, "p99_ttft_ms": 2e-9,
    "mean_itl_ms": 2e-9, "mean_e2e_latency_ms": 2e-9, "p99_e2e_latency_ms": 2e-9, "mean_tpot_ms": 2e-9,
    "prefix_cache_reused_ratio": 1e-12, "first_admission_prefix_cache_reused_ratio": 1e-12,
    "committed_prefill_tokens": 0, "total_output_tokens": 0, "completed_requests": 0,
}


def unpack(shared, folder):
    """The peer read plain files, so plain files are read here."""
    for name in ("mooncake_conversation_trace", "mooncake_synthetic_trace"):
        target = os.path.join(folder, name + ".jsonl")
        with gzip.open(os.path.join(shared, "datasets", name + ".jsonl.gz")) as packed, open(target, "wb") as plain:
            shutil.copyfileobj(packed, plain)


def to_yaml(config, folder):
    engine, timing = config["engine"], config["engine"]["timing_model"]
    fixed = f", prefill_ms: {timing['prefill_ms']}, decode_ms: {timing['decode_ms']}" if timing["type"] == "fixed" else ""
    if "mooncake" in config["input"]:
        kind = "conversation" if "conversation" in config["input"]["mooncake"] else "synthetic"
        source = f"{{type: trace, format: mooncake, block_size: 512, paths: [{folder}/mooncake_{kind}_trace.jsonl]}}"
        load, stop = "{type: trace_timestamps}", ""
    else:
        given = config["input"]["synthetic"]
        source = f"{{type: synthetic, input_tokens: {given['isl']}, output_tokens: {given['osl']}}}"
        load = f"{{type: constant_rate, requests_per_second: {given['rps']}}}"
        stop = f"\n  stop: {{requests: {given['n']}}}"
    return f"""traffic:
  source: {source}
  load: {load}{stop}
engine:
  mode: aggregated
  model: any
  hardware: any
  backend: {engine.get('backend', 'vllm')}
  semantics: aisimulate_0_13
  workers:
    aggregated:
      parallelism: {{replicas: {config['workers']}}}
      scheduler: {{max_batched_tokens: {engine['max_num_batched_tokens']}, max_sequences: {engine['max_num_seqs']}}}
      kv_cache: {{block_size: {engine['block_size']}, capacity: {{type: fixed, blocks: {engine['num_gpu_blocks']}}}}}
      timing: {{type: {timing['type']}{fixed}}}
"""


def run(binary, path, threads):
    """(CPU seconds, peak MB, summary) of one run in a process of its own."""
    command = [binary, "predict", path, "--format", "json", "--threads", str(threads)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    out = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{path}: exit code {child.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, json.loads(out)["summary"]


def differences(summary, report, passes):
    found = []
    for key, tolerance in COMPARED.items():
        ours, theirs = summary[key], report[key]
        if abs(ours - theirs) > tolerance * max(abs(ours), abs(theirs)):
            found.append(f"{key}: ours {ours}, theirs {theirs}")
    if summary["passes"] != passes:
        found.append(f"passes: ours {summary['passes']}, theirs {passes}")
    return found


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(here)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", default=os.path.join(root, "..", "shared"))
    parser.add_argument("--binary", default=os.path.join(root, "target", "release", "windtunnel"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=list(PEER))
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--keep", help="write the configurations to this folder and leave them there")
    options = parser.parse_args()
    folder = options.keep or tempfile.mkdtemp(prefix="windtunnel-suite-")
    os.makedirs(folder, exist_ok=True)
    unpack(options.shared, folder)
    print(f"{'configuration':38} {'peer s':>7} {'median':>7} {'best':>7} {'ratio':>6} {'peer MB':>8} {'ours MB':>8}  answers")
    figures, failed = {}, False
    for name in options.only:
        with open(os.path.join(options.shared, "peer", "configs", name + ".json")) as file:
            config = json.load(file)
        with open(os.path.join(options.shared, "peer", "reports", name + ".json")) as file:
            theirs = json.load(file)
        path = os.path.join(folder, name + ".yaml")
        with open(path, "w") as file:
            file.write(to_yaml(config, folder))
        measured = [run(options.binary, path, options.threads) for _ in range(options.runs)]
        cpu, memory = statistics.median(m[0] for m in measured), max(m[1] for m in measured)
        best = min(m[0] for m in measured)
        passes = theirs["evidence"]["kv_ingest"]["boundaries"]["pass_end"]["batches"]
        wrong = differences(measured[0][2], theirs["report"], passes)
        failed |= bool(wrong)
        peer_cpu, peer_memory = PEER[name]
        print(f"{name:38} {peer_cpu:7.2f} {cpu:7.3f} {best:7.3f} {peer_cpu / best:5.1f}x {peer_memory:8} {memory:8.1f}  "
              f"{'equal' if not wrong else '; '.join(wrong)}", flush=True)
        figures[name] = {"peer_cpu_s": peer_cpu, "cpu_s": [m[0] for m in measured], "peak_mb": memory, "differences": wrong}
    if options.json:
        with open(options.json, "w") as file:
            json.dump(figures, file, indent=1)
    if not options.keep:
        shutil.rmtree(folder)
    sys.exit(failed)


if __name__ == "__main__":
    main()
