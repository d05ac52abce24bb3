#!/usr/bin/env python3
"""KV-event batches of the real vLLM, as goldens for ours.

  vllm_kv_events.py > tests/wire/vllm_kv_events.jsonl

Runs in the environment of tools/oracle/setup.sh. Drives vLLM's scheduler through the requests of scenarios.py with
the driver of tools/oracle, and encodes what it hands to its publisher as the publisher does (msgspec, the rank filled
in), with 0 for the time stamp. One line a scenario: settings, requests, and the batches in hexadecimal; `arrays` are
the same events in the layout of before vLLM PR #42892 (structs with array_like).
"""
import json
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../oracle"), HERE]
import oracle_vllm  # noqa: E402
import scenarios  # noqa: E402

LORA = {"lora": {"name": "sql", "path": "/adapters/sql", "id": 2}}
SALTS = (None, {"cache_salt": "tenant-1"}, {"cache_salt": "tenant-é"}, LORA, {**LORA, "cache_salt": "tenant-1"})
MEDIA = (None, {"media": [{"identifier": "a" * 64, "offset": 3, "length": 9}, {"identifier": "dog", "offset": 13, "length": 2}]})

#       name                 engine settings                                        requests          hashes
CASES = [
    ("plain", dict(num_blocks=101), dict(seed=1, count=12, block=16), {}),
    ("async", dict(num_blocks=101, async_scheduling=True), dict(seed=2, count=12, block=16), {}),
    ("evictions", dict(num_blocks=31), dict(seed=3, count=16, block=16), {}),
    ("preemptions", dict(num_blocks=21, async_scheduling=True), dict(seed=4, count=14, block=16, spread=1), {}),
    ("chunks", dict(num_blocks=61, max_num_batched_tokens=48, max_num_seqs=8), dict(seed=5, count=10, block=16), {}),
    ("salts", dict(num_blocks=61), dict(seed=6, count=16, block=16, namespaces=SALTS), {}),
    ("media", dict(num_blocks=81), dict(seed=7, count=12, block=16, namespaces=MEDIA), {}),
    ("abort", dict(num_blocks=41), dict(seed=8, count=8, block=16, abort=3), {}),
    ("small_blocks", dict(num_blocks=301, block_size=4), dict(seed=9, count=8, block=4), {}),
    ("bytes", dict(num_blocks=31), dict(seed=10, count=8, block=16), dict(as_numbers=False)),
    ("cbor", dict(num_blocks=31), dict(seed=11, count=8, block=16), dict(algorithm="sha256_cbor")),
    ("seeded", dict(num_blocks=31), dict(seed=12, count=6, block=16), dict(seed="42")),
    ("rank3", dict(num_blocks=31), dict(seed=13, count=6, block=16), dict(dp_rank=3)),
    ("cache_off", dict(num_blocks=101, enable_prefix_caching=False), dict(seed=14, count=6, block=16), {}),
]


def main():
    import msgspec
    from vllm import envs
    from vllm.distributed import kv_events
    from vllm.lora.request import LoRARequest
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1 import request as request_module
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    encoder = msgspec.msgpack.Encoder()
    fields = lambda cls: [f.encode_name for f in msgspec.structs.fields(cls)]
    # The twelve and four positions that consumers of arrays know.
    known = {kv_events.BlockStored: 11, kv_events.BlockRemoved: 3, kv_events.AllBlocksCleared: 0}

    def as_array(event):
        cls = type(event)
        names = fields(cls)[:known[cls]]
        short = msgspec.defstruct(cls.__name__, names, array_like=True, tag=True, gc=False)
        return short(*(getattr(event, n) for n in names))

    build, plain_request = oracle_vllm.build, request_module.Request
    for name, settings, shape, hashes in CASES:
        hashes = {"algorithm": "sha256", "seed": None, "as_numbers": True, "dp_rank": 0, **hashes}
        os.environ.pop("PYTHONHASHSEED", None)
        if hashes["seed"] is not None:
            os.environ["PYTHONHASHSEED"] = hashes["seed"]
        os.environ["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"] = "1" if hashes["as_numbers"] else "0"
        assert envs.VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES == hashes["as_numbers"]
        lines = scenarios.requests(**shape)
        batches, positional = [], []

        def hooked(cfg):
            scheduler, _, effective, vllm_config = build(cfg)
            fn = get_hash_fn_by_name(hashes["algorithm"])
            init_none_hash(fn)

            class Recording(type(scheduler)):
                @property
                def kv_event_publisher(self):
                    return self._recorder

                @kv_event_publisher.setter
                def kv_event_publisher(self, inner):
                    class Recorder:
                        def publish(_, batch):
                            batch.ts = 0.0
                            batch.data_parallel_rank = hashes["dp_rank"]
                            batches.append(encoder.encode(batch).hex())
                            batch_of_arrays = [0.0, [as_array(e) for e in batch.events], hashes["dp_rank"]]
                            positional.append(encoder.encode(batch_of_arrays).hex())
                            inner.publish(batch)

                        def shutdown(_):
                            pass
                    self._recorder = Recorder()
            scheduler.__class__ = Recording
            # No encoder runs here: its inputs are there as soon as they are needed.
            scheduler._try_schedule_encoder_inputs = lambda r, done, new, budget, **k: ([], new, budget, [], [])
            return scheduler, get_request_block_hasher(cfg["block_size"], fn), effective, vllm_config

        by_id = {line["id"]: line for line in lines}

        def request(*, request_id, **kw):
            line = by_id[request_id]
            lora = line.get("lora")
            if lora:
                kw["lora_request"] = LoRARequest(lora["name"], lora["id"], lora["path"])
            if line.get("media"):
                kw["mm_features"] = [
                    MultiModalFeatureSpec(data=None, modality="image", identifier="".join(list(m["identifier"])),
                                          mm_position=PlaceholderRange(offset=m["offset"], length=m["length"]))
                    for m in line["media"]]
            return plain_request(request_id=request_id, cache_salt=line.get("cache_salt"), **kw)

        oracle_vllm.build, request_module.Request = hooked, request
        with tempfile.TemporaryDirectory() as folder:
            config, jobs = os.path.join(folder, "c.json"), os.path.join(folder, "r.jsonl")
            with open(config, "w") as f:
                json.dump(settings, f)
            with open(jobs, "w") as f:
                f.writelines(json.dumps(line) + "\n" for line in lines)
            stdout, sys.stdout = sys.stdout, sys.stderr
            oracle_vllm.run(config, jobs, os.path.join(folder, "trace.jsonl"))
            sys.stdout = stdout
        oracle_vllm.build, request_module.Request = build, plain_request
        json.dump({"name": name, "settings": settings, "hashes": hashes, "requests": lines, "batches": batches,
                   "arrays": positional if name in ("evictions", "salts", "media") else None},
                  sys.stdout, separators=(",", ":"))
        print()


if __name__ == "__main__":
    main()
