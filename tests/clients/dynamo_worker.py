"""Registers a mock worker of vLLM with Dynamo, through the ai-dynamo-runtime wheel: requests come over Dynamo's own plane
and go to the worker's token endpoint, and its KV events are relayed to the router.

    python dynamo_worker.py URL ZMQ_ENDPOINT MODEL_FOLDER MODEL_NAME BLOCK_SIZE
"""

import asyncio
import json
import sys

import httpx
from dynamo.llm import KvEventPublisher, ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime


async def main(url, zmq_endpoint, folder, name, block_size):
    with open(f"{folder}/tokenizer.json") as file:
        vocabulary = len(json.load(file)["model"]["vocab"])
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")
    endpoint = runtime.endpoint("dynamo.backend.generate")
    publisher = KvEventPublisher(
        endpoint=endpoint, kv_block_size=block_size, dp_rank=0, enable_local_indexer=True, zmq_endpoint=zmq_endpoint,
        zmq_topic="",
    )
    client = httpx.AsyncClient(timeout=60)

    async def generate(request, context):
        stops = request.get("stop_conditions") or {}
        body = {
            "token_ids": request["token_ids"],
            "stream": True,
            "sampling_params": {"max_tokens": stops.get("max_tokens") or 16, "ignore_eos": True},
        }
        async with client.stream("POST", f"{url}/inference/v1/generate", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                choice = json.loads(line[len("data: ") :])["choices"][0]
                # Words of the mock worker's own vocabulary; any of the model's will do for text.
                yield {
                    "token_ids": [token % vocabulary for token in choice["token_ids"]],
                    "finish_reason": choice["finish_reason"],
                }

    config = ModelRuntimeConfig()
    config.total_kv_blocks = 16384
    config.max_num_seqs = 256
    config.max_num_batched_tokens = 8192
    config.enable_local_indexer = True
    await register_model(
        ModelInput.Tokens, ModelType.Chat | ModelType.Completions, endpoint, folder, name,
        worker_type=WorkerType.Aggregated, kv_cache_block_size=block_size, runtime_config=config,
    )
    print(f"registered {url}", flush=True)
    await endpoint.serve_endpoint(generate)
    del publisher


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])))
