#!/usr/bin/env python3
"""Fixed numbers of workers against the HPA rule and Dynamo's planner, on the Azure traces of conversations and of code
completion: the tables of docs/studies/autoscaling.md.

  benches/autoscaling_study.py [--traces CONVERSATIONS CODE] [--limit REQUESTS] [--binary target/release/windtunnel]
                               [--write docs/studies/autoscaling.md]

Runs `windtunnel predict` once for each trace, start-up time and rule, and prints the tables; with --write it puts them
between the two markers of that file. A trace is a CSV of Azure's data set (TIMESTAMP, ContextTokens, GeneratedTokens), or
JSON lines as Mooncake's. Standard library only; build the release binary first. The same traces give the same tables.
"""
import argparse
import csv
import datetime
import gzip
import json
import os
import tempfile

import studies

TITLES = ["Conversations", "Code completion"]
TRACES = [f"../shared/datasets/AzureLLMInferenceTrace_{name}.csv.gz" for name in ("conv", "code")]
STARTUPS = [20, 120]
MOST = 16
TTFT_MS, ITL_MS = 1000, 40
PRICE = 3.0
BEGIN, END = "<!-- made by benches/autoscaling_study.py -->", "<!-- end -->"

DEPLOYMENT = """\
traffic:
  source: {{type: trace, format: mooncake, block_size: 512, paths: [{trace}]}}
  load: {{type: trace_timestamps}}
engine:
  model: meta-llama/Meta-Llama-3.1-70B
  hardware: h200_sxm
  backend: vllm
  workers:
    aggregated:
      startup_seconds: {startup}
      parallelism: {{replicas: {replicas}, tensor: 2}}
      kv_cache: {{block_size: 16}}
      timing: {{type: default}}
router: {{policy: least_requests}}
planner: {planner}
evaluation: {{sla: {{ttft_ms: {ttft}, itl_ms: {itl}}}, price_per_gpu_hour: {price}}}
"""

HPA = "{{policy: hpa, metric: {metric}, target_value: {target}, interval_seconds: 15, window_seconds: 30, " \
      "scale_down_stabilization_seconds: {down}, min_workers: 1, max_workers: %d}}" % MOST
SLA = "{{policy: enabled, target: sla, load_predictor: constant, enable_throughput_scaling: {plan}, " \
      "enable_load_scaling: {look}, throughput_adjustment_interval_seconds: 60, max_num_gpus: %d}}" % (2 * MOST)

# Name, workers at the start, planner.
RULES = [(f"{count} workers", count, "{policy: disabled}") for count in (2, 4, 8, 16)] + [
    ("HPA, 4 unfinished requests a worker, 300 s", 2, HPA.format(metric="requests", target=4, down=300)),
    ("HPA, 4 unfinished requests a worker, 60 s", 2, HPA.format(metric="requests", target=4, down=60)),
    ("HPA, mean TTFT of 500 ms, 300 s", 2, HPA.format(metric="ttft_ms", target=500, down=300)),
    ("SLA, by demand", 2, SLA.format(plan="true", look="false")),
    ("SLA, by load", 2, SLA.format(plan="false", look="true")),
    ("SLA, by both", 2, SLA.format(plan="true", look="true")),
]


def rows(path, limit):
    """The requests of a trace as Mooncake's."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        if ".jsonl" in path:
            for number, line in enumerate(file):
                if limit is None or number < limit:
                    yield json.loads(line)
            return
        start, block = None, 0
        for number, row in enumerate(csv.DictReader(file)):
            if limit is not None and number >= limit:
                return
            time = datetime.datetime.fromisoformat(row["TIMESTAMP"][:26])
            start = start or time
            tokens = int(row["ContextTokens"])
            blocks = -(-tokens // 512)
            # Nothing is known of what prompts have in common.
            yield {
                "timestamp": (time - start) // datetime.timedelta(milliseconds=1), "input_length": tokens,
                "output_length": max(1, int(row["GeneratedTokens"])), "hash_ids": list(range(block, block + blocks)),
            }
            block += blocks


def predict(binary, trace, startup, replicas, planner):
    config = DEPLOYMENT.format(
        trace=json.dumps(trace), startup=startup, replicas=replicas, planner=planner, ttft=TTFT_MS, itl=ITL_MS, price=PRICE,
    )
    return studies.predict(binary, config, planner)


def table(results):
    """One row a rule. `results` are (rule, prediction)."""
    lines = ["| rule | good requests | median TTFT (ms) | p99 | workers, mean | most | up / down | GPU hours | per 1000 good |"]
    lines.append("|---" * 9 + "|")
    for rule, prediction in results:
        summary = prediction["summary"]
        good, number = summary["goodput_completed_requests"], summary["num_requests"]
        workers = summary["gpu_hours"] * 3600 / summary["decode_gpus_per_worker"] / (summary["duration_ms"] / 1000)
        scaled = "–"
        if "scale_ups" in summary:
            scaled = "{} / {}".format(summary["scale_ups"], summary["scale_downs"])
        most = summary.get("peak_workers", round(workers))
        cost = "${:.2f}".format(summary["cost"] / good * 1000) if good else "–"
        lines.append(
            f"| {rule} | {100 * good / number:.1f} % | {summary['median_ttft_ms']:,.0f} | {summary['p99_ttft_ms']:,.0f} | "
            f"{workers:.1f} | {most} | {scaled} | {summary['gpu_hours']:.1f} | {cost} |"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", nargs=2, default=TRACES)
    parser.add_argument("--binary", default="target/release/windtunnel")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--write", metavar="FILE")
    args = parser.parse_args()
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace.jsonl")
        for title, path in zip(TITLES, args.traces):
            with open(trace, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows(path, args.limit))
            for startup in STARTUPS:
                results = [(rule, predict(args.binary, trace, startup, count, planner)) for rule, count, planner in RULES]
                parts.append(f"### {title}, a worker starts in {startup} s\n\n{table(results)}\n")
    studies.publish("\n".join(parts), BEGIN, END, args.write)


if __name__ == "__main__":
    main()
