#!/usr/bin/env python3
"""Random and hand-shaped scenarios for the vLLM scheduler oracle: inputs, and golden traces if asked.
A re-implementation is proven by replaying every scenario and comparing its trace, line by line, with the
one the real scheduler wrote. Hand-written scenarios cover what someone thought of; these cover the
combinations nobody did. Each scenario depends on (seed, kind, index) only, so any one can be made again
and a set from another seed is a fair unseen test. Standard library only; no engine is imported."""
#   gen_random_vllm.py --out DIR --count N --seed S [--start K] [--nasty R] [--options T] [--run PYTHON]
#
# writes DIR/scenarios/NAME.config.json and NAME.requests.jsonl for the random scenarios K .. K+N-1 and for R variants
# of each hand-shaped one; with --run also DIR/golden/NAME.jsonl.gz (one process). The traces are then checked (nothing
# failed, stuck or unfinished, under MAX_STEPS) and counted; --check does only that. --options keeps the scenarios in
# which it can switch on one of two options that all others leave alone, drawing from seed T, and names them ext_NAME.
#
# Ranges narrowed because they break the real engine or the driver, not because they are uninteresting:
# - a request that cannot fit in the pool alone waits for ever (the engine relies on its API to refuse it);
# - max_num_batched_tokens < max_num_seqs, long_prefill_token_threshold > max_model_len, and chunked prefill off with
#   max_num_batched_tokens < max_model_len are refused by the engine's configuration;
# - prompts of max_model_len or more are refused by the API, never by the scheduler;
# - ids are unique, and kv_events stays on: without events a trace says less.
import argparse, collections, glob, gzip, json, math, os, random, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
MAX_STEPS = 600       # a trace longer than this is a generator fault: it says little more and costs review time
ROUGH_STEPS = 380     # what rough_steps() may predict before requests are dropped
STOPS = list(range(199900, 199910))   # never drawn as an ordinary token


# ---------------------------------------------------------------------------------------------- small parts

def cdiv(a, b):
    return -(-a // b)


def weighted(rng, *pairs):
    """weighted(rng, (value, weight), ...)"""
    return rng.choices([v for v, _ in pairs], [w for _, w in pairs])[0]


def toks(rng, n, alphabet=None):
    """n prompt tokens; a tiny alphabet makes unrelated texts share whole blocks"""
    return [rng.choice(alphabet) if alphabet else rng.randrange(10, 99999) for _ in range(n)]


def req(rng, arrival_ms, prompt, max_tokens, alphabet=None, stop_at=None, **kw):
    """A request without id. stop_at plants a stop token at that output position (0 is the first)."""
    outs = [rng.choice(alphabet) if alphabet else rng.randrange(100000, 199000) for _ in range(max_tokens)]
    if stop_at is not None:
        s = rng.choice(STOPS)
        kw["stop_token_ids"] = [s]
        if 0 <= stop_at < max_tokens:
            outs[stop_at] = s
    return dict(prompt_token_ids=list(prompt), max_tokens=max_tokens, output_token_ids=outs,
                arrival_ms=round(float(arrival_ms), 4), **kw)


def length(cfg, r):
    """the most tokens the request can ever have"""
    return min(len(r["prompt_token_ids"]) + r["max_tokens"], cfg.get("max_model_len", 8192))


def blocks(cfg, r):
    return cdiv(length(cfg, r), cfg["block_size"])


def pool(cfg, reqs, ratio):
    """num_blocks (with the null block) such that the demand is ratio times the pool and each request fits alone"""
    need = [blocks(cfg, r) for r in reqs]
    return 1 + max(max(need), math.ceil(sum(need) / ratio))


def said(r):
    """the output the client sees: up to the stop token"""
    out = r["output_token_ids"]
    hit = [i for i, t in enumerate(out) if t in r.get("stop_token_ids", ())]
    return out[:hit[0] + 1] if hit else out


def rough_steps(cfg, reqs):
    """A crude run of the scenario, only to keep traces short (no cache, no preemption, half-grown requests)."""
    usable = (cfg["num_blocks"] - 1) * cfg["block_size"]
    pending = sorted(([r["arrival_ms"], len(r["prompt_token_ids"]), len(said(r))] for r in reqs), reverse=True)
    active, t, steps = [], 0.0, 0
    while pending or active:
        if not active and pending[-1][0] > t:
            t = pending[-1][0]
        while pending and pending[-1][0] <= t and len(active) < cfg["max_num_seqs"]:
            _, p, o = pending[-1]
            if active and sum(a[2] for a in active) + p + o / 2 > usable:
                break
            active.append([p, o, p + o / 2])
            pending.pop()
        left = cfg["max_num_batched_tokens"]
        for a in active:
            n = min(left, a[0] or 1)
            if cfg.get("long_prefill_token_threshold"):
                n = min(n, cfg["long_prefill_token_threshold"])
            left -= n
            if a[0]:
                a[0] -= n
                a[1] -= not a[0]
            else:
                a[1] -= n
        active = [a for a in active if a[0] or a[1] > 0]
        steps += 1
        t += cfg.get("step_ms_base", 10.0) + cfg.get("step_ms_per_token", 0.05) * (cfg["max_num_batched_tokens"] - left)
        if steps > 4 * MAX_STEPS:
            break
    return steps


def finish(rng, cfg, reqs, comment):
    """Give ids whose order is not the arrival order, complete the configuration, and check the rules above."""
    reqs.sort(key=lambda r: r["arrival_ms"])
    n = len(reqs)
    numbers = rng.sample(range(n), n)
    style = rng.choice(["r{:03d}", "r{:03d}", "q{}", "Req-{:x}"])   # unpadded: "q10" < "q9"
    reqs = [dict(id=style.format(k), **r) for k, r in zip(numbers, reqs)]
    if rng.random() < 0.25:
        rng.shuffle(reqs)       # the file need not be in arrival order; ties keep the file's order
    cfg = dict(cfg, comment=comment)
    cfg["max_num_batched_tokens"] = max(cfg["max_num_batched_tokens"], cfg["max_num_seqs"])
    top = cfg.get("max_model_len", 8192)
    assert cfg.get("long_prefill_token_threshold", 0) <= top
    assert cfg.get("enable_chunked_prefill", True) or cfg["max_num_batched_tokens"] >= top
    for r in reqs:
        assert len(r["output_token_ids"]) == r["max_tokens"] >= 1
        assert 1 <= len(r["prompt_token_ids"]) < top
        assert blocks(cfg, r) <= cfg["num_blocks"] - 1, (blocks(cfg, r), cfg)
    return cfg, reqs


# ---------------------------------------------------------------------------------------- random scenarios

# longest fresh prompt part for each block size: small blocks keep small prompts, or the dumped queue is huge
PROMPT_TOP = {1: 24, 4: 70, 8: 110, 16: 200, 32: 300}


def draw_arrivals(rng, n, unit, base, dense):
    """n arrival times in order; unit is roughly the length of one step in ms"""
    kind = weighted(rng, ("together", 2), ("staggered", 3), ("bursts", 3), ("gaps", 0 if dense else 2), ("lattice", 2), ("random", 3))
    gap = unit * rng.choice([0.3, 1] if dense else [0.3, 1, 1, 2, 4])
    if kind == "together":
        return [0.0] * n
    if kind == "staggered":
        return [i * gap for i in range(n)]
    if kind == "random":
        t, out = 0.0, []
        for _ in range(n):
            t += rng.expovariate(1 / gap)
            out.append(round(t, 2))
        return out
    if kind == "lattice":       # many ties, and ties with the ends of steps when steps cost nothing per token
        return sorted((base or unit) * rng.randrange(0, 2 * n) for _ in range(n))
    t, out = 0.0, []
    while len(out) < n:         # groups at one instant; "gaps" leaves the engine idle between them
        out += [t] * rng.randint(1, 8)
        t += round(unit * (rng.randint(60, 150) if kind == "gaps" else rng.randint(1, 15)), 2)
    return out[:n]


def draw_prompts(rng, arrivals, outs, bs, alphabet, unit, dense):
    """Prompts sharing prefixes in every way; outs[i] is what request i will say, so that follow-ups can quote it."""
    top = PROMPT_TOP[bs]
    scale = rng.choice([0.1, 0.2, 0.4] if dense else [0.15, 0.4, 0.4, 1.0, 1.0])
    fresh = lambda lo=1, hi=None: toks(rng, rng.randint(lo, max(lo, hi or int(top * scale))), alphabet)
    bases = [toks(rng, rng.randint(1, max(2, int(top * min(1.0, 2 * scale)))), alphabet) for _ in range(rng.randint(1, 4))]
    weights = [w * rng.choice([0, 1, 1, 3]) for w in (2, 2, 2, 1, 1, 1.5)]
    if not sum(weights):
        weights = [1] * 6
    prompts = []
    for i, t in enumerate(arrivals):
        kind = rng.choices(["fresh", "base", "edge", "again", "cut", "follow"], weights)[0]
        base = rng.choice(bases)
        p = None
        if kind == "base":          # a common prefix cut anywhere, and an own tail
            p = base[:rng.randint(1, len(base))] + fresh(1, max(1, top // 5))
        elif kind == "edge":        # a length one around a multiple of the block size
            n = max(1, bs * rng.randint(1, max(1, top // bs)) + rng.choice([-1, 0, 0, 1]))
            p = (base + fresh(n, n))[:n] if rng.random() < 0.7 else fresh(n, n)
        elif prompts and kind == "again":
            p = list(rng.choice(prompts))
        elif prompts and kind == "cut":
            q = rng.choice(prompts)
            p = q[:rng.randint(1, len(q))]
        elif prompts and kind == "follow":      # next turn of an earlier one, mostly of one that is done by now
            old = [j for j in range(i) if arrivals[j] + unit * len(outs[j]) < t] or list(range(i))
            j = rng.choice(old)
            p = prompts[j] + outs[j] + fresh(1, max(1, top // 6))
            if len(p) > 2 * top:
                p = None
        prompts.append(p or fresh())
    return prompts


def random_scenario(rng):
    pressure = rng.random() < 0.5
    dense = pressure and rng.random() < 0.75        # outputs large against prompts, arriving close together: preemption
    cfg = dict(block_size=rng.choice([1, 4, 8, 16, 16, 16, 32]), async_scheduling=rng.random() < 0.5,
               policy=rng.choice(["fcfs", "priority"]), enable_prefix_caching=rng.random() < 0.85)
    bs = cfg["block_size"]
    if rng.random() < 0.4:
        cfg["step_ms_base"] = rng.choice([0.5, 1.0, 7.5, 10.0, 25.0])
    if rng.random() < 0.5:
        cfg["step_ms_per_token"] = rng.choice([0.0, 0.0, 0.1, 0.013, 0.5])
    base, per = cfg.get("step_ms_base", 10.0), cfg.get("step_ms_per_token", 0.05)
    unit = base + 20 * per

    n = rng.choice([rng.randint(5, 12), rng.randint(8, 30), rng.randint(20, 60)])
    n = max(n, 9) if dense else n
    if bs == 1:
        n = min(n, 20)
    alphabet = rng.sample(range(10, 99999), rng.randint(1, 3)) if rng.random() < 0.1 else None

    # outputs, with their stop tokens
    lo, hi = rng.choice([(1, 5), (1, 30), (1, 30), (10, 50), (20, 80), (40, 80)])
    if dense:
        lo, hi = rng.choice([(5, 40), (10, 50), (20, 80), (40, 80)])
    if bs == 1:
        lo, hi = min(lo, 5), min(hi, 25)
    p_stop = rng.choice([0, 0, 0.2, 0.5, 0.9])
    p_abort = rng.choice([0, 0, 0, 0.1, 0.3] if dense else [0, 0, 0, 0.1, 0.3, 0.6])
    shared_stops = rng.sample(STOPS, 2)
    reqs = []
    for t in draw_arrivals(rng, n, unit, base, dense):
        m = rng.randint(lo, hi)
        r = req(rng, t, [], m, alphabet)
        if rng.random() < p_stop:
            where = weighted(rng, ("any", 5), ("first", 1), ("last", 1), ("absent", 1))
            ids = shared_stops if rng.random() < 0.5 else rng.sample(STOPS, rng.randint(1, 3))
            r["stop_token_ids"] = list(ids)
            if where != "absent":
                k = {"any": rng.randrange(m), "first": 0, "last": m - 1}[where]
                r["output_token_ids"][k] = rng.choice(ids)
                if rng.random() < 0.2 and k + 1 < m:        # a second one that must never be reached
                    r["output_token_ids"][rng.randrange(k + 1, m)] = rng.choice(ids)
        reqs.append(r)
    prompts = draw_prompts(rng, [r["arrival_ms"] for r in reqs], [said(r) for r in reqs], bs, alphabet, unit, dense)
    for r, p in zip(reqs, prompts):
        r["prompt_token_ids"] = list(p)
        if r.get("stop_token_ids") and rng.random() < 0.1:      # in a prompt it stops nothing
            r["prompt_token_ids"][rng.randrange(len(p))] = r["stop_token_ids"][0]

    levels = rng.choice([[0], [0, 0, 1], [0, 1, 2, 5], [-5, -1, 0, 3], list(range(-50, 50))])
    if cfg["policy"] == "priority" or rng.random() < 0.1:       # FCFS must ignore it
        for r in reqs:
            if rng.random() < 0.9:
                r["priority"] = rng.choice(levels)

    # limits
    longest = max(len(r["prompt_token_ids"]) for r in reqs)
    if rng.random() < 0.25:         # tight: requests end on it
        cfg["max_model_len"] = longest + 1 + rng.choice([0, rng.randint(0, 5), rng.randint(0, hi)])
    cfg["max_num_seqs"] = rng.choice([6, 8, 12, 16, 32, 64] if dense else [1, 2, 3, 4, 6, 8, 12, 16, 32, 64])
    cfg["max_num_batched_tokens"] = int(16 * 2 ** rng.uniform(0, 4)) if rng.random() < 0.6 else rng.choice([512, 1024, 2048])
    if rng.random() < 0.12:
        cfg["enable_chunked_prefill"] = False
        cfg.setdefault("max_model_len", rng.choice([longest + 2, max(len(r["prompt_token_ids"]) + r["max_tokens"] for r in reqs)]))
        cfg["max_num_batched_tokens"] = cfg["max_model_len"] + rng.choice([0, 0, rng.randint(0, 60)])
    cfg["max_num_batched_tokens"] = max(cfg["max_num_batched_tokens"], cfg["max_num_seqs"])
    if rng.random() < 0.35:
        cfg["long_prefill_token_threshold"] = min(int(4 * 2 ** rng.uniform(0, 5)), cfg.get("max_model_len", 8192))
    if rng.random() < 0.4:
        cfg["scheduler_reserve_full_isl"] = False
    if rng.random() < 0.4:
        cfg["watermark"] = round(rng.uniform(0.02, 0.3), 3)
    if rng.random() < 0.25:
        cfg["prefill_schedule_interval"] = rng.randint(2, 6)

    # the pool, then fewer requests while the trace would be long
    ratio = rng.uniform(1.5, 6.0) if pressure else rng.choice([1 / 1.1, None])
    while True:
        if ratio and not pressure:
            cfg["num_blocks"] = pool(cfg, reqs, ratio)          # nothing is ever evicted
        else:                       # demand of the requests that could run together
            crowd = sorted((blocks(cfg, r) for r in reqs), reverse=True)[:cfg["max_num_seqs"]]
            cfg["num_blocks"] = 1 + max(crowd[0], math.ceil(sum(crowd) / (ratio or 0.9)))
        steps = rough_steps(cfg, reqs)
        if steps <= ROUGH_STEPS:
            break
        if len(reqs) > 5:
            reqs = reqs[:max(5, len(reqs) * 5 // 6)]
        else:                       # few but slow: a larger budget and shorter outputs
            cfg["max_num_batched_tokens"] *= 2
            cfg.pop("long_prefill_token_threshold", None)
            for r in reqs:
                r["max_tokens"] = cdiv(r["max_tokens"] * 3, 4)
                del r["output_token_ids"][r["max_tokens"]:]
    for r in reqs:
        if rng.random() < p_abort:
            r["abort_step"] = rng.randint(0, int(steps * 1.2) + 1)
    cfg["dump_free_queue"] = cfg["num_blocks"] <= 700 and rng.random() < 0.9
    tags = ["async" if cfg["async_scheduling"] else "sync", "pressure" if pressure else "ample", cfg["policy"]]
    tags += [] if cfg["enable_prefix_caching"] else ["nocache"]
    return "_".join(tags), cfg, reqs, "random"


# ------------------------------------------------------------------------------------- hand-shaped scenarios
# Each function returns (cfg, requests); its docstring becomes the scenario's comment. Numbers vary with rng.

def some(rng, **kw):
    """A plain configuration for the shapes below; async and block size are drawn unless given."""
    cfg = dict(block_size=rng.choice([4, 8, 16]), async_scheduling=rng.random() < 0.5, max_num_seqs=32,
               max_num_batched_tokens=512, dump_free_queue=True)
    cfg.update(kw)
    return cfg


def growing_together(rng, cfg, n, spare):
    """n requests of one length admitted in step 0 that all need their next block in step g+1, where the pool has
    only `spare` left. With async scheduling output g is in flight then. Returns the requests and g.
    Under FCFS the victims are the last of them, under priority (all are equal) the first."""
    bs = cfg["block_size"]
    p = bs * rng.randint(2, 4) - rng.randint(0, 3)
    g = cdiv(p, bs) * bs - p         # decode tokens that still fit
    cfg["max_num_batched_tokens"] = max(2048, n * p)
    reqs = [req(rng, 0, toks(rng, p), 3 * bs) for _ in range(n)]
    cfg["num_blocks"] = 1 + max(max(blocks(cfg, r) for r in reqs), n * cdiv(p, bs) + spare)
    return reqs, g


def victim_already_scheduled(rng):
    """priority: urgent requests arrive late; the victim has been given tokens in the same, budget-limited step"""
    cfg = some(rng, policy="priority", max_num_batched_tokens=rng.choice([16, 24, 40]), max_num_seqs=12)
    bs = cfg["block_size"]
    reqs = [req(rng, i * 15, toks(rng, rng.randint(bs, 4 * bs)), rng.randint(2 * bs, 4 * bs), priority=9 - i // 2)
            for i in range(rng.randint(10, 16))]
    cfg["num_blocks"] = pool(cfg, reqs, rng.uniform(2.5, 4))
    return cfg, reqs


def victim_chunk_stays_cached(rng):
    """priority: a chunked prefill is preempted in the step that gave it a chunk; its blocks were cached but never computed"""
    bs = rng.choice([4, 8])
    n = rng.randint(4, 6)               # urgent requests that all need a second block in step first + j
    c = rng.randint(3, 4)               # blocks in a chunk
    j = rng.randint(1, min(4, bs))
    p = bs + 1 - j
    cfg = some(rng, block_size=bs, policy="priority", max_num_seqs=12, long_prefill_token_threshold=c * bs,
               max_num_batched_tokens=cdiv(c * bs + n * p, bs) * bs, scheduler_reserve_full_isl=rng.random() < 0.5)
    first = 2 if cfg["async_scheduling"] else 1         # steps the long one is alone, with the whole budget
    held = first * cfg["max_num_batched_tokens"] // bs + (j + 1) * c       # its blocks when the pool is full
    r = rng.randint(n - c + 1, n - 1)   # so many of the urgent ones get a block; the next one takes the long one's
    cfg["num_blocks"] = 1 + held + n + r
    long = toks(rng, held * bs + rng.randint(1, (n + r - 2) * bs))
    reqs = [req(rng, 0, long, 6, priority=5)]
    reqs += [req(rng, 1, toks(rng, p), j + rng.randint(2, 5), priority=0) for _ in range(n)]
    reqs += [req(rng, 12 * k, long[:len(long) - bs - rng.randint(0, bs)] + toks(rng, 3), 5, priority=rng.choice([-1, 6]))
             for k in rng.sample(range(3, 14), rng.randint(1, 4))]
    return cfg, reqs


def stop_in_flight_preempted(rng):
    """async: the output in flight when a request is preempted is its stop token (or one next to it)"""
    cfg = some(rng, async_scheduling=True, policy=rng.choice(["fcfs", "priority"]))
    reqs, g = growing_together(rng, cfg, rng.randint(5, 10), rng.randint(0, 3))
    for r in reqs:
        if rng.random() < 0.7:
            r["stop_token_ids"] = [STOPS[0]]
            r["output_token_ids"][max(0, g + rng.choice([-1, 0, 0, 0, 1, cfg["block_size"]]))] = STOPS[0]
    return cfg, reqs


def last_token_in_flight_preempted(rng):
    """async: the output in flight when a request is preempted is its last, so it ends while it waits"""
    cfg = some(rng, async_scheduling=True, policy=rng.choice(["fcfs", "priority"]))
    reqs, g = growing_together(rng, cfg, rng.randint(8, 12), rng.randint(0, 1))
    for r in reqs[:2] + reqs[-2:]:
        r["max_tokens"] = max(1, g + rng.choice([0, 1, 1, 1, 1, 2]))
        del r["output_token_ids"][r["max_tokens"]:]
    return cfg, reqs


def abort_of_preempted(rng):
    """requests are aborted in the steps around their preemption, in flight, waiting, or just resumed"""
    cfg = some(rng, policy=rng.choice(["fcfs", "priority"]))
    reqs, g = growing_together(rng, cfg, rng.randint(6, 10), rng.randint(0, 3))
    for r in reqs[:2] + reqs[-2:]:
        r["abort_step"] = g + rng.choice([2, 2, 2, 2, 3, 4])
    for r in reqs[2:-2]:
        if rng.random() < 0.3:
            r["abort_step"] = g + rng.choice([3, 4, 5, cfg["block_size"] + 2])
    return cfg, reqs


def abort_then_same_prompt(rng):
    """a request is aborted while it runs and its prompt comes again at once: it hits blocks freed in flight"""
    cfg = some(rng, max_num_batched_tokens=rng.choice([32, 64, 256]), max_num_seqs=8)
    bs, reqs = cfg["block_size"], []
    for i in range(8):
        p = toks(rng, rng.randint(bs, 6 * bs))
        a = rng.randint(1, 6)
        reqs.append(req(rng, 0, p, 2 * bs, abort_step=4 * i + a))
        reqs.append(req(rng, (4 * i + a) * 11 + rng.choice([-8, 0, 3, 12]), p + toks(rng, rng.choice([0, 1, bs])), 8))
    for r in reqs:
        r["arrival_ms"] = max(0.0, r["arrival_ms"])
    cfg["num_blocks"] = pool(cfg, reqs, rng.uniform(1.5, 4))
    return cfg, reqs


def budget_one(rng):
    """one token a step, one seat"""
    cfg = some(rng, block_size=rng.choice([1, 4, 8]), max_num_seqs=1, max_num_batched_tokens=1)
    b = toks(rng, 9)
    reqs = [req(rng, rng.choice([0, 40, 300]), b[:rng.randint(1, 9)] + toks(rng, rng.randint(0, 4)), rng.randint(1, 8))
            for _ in range(9)]
    cfg["num_blocks"] = pool(cfg, reqs, rng.uniform(1, 6))
    return cfg, reqs


def budget_equals_seats(rng):
    """as many tokens a step as seats: a chunk takes the tokens of the decodes behind it"""
    k = rng.randint(3, 8)
    cfg = some(rng, max_num_seqs=k, max_num_batched_tokens=k, policy=rng.choice(["fcfs", "priority"]))
    reqs = [req(rng, 12 * i, toks(rng, rng.randint(1, 30)), rng.randint(1, 20), priority=rng.randint(0, 2)) for i in range(12)]
    cfg["num_blocks"] = pool(cfg, reqs, rng.uniform(1, 4))
    return cfg, reqs


def one_seat(rng):
    """one seat, a pool of the largest request: every request evicts what the next one might have hit"""
    cfg = some(rng, max_num_seqs=1, max_num_batched_tokens=rng.choice([16, 64, 512]))
    bs, reqs = cfg["block_size"], []
    for i in range(7):
        p = toks(rng, rng.randint(1, 5 * bs))
        reqs += [req(rng, 0, p, rng.randint(1, 12)), req(rng, 0, p, rng.randint(1, 12))]
    rng.shuffle(reqs)
    cfg["num_blocks"] = pool(cfg, reqs, 100) + rng.randint(0, 2)
    return cfg, reqs


def decodes_starve(rng):
    """long prefills capped just under the budget, with more decodes behind them than tokens are left"""
    b = rng.randint(12, 20)
    cfg = some(rng, max_num_batched_tokens=b, long_prefill_token_threshold=b - rng.randint(0, 3), max_num_seqs=b)
    reqs = [req(rng, 0, toks(rng, 12 * b), 10)]
    reqs += [req(rng, 0, toks(rng, rng.randint(1, 4)), rng.randint(8, 20)) for _ in range(b)]
    reqs += [req(rng, 60, toks(rng, 8 * b), 10), req(rng, 61, toks(rng, 5 * b), 5)]
    cfg["num_blocks"] = pool(cfg, reqs, rng.uniform(1, 2))
    return cfg, reqs


def watermark_one_running(rng):
    """a high watermark holds the queue back while one request runs; alone, it does not count"""
    cfg = some(rng, watermark=rng.choice([0.2, 0.3, 0.5]), scheduler_reserve_full_isl=rng.random() < 0.5)
    bs = cfg["block_size"]
    cfg["num_blocks"] = 1 + 20
    reqs = [req(rng, i * rng.choice([0, 10, 90]), toks(rng, bs * rng.randint(4, 14) + rng.randint(-1, 1)), rng.randint(1, 5 * bs))
            for i in range(9)]
    reqs += [req(rng, 30, toks(rng, rng.randint(1, bs)), 5) for _ in range(4)]
    return cfg, reqs


def copies_evicted_one_by_one(rng):
    """several physical copies of the same full blocks, evicted one by one while probes ask for them"""
    cfg = some(rng, num_blocks=rng.randint(20, 26))
    bs = cfg["block_size"]
    p = toks(rng, 2 * bs)
    reqs = [req(rng, 0, p, 3) for _ in range(rng.randint(3, 6))]
    for i in range(10):
        reqs.append(req(rng, 100 + 60 * i, toks(rng, rng.randint(2 * bs, 4 * bs)), 4))
        if rng.random() < 0.6:
            reqs.append(req(rng, 100 + 60 * i + rng.choice([0, 25]), p + toks(rng, rng.choice([0, 1, 5])), 3))
    return cfg, reqs


def interval_escape(rng):
    """prefill_schedule_interval with more waiting than a release step can admit: the throttle gives up"""
    cfg = some(rng, prefill_schedule_interval=rng.randint(3, 6), max_num_seqs=rng.choice([3, 5, 8]),
               max_num_batched_tokens=rng.choice([24, 64, 256]))
    reqs = [req(rng, rng.choice([0, 50, 55, 200, 400, 401]), toks(rng, rng.randint(1, 60)), rng.randint(5, 20)) for _ in range(18)]
    cfg["num_blocks"] = pool(cfg, reqs, rng.uniform(1, 4))
    return cfg, reqs


def interval_whole_hits(rng):
    """prefill_schedule_interval with prompts that miss one token only: admitted on held steps, not counted as prefill"""
    cfg = some(rng, prefill_schedule_interval=rng.randint(3, 6), max_num_seqs=12, max_num_batched_tokens=128)
    bs = cfg["block_size"]
    p, q = toks(rng, 4 * bs + 1), toks(rng, 3 * bs + 2)
    reqs = [req(rng, 0, p, 2 * bs), req(rng, 0, q, 2 * bs)]
    reqs += [req(rng, 40 + 11 * i, rng.choice([p, p, q, p[:2 * bs + 1], toks(rng, 1), toks(rng, 2)]), rng.randint(1, 20)) for i in range(16)]
    cfg["num_blocks"] = pool(cfg, reqs, rng.choice([0.9, 2]))
    return cfg, reqs


def exact_fit(rng):
    """requests that fill the whole pool to the last slot compete for it"""
    cfg = some(rng, policy=rng.choice(["fcfs", "priority"]), enable_prefix_caching=rng.random() < 0.7)
    bs, u = cfg["block_size"], rng.randint(5, 9)
    cfg["num_blocks"] = 1 + u
    reqs = []
    for i in range(6):
        p = rng.randint(1, (u - 1) * bs)
        m = min(80, u * bs - p - rng.choice([-1, 0, 1, 5]) * (i % 2)) if i % 3 else rng.randint(1, bs)
        m = min(m, u * bs - p)
        reqs.append(req(rng, rng.choice([0, 0, 35]), toks(rng, p), max(1, m), priority=rng.randint(0, 1)))
    return cfg, reqs


def model_len_wall(rng):
    """prompts just under max_model_len, outputs that would cross it, stop tokens exactly there"""
    top = rng.randint(30, 70)
    cfg = some(rng, max_model_len=top, max_num_batched_tokens=rng.choice([16, 64, 128]), max_num_seqs=10)
    reqs, b = [], toks(rng, top)
    for i in range(16):
        p = top - rng.choice([1, 1, 2, 3, cfg["block_size"], cfg["block_size"] + 1])
        gap = top - p
        reqs.append(req(rng, 9 * i, (b if i % 2 else toks(rng, top))[:p], rng.choice([gap - 1, gap, gap + 1, 40]) or 1,
                        stop_at=rng.choice([None, gap - 1, gap - 2, gap])))
    cfg["num_blocks"] = pool(cfg, reqs, rng.uniform(1, 4))
    return cfg, reqs


def over_admission(rng):
    """scheduler_reserve_full_isl off: several long prompts start, the pool ends in mid-prefill"""
    cfg = some(rng, scheduler_reserve_full_isl=False, max_num_batched_tokens=rng.choice([32, 64]), max_num_seqs=16,
               long_prefill_token_threshold=rng.choice([0, 8, 24]), policy=rng.choice(["fcfs", "priority"]))
    bs, b = cfg["block_size"], toks(rng, 400)
    reqs = [req(rng, 5 * i, (b[:rng.randint(1, 6 * bs)] if i % 2 else []) + toks(rng, bs * rng.randint(6, 16)), rng.randint(5, 25),
                priority=rng.randint(0, 2)) for i in range(7)]
    cfg["num_blocks"] = 1 + int(max(blocks(cfg, r) for r in reqs) * rng.uniform(1, 1.6))
    return cfg, reqs


def resume_in_chunks(rng):
    """long preempted requests come back in several chunks under a small budget, finding part of their blocks"""
    cfg = some(rng, max_num_batched_tokens=rng.choice([16, 24, 48]), max_num_seqs=8, enable_prefix_caching=rng.random() < 0.8,
               long_prefill_token_threshold=rng.choice([0, 0, 7]))
    bs = cfg["block_size"]
    reqs = [req(rng, 11 * i, toks(rng, rng.randint(5 * bs, 9 * bs)), rng.randint(3 * bs, 5 * bs)) for i in range(5)]
    cfg["num_blocks"] = pool(cfg, reqs, rng.uniform(1.4, 2.6))
    return cfg, reqs


def urgent_head_does_not_fit(rng):
    """priority: an urgent request too large for now holds back everything less urgent behind it"""
    cfg = some(rng, policy="priority", max_num_seqs=10)
    bs = cfg["block_size"]
    reqs = [req(rng, 5 * i, toks(rng, rng.randint(bs, 3 * bs)), rng.randint(10, 40), priority=rng.randint(0, 3)) for i in range(10)]
    reqs += [req(rng, t, toks(rng, bs * 12), 6, priority=-2) for t in (20, 25, 200)]
    cfg["num_blocks"] = 1 + 13 + rng.randint(0, 6)
    cfg["num_blocks"] = max(cfg["num_blocks"], pool(cfg, reqs, 100))
    return cfg, reqs


def all_ties(rng):
    """priority with equal priorities and arrival times: ids order the queue, the running list picks the victims"""
    cfg = some(rng, policy="priority", max_num_seqs=10, max_num_batched_tokens=rng.choice([20, 512]))
    bs = cfg["block_size"]
    reqs = [req(rng, rng.choice([0, 0, 0, 70]), toks(rng, rng.randint(1, 3 * bs)), rng.randint(bs, 3 * bs), priority=rng.choice([1, 1, 1, 2]))
            for _ in range(14)]
    cfg["num_blocks"] = pool(cfg, reqs, rng.uniform(2, 5))
    return cfg, reqs


def ends_at_once(rng):
    """requests that end on their first token, by length or by stop, under few seats"""
    cfg = some(rng, max_num_seqs=rng.randint(1, 5), max_num_batched_tokens=rng.choice([16, 512]))
    b = toks(rng, 80)
    reqs = []
    for i in range(24):
        m = rng.choice([1, 1, 2, 30])
        reqs.append(req(rng, rng.choice([0, 3 * i, 20 * i]), b[:rng.randint(1, 80)], m, stop_at=rng.choice([None, 0, 0, 1])))
    cfg["num_blocks"] = pool(cfg, reqs, rng.uniform(1, 8))
    return cfg, reqs


def hits_on_unfinished_prefill(rng):
    """equal long prompts while the first is still prefilled in chunks; some of them are aborted in mid-prefill"""
    cfg = some(rng, max_num_batched_tokens=rng.choice([20, 40, 100]), max_num_seqs=8, long_prefill_token_threshold=rng.choice([0, 10, 33]))
    p = toks(rng, 16 * rng.randint(6, 12))
    reqs = []
    for i in range(10):
        r = req(rng, rng.choice([0, 0, 11, 25, 60]), p[:len(p) - rng.choice([0, 0, 1, 17])] + toks(rng, rng.choice([0, 0, 4])), rng.randint(1, 10))
        if rng.random() < 0.4:
            r["abort_step"] = rng.randint(1, 9)
        reqs.append(r)
    cfg["num_blocks"] = pool(cfg, reqs, rng.choice([0.9, 3, 6]))
    return cfg, reqs


def lru_over_idle_gaps(rng):
    """the same prompts in rounds with idle gaps, the pool a little too small for all of them: eviction order"""
    cfg = some(rng, max_num_seqs=4)
    bs = cfg["block_size"]
    b = toks(rng, 2 * bs)
    ps = [(b if k % 2 else []) + toks(rng, rng.randint(bs, 4 * bs)) for k in range(7)]
    reqs = []
    for k in range(5):
        rng.shuffle(ps)
        reqs += [req(rng, 2000 * k + rng.choice([0, 0, 40]), p, rng.randint(1, bs)) for p in ps[:rng.randint(3, 7)]]
    cfg["num_blocks"] = 1 + max(max(blocks(cfg, r) for r in reqs), int(sum(cdiv(len(p), bs) for p in ps) * rng.uniform(0.5, 0.9)))
    return cfg, reqs


def arrival_on_step_end(rng):
    """steps of exactly 10 ms; arrivals at, just before and just after their ends, with many ties"""
    cfg = some(rng, step_ms_base=10.0, step_ms_per_token=0.0, max_num_seqs=6, policy=rng.choice(["fcfs", "priority"]))
    reqs = [req(rng, max(0, 10 * rng.randint(0, 25) + rng.choice([0, 0, 0, -0.001, 0.001])), toks(rng, rng.randint(1, 40)), rng.randint(1, 15))
            for _ in range(24)]
    cfg["num_blocks"] = pool(cfg, reqs, rng.uniform(1, 4))
    return cfg, reqs


def resume_unchunked(rng):
    """chunked prefill off: a preempted request must find a step whose budget holds it whole"""
    cfg = some(rng, enable_chunked_prefill=False, max_num_seqs=16, watermark=rng.choice([0.0, 0.1]))
    bs = cfg["block_size"]
    reqs = [req(rng, 8 * i, toks(rng, rng.randint(bs, 5 * bs)), rng.randint(2 * bs, 4 * bs)) for i in range(9)]
    cfg["max_model_len"] = cfg["max_num_batched_tokens"] = max(16, max(len(r["prompt_token_ids"]) + r["max_tokens"] for r in reqs))
    cfg["num_blocks"] = pool(cfg, reqs, rng.uniform(1.5, 3))
    return cfg, reqs


def all_aborted_then_again(rng):
    """everything is aborted in one step, running and waiting, and the same prompts come again"""
    cfg = some(rng, max_num_seqs=5, max_num_batched_tokens=rng.choice([24, 256]), policy=rng.choice(["fcfs", "priority"]))
    bs = cfg["block_size"]
    k = rng.randint(4, 12)
    first = [req(rng, rng.choice([0, 20]), toks(rng, rng.randint(1, 5 * bs)), 40, abort_step=k) for _ in range(10)]
    reqs = first + [req(rng, rng.choice([k * 11 - 5, k * 11, 600]), f["prompt_token_ids"], 5, priority=rng.randint(-1, 1)) for f in first]
    for r in reqs[-3:]:
        r["abort_step"] = 400       # after it ended
    cfg["num_blocks"] = pool(cfg, reqs, rng.uniform(2, 6))
    return cfg, reqs


def one_token_alphabet(rng):
    """every text is the same token repeated: prompts hit blocks that others generated"""
    cfg = some(rng, block_size=rng.choice([1, 1, 4, 8]), max_num_seqs=6, max_num_batched_tokens=rng.choice([16, 64]))
    top = 4 * max(4, cfg["block_size"])
    reqs = [req(rng, 17 * i, [77] * rng.randint(1, top), rng.randint(1, 20), alphabet=[77]) for i in range(16)]
    cfg["num_blocks"] = pool(cfg, reqs, rng.uniform(2, 6))
    return cfg, reqs


NASTY = [victim_already_scheduled, victim_chunk_stays_cached, stop_in_flight_preempted, last_token_in_flight_preempted,
         abort_of_preempted, abort_then_same_prompt, budget_one, budget_equals_seats, one_seat, decodes_starve,
         watermark_one_running, copies_evicted_one_by_one, interval_escape, interval_whole_hits, exact_fit,
         model_len_wall, over_admission, resume_in_chunks, urgent_head_does_not_fit, all_ties, ends_at_once,
         hits_on_unfinished_prefill, lru_over_idle_gaps, arrival_on_step_end, resume_unchunked,
         all_aborted_then_again, one_token_alphabet]


# ------------------------------------------------------------------------------------------ write, run, check

def scenario(seed, kind, index):
    rng = random.Random(f"{seed}:{kind}:{index}")
    if kind == "rand":
        tag, cfg, reqs, comment = random_scenario(rng)
    else:
        shape = NASTY[index % len(NASTY)]
        tag, comment = shape.__name__, shape.__doc__
        cfg, reqs = shape(rng)
    cfg, reqs = finish(rng, cfg, reqs, comment)
    name = f"{kind}_{index:05d}_{tag}"
    return name, dict(name=name, **cfg), reqs


def check(golden):
    """Problems found in the traces, and what they contain, counted by mode."""
    bad, count = [], collections.defaultdict(collections.Counter)
    for path in sorted(glob.glob(os.path.join(golden, "*.jsonl.gz"))):
        name = os.path.basename(path)[:-9]
        with gzip.open(path, "rt") as f:
            lines = [json.loads(l) for l in f]
        cfg, end = lines[0]["config"], lines[-1]
        if end["kind"] != "summary" or end["stuck"] or end["unfinished"] or end["steps"] >= MAX_STEPS:
            bad.append((name, {k: end.get(k) for k in ("kind", "stuck", "unfinished", "steps")}))
        c = count["async" if cfg["async_scheduling"] else "sync"]
        c["scenarios"] += 1
        c["with free queue"] += cfg["dump_free_queue"]
        c["bytes of gz"] += os.path.getsize(path)
        ended = set()
        for l in lines[1:-1]:
            c["steps"] += 1
            c["steps with preemption"] += bool(l["preempted"])
            c["preemptions"] += len(l["preempted"])
            removed = sum(e["t"] == "removed" for e in l["events"])
            c["steps with eviction"] += bool(removed)
            c["evictions"] += removed
            c["steps with a hit"] += any(h[1] for h in l["hits"])
            c["steps with a resume"] += bool(l["resumed"])
            c["steps with a stop"] += any(r == "stop" for _, r in l["finished"])
            c["stops"] += sum(r == "stop" for _, r in l["finished"])
            c["steps of no token"] += l["total"] == 0
            ended |= {i for i, _ in l["finished"]}
        c["scenarios with preemption"] += bool(end["preemptions"])
        c["requests"] += end["requests"]
        c["aborted"] += end["requests"] - len(ended) - len(end["unfinished"])
    return bad, count


def with_options(made, seed):
    """The scenarios again with an adaptive threshold where there is a threshold, and with fewer active seats in some."""
    rng, kept = random.Random(seed), []
    for name, cfg, reqs in sorted(made, key=lambda m: m[0]):
        changed = {}
        if cfg.get("long_prefill_token_threshold", 0) > 0:
            changed["long_prefill_token_threshold_adaptive"] = True
        if cfg.get("max_num_seqs", 128) > 2 and rng.random() < .3:
            changed["max_num_active_seqs"] = rng.randrange(1, cfg["max_num_seqs"])
        if changed:
            kept.append(("ext_" + name, {**cfg, **changed, "name": "ext_" + name}, reqs))
    return kept


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--out", required=True)
    ap.add_argument("--count", type=int, default=0, help="random scenarios")
    ap.add_argument("--start", type=int, default=0, help="index of the first random scenario")
    ap.add_argument("--nasty", type=int, default=0, help="variants of each hand-shaped scenario")
    ap.add_argument("--seed", type=int, required=True)
    ap.add_argument("--options", type=int, metavar="SEED", help="switch on options that the scenarios leave alone")
    ap.add_argument("--run", help="python of the environment that has vLLM")
    ap.add_argument("--check", action="store_true", help="check and count the golden traces that are there")
    a = ap.parse_args()
    inputs, golden = os.path.join(a.out, "scenarios"), os.path.join(a.out, "golden")
    os.makedirs(inputs, exist_ok=True)
    jobs = []
    made = [scenario(a.seed, kind, index) for kind, index in
            [("rand", a.start + i) for i in range(a.count)] + [("nasty", i) for i in range(a.nasty * len(NASTY))]]
    if a.options is not None:
        made = with_options(made, a.options)
    for name, cfg, reqs in made:
        c, q = (os.path.join(inputs, name + s) for s in (".config.json", ".requests.jsonl"))
        with open(c, "w") as f:
            json.dump(cfg, f, indent=1)
            f.write("\n")
        with open(q, "w") as f:
            f.writelines(json.dumps(r, separators=(",", ":")) + "\n" for r in reqs)
        jobs.append("\t".join((c, q, os.path.join(golden, name + ".jsonl.gz"))))
    rc = 0
    if a.run:
        os.makedirs(golden, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            f.write("".join(j + "\n" for j in jobs))
            f.flush()
            rc = subprocess.run([a.run, os.path.join(HERE, "oracle_vllm.py"), "--list", f.name]).returncode
    if a.run or a.check:
        bad, count = check(golden)
        for mode in sorted(count):
            print(mode, json.dumps(count[mode]))
        for name, why in bad:
            print("BAD", name, why)
        rc = rc or bool(bad)
    sys.exit(rc)


if __name__ == "__main__":
    main()
