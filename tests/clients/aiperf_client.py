"""aiperf against a mock worker of vLLM: a load of streams, all answered, with the latencies that were simulated.

    python aiperf_client.py path/to/windtunnel
"""

import glob
import json
import os
import subprocess
import sys
import tempfile

import model_folder
from workers import Mocker, check, get, metric

REQUESTS = 40
TOKENS = 20
TIMING = "engine.workers.aggregated.timing={type: fixed, prefill_ms: 50, decode_ms: 20}"


def main(binary, folder):
    model_folder.write(f"{folder}/model")
    with Mocker(binary, "--served-model-name", "tiny", "--set", TIMING) as mocker:
        command = [
            "aiperf", "profile", "--model", "tiny", "--url", mocker.urls[0], "--endpoint-type", "chat", "--streaming",
            "--request-count", str(REQUESTS), "--concurrency", "4", "--synthetic-input-tokens-mean", "100",
            "--synthetic-input-tokens-stddev", "0", "--output-tokens-mean", str(TOKENS), "--output-tokens-stddev", "0",
            "--extra-inputs", "ignore_eos:true", "--tokenizer", f"{folder}/model", "--use-server-token-count",
            "--artifact-dir", f"{folder}/artifacts", "--ui", "none", "--random-seed", "1",
        ]
        environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        check(done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        found = glob.glob(f"{folder}/artifacts/**/profile_export_aiperf.json", recursive=True)
        check(found, f"there is no report:\n{done.stdout[-2000:]}")
        with open(found[0]) as file:
            report = json.load(file)
        served = metric(get(f"{mocker.urls[0]}/metrics"), "vllm:generation_tokens_total")
    requests = report["request_count"]["avg"]
    check(requests == REQUESTS, f"{requests} requests, expected {REQUESTS}")
    errors = report.get("error_summary") or []
    check(not errors, f"errors: {errors}")
    length = report["output_sequence_length"]
    check((length["min"], length["max"]) == (TOKENS, TOKENS), f"output lengths: {length}")
    check(served >= REQUESTS * TOKENS, f"the worker gave {served} tokens")
    # A gap is a pass of 20 ms, or one with a prefill of another, 70 ms; no client sees less.
    gap = report["inter_token_latency"]["avg"]
    check(19 < gap < 40, f"mean gap {gap} ms")
    print(f"aiperf: {requests:.0f} requests of {TOKENS} tokens, no error, mean gap {gap:.2f} ms")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1], folder)
