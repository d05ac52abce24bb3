"""A Prometheus server that scrapes mock workers of vLLM and SGLang: what it is asked for is what the requests were.

    python prometheus-server_client.py path/to/windtunnel
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

from workers import Mocker, Process, check, free_port, get, post

# A prompt takes 120 ms, a token 20 ms.
TIMING = "engine.workers.aggregated.timing={type: fixed, prefill_ms: 120, decode_ms: 20}"
REQUESTS = 6
TOKENS = 10

CONFIG = """
global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}
scrape_configs:
  - job_name: vllm
    static_configs: [{{targets: ["{vllm}"]}}]
  - job_name: sglang
    static_configs: [{{targets: ["{sglang}"]}}]
"""


def ask(url, tokens):
    body = {"model": "mock", "prompt": "one two three", "max_tokens": tokens, "ignore_eos": True}
    status, answer = post(f"{url}/v1/completions", body)
    check(status == 200, f"{status} {answer}")


class Prometheus(Process):
    def __init__(self, folder, vllm, sglang):
        config = os.path.join(folder, "prometheus.yml")
        with open(config, "w") as file:
            file.write(CONFIG.format(vllm=vllm, sglang=sglang))
        address = f"127.0.0.1:{free_port()}"
        super().__init__([
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={address}",
        ])
        self.url = f"http://{address}/api/v1"
        self.wait(lambda: get(f"http://{address}/-/ready"))

    def query(self, expression):
        """The values of a query, by job."""
        answer = json.loads(get(f"{self.url}/query?{urllib.parse.urlencode({'query': expression})}"))
        check(answer["status"] == "success", f"{expression}: {answer}")
        return {one["metric"].get("job"): float(one["value"][1]) for one in answer["data"]["result"]}

    def expect(self, expression, expected):
        """Waits until a query has this answer: the next scrape may be yet to come."""
        self.wait(lambda: self.query(expression) == expected or self.told(expression, expected), 20)

    def told(self, expression, expected):
        self.last = f"{expression}: {self.query(expression)}, expected {expected}"
        return False


def main(binary):
    with (
        Mocker(binary, "--set", TIMING) as vllm,
        Mocker(binary, "--engine", "sglang", "--enable-metrics", "--set", TIMING) as sglang,
        tempfile.TemporaryDirectory() as folder,
    ):
        urls = {"vllm": vllm.urls[0], "sglang": sglang.urls[0]}
        hosts = {job: url.removeprefix("http://") for job, url in urls.items()}
        with Prometheus(folder, **hosts) as prometheus:
            prometheus.expect("up", {"vllm": 1.0, "sglang": 1.0})
            for _ in range(REQUESTS):
                for url in urls.values():
                    ask(url, TOKENS)
            for job in urls:
                prometheus.expect(f"{job}:generation_tokens_total > 0", {job: float(REQUESTS * TOKENS)})
            # All first tokens come after 120 ms: in vLLM's bucket from 100 to 250 ms, in SGLang's from 100 to 200 ms, whose
            # middle is the median.
            for job, middle in [("vllm", 0.175), ("sglang", 0.15)]:
                buckets = f"sum by (le, job) ({job}:time_to_first_token_seconds_bucket)"
                median = prometheus.query(f"histogram_quantile(0.5, {buckets})")
                check(abs(median.get(job, 0) - middle) < 1e-9, f"{job}: the median is {median}, expected {middle}")
            # One stream: 50 tokens a second.
            streams = [threading.Thread(target=ask, args=(url, 400)) for url in urls.values()]
            for stream in streams:
                stream.start()
            time.sleep(6)
            rates = {
                "vllm": prometheus.query("rate(vllm:generation_tokens_total[4s])"),
                "sglang": prometheus.query('rate(sglang:realtime_tokens_total{mode="decode"}[4s])'),
            }
            for job, rate in rates.items():
                check(45 < rate.get(job, 0) < 55, f"{job}: {rate} tokens a second, expected 50")
            for stream in streams:
                stream.join()
            targets = json.loads(get(f"{prometheus.url}/targets"))["data"]["activeTargets"]
            errors = [target["lastError"] for target in targets if target["lastError"]]
            check(len(targets) == 2 and not errors, f"targets: {errors or targets}")
            print(f"prometheus: medians 0.175 and 0.15 s, {rates} tokens a second")
        for job, url in urls.items():
            linted = subprocess.run(
                ["promtool", "check", "metrics"], input=get(f"{url}/metrics"), text=True, capture_output=True
            )
            # 3: it reads all of it, and has opinions on names.
            check(linted.returncode in (0, 3), f"promtool, {job}: {linted.stderr}")


if __name__ == "__main__":
    main(sys.argv[1])
