#!/usr/bin/env python3
"""The hand-written scenarios for the SGLang scheduler oracle: inputs, and golden traces if asked.

  gen_sglang.py --out DIR [--only NAME...] [--run PYTHON]

writes DIR/scenarios/NAME.config.json and NAME.requests.jsonl, the same on every machine; with --run, the python of an
environment made by setup_sglang.sh, also DIR/golden/NAME.jsonl.gz. Standard library only; no engine is imported.
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

    def plain(seed=1):
        r = random.Random(seed)
        return [mk(i, uniq(r, r.randrange(20, 200)), r.randrange(3, 30), r, arrival_ms=i * 17.0) for i in range(20)]
    sc("plain", "20 requests, ample pool, no sharing, non-overlap loop", dict(max_total_tokens=16000), plain())
    sc("plain_overlap", "same, overlap scheduler (the default in SGLang)", dict(max_total_tokens=16000, disable_overlap=False), plain())

    def sharing():
        r = random.Random(2)
        base = [uniq(r, 160), uniq(r, 96)]
        first = [mk(i, base[i % 2] + uniq(r, r.randrange(5, 60)), r.randrange(4, 25), r, arrival_ms=i * 23.0) for i in range(24)]
        return first + [mk(24 + i, f["prompt_token_ids"] + f["output_token_ids"] + uniq(r, 30), 10, r, arrival_ms=1500.0 + 25 * i)
                        for i, f in enumerate(first[:12])]
    sc("prefix_sharing_p1", "shared prefixes and multi-turn, page 1, fcfs", dict(max_total_tokens=8000), sharing())
    sc("prefix_sharing_p16", "same, page 16", dict(max_total_tokens=8000, page_size=16), sharing())

    def lpm():
        r = random.Random(3)
        base = [uniq(r, n) for n in (300, 200, 100, 40)]
        return [mk(i, (r.choice(base) if i % 5 else []) + uniq(r, r.randrange(5, 40)), r.randrange(4, 20), r, arrival_ms=float(i // 8) * 30) for i in range(48)]
    sc("lpm", "longest-prefix-match order against a full running batch", dict(max_total_tokens=3000, max_running_requests=6, schedule_policy="lpm"), lpm())
    sc("lpm_as_fcfs", "same requests, fcfs", dict(max_total_tokens=3000, max_running_requests=6), lpm())
    sc("lpm_p16", "same requests, lpm, page 16", dict(max_total_tokens=3008, max_running_requests=6, schedule_policy="lpm", page_size=16), lpm())

    r = random.Random(31)
    base = [uniq(r, 64) for _ in range(4)]
    sc("lpm_over_128_waiting", "more than 128 waiting at once: lpm order falls back",
       dict(max_total_tokens=6000, max_running_requests=12, schedule_policy="lpm"),
       [mk(i, r.choice(base) + uniq(r, r.randrange(5, 30)), r.randrange(2, 8), r, arrival_ms=0.0) for i in range(160)])

    def longp():
        r = random.Random(4)
        return [mk(i, uniq(r, n), 12, r, arrival_ms=a) for i, (n, a) in enumerate(
            [(50, 0), (3000, 5), (700, 6), (40, 7), (1500, 60), (513, 120), (512, 200), (511, 260), (30, 300)])]
    sc("chunked", "chunked_prefill_size=512, prompts up to 3000", dict(max_total_tokens=16000, chunked_prefill_size=512), longp())
    sc("chunked_p16", "same, page 16", dict(max_total_tokens=16000, chunked_prefill_size=512, page_size=16), longp())
    sc("chunked_overlap", "same, overlap", dict(max_total_tokens=16000, chunked_prefill_size=512, disable_overlap=False), longp())
    sc("mixed_chunk", "chunked with enable_mixed_chunk", dict(max_total_tokens=16000, chunked_prefill_size=512, enable_mixed_chunk=True), longp())
    sc("prompt_over_max_prefill", "no chunking, max_prefill_tokens=1024, prompts longer than it",
       dict(max_total_tokens=16000, chunked_prefill_size=-1, max_prefill_tokens=1024), longp())

    def press():
        r = random.Random(5)
        return [mk(i, uniq(r, r.randrange(30, 80)), r.randrange(40, 90), r, arrival_ms=i * 11.0) for i in range(14)]
    sc("retract_p1", "decode out of memory: retraction, page 1, conservativeness 0.1", dict(max_total_tokens=640, schedule_conservativeness=0.1), press())
    sc("retract_p16", "same, page 16", dict(max_total_tokens=640, page_size=16, schedule_conservativeness=0.1), press())
    sc("retract_overlap", "same as retract_p1, overlap", dict(max_total_tokens=640, schedule_conservativeness=0.1, disable_overlap=False), press())
    sc("retract_no_radix", "same as retract_p1, radix cache off", dict(max_total_tokens=640, schedule_conservativeness=0.1, disable_radix_cache=True), press())
    sc("pressure_default", "same requests, conservativeness 1.0", dict(max_total_tokens=640), press())
    sc("pressure_ignore_eos", "same requests with ignore_eos: full max_new_tokens reserved, no retraction", dict(max_total_tokens=640, schedule_conservativeness=0.1, ignore_eos=True), press())
    sc("pressure_ignore_eos_no_radix", "ignore_eos with the radix cache off: the third admission path", dict(max_total_tokens=640, ignore_eos=True, disable_radix_cache=True), press())

    r = random.Random(6)
    shared = uniq(r, 64)
    sc("pressure_shared_p16", "shared prefix, eviction of radix leaves, BlockRemoved",
       dict(max_total_tokens=768, page_size=16, schedule_conservativeness=0.3),
       [mk(i, (shared if i % 3 else uniq(r, 64)) + uniq(r, r.randrange(1, 50)), r.randrange(20, 60), r, arrival_ms=i * 31.0) for i in range(30)])
    r = random.Random(6)
    shared = uniq(r, 64)
    sc("pressure_shared_p1", "as pressure_shared_p16 with page 1",
       dict(max_total_tokens=768, schedule_conservativeness=0.3),
       [mk(i, (shared if i % 3 else uniq(r, 64)) + uniq(r, r.randrange(1, 50)), r.randrange(20, 60), r, arrival_ms=i * 31.0) for i in range(30)])

    r = random.Random(7)
    sc("priority", "enable_priority_scheduling with preemption (higher value first; threshold 10)",
       dict(max_total_tokens=2000, max_running_requests=4, enable_priority_scheduling=True),
       [mk(i, uniq(r, r.randrange(30, 90)), r.randrange(20, 50), r, arrival_ms=float((i // 3) * 40), priority=r.choice([0, 0, 5, 12, 25])) for i in range(24)])

    r = random.Random(8)
    sc("max_running", "max_running_requests=4, 20 arrive together", dict(max_total_tokens=6000, max_running_requests=4),
       [mk(i, uniq(r, r.randrange(10, 100)), r.randrange(2, 20), r, arrival_ms=0.0) for i in range(20)])

    r = random.Random(9)
    sh = uniq(r, 200)
    sc("no_radix", "shared prompts, radix cache off", dict(max_total_tokens=6000, disable_radix_cache=True),
       [mk(i, sh[: r.choice([100, 160, 200])] + uniq(r, 20), 15, r, arrival_ms=i * 20.0) for i in range(20)])

    r = random.Random(10)
    pr = uniq(r, 200)
    lens = [15, 16, 17, 31, 32, 33, 48, 1, 2, 16, 32, 33, 47, 48, 49, 64]
    bb = [mk(i, pr[:n], m, r, arrival_ms=i * 200.0) for i, (n, m) in enumerate([(n, m) for n in lens for m in (1, 16, 17)])]
    sc("page_boundaries_p16", "prompts at page multiples +-1", dict(max_total_tokens=3200, page_size=16), bb)
    sc("page_boundaries_p1", "same with page 1", dict(max_total_tokens=3200), bb)

    def ident(seed=11):
        r = random.Random(seed)
        p, q = uniq(r, 160), uniq(r, 130)
        return [mk(i, list(p), 6, r, arrival_ms=0.0) for i in range(8)] + [mk(8 + i, list(q), 6, r, arrival_ms=300.0 + 4 * i) for i in range(8)]
    sc("identical_fcfs", "8 identical prompts in one step", dict(max_total_tokens=6000), ident())
    sc("identical_lpm", "same, lpm (in-batch prefix caching defers duplicates)", dict(max_total_tokens=6000, schedule_policy="lpm"), ident())

    r = random.Random(12)
    sc("max_tokens_1", "prefill-only requests", dict(max_total_tokens=4000),
       [mk(i, uniq(r, r.randrange(1, 150)), 1, r, arrival_ms=i * 6.0) for i in range(30)])

    r = random.Random(13)
    sc("oversize", "prompt+max_tokens beyond pool or context", dict(max_total_tokens=400, context_length=1000),
       [mk(i, uniq(r, n), m, r, arrival_ms=i * 30.0) for i, (n, m) in enumerate([(50, 10), (380, 100), (394, 10), (395, 10), (420, 5), (990, 5), (100, 350), (30, 5)])])

    r = random.Random(16)
    big = [uniq(r, 128) for _ in range(6)]
    m200 = [mk(i, (r.choice(big)[: r.choice([32, 64, 128])] if r.random() < .7 else []) + uniq(r, r.randrange(1, 120)),
               r.randrange(1, 40), r, arrival_ms=round(i * 40 + r.random() * 100, 2)) for i in range(200)]
    sc("mixed_200", "200 requests: sharing, pressure, chunking, running limit together, page 16, overlap",
       dict(max_total_tokens=1920, page_size=16, chunked_prefill_size=256, max_running_requests=16, schedule_conservativeness=0.3,
            schedule_policy="lpm", disable_overlap=False, max_steps=4000), m200)

    r = random.Random(17)
    sc("aborts", "client aborts of running and waiting requests", dict(max_total_tokens=1000, max_running_requests=4),
       [mk(i, uniq(r, r.randrange(20, 90)), 40, r, arrival_ms=i * 9.0, **({"abort_step": 6 + i * 3} if i % 3 == 0 else {})) for i in range(12)])
    def early(seed, n, lo, hi):
        r = random.Random(seed)
        rs = []
        for i in range(n):
            q = mk(i, uniq(r, r.randrange(lo, hi)), 60, r, arrival_ms=i * 12.0, stop_token_ids=[99999])
            q["output_token_ids"][r.randrange(1, 59)] = 99999
            rs.append(q)
        return rs
    sc("stop_early", "requests end on a stop token before max_tokens", dict(max_total_tokens=960), early(22, 20, 20, 90))
    sc("stop_early_overlap", "same, overlap: the stop is seen one step late", dict(max_total_tokens=960, disable_overlap=False), early(22, 20, 20, 90))
    return S


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--only", nargs="*", help="names of scenarios; all if not given")
    ap.add_argument("--run", help="python of the environment that has SGLang")
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
            p = subprocess.run([a.run, os.path.join(HERE, "oracle_sglang.py"), "--list", f.name])
            sys.exit(p.returncode)


if __name__ == "__main__":
    main()
