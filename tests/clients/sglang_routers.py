"""What sglang-router and its successor smg have in common: mock workers of SGLang behind them."""

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
