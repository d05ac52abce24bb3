"""vllm-router against mock workers of vLLM: it finds prefixes by our KV events, and hands KV from prefill to decode.

    python vllm-router_client.py path/to/windtunnel
"""

import sys
import time

from workers import Mocker, Process, check, events, free_port, get, metric, post


def router(*arguments):
    port, metrics = free_port(), free_port()
    process = Process(
        ["vllm-router", "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics), *arguments]
    )
    return process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics}/metrics"


def words(first, count=200):
    return " ".join(f"w{first + i}" for i in range(count))


def kv_aware(binary):
    ports = free_port()
    config = f'{{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:{ports}"}}'
    flags = ["--num-workers", "2", "--block-size", "16", "--speedup-ratio", "0", "--kv-events-config", config]
    with Mocker(binary, *flags, workers=2) as workers:
        sources = []
        for number, url in enumerate(workers.urls):
            sources += ["--kv-event-source", f"{url}=tcp://127.0.0.1:{ports + number}"]
        process, url, metrics = router(
            "--worker-urls", *workers.urls, "--policy", "kv_aware", *sources,
            "--kv-event-block-size", "16", "--kv-event-model", "mock",
        )
        with process:
            process.wait(lambda: get(f"{url}/health") is not None)
            time.sleep(2)
            cached = []
            for turn in range(3):
                for prompt in range(3):
                    body = {"model": "mock", "prompt": words(1000 * prompt), "max_tokens": 4}
                    status, answer = post(f"{url}/v1/completions", body)
                    check(status == 200, f"kv_aware: {status} {answer}")
                    cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
                # Events are on their way.
                time.sleep(0.5)
            check(cached[:3] == [0, 0, 0] and min(cached[3:]) > 0, f"kv_aware: cached tokens {cached}")
            text = get(metrics)
            hits = metric(text, "vllm_router_kv_placement_lookups_total", result="hit")
            misses = metric(text, "vllm_router_kv_placement_lookups_total", result="miss")
            check((hits, misses) == (6, 3), f"kv_aware: {hits} hits and {misses} misses, expected 6 and 3")
    print(f"vllm-router kv_aware: {hits:.0f} hits, {misses:.0f} misses; cached tokens {cached}")


def prefill_decode(binary):
    role = '{{"kv_connector": "NixlConnector", "kv_role": "kv_{}"}}'
    flags = ["--block-size", "16", "--speedup-ratio", "0", "--kv-transfer-config"]
    with (
        Mocker(binary, *flags, role.format("producer")) as prefill,
        Mocker(binary, *flags, role.format("consumer")) as decode,
    ):
        process, url, _ = router(
            "--vllm-pd-disaggregation", "--prefill", prefill.urls[0], "--decode", decode.urls[0],
            "--kv-connector", "nixl",
        )
        with process:
            process.wait(lambda: get(f"{url}/health") is not None)
            body = {"model": "mock", "messages": [{"role": "user", "content": words(0)}], "max_tokens": 8,
                    "ignore_eos": True}
            status, answer = post(f"{url}/v1/chat/completions", body)
            check(status == 200, f"nixl: {status} {answer}")
            check(answer["usage"]["completion_tokens"] == 8, f"nixl: {answer['usage']}")
            prompt = answer["usage"]["prompt_tokens"]
            streamed = events(f"{url}/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
            usage = streamed[-1]["usage"]
            check(usage["completion_tokens"] == 8, f"nixl: {usage}")
            # The second prompt is the first again: the prefill worker has it, and says so.
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            check(cached == (prompt - 1) // 16 * 16, f"nixl: {cached} of {prompt} tokens cached")
            text = get(f"{decode.urls[0]}/metrics")
            loaded = metric(text, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
            check(loaded > prompt, f"nixl: {loaded} tokens were read, of prompts of {prompt}")
            end = time.monotonic() + 10
            while time.monotonic() < end:
                held = metric(get(f"{prefill.urls[0]}/metrics"), "vllm:kv_cache_usage_perc")
                if held == 0:
                    break
                time.sleep(0.1)
            check(held == 0, f"nixl: the prefill worker still holds {held}")
    print(f"vllm-router nixl: {loaded:.0f} of {2 * prompt} prompt tokens were read, {cached} cached")


if __name__ == "__main__":
    kv_aware(sys.argv[1])
    prefill_decode(sys.argv[1])
