#!/usr/bin/env python3
"""Block hashes of vLLM's own functions, as goldens for ours.

  vllm_block_hashes.py > tests/wire/vllm_block_hashes.jsonl

Runs in the environment of tools/oracle/setup.sh, with the package xxhash beside it. One line a case: what was hashed, and the hashes of its full
blocks in hexadecimal, as vLLM's request hasher makes them (v1/core/kv_cache_utils.py get_request_block_hasher).
"""
import json
import os
import random
import sys

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main():
    import vllm.v1.core.kv_cache_utils as U
    from vllm.lora.request import LoRARequest
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.request import Request

    rng = random.Random(20261130)

    def case(algorithm, block_size, tokens, seed=None, lora=None, cache_salt=None, media=(), counted=False):
        os.environ.pop("PYTHONHASHSEED", None)
        if seed is not None:
            os.environ["PYTHONHASHSEED"] = seed
        fn = get_hash_fn_by_name(algorithm)
        U.init_none_hash(fn)
        request = Request(
            request_id="r", prompt_token_ids=list(tokens), sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None, cache_salt=cache_salt,
            lora_request=LoRARequest(lora["name"], lora["id"], lora["path"]) if lora else None,
            mm_features=[
                MultiModalFeatureSpec(data=None, modality="image", identifier="".join(list(m["identifier"])),
                                      mm_position=PlaceholderRange(offset=m["offset"], length=m["length"]))
                for m in media] or None,
            block_hasher=U.get_request_block_hasher(block_size, fn))
        json.dump({"algorithm": algorithm, "seed": seed, "block_size": block_size,
                   **({"token_range": [tokens[0], len(tokens)]} if counted else {"tokens": list(tokens)}), "lora": lora,
                   "cache_salt": cache_salt, "media": list(media), "none_hash": bytes(U.NONE_HASH).hex(),
                   "hashes": [bytes(h).hex() for h in request.block_hashes]}, sys.stdout, separators=(",", ":"))
        print()

    small = lambda n: [rng.randrange(256) for _ in range(n)]
    wide = lambda n: [rng.choice([rng.randrange(256), rng.randrange(65536), rng.randrange(200_000), 2**31 - 1, 2**31, 2**32 - 1])
                      for _ in range(n)]
    lora = {"name": "sql", "path": "/adapters/sql", "id": 3}
    media = [{"identifier": "a" * 64, "offset": 5, "length": 20}, {"identifier": "cat", "offset": 26, "length": 2},
             {"identifier": "a" * 64, "offset": 28, "length": 3}, {"identifier": "dog", "offset": 40, "length": 24}]
    for algorithm in ("sha256", "sha256_cbor"):
        case(algorithm, 16, small(70))
        case(algorithm, 16, wide(70))
        case(algorithm, 16, wide(40), seed="0")
        case(algorithm, 16, wide(20), seed="")
        case(algorithm, 1, wide(3))
        case(algorithm, 2, wide(5))
        case(algorithm, 3, wide(7))
        case(algorithm, 4, small(9))
        case(algorithm, 16, wide(40), lora=lora)
        case(algorithm, 16, wide(40), cache_salt="tenant-é-1")
        case(algorithm, 16, wide(40), cache_salt="")
        case(algorithm, 16, wide(40), cache_salt="s" * 300)
        case(algorithm, 16, wide(80), media=media)
        case(algorithm, 32, wide(80), media=media)
        case(algorithm, 16, wide(80), lora=lora, cache_salt="x1", media=media)
    # A block whose pickle is longer than one frame.
    case("sha256", 30_000, [70_000 + i for i in range(30_000)], counted=True)
    for algorithm in ("xxhash", "xxhash_cbor"):
        case(algorithm, 16, wide(40), seed="7")


if __name__ == "__main__":
    main()
