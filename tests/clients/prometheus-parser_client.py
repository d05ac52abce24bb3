"""The parser of Prometheus' Python client on /metrics of mock workers: every line is read, types are as declared,
buckets and counters only grow, and what is counted is what was asked.

    python prometheus-parser_client.py path/to/windtunnel
"""

import sys

from prometheus_client.parser import text_string_to_metric_families
from workers import Mocker, check, get, post

CASES = [
    ("vllm", [], "vllm:", "vllm:generation_tokens", "vllm:time_to_first_token_seconds"),
    ("sglang", ["--enable-metrics"], "sglang:", "sglang:generation_tokens", "sglang:time_to_first_token_seconds"),
    ("trtllm", [], "trtllm_", "trtllm_generation_tokens", "trtllm_time_to_first_token_seconds"),
]


def scrape(url):
    families = {}
    for family in text_string_to_metric_families(get(f"{url}/metrics")):
        check(family.name not in families, f"{family.name} is there twice")
        families[family.name] = family
    return families


def check_histograms(families):
    for family in families.values():
        if family.type != "histogram":
            continue
        series = {}
        for sample in family.samples:
            labels = tuple(sorted((key, value) for key, value in sample.labels.items() if key != "le"))
            if sample.name.endswith("_bucket"):
                series.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
        counts = {
            tuple(sorted(sample.labels.items())): sample.value
            for sample in family.samples
            if sample.name.endswith("_count")
        }
        check(series.keys() == counts.keys(), f"{family.name}: buckets and counts differ")
        for labels, buckets in series.items():
            check(buckets == sorted(buckets), f"{family.name}: buckets are not in order")
            check(buckets[-1] == (float("inf"), counts[labels]), f"{family.name}: +Inf is not the count")


def main(binary):
    for engine, flags, prefix, tokens, ttft in CASES:
        with Mocker(binary, "--engine", engine, "--speedup-ratio", "0", *flags) as mocker:
            url = mocker.urls[0]
            before = scrape(url)
            body = {"model": "mock", "prompt": "one two three", "max_tokens": 20, "ignore_eos": True}
            for _ in range(5):
                status, answer = post(f"{url}/v1/completions", body)
                check(status == 200, f"{engine}: {status} {answer}")
            after = scrape(url)
            check(before.keys() <= after.keys(), f"{engine}: series have gone")
            check_histograms(after)
            own = [family for name, family in after.items() if name.startswith(prefix)]
            check(all(family.documentation for family in own), f"{engine}: a metric has no help")
            total = sum(s.value for s in after[tokens].samples if s.name.endswith("_total"))
            check(total == 100, f"{engine}: {total} tokens, expected 100")
            first = sum(s.value for s in after[ttft].samples if s.name.endswith("_count"))
            check(first == 5, f"{engine}: {first} first tokens, expected 5")
            print(f"prometheus_client {engine}: {len(own)} metrics read, {total:.0f} tokens, {first:.0f} first tokens")


if __name__ == "__main__":
    main(sys.argv[1])
