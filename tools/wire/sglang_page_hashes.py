#!/usr/bin/env python3
"""Page hashes of SGLang's own functions, as goldens for ours.

  sglang_page_hashes.py > tests/wire/sglang_page_hashes.jsonl

Runs in the environment of tools/oracle/setup_sglang.sh. One line a case: the numbers that a radix node's events
carry (mem_cache/events.py KVCacheEventRecorder, over mem_cache/utils.py and its C++ hash). Where that hash cannot
be compiled (it wants OpenSSL's headers), the script says so on stderr and uses hashlib in its place.
"""
import hashlib
import json
import random
import struct
import sys
import types


def main():
    import sglang.srt.mem_cache.utils as U
    from sglang.srt.mem_cache.events import KVCacheEventRecorder, KvEventLoraNames
    from sglang.srt.mem_cache.cpp_utils import native_hash as N

    try:
        N.get_native_hash([1, 2], None, 2)
    except Exception as error:
        print(f"native hash not available ({error!r:.120}), hashlib instead", file=sys.stderr)

        def by_hashlib(tokens, prior, page_size=None):
            raw, n, width, bigram = N._native_hash_input(tokens)
            assert width == 1 and not bigram
            out = []
            for start in range(0, n, page_size):
                h = hashlib.sha256()
                if prior is not None:
                    h.update(prior)
                h.update(b"".join(struct.pack("<I", t) for t in raw[start:min(start + page_size, n)]))
                prior = h.digest()
                out.append(h.hexdigest())
            return out
        U.get_native_hash = by_hashlib

    rng = random.Random(20261130)

    class Key(list):
        is_bigram, extra_key, cache_salt = False, None, None

        @property
        def token_ids(self):
            return list(self)

    def case(page_size, tokens, extra_key=None, cache_salt=None, lora_name=None, dynamo=False):
        names = KvEventLoraNames()
        if lora_name:
            names.register(types.SimpleNamespace(lora_id="x", extra_key=extra_key), lora_name)
        recorder = KVCacheEventRecorder(enabled=True, page_size=page_size, dynamo_format=dynamo, lora_names=names)

        def node(parent, part):
            key = Key(part)
            key.extra_key, key.cache_salt = extra_key, cache_salt
            return types.SimpleNamespace(parent=parent, key=key, hash_value=None, event_hash_value=None)
        root = types.SimpleNamespace(parent=None, key=Key(), hash_value=[], event_hash_value=[])
        # Two nodes one behind the other, as after a split.
        middle = len(tokens) // page_size // 2 * page_size
        first = node(root, tokens[:middle])
        second = node(first, tokens[middle:])
        recorder.record_store(first)
        recorder.record_store(second)
        events = recorder.take()
        json.dump({"page_size": page_size, "tokens": tokens, "extra_key": extra_key, "cache_salt": cache_salt,
                   "lora_name": lora_name, "dynamo": dynamo,
                   "hashes": [h for e in events for h in e.block_hashes],
                   "parents": [e.parent_block_hash for e in events]}, sys.stdout, separators=(",", ":"))
        print()

    tokens = lambda n: [rng.choice([rng.randrange(256), rng.randrange(200_000), 2**31, 2**32 - 1]) for _ in range(n)]
    lora = dict(extra_key="k" + "0123456789abcdef" * 2, lora_name="sql")
    for dynamo in (False, True):
        case(1, tokens(8), dynamo=dynamo)
        case(16, tokens(96), dynamo=dynamo)
        case(16, tokens(64), cache_salt="tenant-é-1", dynamo=dynamo)
        case(16, tokens(64), cache_salt="", dynamo=dynamo)
        case(4, tokens(16), extra_key="isolated", dynamo=dynamo)
        case(4, tokens(16), dynamo=dynamo, **lora)
        case(4, tokens(16), cache_salt="s", dynamo=dynamo, **lora)


if __name__ == "__main__":
    main()
