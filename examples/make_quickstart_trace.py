#!/usr/bin/env python3
"""Writes quickstart-trace.jsonl: 500 made-up chat requests in the Mooncake format.

    examples/make_quickstart_trace.py > examples/quickstart-trace.jsonl

Conversations begin at random times, each with one of four system prompts. Every turn carries the whole
conversation so far plus a new message, so its whole blocks up to there are those of the turn before.
Nothing is taken from a recorded trace. The same seed gives the same file.
"""
import json
import random

BLOCK = 512
REQUESTS = 500
SEED = 20

random.seed(SEED)
system_prompts = [(f"system{i}", tokens) for i, tokens in enumerate((1536, 2560, 4096, 700))]
turns = []
conversation = 0
start_ms = 0.0
while len(turns) < 2 * REQUESTS:
    start_ms += random.expovariate(1 / 1000.0)
    system, context = random.choice(system_prompts)
    at_ms = start_ms
    whole = [f"{system}.{b}" for b in range(context // BLOCK)]
    for turn in range(random.choice((1, 1, 2, 2, 3, 4, 6))):
        context += min(4000, int(20 + random.expovariate(1 / 400.0)))
        output = min(1500, int(8 + random.expovariate(1 / 250.0)))
        whole += [f"c{conversation}.{b}" for b in range(len(whole), context // BLOCK)]
        tail = [f"c{conversation}.t{turn}"] if context % BLOCK else []
        turns.append((int(at_ms), context, output, whole + tail))
        context += output
        at_ms += output * 15 + random.uniform(3_000, 20_000)
    conversation += 1

turns.sort(key=lambda turn: turn[0])
numbers = {}
for at_ms, context, output, names in turns[:REQUESTS]:
    ids = [numbers.setdefault(name, len(numbers)) for name in names]
    print(json.dumps({"timestamp": at_ms, "input_length": context, "output_length": output, "hash_ids": ids}))
