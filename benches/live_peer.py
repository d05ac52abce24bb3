"""Live mock workers beside Dynamo's: the same streams against `windtunnel serve` and against Dynamo's frontend with its mocker,
one after the other. Tells requests a second, CPU time and memory of each side's servers.

    tests/clients/run dynamo      installs Dynamo 1.6.1 once, below target/clients/dynamo
    target/clients/dynamo/bin/python benches/live_peer.py target/release/windtunnel [REQUESTS] [CONCURRENCY] [TOKENS]

Both have two vLLM workers of 16384 blocks of 64 tokens behind a KV router, the reference's polynomial timing, and passes a
thousand times as fast as that, so that what is measured is the servers. The client is this script, on the same cores.
"""

import asyncio
import json
import os
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "clients"))

import dynamo_client  # noqa: E402
import model_folder  # noqa: E402
from workers import Process, check, free_port, get, post  # noqa: E402

SPEED = "1000"


def tree(pid):
    """A process and all below it."""
    children = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(name))
    found, left = [], [pid]
    while left:
        one = left.pop()
        found.append(one)
        left += children.get(one, [])
    return found


def cost(processes):
    """CPU seconds and peak memory in MiB of processes and all below them."""
    seconds, memory = 0.0, 0.0
    for process in processes:
        for pid in tree(process.process.pid):
            try:
                with open(f"/proc/{pid}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
                with open(f"/proc/{pid}/status") as file:
                    peak = [line.split()[1] for line in file if line.startswith("VmHWM")]
            except OSError:
                continue
            seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            memory += int(peak[0]) / 1024 if peak else 0
    return seconds, memory


async def one(host, port, body):
    reader, writer = await asyncio.open_connection(host, port)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answer = await reader.read()
    while piece := await reader.read():
        answer += piece
    writer.close()
    usage = [line for line in answer.split(b"\n") if line.startswith(b"data: {") and b'"completion_tokens"' in line]
    if not usage or b"[DONE]" not in answer:
        print(answer[-300:], file=sys.stderr)
        return 0
    return json.loads(usage[-1][6:])["usage"]["completion_tokens"]


async def load(port, model, requests, concurrency, tokens):
    """Tokens of every stream, and the time for all."""
    numbers = iter(range(requests))
    seen = []

    async def client():
        for number in numbers:
            words = f"number {number}: " + "the old sea and the red sun " * 20
            body = {
                "model": model, "messages": [{"role": "user", "content": words}], "max_tokens": tokens, "stream": True,
                "stream_options": {"include_usage": True}, "ignore_eos": True,
            }
            seen.append(await one("127.0.0.1", port, json.dumps(body).encode()))

    begun = time.monotonic()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    return seen, time.monotonic() - begun


def measure(name, port, model, processes, shape):
    requests, concurrency, tokens = shape
    asyncio.run(load(port, model, concurrency, concurrency, tokens))
    before, _ = cost(processes)
    seen, seconds = asyncio.run(load(port, model, requests, concurrency, tokens))
    after, memory = cost(processes)
    whole = sum(count == tokens for count in seen)
    print(
        f"{name}: {whole} of {requests} streams whole, {requests / seconds:.0f} requests/s, "
        f"{1000 * (after - before) / requests:.2f} ms of CPU a request, peak {memory:.0f} MiB, "
        f"load average {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def ours(binary, shape):
    router = "router={policy: kv_router}"
    command = [
        binary, "serve", "--port", "0", "--num-workers", "2", "--block-size", "64", "--num-gpu-blocks-override", "16384",
        "--served-model-name", "tiny", "--speedup-ratio", SPEED, "--set", router,
    ]
    with Process(command) as server:
        address = server.wait(lambda: "http://" in server.said() and server.said().rpartition("http://")[2].strip())
        measure("windtunnel serve", int(address.rpartition(":")[2]), "tiny", [server], shape)


def dynamo(folder, shape):
    model_folder.write(f"{folder}/model")
    settings = dynamo_client.environment(folder)
    port = free_port()
    mocker = Process(
        [sys.executable, "-m", "dynamo.mocker", "--engine-type", "vllm", "--model-path", f"{folder}/model",
         "--model-name", "tiny", "--num-workers", "2", "--num-gpu-blocks-override", "16384", "--block-size", "64",
         "--speedup-ratio", SPEED],
        **settings,
    )
    frontend = Process(
        [sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port), "--router-mode",
         "kv"],
        **settings,
    )
    with mocker, frontend:
        url = f"http://127.0.0.1:{port}"
        frontend.wait(lambda: "tiny" in get(f"{url}/v1/models"), 180)
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        frontend.wait(lambda: post(f"{url}/v1/chat/completions", body)[0] == 200, 60)
        measure("dynamo 1.6.1 frontend + mocker", port, "tiny", [mocker, frontend], shape)


if __name__ == "__main__":
    check(len(sys.argv) > 1, __doc__)
    numbers = [int(number) for number in sys.argv[2:]]
    shape = tuple(numbers + [2000, 64, 50][len(numbers) :])
    ours(os.path.abspath(sys.argv[1]), shape)
    with tempfile.TemporaryDirectory() as folder:
        dynamo(folder, shape)
