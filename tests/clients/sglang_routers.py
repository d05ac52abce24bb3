"""What sglang-router and its successor smg have in common: mock workers of SGLang behind them."""

import json
import time

from workers import Mocker, Process, check, events, free_port, get, metric, post

MODEL = "mock"


def words(first, count=120):
    return " ".join(f"w{first + i}" for i in range(count))


def router(command, *arguments):
    port = free_port()
    process = Process(
        [*command, "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port()), *arguments]
    )
    return process, f"http://127.0.0.1:{port}"


def chat(url, text, **more):
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 8, "ignore_eos": True}
    return {**body, **more}


def ready(process, url, workers):
    """Waits until the router has all workers, and one request has come back."""

    def answers():
        status, _ = post(f"{url}/v1/chat/completions", chat(url, "are you there"))
        return status == 200

    process.wait(answers)
    return workers


def aggregated(name, command, binary):
    """cache_aware: what begins alike goes to the same worker, and is found in its cache; all endpoints answer."""
    flags = ["--engine", "sglang", "--num-workers", "2", "--speedup-ratio", "0", "--enable-metrics"]
    with Mocker(binary, *flags, workers=2) as workers:
        process, url = router(command, "--worker-urls", *workers.urls, "--policy", "cache_aware")
        with process:
            ready(process, url, workers)
            cached = []
            for _ in range(3):
                for prompt in range(4):
                    status, answer = post(f"{url}/v1/chat/completions", chat(url, words(1000 * prompt)))
                    check(status == 200, f"{name}: {status} {answer}")
                    check(answer["usage"]["completion_tokens"] == 8, f"{name}: {answer['usage']}")
                    cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
            check(min(cached[4:]) > 100, f"{name}: cached tokens {cached}")
            streamed = events(
                f"{url}/v1/chat/completions", chat(url, words(0), stream_options={"include_usage": True})
            )
            check(streamed[-1]["usage"]["completion_tokens"] == 8, f"{name}: {streamed[-1]}")
            status, answer = post(
                f"{url}/generate", {"text": words(0), "sampling_params": {"max_new_tokens": 5, "ignore_eos": True}}
            )
            check(status == 200 and answer["meta_info"]["completion_tokens"] == 5, f"{name}: {status} {answer}")
            served = [
                metric(get(f"{worker}/metrics"), "sglang:num_requests_total") for worker in workers.urls
            ]
            check(sum(served) >= 14, f"{name}: the workers served {served}")
    print(f"{name} cache_aware: {sum(served):.0f} requests, cached tokens of repeats {cached[4:]}")


def prefill_decode(name, command, binary):
    """Prefill and decode apart: the router draws a room for each request, where our two workers meet."""
    flags = ["--engine", "sglang", "--block-size", "16", "--enable-metrics", "--speedup-ratio", "0"]
    with (
        Mocker(binary, *flags, "--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", "0") as prefill,
        Mocker(binary, *flags, "--disaggregation-mode", "decode") as decode,
    ):
        port = json.loads(get(f"{prefill.urls[0]}/server_info"))["disaggregation_bootstrap_port"]
        process, url = router(
            command, "--pd-disaggregation", "--prefill", prefill.urls[0], str(port), "--decode", decode.urls[0]
        )
        with process:
            ready(process, url, None)
            status, answer = post(f"{url}/v1/chat/completions", chat(url, words(0)))
            check(status == 200, f"{name} pd: {status} {answer}")
            check(answer["usage"]["completion_tokens"] == 8, f"{name} pd: {answer['usage']}")
            prompt = answer["usage"]["prompt_tokens"]
            streamed = events(
                f"{url}/v1/chat/completions", chat(url, words(0), stream_options={"include_usage": True})
            )
            usage = streamed[-1]["usage"]
            check(usage["completion_tokens"] == 8, f"{name} pd: {usage}")
            # The prompt is there again: the prefill worker has it, in whole pages and all but one token.
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            check(cached == (prompt - 1) // 16 * 16, f"{name} pd: {cached} of {prompt} tokens cached")
            status, answer = post(
                f"{url}/generate", {"text": words(0), "sampling_params": {"max_new_tokens": 5, "ignore_eos": True}}
            )
            check(status == 200 and answer["meta_info"]["completion_tokens"] == 5, f"{name} pd: {status} {answer}")
            # Several prompts have several rooms.
            texts = {"model": MODEL, "prompt": [words(0), words(500)], "max_tokens": 3, "ignore_eos": True}
            status, answer = post(f"{url}/v1/completions", texts)
            check(status == 200 and len(answer["choices"]) == 2, f"{name} pd: {status} {answer}")
            given = {}
            for worker, role, urls in ((prefill, "prefill", prefill.urls), (decode, "decode", decode.urls)):
                end = time.monotonic() + 10
                while time.monotonic() < end:
                    text = get(f"{urls[0]}/metrics")
                    if metric(text, "sglang:num_used_tokens", engine_type=role) == 0:
                        break
                    time.sleep(0.1)
                given[role] = metric(text, "sglang:generation_tokens_total", engine_type=role)
                used = metric(text, "sglang:num_used_tokens", engine_type=role)
                check(used == 0, f"{name} pd: the {role} worker still holds {used} tokens")
            # 8, 8, 5, 3 and 3 tokens, of which the prefill worker sampled the first ones; and those of the first request.
            requests = metric(get(f"{prefill.urls[0]}/metrics"), "sglang:num_requests_total")
            check(requests >= 6 and given["prefill"] == requests, f"{name} pd: {given}, {requests} requests")
            check(given["decode"] >= 27 + 8, f"{name} pd: {given}")
    print(f"{name} pd: {requests:.0f} requests, {given['decode']:.0f} tokens, {cached} of {prompt} cached")
