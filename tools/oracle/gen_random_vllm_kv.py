#!/usr/bin/env python3
"""Random scenarios in which KV moves: decode side, prefill side, CPU offload, CPU and disk offload. With --run PYTHON, their traces too.

  gen_random_vllm_kv.py --seed 1 --count 100 --out DIR [--run PYTHON] [--kinds decode prefill offload disk]

Scenario i of a seed depends on nothing but the two, so a set can be made again in part (--first).
"""
import argparse, gzip, io, json, os, random, subprocess, sys, tempfile
HERE = os.path.dirname(os.path.abspath(__file__))


def tokens(r, n):
    return [r.randrange(10, 99999) for _ in range(n)]


def settings(r, kind):
    block = r.choice([4, 8, 16, 16, 16, 32])
    seqs = r.choice([2, 3, 5, 8, 16, 64])
    cfg = dict(
        block_size=block, max_num_seqs=seqs,
        max_num_batched_tokens=max(seqs, r.choice([32, 64, 128, 256, 512, 2048])),
        enable_prefix_caching=r.random() < 0.85, async_scheduling=r.random() < 0.6,
        policy="priority" if r.random() < 0.2 else "fcfs", watermark=r.choice([0.0, 0.0, 0.0, 0.05]),
        scheduler_reserve_full_isl=r.random() < 0.85, dump_free_queue=True,
        long_prefill_token_threshold=r.choice([0, 0, 0, 24, 48]), max_steps=1500,
        step_ms_base=r.choice([2.0, 10.0, 10.0]), step_ms_per_token=r.choice([0.0, 0.05, 0.05]))
    if r.random() < 0.15:
        cfg["prefill_schedule_interval"] = r.choice([2, 4])
    if r.random() < 0.15:
        cfg["max_num_active_seqs"] = r.randrange(1, seqs + 1)
    if kind in ("offload", "disk"):
        cfg.update(kv_role="offload", offload_chunks=r.choice([6, 12, 24, 48, 100, 300]),
                   load_latency_ms=r.choice([1.0, 5.0, 25.0, 60.0]), store_latency_ms=r.choice([1.0, 2.0, 40.0, 150.0]))
        if kind == "disk":
            cfg.update(offload_disk=True,
                       read_latency_ms=r.choice([0.5, 4.0, 30.0]), write_latency_ms=r.choice([0.5, 10.0, 80.0]),
                       look_up_ms=r.choice([0.0, 0.5, 7.0, 25.0]))
    else:
        cfg.update(kv_role="kv_consumer" if kind == "decode" else "kv_producer",
                   kv_load_failure_policy=r.choice(["fail", "recompute"]))
    return cfg


def scenario(seed, number, kinds):
    r = random.Random(f"{seed}:{number}")
    kind = kinds[number % len(kinds)]
    cfg = settings(r, kind)
    block = cfg["block_size"]
    longest = r.choice([3, 6, 12]) * block
    outputs = r.choice([3, 12, 40])
    need = -(-(longest * 2 + outputs) // block)
    cfg["num_blocks"] = need + 2 + int(need * r.choice([0.2, 0.8, 2.0, 5.0]))
    shared = [tokens(r, longest) for _ in range(3)]
    count, gap = r.randrange(8, 36), r.choice([1.0, 6.0, 15.0, 30.0])
    reuse = 0.5
    if kind == "disk":  # prompts that both tiers before it have forgotten when they come again
        cfg["num_blocks"] = need + 2 + int(need * r.choice([0.1, 0.4, 1.0]))
        cfg["offload_chunks"] = max(2, int(longest // block * r.choice([0.7, 1.2, 2.0, 3.0])))
        reuse, gap = 0.85, r.choice([15.0, 40.0, 90.0])
    at, lines, order = 0.0, [], list(range(count))
    for i in order:
        at += 0.0 if r.random() < 0.2 else r.uniform(0, 2 * gap)
        head = r.choice(shared)[: r.randrange(0, longest + 1)] if r.random() < reuse else []
        prompt = head + tokens(r, max(1, r.randrange(0, longest + 1) if head else r.randrange(1, longest + 1)))
        if lines and r.random() < 0.2:
            earlier = r.choice(lines)
            whole = earlier["prompt_token_ids"] + earlier["output_token_ids"]
            prompt = (whole if r.random() < 0.6 else list(earlier["prompt_token_ids"]))[: 2 * longest]
        n = 1 if kind == "prefill" and r.random() < 0.5 else r.randrange(1, outputs + 1)
        q = dict(id=f"r{i:03d}", prompt_token_ids=prompt, max_tokens=n,
                 output_token_ids=[r.randrange(100000, 199000) for _ in range(n)], arrival_ms=round(at, 3))
        if cfg["policy"] == "priority":
            q["priority"] = r.randrange(0, 4)
        if r.random() < 0.15:
            q["stop_token_ids"] = [99999]
            q["output_token_ids"][r.randrange(n)] = 99999
        if r.random() < 0.08:
            q["abort_ms"] = round(at + r.uniform(0, 150), 3)
        if kind == "decode" and r.random() < 0.75:
            q["remote_prefill"] = True
            if r.random() < 0.5:
                q["load_ms"] = r.choice([0.0, 3.0, 15.0, 40.0, 120.0])
            if r.random() < 0.1:
                q["load_fail"] = r.choice(["request", 0, 1, 2])
        if kind == "prefill" and r.random() < 0.6:
            q["remote_decode"] = True
            if r.random() < 0.5:
                q["send_ms"] = r.choice([0.0, 5.0, 30.0, 120.0])
        lines.append(q)
    name = f"kv_s{seed}_{number:03d}_{kind}"
    return name, dict(cfg, name=name, comment=f"random, {kind}"), lines


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, required=True)
    ap.add_argument("--count", type=int, default=100)
    ap.add_argument("--first", type=int, default=0)
    ap.add_argument("--kinds", nargs="*", default=["decode", "prefill", "offload"])
    ap.add_argument("--out", required=True)
    ap.add_argument("--run", help="python of the environment that has vLLM")
    a = ap.parse_args()
    scenarios, golden = os.path.join(a.out, "scenarios"), os.path.join(a.out, "golden")
    os.makedirs(scenarios, exist_ok=True)
    os.makedirs(golden, exist_ok=True)
    jobs = []
    for number in range(a.first, a.first + a.count):
        name, cfg, lines = scenario(a.seed, number, a.kinds)
        c, q = os.path.join(scenarios, name + ".config.json"), os.path.join(scenarios, name + ".requests.jsonl.gz")
        with open(c, "w") as f:
            json.dump(cfg, f, indent=1)
        with io.TextIOWrapper(gzip.GzipFile(q, "wb", mtime=0)) as f:
            for line in lines:
                f.write(json.dumps(line, separators=(",", ":")) + "\n")
        jobs.append("\t".join((c, q, os.path.join(golden, name + ".jsonl.gz"))))
    if a.run:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            f.write("\n".join(jobs) + "\n")
            f.flush()
            sys.exit(subprocess.run([a.run, os.path.join(HERE, "oracle_vllm_kv.py"), "--list", f.name]).returncode)


if __name__ == "__main__":
    main()
