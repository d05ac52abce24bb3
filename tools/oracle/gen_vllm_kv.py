#!/usr/bin/env python3
"""Write the KV-transfer scenario inputs (deterministic) and, with --run PYTHON, the golden traces."""
import argparse, json, os, random, subprocess, sys, tempfile
HERE = os.path.dirname(os.path.abspath(__file__))


def uniq(rng, n):
    return [rng.randrange(10, 99999) for _ in range(n)]


def mk(i, prompt, max_tokens, rng, **kw):
    d = {"id": f"r{i:03d}", "prompt_token_ids": prompt, "max_tokens": max_tokens,
         "output_token_ids": [rng.randrange(100000, 199000) for _ in range(max_tokens)]}
    d.update(kw)
    return d


D = dict(remote_prefill=True)
P = dict(remote_decode=True)


def scenarios():
    S = []
    def sc(name, comment, cfg, reqs):
        S.append((name, dict(cfg, name=name, comment=comment), reqs))
    def both(name, comment, cfg, make):
        sc(name, comment, cfg, make())
        sc(name + "_async", comment + "; async scheduling", dict(cfg, async_scheduling=True), make())

    dec = dict(kv_role="kv_consumer", dump_free_queue=True)

    # ---- decode side
    def f():
        r = random.Random(101)
        return [mk(i, uniq(r, r.randrange(15, 220)), r.randrange(3, 25), r, arrival_ms=i * 17.0, **D) for i in range(20)]
    both("d_staggered", "decode side: 20 remote prefills, staggered, ample blocks, no sharing", dict(dec, num_blocks=601), f)

    def f():
        r = random.Random(102)
        base = [uniq(r, 160), uniq(r, 96)]
        a = [mk(i, base[i % 2] + uniq(r, r.randrange(1, 60)), r.randrange(4, 25), r, arrival_ms=i * 23.0,
                **(D if i % 4 != 3 else {})) for i in range(16)]
        b = [mk(16 + i, x["prompt_token_ids"] + x["output_token_ids"] + uniq(r, 30), 8, r, arrival_ms=900.0 + 25 * i, **D)
             for i, x in enumerate(a[:8])]
        # exact repeats: everything but the last token may be cached, and still a load is waited for
        c = [mk(24 + i, list(a[i]["prompt_token_ids"]), 6, r, arrival_ms=1500.0 + 20 * i, **D) for i in range(6)]
        e = [mk(30 + i, uniq(r, n), 6, r, arrival_ms=1800.0 + 60 * i, **D) for i, n in enumerate([16, 32, 33, 48, 1, 15, 17])]
        e += [mk(37 + i, list(x["prompt_token_ids"]), 6, r, arrival_ms=2300.0 + 60 * i, **D) for i, x in enumerate(e)]
        return a + b + c + e
    both("d_local_hits", "decode side: shared prefixes, follow-up turns, exact repeats, block boundaries; every 4th of the first 16 is an ordinary local request",
         dict(dec, num_blocks=401), f)

    def f():
        r = random.Random(115)
        p, q = uniq(r, 160), uniq(r, 130)
        return [mk(i, list(p), 6, r, arrival_ms=0.0, **D) for i in range(4)] + [mk(4 + i, list(q), 6, r, arrival_ms=100.0 + 6 * i, **D) for i in range(4)] + \
               [mk(8, list(p) + uniq(r, 20), 6, r, arrival_ms=0.0), mk(9, list(p) + uniq(r, 20), 6, r, arrival_ms=200.0, **D)]
    both("d_identical", "decode side: equal prompts together; a load in flight is invisible to the prefix cache", dict(dec, num_blocks=201), f)

    def f():
        r = random.Random(103)
        return [mk(i, uniq(r, r.randrange(30, 90)), r.randrange(30, 80), r, arrival_ms=i * 12.0, load_ms=r.choice([15, 40, 90]) + 0.0, **D) for i in range(16)]
    both("d_pressure", "decode side: decode growth overruns a small pool while loads are in flight", dict(dec, num_blocks=41), f)

    def f():
        r = random.Random(104)
        sh = uniq(r, 64)
        return [mk(i, (sh if i % 3 else uniq(r, 64)) + uniq(r, r.randrange(1, 50)), r.randrange(20, 60), r, arrival_ms=i * 21.0,
                   **(D if i % 5 else {})) for i in range(24)]
    both("d_pressure_shared", "decode side: pressure with a shared prefix, every 5th request is local", dict(dec, num_blocks=45), f)

    def f():
        r = random.Random(105)
        q = [mk(0, uniq(r, 300), 10, r, arrival_ms=0.0, load_ms=400.0, **D), mk(1, uniq(r, 40), 30, r, arrival_ms=5.0),
             mk(2, uniq(r, 60), 20, r, arrival_ms=6.0, load_ms=20.0, **D), mk(3, uniq(r, 50), 20, r, arrival_ms=40.0),
             mk(4, uniq(r, 200), 12, r, arrival_ms=60.0, load_ms=300.0, **D), mk(5, uniq(r, 500), 6, r, arrival_ms=80.0, load_ms=30.0, **D),
             mk(6, uniq(r, 20), 12, r, arrival_ms=85.0), mk(7, uniq(r, 30), 12, r, arrival_ms=90.0, load_ms=25.0, **D)]
        return q + [mk(8 + i, uniq(r, 30), 10, r, arrival_ms=300.0 + 30 * i, **(D if i % 2 else {})) for i in range(6)]
    both("d_pass_waiter", "decode side: slow loads at the head of the queue; later requests pass, then one that does not fit stops the scan",
         dict(dec, num_blocks=61), f)

    def f():
        r = random.Random(106)
        q = [mk(i, uniq(r, r.randrange(40, 120)), 25, r, arrival_ms=i * 2.0, load_ms=r.choice([10.0, 60.0]), **D) for i in range(14)]
        q[5]["abort_ms"] = 65.0  # its load has been reported, it only waits for a seat
        return q
    both("d_max_num_seqs", "decode side: max_num_seqs=3; loads in flight do not count as running", dict(dec, num_blocks=201, max_num_seqs=3), f)

    def f():
        r = random.Random(107)
        return [mk(i, uniq(r, r.randrange(150, 330)), r.randrange(5, 20), r, arrival_ms=i * 6.0, **(D if i % 2 else {})) for i in range(14)]
    both("d_reserved", "decode side: chunked local prefills (budget 64) reserve blocks that new loads may not take",
         dict(dec, num_blocks=71, max_num_batched_tokens=64, max_num_seqs=16), f)

    def f():
        r = random.Random(116)
        return [mk(i, uniq(r, r.randrange(200, 500) if i % 3 == 0 else r.randrange(60, 200)), r.randrange(5, 20), r, arrival_ms=i * 14.0, **(D if i % 3 else {})) for i in range(18)]
    both("d_reserved_threshold", "decode side: long_prefill_token_threshold leaves tokens in the budget, so loads are asked for beside chunked prefills: reservations decide",
         dict(dec, num_blocks=61, max_num_batched_tokens=256, max_num_seqs=16, long_prefill_token_threshold=48), f)

    def f():
        r = random.Random(108)
        q = [mk(i, uniq(r, r.randrange(40, 110)), 20, r, arrival_ms=i * 9.0, load_ms=70.0 + 5 * i, **D) for i in range(12)]
        for i, m in ((0, 40.0), (1, 84.0), (3, 118.0), (5, 240.0), (7, 300.0), (9, 175.0)):
            q[i]["abort_ms"] = m
        q[11]["abort_ms"] = 99.0  # at its arrival: before any load was asked for
        return q
    both("d_cancel", "decode side: cancels before the load, during it, after it and while decoding", dict(dec, num_blocks=51), f)

    def fail(policy, seed):
        def f():
            r = random.Random(seed)
            sh = uniq(r, 48)
            q = [mk(i, (sh if i % 2 else []) + uniq(r, r.randrange(40, 110)), 15, r, arrival_ms=i * 25.0, **D) for i in range(14)]
            for i, v in ((2, "request"), (3, "request"), (5, 1), (6, 0), (8, 2), (9, 1), (11, "request")):
                q[i]["load_fail"] = v
            return q
        return f
    both("d_load_fail_recompute", "decode side: failed loads, kv_load_failure_policy=recompute (whole requests, and from the f-th block on)",
         dict(dec, num_blocks=61, kv_load_failure_policy="recompute"), fail("recompute", 109))
    both("d_load_fail_error", "decode side: the same failures, kv_load_failure_policy=fail (the default)",
         dict(dec, num_blocks=61), fail("fail", 109))

    def f():
        r = random.Random(113)
        rs = []
        for i in range(16):
            q = mk(i, uniq(r, r.randrange(30, 90)), 40, r, arrival_ms=i * 14.0, stop_token_ids=[99999], **D)
            q["output_token_ids"][r.randrange(1, 39)] = 99999
            rs.append(q)
        return rs
    both("d_stop", "decode side: requests end on a stop token; blocks of a step still in flight are parked (async)", dict(dec, num_blocks=51), f)

    r = random.Random(110)
    sc("d_priority", "decode side: priority policy under pressure, loads of several priorities",
       dict(dec, num_blocks=41, policy="priority", max_num_seqs=6),
       [mk(i, uniq(r, r.randrange(30, 90)), r.randrange(15, 50), r, arrival_ms=float((i // 2) * 30), priority=r.choice([0, 0, 1, 2, 5]),
           load_ms=r.choice([10.0, 45.0, 80.0]), **(D if i % 4 else {})) for i in range(20)])

    r = random.Random(111)
    sh = uniq(r, 100)
    sc("d_no_prefix_caching", "decode side: prefix caching off", dict(dec, num_blocks=81, enable_prefix_caching=False),
       [mk(i, sh[: r.choice([33, 64, 100])] + uniq(r, 20), 18, r, arrival_ms=i * 15.0, **D) for i in range(16)])

    def f():
        r = random.Random(112)
        return [mk(i, uniq(r, r.randrange(20, 100)), r.randrange(10, 40), r, arrival_ms=i * 18.0,
                   accept=[r.randrange(0, 4) for _ in range(7)], **(D if i % 3 else {})) for i in range(14)]
    both("d_spec_ngram", "decode side with n-gram drafts (k=3): a loaded request starts with a padded decode", dict(dec, num_blocks=61, spec_method="ngram", spec_k=3), f)
    both("d_spec_draft_model", "decode side with a draft model (k=3): lookahead slots, and none of them during a load", dict(dec, num_blocks=61, spec_method="draft_model", spec_k=3), f)

    def f():
        r = random.Random(114)
        sh = uniq(r, 96)
        return [mk(i, sh[: r.choice([32, 33, 64, 96])] + uniq(r, r.choice([0, 1, 16, 40])), r.randrange(8, 25), r, arrival_ms=i * 30.0,
                   accept=[r.randrange(0, 4) for _ in range(7)], **(D if i % 3 else {})) for i in range(16)]
    both("d_spec_eagle", "decode side with EAGLE (k=3): with a connector there are no lookahead hashes, the last matched block is dropped instead",
         dict(dec, num_blocks=101, spec_method="eagle", spec_k=3), f)

    # ---- prefill side
    pre = dict(kv_role="kv_producer", dump_free_queue=True)
    def f():
        r = random.Random(121)
        sh = uniq(r, 80)
        return [mk(i, (sh if i % 3 == 0 else []) + uniq(r, r.randrange(20, 200)), 1, r, arrival_ms=i * 13.0, **P) for i in range(20)]
    both("p_plain", "prefill side: max_tokens 1, blocks are freed when the other side has read them", dict(pre, num_blocks=301), f)

    def f():
        r = random.Random(122)
        return [mk(i, uniq(r, r.randrange(60, 200)), 1, r, arrival_ms=i * 8.0, send_ms=r.choice([20.0, 90.0, 160.0]), **P) for i in range(20)]
    both("p_pressure", "prefill side: held blocks keep the next prompts waiting, chunked by a 128-token budget",
         dict(pre, num_blocks=41, max_num_batched_tokens=128), f)

    def f():
        r = random.Random(123)
        return [mk(i, uniq(r, r.randrange(30, 90)), 1 if i % 2 else r.randrange(30, 60), r, arrival_ms=i * 14.0, **(dict(P, send_ms=r.choice([30.0, 120.0])) if i % 2 else {}))
                for i in range(24)]
    both("p_mixed_decode", "prefill side that also serves whole requests: preemption beside held blocks", dict(pre, num_blocks=33), f)

    def f():
        r = random.Random(124)
        q = [mk(i, uniq(r, r.randrange(100, 260)), 1, r, arrival_ms=i * 10.0, **P) for i in range(12)]
        q[2]["send_ms"] = 1500.0  # never read: the lease runs out
        q[1]["abort_ms"] = 15.0; q[4]["abort_ms"] = 41.0; q[6]["abort_ms"] = 220.0; q[8]["abort_ms"] = 120.0; q[9]["abort_ms"] = 95.0
        return q
    both("p_cancel_lease", "prefill side: cancels while waiting, in mid-prefill and while sending; one transfer only ends with its lease",
         dict(pre, num_blocks=81, max_num_batched_tokens=128), f)

    def f():
        r = random.Random(125)
        return [mk(i, uniq(r, 300), 1, r, arrival_ms=i * 5.0, send_ms=60.0, **P) for i in range(6)] + \
               [mk(6 + i, uniq(r, r.randrange(40, 90)), 1, r, arrival_ms=40.0 + i * 11.0, send_ms=60.0, **P) for i in range(6)]
    both("p_over_admission", "prefill side: scheduler_reserve_full_isl=False, prefills preempt each other",
         dict(pre, num_blocks=49, max_num_batched_tokens=64, max_num_seqs=16, scheduler_reserve_full_isl=False), f)

    # ---- the engine's own CPU offload connector
    off = dict(kv_role="offload", dump_free_queue=True)
    def f():
        r = random.Random(131)
        base = [uniq(r, 160), uniq(r, 96), uniq(r, 128)]
        a = [mk(i, base[i % 3] + uniq(r, r.randrange(5, 60)), r.randrange(4, 20), r, arrival_ms=i * 40.0) for i in range(18)]
        return a + [mk(18 + i, x["prompt_token_ids"] + x["output_token_ids"] + uniq(r, 20), 8, r, arrival_ms=1000.0 + 40 * i) for i, x in enumerate(a[:10])]
    both("offload_reload", "CPU offload: a small GPU pool forgets, the host keeps; hits come back as loads", dict(off, num_blocks=41, offload_chunks=200), f)
    both("offload_small_host", "CPU offload: the host pool is small too and evicts", dict(off, num_blocks=41, offload_chunks=24), f)

    def f():
        r = random.Random(132)
        return [mk(i, uniq(r, r.randrange(30, 80)), r.randrange(40, 80), r, arrival_ms=i * 11.0) for i in range(12)]
    both("offload_slow_store", "CPU offload: stores take longer than the blocks live; reuse waits for them (flush)",
         dict(off, num_blocks=31, offload_chunks=300, store_latency_ms=120.0),
         lambda: (lambda r: [mk(i, uniq(r, r.randrange(60, 200)), 3, r, arrival_ms=i * 12.0) for i in range(16)])(random.Random(133)))
    both("offload_pressure", "CPU offload: preempted requests find their blocks on the host", dict(off, num_blocks=41, offload_chunks=100), f)
    both("offload_pressure_slow_store", "the same with slow stores: a preempted request is passed over while its stores are under way",
         dict(off, num_blocks=41, offload_chunks=300, store_latency_ms=150.0), f)

    # ---- scheduler settings that have no engine option of their own in the other set
    def f():
        r = random.Random(141)
        return [mk(i, uniq(r, r.randrange(20, 200)), r.randrange(5, 30), r, arrival_ms=i * 13.0) for i in range(24)]
    both("dp_throttle_4", "data parallel prefill throttle: schedule(throttle_prefills = step counter % 4 != 0)", dict(num_blocks=401, dp_prefill_interval=4), f)
    def f():
        r = random.Random(142)
        return [mk(i, uniq(r, r.randrange(100, 400)), r.randrange(15, 30), r, arrival_ms=i * 45.0 if i < 14 else 800.0 + i) for i in range(22)]
    both("dp_throttle_chunked", "the same with interval 3, chunked prefills (budget 128), then more work than fits: the capacity escape",
         dict(num_blocks=301, dp_prefill_interval=3, max_num_batched_tokens=128), f)
    def f():
        r = random.Random(143)
        return [mk(i, uniq(r, r.randrange(10, 100)), r.randrange(5, 30), r, arrival_ms=i * 3.0) for i in range(20)]
    both("max_num_active_seqs", "max_num_active_seqs=4 of max_num_seqs=16", dict(num_blocks=401, max_num_seqs=16, max_num_active_seqs=4), f)
    return S


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--run", help="python of the venv that has vLLM")
    ap.add_argument("--only", nargs="*")
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    jobs = []
    for name, cfg, reqs in scenarios():
        if a.only and name not in a.only:
            continue
        d, golden = os.path.join(a.out, "scenarios"), os.path.join(a.out, "golden")
        os.makedirs(d, exist_ok=True)
        os.makedirs(golden, exist_ok=True)
        c, q = os.path.join(d, name + ".config.json"), os.path.join(d, name + ".requests.jsonl")
        json.dump(cfg, open(c, "w"), indent=1)
        with open(q, "w") as f:
            for x in reqs:
                f.write(json.dumps(x, separators=(",", ":")) + "\n")
        jobs.append("\t".join((c, q, os.path.join(golden, name + ".jsonl.gz"))))
    if a.run:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            f.write("\n".join(jobs) + "\n")
            f.flush()
            p = subprocess.run([a.run, os.path.join(HERE, "oracle_vllm_kv.py"), "--list", f.name])
            sys.exit(p.returncode)


if __name__ == "__main__":
    main()
