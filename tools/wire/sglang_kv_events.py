#!/usr/bin/env python3
"""KV-event batches of the real SGLang, as goldens for ours.

  sglang_kv_events.py > tests/wire/sglang_kv_events.jsonl

Runs in the environment of tools/oracle/setup_sglang.sh, with ninja and OpenSSL's headers for its C++ page hash (see
sglang_page_hashes.py). Drives SGLang's scheduler through the requests of scenarios.py with the driver of
tools/oracle; what its own `publish_kv_events` takes from the cache is encoded as its publisher does (msgspec, the
rank filled in), with 0 for the time stamp. One line a scenario: settings, requests, and the batches in hexadecimal.
"""
import json
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../oracle"), HERE]
import oracle_sglang  # noqa: E402
import scenarios  # noqa: E402

SALTS = (None, {"cache_salt": "tenant-1"}, {"cache_salt": "tenant-é"})

#       name          engine settings                                            requests
CASES = [
    ("plain", dict(page_size=1, max_total_tokens=4000), dict(seed=1, count=10, block=16), {}),
    ("pages", dict(page_size=16, max_total_tokens=4000), dict(seed=2, count=12, block=16), {}),
    ("overlap", dict(page_size=16, max_total_tokens=4000, disable_overlap=False), dict(seed=3, count=12, block=16), {}),
    ("evictions", dict(page_size=16, max_total_tokens=480), dict(seed=4, count=16, block=16), {}),
    ("evictions_overlap", dict(page_size=4, max_total_tokens=400, disable_overlap=False), dict(seed=5, count=16, block=16), {}),
    ("chunks", dict(page_size=16, max_total_tokens=2000, chunked_prefill_size=32), dict(seed=6, count=10, block=16), {}),
    ("mixed", dict(page_size=16, max_total_tokens=2000, chunked_prefill_size=32, enable_mixed_chunk=True),
     dict(seed=7, count=10, block=16), {}),
    ("salts", dict(page_size=16, max_total_tokens=1000), dict(seed=8, count=14, block=16, namespaces=SALTS), {}),
    ("dynamo", dict(page_size=4, max_total_tokens=1000), dict(seed=9, count=10, block=8, namespaces=SALTS), dict(dynamo=True)),
    ("abort", dict(page_size=16, max_total_tokens=1000), dict(seed=10, count=8, block=16, abort=3), {}),
]


def run(name, settings, shape, more, out):
    import msgspec
    from sglang.srt.disaggregation.kv_events import KVEventBatch
    from sglang.srt.managers import io_struct

    encoder = msgspec.msgpack.Encoder()
    lines = scenarios.requests(**shape)
    batches, seen = [], {}
    build, make = oracle_sglang.build, io_struct.TokenizedGenerateReqInput

    def hooked(cfg):
        scheduler, module, args = build(cfg)
        seen["interval"] = scheduler.metrics_reporter.decode_log_interval
        tree = scheduler.tree_cache
        take = tree.take_events

        def take_events():
            # The driver drains the cache for its own trace, too; the engine does not.
            if sys._getframe(2).f_code.co_name != "publish_kv_events":
                return []
            events = take()
            if events:
                batches.append(encoder.encode(KVEventBatch(ts=0.0, events=events, attn_dp_rank=0)).hex())
            return events
        tree.take_events = take_events
        return scheduler, module, args

    by_id = {line["id"]: line for line in lines}
    io_struct.TokenizedGenerateReqInput = lambda **kw: make(cache_salt=by_id[kw["rid"]].get("cache_salt"), **kw)
    oracle_sglang.build = hooked
    if more.get("dynamo"):
        from sglang.srt.managers import scheduler as scheduler_module
        scheduler_module.uses_dynamo_format = lambda config: True
    leave, os._exit = os._exit, lambda code: None
    with tempfile.TemporaryDirectory() as folder:
        config, jobs = os.path.join(folder, "c.json"), os.path.join(folder, "r.jsonl")
        with open(config, "w") as f:
            json.dump({**settings, "context_length": 8192}, f)
        with open(jobs, "w") as f:
            f.writelines(json.dumps(line) + "\n" for line in lines)
        oracle_sglang.run(config, jobs, os.path.join(folder, "trace.jsonl"))
    os._exit = leave
    with open(out, "w") as f:
        json.dump({"name": name, "settings": settings, "dynamo": bool(more.get("dynamo")),
                   "decode_log_interval": seen["interval"], "requests": lines, "batches": batches}, f, separators=(",", ":"))
        f.write("\n")


def main():
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import sglang.srt.managers.scheduler  # noqa: F401
    import sglang.srt.models.llama  # noqa: F401
    from sglang.srt.mem_cache.cpp_utils import native_hash
    native_hash.get_native_hash([1], None, 1)
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, settings, shape, more) in enumerate(CASES):
            out = os.path.join(folder, str(number))
            pid = os.fork()
            if pid == 0:
                os.dup2(2, 1)
                try:
                    run(name, settings, shape, more, out)
                    os._exit(0)
                except BaseException:
                    import traceback
                    traceback.print_exc()
                    os._exit(1)
            if os.waitpid(pid, 0)[1] != 0:
                sys.exit(f"{name} failed")
            with open(out) as f:
                sys.stdout.write(f.read())


if __name__ == "__main__":
    main()
