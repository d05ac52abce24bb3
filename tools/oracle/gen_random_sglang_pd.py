#!/usr/bin/env python3
"""Random scenarios for oracle_sglang_pd.py: one side of SGLang's hand-off each, on small pools, with scripted transfers.

  gen_random_sglang_pd.py SEED COUNT FOLDER     writes FOLDER/scenarios, FOLDER/traces (empty) and FOLDER/jobs.txt
"""
import json
import os
import random
import sys


def scenario(rnd, name, side):
    page = rnd.choice([1, 1, 4, 16])
    pool = rnd.choice([120, 200, 320, 640]) // page * page
    chunk = max(page, rnd.choice([16, 32, 64, 256]) // page * page)
    cfg = dict(page_size=page, max_total_tokens=pool, max_running_requests=rnd.choice([1, 2, 3, 4, 8]),
               disable_overlap=rnd.random() < .5, context_length=4096, chunked_prefill_size=chunk)
    if side == "decode":
        cfg.update(num_reserved_decode_tokens=rnd.choice([0, 4, 16, 32]),
                   disaggregation_decode_extra_slots=rnd.choice([0, 1, 2, 4]), decode_radix=rnd.random() < .4)
        cfg["disable_radix_cache"] = not cfg["decode_radix"]
    else:
        cfg["disable_radix_cache"] = rnd.random() < .2
        cfg["schedule_policy"] = rnd.choice(["fcfs", "fcfs", "lpm"])
    requests, at = [], 0.0
    for i in range(rnd.randint(4, 26)):
        at += rnd.choice([0, 0, 1, 5, 13, 40])
        shared, prefix = rnd.choice([0, 0, 8, 20, 33]), rnd.randint(0, 2)
        own = rnd.randint(1, 40)
        prompt = [1000 * prefix + k for k in range(shared)] + [10000 + i * 100 + k for k in range(own)]
        outputs = rnd.randint(1, 40)
        # What could never be served is another question.
        if len(prompt) + outputs + cfg.get("num_reserved_decode_tokens", 0) + 2 * page >= pool - page - 8:
            continue
        request = dict(id=f"r{i:03d}", arrival_ms=at, prompt_token_ids=prompt, max_tokens=outputs)
        if rnd.random() < .3:
            request["stop_after"] = rnd.randint(1, outputs)
        if side == "decode":
            request["kv_ms"] = rnd.choice([3.0, 10.0, 25.5, 61.25])
        else:
            request.update(room_ms=rnd.choice([0.0, 2.5, 17.0, 40.0]), send_ms=rnd.choice([1.0, 9.5, 33.0, 80.0]))
        requests.append(request)
    return dict(name=name, side=side, config=cfg, requests=requests)


def main():
    seed, count, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    rnd = random.Random(seed)
    for part in ("scenarios", "traces"):
        os.makedirs(os.path.join(folder, part), exist_ok=True)
    jobs = []
    for k in range(count):
        name = f"s{seed}_{k:03d}"
        made = scenario(rnd, name, "decode" if k % 2 == 0 else "prefill")
        if len(made["requests"]) < 2:
            continue
        path = os.path.join(folder, "scenarios", name + ".json")
        with open(path, "w") as out:
            json.dump(made, out)
        jobs.append(path + "\t" + os.path.join(folder, "traces", name + ".json"))
    with open(os.path.join(folder, "jobs.txt"), "w") as out:
        out.write("\n".join(jobs) + "\n")


if __name__ == "__main__":
    main()
