#!/usr/bin/env python3
"""The hand-written scenarios for the vLLM scheduler oracle: inputs, and golden traces if asked.

  gen_vllm.py --out DIR [--only NAME...] [--run PYTHON]

writes DIR/scenarios/NAME.config.json and NAME.requests.jsonl, the same on every machine; with --run, the python of an
environment made by setup.sh, also DIR/golden/NAME.jsonl.gz. Standard library only; no engine is imported.
"""
import argparse, json, os, random, subprocess, sys, tempfile
HERE = os.path.dirname(os.path.abspath(__file__))


def uniq(rng, n):
    return [rng.randrange(10, 99999) for _ in range(n)]


def mk(i, prompt, max_tokens, rng, **kw):
    d = {"id": f"r{i:03d}", "prompt_token_ids": prompt, "max_tokens": max_tokens,
         "output_token_ids": [rng.randrange(100000, 199000) for _ in range(max_tokens)]}
    d.update(kw)
    return d


def scenarios():
    S = []
    def sc(name, comment, cfg, reqs):
        S.append((name, dict(cfg, name=name, comment=comment), reqs))

    r = random.Random(1)
    sc("plain", "20 requests, staggered, ample blocks, no sharing", dict(num_blocks=1001),
       [mk(i, uniq(r, r.randrange(20, 200)), r.randrange(3, 30), r, arrival_ms=i * 17.0) for i in range(20)])

    r = random.Random(2)
    base = [uniq(r, 160), uniq(r, 96)]
    sc("prefix_sharing", "two shared prefixes, multi-turn follow-ups that contain earlier outputs", dict(num_blocks=401),
       (lambda first: first + [
           mk(24 + i, f["prompt_token_ids"] + f["output_token_ids"] + uniq(r, 30), 10, r, arrival_ms=1500.0 + 25 * i)
           for i, f in enumerate(first[:12])])(
           [mk(i, base[i % 2] + uniq(r, r.randrange(5, 60)), r.randrange(4, 25), r, arrival_ms=i * 23.0) for i in range(24)]))

    r = random.Random(3)
    sc("chunked_long_prompts", "prompts up to 3000 tokens against a 512-token budget, decodes interleaved",
       dict(num_blocks=1501, max_num_batched_tokens=512),
       [mk(i, uniq(r, n), 12, r, arrival_ms=a) for i, (n, a) in enumerate(
           [(50, 0), (3000, 5), (700, 6), (40, 7), (1500, 60), (513, 120), (512, 200), (511, 260), (30, 300)])])

    r = random.Random(4)
    sc("long_prefill_threshold", "as above with long_prefill_token_threshold=128",
       dict(num_blocks=1501, max_num_batched_tokens=512, long_prefill_token_threshold=128),
       [mk(i, uniq(r, n), 12, r, arrival_ms=a) for i, (n, a) in enumerate(
           [(50, 0), (1800, 5), (700, 6), (40, 7), (129, 60), (128, 120), (512, 200), (600, 900)])])

    r = random.Random(5)
    sc("pressure_preempt_nocache", "decode growth overruns a small pool: FCFS recompute preemption, prefix caching off",
       dict(num_blocks=41, enable_prefix_caching=False, dump_free_queue=True),
       [mk(i, uniq(r, r.randrange(30, 80)), r.randrange(40, 90), r, arrival_ms=i * 11.0) for i in range(14)])

    r = random.Random(5)
    sc("pressure_preempt_cache", "same requests with prefix caching on: a preempted request finds its own blocks",
       dict(num_blocks=41, enable_prefix_caching=True, dump_free_queue=True),
       [mk(i, uniq(r, r.randrange(30, 80)), r.randrange(40, 90), r, arrival_ms=i * 11.0) for i in range(14)])

    r = random.Random(6)
    shared = uniq(r, 64)
    sc("pressure_shared_prefix", "pressure with a shared prefix: refcounts, eviction of cached blocks, BlockRemoved",
       dict(num_blocks=49, dump_free_queue=True),
       [mk(i, (shared if i % 3 else uniq(r, 64)) + uniq(r, r.randrange(1, 50)), r.randrange(20, 60), r, arrival_ms=i * 31.0) for i in range(30)])

    r = random.Random(7)
    sc("priority", "priority policy with pressure; ties on arrival time",
       dict(num_blocks=41, policy="priority", max_num_seqs=6, dump_free_queue=True),
       [mk(i, uniq(r, r.randrange(30, 90)), r.randrange(20, 70), r, arrival_ms=float((i // 3) * 40), priority=r.choice([0, 0, 1, 2, 5])) for i in range(24)])

    r = random.Random(8)
    sc("max_num_seqs", "max_num_seqs=4 bound, 20 arrive together", dict(num_blocks=401, max_num_seqs=4),
       [mk(i, uniq(r, r.randrange(10, 100)), r.randrange(2, 20), r, arrival_ms=0.0) for i in range(20)])

    r = random.Random(9)
    sh = uniq(r, 200)
    sc("no_prefix_caching", "shared prompts, prefix caching off", dict(num_blocks=301, enable_prefix_caching=False),
       [mk(i, sh[: r.choice([100, 160, 200])] + uniq(r, 20), 15, r, arrival_ms=i * 20.0) for i in range(20)])

    r = random.Random(10)
    bs = 16
    pr = uniq(r, 200)
    lens = [15, 16, 17, 31, 32, 33, 48, 1, 2, 16, 32, 33, 47, 48, 49, 64]
    sc("block_boundaries", "prompts at block-size multiples +-1, each twice (second is a full hit)",
       dict(num_blocks=201, dump_free_queue=True),
       [mk(i, pr[:n], m, r, arrival_ms=i * 200.0) for i, (n, m) in enumerate(
           [(n, m) for n in lens for m in (1, 16, 17)])])

    r = random.Random(11)
    p = uniq(r, 160)
    q = uniq(r, 130)
    sc("identical_together", "8 identical 160-token prompts in one step, then 8 more of 130 across steps",
       dict(num_blocks=301, dump_free_queue=True),
       [mk(i, list(p), 6, r, arrival_ms=0.0) for i in range(8)] + [mk(8 + i, list(q), 6, r, arrival_ms=300.0 + 4 * i) for i in range(8)])

    r = random.Random(11)
    p = uniq(r, 160)
    sc("identical_together_chunked", "identical prompts whose first is chunked by a 100-token budget",
       dict(num_blocks=301, max_num_batched_tokens=100, max_num_seqs=64, dump_free_queue=True),
       [mk(i, list(p), 6, r, arrival_ms=0.0) for i in range(6)])

    r = random.Random(12)
    sc("max_tokens_1", "prefill-only requests", dict(num_blocks=201),
       [mk(i, uniq(r, r.randrange(1, 150)), 1, r, arrival_ms=i * 6.0) for i in range(30)])

    r = random.Random(13)
    sc("no_chunked_prefill", "chunked prefill off: head of line blocks when it does not fit the budget",
       dict(num_blocks=601, enable_chunked_prefill=False, max_num_batched_tokens=1024, max_model_len=1024),
       [mk(i, uniq(r, n), 10, r, arrival_ms=a) for i, (n, a) in enumerate(
           [(900, 0), (200, 0), (50, 0), (1000, 5), (1000, 6), (10, 7), (300, 60)])])

    r = random.Random(14)
    sc("async_plain", "async scheduling, staggered arrivals", dict(num_blocks=401, async_scheduling=True),
       [mk(i, uniq(r, r.randrange(20, 200)), r.randrange(1, 20), r, arrival_ms=i * 17.0) for i in range(20)])

    r = random.Random(5)
    sc("async_pressure", "pressure_preempt_cache with async scheduling",
       dict(num_blocks=41, async_scheduling=True, dump_free_queue=True),
       [mk(i, uniq(r, r.randrange(30, 80)), r.randrange(40, 90), r, arrival_ms=i * 11.0) for i in range(14)])

    r = random.Random(15)
    sc("reserve_full_isl_off", "scheduler_reserve_full_isl=False: first chunk only is checked, over-admission",
       dict(num_blocks=61, max_num_batched_tokens=64, max_num_seqs=16, scheduler_reserve_full_isl=False, dump_free_queue=True),
       [mk(i, uniq(r, 400), 20, r, arrival_ms=i * 5.0) for i in range(6)])

    r = random.Random(15)
    sc("reserve_full_isl_on", "same requests with the default (True)",
       dict(num_blocks=61, max_num_batched_tokens=64, max_num_seqs=16, dump_free_queue=True),
       [mk(i, uniq(r, 400), 20, r, arrival_ms=i * 5.0) for i in range(6)])

    r = random.Random(5)
    sc("watermark", "pressure_preempt_cache with watermark=0.1",
       dict(num_blocks=41, watermark=0.1, dump_free_queue=True),
       [mk(i, uniq(r, r.randrange(30, 80)), r.randrange(40, 90), r, arrival_ms=i * 11.0) for i in range(14)])

    r = random.Random(16)
    big = [uniq(r, 128) for _ in range(6)]
    sc("mixed_200", "200 requests: sharing, pressure, chunking, max_num_seqs together",
       dict(num_blocks=61, max_num_batched_tokens=256, max_num_seqs=16, max_steps=2000),
       [mk(i, (r.choice(big)[: r.choice([32, 64, 128])] if r.random() < .7 else []) + uniq(r, r.randrange(1, 120)),
           r.randrange(1, 40), r, arrival_ms=round(i * 40 + r.random() * 100, 2)) for i in range(200)])

    r = random.Random(17)
    sc("aborts", "client aborts of running and waiting requests", dict(num_blocks=61, max_num_seqs=4, dump_free_queue=True),
       [mk(i, uniq(r, r.randrange(20, 90)), 40, r, arrival_ms=i * 9.0, **({"abort_step": 6 + i * 3} if i % 3 == 0 else {})) for i in range(12)])
    r = random.Random(18)
    sc("priority_late_urgent", "priority policy, urgent requests arrive late while the pool is full: the victim can be a request already scheduled in the same step",
       dict(num_blocks=31, policy="priority", dump_free_queue=True),
       [mk(i, uniq(r, r.randrange(30, 70)), r.randrange(30, 60), r, arrival_ms=i * 15.0, priority=9 - i // 2) for i in range(18)])

    r = random.Random(19)
    sc("head_of_line", "a prompt that does not fit yet stops the admission scan for the small ones behind it",
       dict(num_blocks=61, dump_free_queue=True),
       [mk(i, uniq(r, n), m, r, arrival_ms=a) for i, (n, m, a) in enumerate(
           [(300, 40, 0), (300, 60, 0), (500, 10, 5), (20, 5, 6), (20, 5, 7), (20, 5, 500), (700, 3, 520), (30, 3, 530)])])

    r = random.Random(20)
    sc("prefill_interval_4", "prefill_schedule_interval=4", dict(num_blocks=401, prefill_schedule_interval=4),
       [mk(i, uniq(r, r.randrange(20, 200)), r.randrange(5, 30), r, arrival_ms=i * 13.0) for i in range(20)])

    r = random.Random(21)
    sc("resume_multi_chunk", "preempted long requests re-prefill in chunks under a small budget",
       dict(num_blocks=41, max_num_batched_tokens=64, max_num_seqs=16, enable_prefix_caching=True, dump_free_queue=True),
       [mk(i, uniq(r, r.randrange(120, 200)), r.randrange(60, 120), r, arrival_ms=i * 11.0) for i in range(5)])
    r = random.Random(23)
    p = uniq(r, 32)
    sc("duplicate_copies_evicted", "several physical copies of one full block, evicted one by one: what the events say",
       dict(num_blocks=21, dump_free_queue=True),
       [mk(i, list(p), 3, r, arrival_ms=0.0) for i in range(4)] +
       [mk(4 + i, uniq(r, 50), 4, r, arrival_ms=100.0 + 60 * i) for i in range(6)] +
       [mk(10, list(p) + uniq(r, 5), 3, r, arrival_ms=220.0), mk(11, list(p) + uniq(r, 5), 3, r, arrival_ms=600.0)])

    def early(seed, n, lo, hi):
        r = random.Random(seed)
        rs = []
        for i in range(n):
            q = mk(i, uniq(r, r.randrange(lo, hi)), 60, r, arrival_ms=i * 12.0, stop_token_ids=[99999])
            q["output_token_ids"][r.randrange(1, 59)] = 99999
            rs.append(q)
        return rs
    sc("stop_early", "requests end on a stop token before max_tokens", dict(num_blocks=61, dump_free_queue=True), early(22, 20, 20, 90))
    sc("stop_early_async", "same, async scheduling: the stop is seen one step late", dict(num_blocks=61, async_scheduling=True, dump_free_queue=True), early(22, 20, 20, 90))
    return S


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--only", nargs="*", help="names of scenarios; all if not given")
    ap.add_argument("--run", help="python of the environment that has vLLM")
    a = ap.parse_args()
    inputs, golden = os.path.join(a.out, "scenarios"), os.path.join(a.out, "golden")
    os.makedirs(inputs, exist_ok=True)
    jobs = []
    for name, cfg, reqs in scenarios():
        if a.only and name not in a.only:
            continue
        c, q = os.path.join(inputs, name + ".config.json"), os.path.join(inputs, name + ".requests.jsonl")
        with open(c, "w") as f:
            json.dump(cfg, f, indent=1)
        with open(q, "w") as f:
            for x in reqs:
                f.write(json.dumps(x, separators=(",", ":")) + "\n")
        jobs.append("\t".join((c, q, os.path.join(golden, name + ".jsonl.gz"))))
    if a.run:
        os.makedirs(golden, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            f.write("\n".join(jobs) + "\n")
            f.flush()
            p = subprocess.run([a.run, os.path.join(HERE, "oracle_vllm.py"), "--list", f.name])
            sys.exit(p.returncode)


if __name__ == "__main__":
    main()
