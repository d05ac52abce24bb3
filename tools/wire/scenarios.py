"""The requests behind the KV-event goldens: small, and shaped so that blocks are shared, stored again, evicted and
parted by salts. From a fixed seed, the same for both engines."""
import random


def requests(seed, count, block, vocab=5000, outputs=(1, 40), spread=3, namespaces=(None,), abort=None):
    """`count` requests that arrive over `spread * count` steps. Prompts are made of a few shared stems."""
    rng = random.Random(seed)
    stems = [[rng.randrange(vocab) for _ in range(rng.randrange(2 * block, 6 * block))] for _ in range(3)]
    made = []
    for i in range(count):
        stem = rng.choice(stems)
        cut = rng.choice([len(stem), len(stem), rng.randrange(1, len(stem))])
        prompt = stem[:cut] + [rng.randrange(vocab) for _ in range(rng.choice([0, 1, 5, block, 3 * block]))]
        n = rng.randrange(*outputs)
        line = {"id": f"r{i:03d}", "arrival_step": rng.randrange(spread * count + 1), "prompt_token_ids": prompt,
                "max_tokens": n, "output_token_ids": [rng.randrange(vocab) for _ in range(n)]}
        space = rng.choice(namespaces)
        if space and ("media" not in space or len(prompt) >= 16):
            line.update(space)
        made.append(line)
    # A conversation: each turn repeats what was said before, outputs included.
    said, step = [rng.randrange(vocab) for _ in range(2 * block + 3)], 0
    for turn in range(3):
        n = block + 5
        output = [rng.randrange(vocab) for _ in range(n)]
        made.append({"id": f"t{turn}", "arrival_step": step, "prompt_token_ids": list(said), "max_tokens": n,
                     "output_token_ids": output})
        said += output + [rng.randrange(vocab) for _ in range(7)]
        step += 60
    if abort is not None:
        made[abort]["abort_step"] = made[abort]["arrival_step"] + 4
    return sorted(made, key=lambda r: r["arrival_step"])
