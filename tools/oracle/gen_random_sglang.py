#!/usr/bin/env python3
"""Random scenarios for the SGLang scheduler oracle: inputs, and golden traces if asked.
A re-implementation is proven by replaying every scenario and comparing its trace, line by line, with the
one the real scheduler wrote. Each scenario depends on (seed, kind, index) only, so any one can be made again
and a set from another seed is a fair unseen test. Standard library only; no engine is imported."""
#   gen_random_sglang.py --out DIR --seed S [--count N] [--start K] [--options M] [--tiers T] [--run PYTHON] [--check]
#
# writes DIR/scenarios/NAME.config.json and NAME.requests.jsonl for the random scenarios K .. K+N-1, for the option
# scenarios K .. K+M-1, each of which is a random one with one rarely used setting (see OPTIONS), and for the tier
# scenarios K .. K+T-1, each of which is a random one with a host tier (HiCache); with --run also
# DIR/golden/NAME.jsonl.gz (one process). A scenario whose trace has no end, because the engine failed, or that ran into
# max_steps, is taken away and named. The traces are then counted; --check does only that.
#
# Ranges narrowed because they break the real engine or the driver, not because they are uninteresting:
# - chunked_prefill_size is a multiple of page_size, and priority scheduling goes with fcfs and lof only: the engine's
#   configuration refuses others;
# - with priority scheduling every request has a priority, except in the option scenarios for that;
# - an abort takes all requests whose id begins with the one given, so ids have one length, except where that is meant.
import argparse, collections, glob, gzip, json, os, random, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
MAX_STEPS = 2000      # a scenario that gets here is taken away
ROUGH_STEPS = 500     # what rough_steps() may predict before requests are dropped
STOPS = list(range(199900, 199910))   # never drawn as an ordinary token


# ---------------------------------------------------------------------------------------------- small parts

def cdiv(a, b):
    return -(-a // b)


def weighted(rng, *pairs):
    """weighted(rng, (value, weight), ...)"""
    return rng.choices([v for v, _ in pairs], [w for _, w in pairs])[0]


def toks(rng, n, alphabet=None):
    """n prompt tokens; a tiny alphabet makes unrelated texts share prefixes"""
    return [rng.choice(alphabet) if alphabet else rng.randrange(10, 99999) for _ in range(n)]


def outputs(rng, n, alphabet=None):
    return [rng.choice(alphabet) if alphabet else rng.randrange(100000, 199000) for _ in range(n)]


def tokens(cfg, r):
    """pool tokens that the request takes when it is complete, in pages"""
    p = cfg["page_size"]
    return cdiv(len(r["prompt_token_ids"]) + len(said(r)), p) * p


def said(r):
    """the output the client sees: up to the stop token"""
    out = r["output_token_ids"]
    hit = [i for i, t in enumerate(out) if t in r.get("stop_token_ids", ())]
    return out[:hit[0] + 1] if hit else out


def rough_steps(cfg, reqs):
    """A crude run of the scenario, only to keep traces short (no cache, no retraction; prefill holds decode back)."""
    pending = sorted(([r["arrival_ms"], len(r["prompt_token_ids"]), len(said(r))] for r in reqs), reverse=True)
    chunk = cfg["chunked_prefill_size"] if cfg["chunked_prefill_size"] > 0 else cfg["max_prefill_tokens"]
    active, t, steps, left = [], 0.0, 0, 0
    while pending or active or left > 0:
        if not active and left <= 0 and pending[-1][0] > t:
            t = pending[-1][0]
        while pending and pending[-1][0] <= t and len(active) < cfg["max_running_requests"]:
            _, p, o = pending[-1]
            if active and sum(a[1] for a in active) + p + o > cfg["max_total_tokens"]:
                break
            active.append([o, p + o])
            left += p
            pending.pop()
        n = min(left, chunk) if left > 0 else len(active)
        if left <= 0:
            active = [[o - 1, s] for o, s in active if o > 1]
        left -= chunk
        steps += 1
        t += cfg["step_ms_base"] + cfg["step_ms_per_token"] * n
        if steps > 2 * MAX_STEPS:
            break
    return steps


def finish(rng, cfg, reqs, comment):
    """Give ids whose order is not the arrival order, and check the rules above."""
    reqs.sort(key=lambda r: r["arrival_ms"])
    n = len(reqs)
    numbers = rng.sample(range(n), n)
    style = rng.choice(["r{:03d}", "r{:03d}", "Req-{:03x}"])
    reqs = [dict(r, id=r.get("id") or style.format(k)) for k, r in zip(numbers, reqs)]
    if rng.random() < 0.25:
        rng.shuffle(reqs)       # the file need not be in arrival order; ties keep the file's order
    assert cfg["chunked_prefill_size"] <= 0 or cfg["chunked_prefill_size"] % cfg["page_size"] == 0
    assert len({r["id"] for r in reqs}) == n
    for r in reqs:
        assert len(r["output_token_ids"]) == r["max_tokens"] >= 1 and r["prompt_token_ids"]
    return dict(cfg, comment=comment), [dict(id=r.pop("id"), **r) for r in reqs]


# ---------------------------------------------------------------------------------------- random scenarios

# longest fresh prompt part for each page size
PROMPT_TOP = {1: 150, 4: 180, 16: 260, 64: 420}


def draw_arrivals(rng, n, unit, base, dense):
    """n arrival times in order; unit is roughly the length of one step in ms"""
    kind = weighted(rng, ("together", 1 if dense else 2), ("staggered", 3), ("bursts", 3), ("gaps", 1 if dense else 3), ("lattice", 2), ("random", 3))
    gap = unit * rng.choice([0.3, 1, 2] if dense else [0.3, 1, 2, 4])
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


def draw_prompts(rng, arrivals, outs, page, top, alphabet, unit, dense):
    """Prompts sharing prefixes in every way; outs[i] is what request i will say, so that follow-ups can quote it."""
    scale = rng.choice([0.1, 0.2, 0.2, 0.4] if dense else [0.15, 0.4, 0.4, 1.0, 1.0])
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
        elif kind == "edge":        # a length one around a multiple of the page
            unit_len = page if page > 1 else 16
            n = max(1, unit_len * rng.randint(1, max(1, int(top * scale) // unit_len)) + rng.choice([-1, 0, 0, 1]))
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
            if len(p) > 3 * top:
                p = None
        prompts.append(p or fresh())
    return prompts


def draw_output(rng, lo, hi, p_stop, shared_stops, alphabet):
    """Length and tokens of an output, with the stop tokens"""
    m = rng.randint(lo, hi)
    r = dict(max_tokens=m, output_token_ids=outputs(rng, m, alphabet))
    if rng.random() < p_stop:
        where = weighted(rng, ("any", 5), ("first", 1), ("last", 1), ("absent", 1))
        ids = shared_stops if rng.random() < 0.5 else rng.sample(STOPS, rng.randint(1, 3))
        r["stop_token_ids"] = list(ids)
        if where != "absent":
            k = {"any": rng.randrange(m), "first": 0, "last": m - 1}[where]
            r["output_token_ids"][k] = rng.choice(ids)
    return r


def draw_clock(rng):
    base = rng.choice([10.0, 10.0, 0.5, 1.0, 7.5, 25.0])
    return dict(step_ms_base=base, step_ms_per_token=rng.choice([0.05, 0.05, 0.0, 0.1, 0.013, 0.5]))


def draw_prefill(rng, page, long):
    """chunked_prefill_size, max_prefill_tokens and mixing"""
    kind = weighted(rng, ("small", 6), ("off", 1), ("large", 0 if long else 3))
    lo, hi = (128, 512) if long else (16, 256)
    size = max(page, int(lo * (hi / lo) ** rng.random()) // page * page)
    cfg = dict(chunked_prefill_size={"small": size, "off": -1, "large": 8192}[kind], max_prefill_tokens=16384)
    if kind == "off" or rng.random() < 0.2:
        cfg["max_prefill_tokens"] = int(48 * 2 ** rng.uniform(0, 4))
    if kind != "off" and rng.random() < 0.3:
        cfg["enable_mixed_chunk"] = True
    return cfg


def draw_priorities(rng, cfg, reqs):
    cfg.update(enable_priority_scheduling=True, schedule_low_priority_values_first=rng.random() < 0.4,
               disable_priority_preemption=rng.random() < 0.25,
               priority_scheduling_preemption_threshold=rng.choice([0, 0, 1, 10]))
    levels = rng.choice([[0, 0, 1], [0, 1, 2, 5], [-5, -1, 0, 3], [0, 0, 5, 12, 25], list(range(-50, 50))])
    for r in reqs:
        r["priority"] = rng.choice(levels)


def draw_pool(rng, cfg, reqs, pressure):
    """max_total_tokens from the demand of the requests that can run together"""
    crowd = sorted((tokens(cfg, r) for r in reqs), reverse=True)[:cfg["max_running_requests"]]
    page = cfg["page_size"]
    want = max(crowd[0] * rng.uniform(1.05, 1.6), sum(crowd) / pressure) if pressure else 1.1 * sum(crowd)
    return max(64 if page == 1 else 6, cdiv(int(want), page) + 3) * page


def add_oversize(rng, cfg, reqs):
    """some requests that are cut to the pool or to the context, or refused"""
    for r in rng.sample(reqs, rng.randint(1, 3)):
        top = min(cfg["max_total_tokens"], cfg.get("context_length", 8192))
        if rng.random() < 0.5:
            n = max(1, top + rng.choice([-60, -10, -8, -7, -6, -5, -1, 0, 30]))
            r["prompt_token_ids"] = (r["prompt_token_ids"] + toks(rng, n))[:n]
        else:
            more = min(top, 400) + rng.randint(0, 60)
            r["output_token_ids"] += outputs(rng, more)
            r["max_tokens"] += more


def shorten(cfg, reqs, size):
    """fewer requests, or if there are few, shorter outputs"""
    if len(reqs) > size:
        return reqs[:max(size, len(reqs) * 5 // 6)]
    for r in reqs:
        r["max_tokens"] = cdiv(r["max_tokens"] * 3, 4)
        del r["output_token_ids"][r["max_tokens"]:]
    if cfg["chunked_prefill_size"] > 0:
        cfg["chunked_prefill_size"] *= 2
    return reqs


def random_scenario(rng, **forced):
    """forced: settings that are not drawn"""
    urgent = "schedule_policy" not in forced and rng.random() < 0.25        # priorities; only seats make it preempt
    pressure = rng.uniform(1.3, 5.0) if rng.random() < (0.3 if urgent else 0.8) else None
    dense = bool(pressure) and rng.random() < 0.75      # outputs large against prompts, arriving close together
    long = not dense and not urgent and rng.random() < 0.3
    crowd = not long and not urgent and rng.random() < 0.06     # more than 128 waiting
    page = forced.get("page_size") or rng.choice([1, 1, 4, 16, 16, 64])
    cfg = dict(page_size=page, disable_overlap=rng.random() < 0.5, **draw_clock(rng), **draw_prefill(rng, page, long))
    cfg["schedule_policy"] = "lpm" if crowd or not urgent and rng.random() < 0.4 else "fcfs"
    cfg["schedule_conservativeness"] = rng.choice([0.05, 0.05, 0.1, 0.1, 0.3] + [0.3, 0.6, 1.0, 1.3] * (1 if dense else 2))
    if rng.random() < 0.12:
        cfg["disable_radix_cache"] = True
    if rng.random() < 0.08:
        cfg["kv_events"] = False
    cfg["max_running_requests"] = rng.choice([2, 3, 4, 6, 10] if urgent else [6, 8, 12, 16, 32] if dense or crowd else
                                             [1, 2, 3, 4, 6, 8, 12, 16, 32])
    cfg.update(forced)
    base, per = cfg["step_ms_base"], cfg["step_ms_per_token"]
    unit = base + 20 * per

    n = rng.choice([rng.randint(10, 16), rng.randint(12, 35), rng.randint(30, 80)])
    n = rng.randint(135, 170) if crowd else rng.randint(10, 18) if long else n
    lo, hi = rng.choice([(1, 1), (1, 5), (1, 30), (1, 30), (10, 50), (20, 80), (40, 80)])
    if dense or urgent:
        lo, hi = rng.choice([(5, 40), (10, 50), (20, 80), (40, 90)])
    if crowd:
        lo, hi = 1, 6
    alphabet = rng.sample(range(10, 99999), rng.randint(1, 3)) if rng.random() < 0.08 else None
    p_stop, p_abort = rng.choice([0, 0, 0.2, 0.5, 0.9]), rng.choice([0, 0, 0, 0.1, 0.3, 0.6])
    p_eos = rng.choice([0, 0, 0, 0, 0, 0.2] if dense else [0, 0, 0.2, 0.5, 1])
    shared_stops = rng.sample(STOPS, 2)
    arrivals = [0.0] * n if crowd and rng.random() < 0.7 else draw_arrivals(rng, n, unit, base, dense or crowd)
    reqs = [dict(draw_output(rng, lo, hi, p_stop, shared_stops, alphabet), arrival_ms=round(float(t), 4)) for t in arrivals]
    top = rng.randint(600, 1900) if long else 40 if crowd else PROMPT_TOP[page]
    for r, p in zip(reqs, draw_prompts(rng, arrivals, [said(r) for r in reqs], page, top, alphabet, unit, dense)):
        r["prompt_token_ids"] = list(p)
        if rng.random() < p_eos:
            r["ignore_eos"] = True
    if urgent:
        draw_priorities(rng, cfg, reqs)

    while True:
        cfg["max_total_tokens"] = draw_pool(rng, cfg, reqs, pressure)
        steps = rough_steps(cfg, reqs)
        if steps <= ROUGH_STEPS:
            break
        reqs = shorten(cfg, reqs, 130 if crowd and len(reqs) >= 130 else 10)
        crowd = crowd and len(reqs) > 130
    if page > 1 and rng.random() < 0.15:
        cfg["max_total_tokens"] += rng.randrange(1, page)
    if rng.random() < 0.15:
        longest = max(len(r["prompt_token_ids"]) for r in reqs)
        cfg["context_length"] = max(16, longest + rng.choice([-3, 1, 7, 8, 9, rng.randint(8, 60)]))
    if rng.random() < 0.15:
        add_oversize(rng, cfg, reqs)
    for r in reqs:
        if rng.random() < p_abort:
            r["abort_step"] = rng.randint(0, int(steps * 1.2) + 1)
    return cfg, reqs


# ---------------------------------------------------------------------------------------- option scenarios
# Each function returns (cfg, requests): a random scenario with one rarely used setting.

def dfs_weight(rng):
    return random_scenario(rng, schedule_policy="dfs-weight", max_running_requests=rng.choice([2, 4, 6, 12]))


def lof(rng):
    cfg, reqs = random_scenario(rng, schedule_policy="lof", max_running_requests=rng.choice([2, 4, 6, 12]))
    if rng.random() < 0.4:
        draw_priorities(rng, cfg, reqs)
    return cfg, reqs


def shuffled(rng):
    return random_scenario(rng, schedule_policy="random", max_running_requests=rng.choice([2, 4, 6]))


def hrrn(rng):
    return random_scenario(rng, schedule_policy="hrrn", max_running_requests=rng.choice([2, 4, 6, 12]))


def shortest_prefill(rng):
    return random_scenario(rng, schedule_policy="shortest-prefill-first", disable_radix_cache=False,
                           max_running_requests=rng.choice([2, 4, 6, 12]))


def priority_missing(rng):
    """some requests have no priority: the engine gives them the least of all"""
    cfg, reqs = random_scenario(rng, schedule_policy="fcfs", max_running_requests=rng.choice([2, 4, 6]))
    draw_priorities(rng, cfg, reqs)
    for r in reqs:
        if rng.random() < 0.4:
            del r["priority"]
    return cfg, reqs


def priority_rising(rng):
    """each request is more urgent than the one before it, seats are few: one preemption after another"""
    cfg, reqs = random_scenario(rng, schedule_policy="fcfs", max_running_requests=rng.choice([1, 2, 3, 5]))
    low = rng.random() < 0.5
    cfg.update(enable_priority_scheduling=True, schedule_low_priority_values_first=low,
               priority_scheduling_preemption_threshold=rng.choice([0, 1, 3]))
    for i, r in enumerate(sorted(reqs, key=lambda r: r["arrival_ms"])):
        r["priority"] = (-1 if low else 1) * (i + rng.randint(0, 3))
    return cfg, reqs


def priority_crowd_of_victims(rng):
    """many small unimportant requests, then large urgent ones that need the room of several"""
    cfg, reqs = random_scenario(rng, schedule_policy="fcfs", max_running_requests=rng.choice([8, 16]))
    cfg.update(enable_priority_scheduling=True, priority_scheduling_preemption_threshold=rng.choice([0, 1, 10]))
    for i, r in enumerate(sorted(reqs, key=lambda r: r["arrival_ms"])):
        r["priority"] = 0 if i % 4 < 3 else rng.choice([1, 12, 12])
        if r["priority"]:
            r["prompt_token_ids"] += toks(rng, cfg["max_total_tokens"] // 3)
    return cfg, reqs


def retract_by_priority(rng):
    """retraction_policy priority"""
    cfg, reqs = random_scenario(rng, schedule_policy="fcfs", schedule_conservativeness=0.05, max_running_requests=16)
    draw_priorities(rng, cfg, reqs)
    cfg["retraction_policy"] = "priority"
    return cfg, reqs


def odd_pool(rng):
    """a pool that is not a multiple of the page"""
    page = rng.choice([4, 16, 64])
    cfg, reqs = random_scenario(rng, page_size=page)
    cfg["max_total_tokens"] = cfg["max_total_tokens"] // page * page + rng.randrange(1, page)
    return cfg, reqs


def few_pages(rng):
    """a pool of a few large pages"""
    cfg, reqs = random_scenario(rng, page_size=64)
    cfg["max_total_tokens"] = 64 * rng.randint(3, 8)
    return cfg, reqs


def eviction_policy(rng):
    policy = rng.choice(["lfu", "slru", "priority"])
    cfg, reqs = random_scenario(rng, radix_eviction_policy=policy, disable_radix_cache=False)
    if policy == "priority" and cfg["schedule_policy"] == "fcfs":
        draw_priorities(rng, cfg, reqs)
    return cfg, reqs


def few_per_prefill(rng):
    cfg, reqs = random_scenario(rng)
    cfg["prefill_max_requests"] = rng.choice([1, 2, 4])
    return cfg, reqs


def short_queue(rng):
    """a bounded queue: more requests are refused"""
    cfg, reqs = random_scenario(rng, max_running_requests=rng.choice([2, 4, 6]))
    cfg["max_queued_requests"] = rng.randint(1, 8)
    return cfg, reqs


def decode_interval(rng):
    """some decode passes between two prefills"""
    cfg, reqs = random_scenario(rng)
    cfg["prefill_decode_interval"] = rng.choice([1, 2, 5])
    if rng.random() < 0.5:
        cfg["prefill_decode_interval_min_bs"] = rng.choice([2, 4])
    return cfg, reqs


def abort_by_prefix(rng):
    """ids that begin with one another: an abort takes all of them"""
    cfg, reqs = random_scenario(rng)
    for i, r in enumerate(reqs):
        r["id"] = f"q{i}"
        if i < 10 and rng.random() < 0.5:
            r["abort_step"] = rng.randint(2, 120)
    return cfg, reqs


OPTIONS = [dfs_weight, lof, shuffled, hrrn, shortest_prefill, priority_missing, priority_rising, priority_crowd_of_victims,
           retract_by_priority, odd_pool, few_pages, eviction_policy, few_per_prefill, short_queue, decode_interval,
           abort_by_prefix]


# ------------------------------------------------------------------------------------------ write, run, check

# ------------------------------------------------------------------------------------------ tier scenarios

def revisits(rng):
    """texts that are come back to when the pool has forgotten them, now and then a few tokens or an answer longer"""
    page = rng.choice([1, 1, 4, 16])
    cfg = dict(page_size=page, disable_overlap=rng.random() < 0.5, schedule_policy=rng.choice(["fcfs", "fcfs", "lpm"]),
               max_running_requests=rng.choice([1, 2, 4, 8]), **draw_clock(rng))
    cfg["chunked_prefill_size"] = max(page, rng.choice([32, 64, 256]) // page * page)
    cfg["enable_mixed_chunk"] = rng.random() < 0.2
    texts = [toks(rng, rng.randint(5, 90)) for _ in range(rng.randint(3, 7))]
    unit, at, reqs = cfg["step_ms_base"] + 20 * cfg["step_ms_per_token"], 0.0, []
    for _ in range(rng.randint(15, 45)):
        at += unit * rng.choice([0, 0, 0.5, 2, 6, 15])
        which = rng.randrange(len(texts))
        text = texts[which]
        prompt = (text[:rng.randint(1, len(text))] if rng.random() < 0.15 else text) + toks(rng, rng.randint(1, 25))
        answer = outputs(rng, rng.randint(1, 25))
        if rng.random() < 0.3:
            texts[which] = (prompt + answer)[:160]
        reqs.append(dict(prompt_token_ids=prompt, max_tokens=len(answer), output_token_ids=answer, arrival_ms=round(at, 4)))
        if rng.random() < 0.04:
            reqs[-1]["abort_step"] = rng.randint(0, 200)
    longest = max(tokens(cfg, r) for r in reqs)
    cfg["max_total_tokens"] = cdiv(int(longest * rng.choice([1.2, 1.6, 2.2, 3.5])) + 2 * page, page) * page
    return cfg, reqs


def tiered(rng, index):
    """a host tier from too small for anything to large enough for all, with copies from quick to slower than passes"""
    policy = ["write_through", "write_through_selective", "write_back"][index % 3]
    cfg, reqs = revisits(rng) if index % 6 < 4 else random_scenario(rng, disable_radix_cache=False)
    cfg.update(hicache_write_policy=policy, hicache_ratio=rng.choice([0.1, 0.3, 0.6, 1.0, 1.0, 1.7, 2.0, 4.0]))
    if rng.random() < 0.6:
        cfg.update(store_latency_ms=rng.choice([0.0, 2.0, 15.0, 120.0]), store_ms_per_token=rng.choice([0.0, 0.02, 0.3, 1.5]),
                   load_latency_ms=rng.choice([0.0, 5.0, 40.0]), load_ms_per_token=rng.choice([0.0, 0.02, 0.3]))
    return cfg, reqs


def tags(cfg):
    """what a name says about its scenario"""
    out = ["sync" if cfg["disable_overlap"] else "overlap", f"p{cfg['page_size']}", cfg["schedule_policy"]]
    out += ["priority"] * bool(cfg.get("enable_priority_scheduling")) + ["mixed"] * bool(cfg.get("enable_mixed_chunk"))
    out += [cfg["hicache_write_policy"]] if "hicache_write_policy" in cfg else []
    return "_".join(out + ["nocache"] * bool(cfg.get("disable_radix_cache")))


def scenario(seed, kind, index):
    rng = random.Random(f"{seed}:{kind}:{index}")
    if kind == "rand":
        cfg, reqs = random_scenario(rng)
        tag, comment = tags(cfg), "random"
    elif kind == "tier":
        cfg, reqs = tiered(rng, index)
        tag, comment = tags(cfg), "random, with a host tier"
    else:
        shape = OPTIONS[index % len(OPTIONS)]
        cfg, reqs = shape(rng)
        tag, comment = shape.__name__, shape.__doc__ or "random, with this option"
    cfg, reqs = finish(rng, dict(cfg, max_steps=MAX_STEPS), reqs, comment)
    name = f"{kind}_{index:05d}_{tag}"
    return name, dict(name=name, **cfg), reqs


def read(path):
    """The lines of a trace; None if it has no end."""
    try:
        with gzip.open(path, "rt") as f:
            lines = [json.loads(l) for l in f]
    except (OSError, EOFError, ValueError):
        return None
    return lines if lines and lines[-1]["kind"] == "summary" else None


def drop_failed(out, names):
    """Take away the scenarios that have no whole trace, and say which."""
    for name in names:
        path = os.path.join(out, "golden", name + ".jsonl.gz")
        lines = read(path)
        if lines and lines[-1]["steps"] < MAX_STEPS:
            continue
        print("DROPPED", name, "ran into max_steps" if lines else "the engine failed")
        for p in (path, *glob.glob(os.path.join(out, "scenarios", name + ".*"))):
            if os.path.exists(p):
                os.remove(p)


def count_trace(c, lines, reqs):
    """Add what one trace contains to the counter c."""
    cfg, steps = lines[0]["config"], lines[1:-1]
    retracted = sum(len(x["retracted"]) for l in steps for x in l["retract"])
    removed = sum(e["t"] == "removed" for l in steps for e in l["events"])
    ended = {i: r for l in steps for i, r in l["finished"]}
    cut = min(cfg["max_total_tokens"], cfg["context_length"])
    preempted = sum(not again for l in steps for _, again in l["requeued"])
    c["requests"] += len(reqs)
    c["steps"] += len(steps)
    c["retractions"] += retracted
    c["removed events"] += removed
    c["preemptions"] += preempted
    shown = dict(retraction=retracted, removed=removed, preemption=preempted,
                 stuck=lines[-1]["stuck"], unfinished=lines[-1]["unfinished"],
                 asked_aborts=any("abort_step" in r for r in reqs), aborted=any(r == "abort" for r in ended.values()),
                 oversize=any(len(r["prompt_token_ids"]) + r["max_tokens"] > cut - 2 for r in reqs),
                 chunks=any(l.get("chunk_cont") for l in steps), mixed=any(l["mode"] == "MIXED" for l in steps),
                 hits=any(n for l in steps for n in l.get("prefix", {}).values()),
                 over_128_waiting=any(len(l["waiting_before"]) > 128 for l in steps),
                 ignore_eos=any(r.get("ignore_eos") for r in reqs), kv_events=cfg["kv_events"],
                 overlap=not cfg["disable_overlap"], no_radix=cfg["disable_radix_cache"],
                 odd_pool=cfg["max_total_tokens"] % cfg["page_size"], priority=cfg["enable_priority_scheduling"])
    for k, v in shown.items():
        c["with " + k] += bool(v)
    for l in steps:
        for kind, n, _ in l.get("copies", ()):
            c["copies: " + kind + "s"] += 1
            c["copies: tokens " + kind + "ed"] += n
        c["copies: host copies removed"] += sum(e["t"] == "removed" and e["medium"] == "CPU_PINNED" for e in l["events"])
    c["page " + str(cfg["page_size"])] += 1
    c["policy " + cfg["schedule_policy"]] += 1


def check(out):
    """Count what the traces contain."""
    c = collections.Counter()
    for path in sorted(glob.glob(os.path.join(out, "golden", "*.jsonl.gz"))):
        name = os.path.basename(path)[:-len(".jsonl.gz")]
        with open(os.path.join(out, "scenarios", name + ".requests.jsonl")) as f:
            reqs = [json.loads(l) for l in f]
        lines = read(path)
        if not lines:
            print("BAD", name)
            continue
        c["scenarios"] += 1
        count_trace(c, lines, reqs)
    for k in sorted(c):
        print(f"{k:24}{c[k]:8}")


def write(out, name, cfg, reqs):
    """Write the inputs; returns the line of the job for the oracle."""
    c, q = (os.path.join(out, "scenarios", name + s) for s in (".config.json", ".requests.jsonl"))
    with open(c, "w") as f:
        json.dump(cfg, f, indent=1)
        f.write("\n")
    with open(q, "w") as f:
        f.writelines(json.dumps(r, separators=(",", ":")) + "\n" for r in reqs)
    return "\t".join((c, q, os.path.join(out, "golden", name + ".jsonl.gz"))) + "\n"


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--out", required=True)
    ap.add_argument("--seed", type=int, required=True)
    ap.add_argument("--count", type=int, default=0, help="random scenarios")
    ap.add_argument("--options", type=int, default=0, help="option scenarios")
    ap.add_argument("--tiers", type=int, default=0, help="tier scenarios")
    ap.add_argument("--start", type=int, default=0, help="index of the first of each")
    ap.add_argument("--run", help="python of the environment that has SGLang")
    ap.add_argument("--check", action="store_true", help="count what is in the golden traces that are there")
    a = ap.parse_args()
    os.makedirs(os.path.join(a.out, "scenarios"), exist_ok=True)
    made = [scenario(a.seed, kind, a.start + i) for kind, n in (("rand", a.count), ("opt", a.options), ("tier", a.tiers)) for i in range(n)]
    jobs = [write(a.out, *m) for m in made]
    if a.run:
        os.makedirs(os.path.join(a.out, "golden"), exist_ok=True)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            f.writelines(jobs)
            f.flush()
            subprocess.run([a.run, os.path.join(HERE, "oracle_sglang.py"), "--list", f.name])
        drop_failed(a.out, [m[0] for m in made])
    if a.run or a.check:
        check(a.out)


if __name__ == "__main__":
    main()
