"""Dynamo's frontend with its KV router over two mock workers of vLLM: repeated prompts are routed by our KV events.

    python dynamo_client.py path/to/windtunnel
"""

import os
import sys
import tempfile
import time

import model_folder
from workers import Mocker, Process, check, events, free_port, get, metric, post

BLOCK = 16
NAME = "tiny"


def environment(folder):
    loopback = "127.0.0.1"
    return {
        "DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": f"{folder}/kv", "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq", "HF_HUB_OFFLINE": "1", "DYN_TCP_RPC_HOST": loopback,
        "DYN_TCP_RESPONSE_STREAM_HOST": "lo", "DYN_EVENT_PLANE_HOST": loopback, "DYN_SYSTEM_HOST": loopback,
        "DYN_LOG": "warn",
    }


def chat(words, **more):
    body = {"model": NAME, "messages": [{"role": "user", "content": words}], "max_tokens": 8}
    return {**body, **more}


def main(binary, folder):
    model_folder.write(f"{folder}/model")
    settings = environment(folder)
    zmq = free_port()
    config = f'{{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:{zmq}"}}'
    flags = ["--num-workers", "2", "--block-size", str(BLOCK), "--speedup-ratio", "0", "--kv-events-config", config]
    here = os.path.dirname(os.path.abspath(__file__))
    with Mocker(binary, *flags, workers=2) as mockers:
        adapters = [
            Process(
                [sys.executable, f"{here}/dynamo_worker.py", url, f"tcp://127.0.0.1:{zmq + number}",
                 f"{folder}/model", NAME, str(BLOCK)],
                **settings,
            )
            for number, url in enumerate(mockers.urls)
        ]
        port = free_port()
        frontend = Process(
            [sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port),
             "--router-mode", "kv"],
            **settings,
        )
        with adapters[0], adapters[1], frontend:
            for adapter in adapters:
                adapter.wait(lambda adapter=adapter: "registered" in adapter.said(), 120)
            url = f"http://127.0.0.1:{port}"
            frontend.wait(lambda: NAME in get(f"{url}/v1/models"), 120)
            frontend.wait(lambda: post(f"{url}/v1/chat/completions", chat("are you there"))[0] == 200, 60)
            time.sleep(2)
            prompts = [f"number {number}: " + "the old sea and the red sun " * 40 for number in range(4)]
            for turn in range(3):
                for prompt in prompts:
                    status, answer = post(f"{url}/v1/chat/completions", chat(prompt))
                    check(status == 200, f"{status} {answer}")
                    check(answer["usage"]["completion_tokens"] == 8, f"{answer['usage']}")
                # Events are on their way.
                time.sleep(1)
            streamed = events(f"{url}/v1/chat/completions", chat(prompts[0], stream_options={"include_usage": True}))
            check(streamed[-1]["usage"]["completion_tokens"] == 8, f"{streamed[-1]}")
            text = get(f"{url}/metrics")
            applied = metric(text, "dynamo_component_kv_cache_events_applied", event_type="stored", status="ok")
            hit_rate = metric(text, "dynamo_component_router_kv_hit_rate_sum")
            requests = metric(text, "dynamo_component_router_kv_hit_rate_count")
            check(applied >= 4, f"{applied} stored events were applied:\n" + text[-3000:])
            check(hit_rate > 6, f"the hit rates of {requests} requests are {hit_rate} together; 9 prompts came again")
            hits = sum(
                metric(get(f"{worker}/metrics"), "vllm:prefix_cache_hits_total") for worker in mockers.urls
            )
            check(hits > 0, "the workers have found nothing in their caches")
    print(
        f"dynamo 1.6.1 kv router: {applied:.0f} stored events applied, hit rates {hit_rate:.2f} over {requests:.0f} "
        f"requests, {hits:.0f} prompt tokens found"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1], folder)
