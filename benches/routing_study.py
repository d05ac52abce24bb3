#!/usr/bin/env python3
"""Eight routing policies under three loads, on the Mooncake conversation trace: the tables of docs/studies/routing.md.

  benches/routing_study.py [--trace ../shared/datasets/mooncake_conversation_trace.jsonl.gz]
                           [--binary target/release/windtunnel] [--write docs/studies/routing.md]

Runs `windtunnel predict` once for each policy and load, and prints the tables; with --write it puts them between the two
markers of that file. Standard library only; build the release binary first. The same trace gives the same tables.
"""
import argparse
import json

import studies

POLICIES = ["round_robin", "random", "power_of_two", "least_requests", "prefix_hash", "cache_aware", "scorers", "kv_router"]
# All begin with the same 512 tokens; with them alone, all would be one to a router by beginnings.
SETTINGS = {"prefix_hash": ", prefix_blocks: 16"}
LOADS = [1, 3, 5]
BEGIN, END = "<!-- made by benches/routing_study.py -->", "<!-- end -->"

DEPLOYMENT = """\
traffic:
  source: {{type: trace, format: mooncake, block_size: 512, paths: [{trace}]}}
  load: {{type: trace_timestamps, speedup: {speedup}}}
engine:
  model: any
  hardware: any
  backend: vllm
  workers:
    aggregated:
      parallelism: {{replicas: 8}}
      kv_cache: {{block_size: 64, capacity: {{type: fixed, blocks: 16384}}}}
      timing: {{type: polynomial}}
router: {{policy: {policy}{settings}}}
"""

COLUMNS = [
    ("mean TTFT", "mean_ttft_ms", "{:,.0f}"), ("p50", "median_ttft_ms", "{:,.0f}"), ("p99", "p99_ttft_ms", "{:,.0f}"),
    ("mean ITL", "mean_itl_ms", "{:.1f}"), ("p99", "p99_itl_ms", "{:.0f}"), ("mean E2E", "mean_e2e_latency_ms", "{:,.0f}"),
]


def predict(binary, trace, policy, speedup):
    settings = SETTINGS.get(policy, "")
    config = DEPLOYMENT.format(trace=json.dumps(trace), speedup=speedup, policy=policy, settings=settings)
    return studies.predict(binary, config, f"{policy} at load {speedup}")


def table(results):
    """One row a policy. `results` are (policy, prediction)."""
    rows = ["| policy | " + " | ".join(title for title, _, _ in COLUMNS) + " | reuse | busiest / idlest worker |"]
    rows.append("|---" * (len(COLUMNS) + 3) + "|")
    for policy, prediction in results:
        summary = prediction["summary"]
        cells = [form.format(summary[key]) for _, key, form in COLUMNS]
        cells.append("{:.1f} %".format(100 * summary["prefix_cache_reused_ratio"]))
        prefill = [worker["prefill_tokens"] for worker in prediction["workers"]]
        cells.append("{:.2f}".format(max(prefill) / min(prefill)) if min(prefill) else "one idle")
        rows.append(f"| `{policy}` | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", default="../shared/datasets/mooncake_conversation_trace.jsonl.gz")
    parser.add_argument("--binary", default="target/release/windtunnel")
    parser.add_argument("--write", metavar="FILE")
    args = parser.parse_args()
    parts = []
    for load in LOADS:
        results = [(policy, predict(args.binary, args.trace, policy, load)) for policy in POLICIES]
        requests = results[0][1]["summary"]["num_requests"]
        seconds = results[0][1]["summary"]["duration_ms"] / 1000
        title = "The trace's own pace" if load == 1 else f"{load} times that pace"
        parts.append(f"### {title}: {requests / seconds:.1f} requests a second\n\n{table(results)}\n")
    studies.publish("\n".join(parts), BEGIN, END, args.write)


if __name__ == "__main__":
    main()
