#!/usr/bin/env python3
"""Run SGLang's real Scheduler (real ModelRunner, pools, radix tree) on CPU and write a trace.

  oracle_sglang.py --config cfg.json --requests reqs.jsonl --out trace.jsonl[.gz]
  oracle_sglang.py --list jobs.txt     (lines: cfg.json<TAB>reqs.jsonl<TAB>out; imports once, forks per job)

Only TpModelWorker.forward_batch_generation is replaced (no forward pass: it returns the scripted token
of each request). A tiny 1-layer Llama with dummy weights is loaded so that the real TpModelWorker /
ModelRunner build the real ReqToTokenPool, token allocator and radix tree. The event loops here follow
Scheduler.event_loop_normal / event_loop_overlap statement by statement with a virtual clock.
Requests enter through Scheduler.handle_generate_request.

cfg.json keys: see DEFAULTS and OPTIONAL. reqs.jsonl: as for oracle_vllm.py, plus "ignore_eos" (default: the config's).
SGLang's admission reserves max_new_tokens in full for ignore_eos requests, so the flag changes scheduling.
"""
import argparse, gzip, io, json, os, sys, tempfile, time, types, importlib.machinery
from array import array

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("PYTHONHASHSEED", "0")

DEFAULTS = dict(
    page_size=1, max_total_tokens=4000, max_running_requests=64, chunked_prefill_size=8192,
    max_prefill_tokens=16384, schedule_policy="fcfs", enable_mixed_chunk=False,
    disable_radix_cache=False, schedule_conservativeness=1.0, enable_priority_scheduling=False,
    schedule_low_priority_values_first=False, disable_priority_preemption=False,
    priority_scheduling_preemption_threshold=10, disable_overlap=True,
    context_length=8192, radix_eviction_policy=None, ignore_eos=False, kv_events=True,
    step_ms_base=10.0, step_ms_per_token=0.05, max_steps=2000, env={})
# Settings of the engine without a default here: left to the engine, and out of the trace, when not given.
OPTIONAL = ("prefill_max_requests", "max_queued_requests", "retraction_policy", "prefill_decode_interval",
            "prefill_decode_interval_min_bs")
# The host tier: on when hicache_write_policy is given.
HICACHE = ("hicache_write_policy", "hicache_ratio")
HICACHE_TIMES = dict(store_latency_ms=2.0, store_ms_per_token=0.02, load_latency_ms=5.0, load_ms_per_token=0.02)

TINY = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16,
        "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1,
        "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 200000,
        "max_position_embeddings": 131072, "torch_dtype": "float32", "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2}


def fake_vllm_ops():
    # On CPU without AMX, SGLang's RotaryEmbedding.__init__ imports vllm._custom_ops.rotary_embedding.
    v = types.ModuleType("vllm"); v.__path__ = []
    v.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    c = types.ModuleType("vllm._custom_ops"); c.rotary_embedding = lambda *a, **k: None
    sys.modules["vllm"] = v; sys.modules["vllm._custom_ops"] = c


def build(cfg):
    d = tempfile.mkdtemp(prefix="tinymodel")
    json.dump(TINY, open(os.path.join(d, "config.json"), "w"))
    from sglang.srt.server_args import ServerArgs, PortArgs
    kw = dict(model_path=d, device="cpu", load_format="dummy", skip_tokenizer_init=True,
              attention_backend="torch_native", sampling_backend="pytorch", disable_cuda_graph=True,
              disable_overlap_schedule=cfg["disable_overlap"], mem_fraction_static=0.1, random_seed=0,
              log_level="error", context_length=cfg["context_length"])
    for k in ("page_size", "max_total_tokens", "max_running_requests", "chunked_prefill_size",
              "max_prefill_tokens", "schedule_policy", "enable_mixed_chunk", "disable_radix_cache",
              "schedule_conservativeness", "enable_priority_scheduling",
              "schedule_low_priority_values_first", "disable_priority_preemption",
              "priority_scheduling_preemption_threshold"):
        kw[k] = cfg[k]
    kw.update((k, cfg[k]) for k in OPTIONAL if k in cfg)
    if "hicache_write_policy" in cfg:
        kw.update((k, cfg[k]) for k in HICACHE)
        kw.update(enable_hierarchical_cache=True, hicache_io_backend="direct", hicache_mem_layout="layer_first")
    if cfg["radix_eviction_policy"]:
        kw["radix_eviction_policy"] = cfg["radix_eviction_policy"]
    if cfg["kv_events"]:
        kw["kv_events_config"] = json.dumps({"publisher": "null"})
    sa = ServerArgs(**kw)
    pa = PortArgs.init_new(sa)
    from sglang.srt.managers import scheduler as M
    fake_vllm_ops()
    # 0.5.23's "null" publisher cannot be constructed (takes no arguments); events are taken from the tree below.
    from sglang.srt.disaggregation import kv_events as KE
    KE.EventPublisherFactory._registry["null"] = lambda **k: KE.NullEventPublisher()
    M.publish(sa, role="scheduler", ranks=M.SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
    s = M.Scheduler(sa, pa)
    return s, M, sa


class Copies:
    """The transfers between device and host, by times instead of kernels: a lane for each direction. A copy starts when
    it is submitted, the copies before it have ended and so has the forward pass that was launched last, which both
    streams are fenced behind (cache_controller.py `write_fence_stream`, `load_fence_stream`)."""

    def __init__(self, cfg):
        self.cfg, self.now, self.gpu_free = cfg, 0.0, 0.0
        self.lanes, self.ends, self.started, self.load_end = [0.0, 0.0], [], [], 0.0
        copies = self

        class Event:
            def __init__(self, end):
                self.end = end

            def query(self):
                return self.end <= copies.now + 1e-9

            def synchronize(self):
                # The scheduler waits.
                copies.now = max(copies.now, self.end)

        def submit(load, transfers):
            tokens, kind = len(transfers[0].device_indices), "load" if load else "store"
            start = max(copies.now, copies.lanes[load], copies.gpu_free)
            end = start + cfg[kind + "_latency_ms"] + cfg[kind + "_ms_per_token"] * tokens
            copies.lanes[load] = end
            copies.ends.append(end)
            copies.started.append([kind, tokens, round(end, 4)])
            if load:
                copies.load_end = end
            return L.TransferCompletion(Event(start), Event(end), False)

        import sglang.srt.mem_cache.l2_transfer as L
        import sglang.srt.mem_cache.pool_host.common as H
        H._cuda_host_register = lambda *a, **k: None  # pins the host's memory for copies that are not made
        L.L2TransferEngine.submit_device_to_host = lambda self, transfers: submit(False, transfers)
        L.L2TransferEngine.submit_host_to_device = lambda self, transfers, **k: submit(True, transfers)

    def next_end(self):
        return min((e for e in self.ends if e > self.now + 1e-9), default=None)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--config")
    ap.add_argument("--requests")
    ap.add_argument("--out")
    ap.add_argument("--list")
    a = ap.parse_args()
    if not a.list:
        return run(a.config, a.requests, a.out)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import sglang.srt.managers.scheduler, sglang.srt.server_args  # noqa: F401
    import sglang.srt.models.llama  # noqa: F401
    bad = 0
    for l in open(a.list):
        pid = os.fork()
        if pid == 0:
            try:
                run(*l.rstrip("\n").split("\t"))
            except BaseException:
                import traceback
                traceback.print_exc()
                print(l.split("\t")[0], "FAILED", flush=True)
            os._exit(1)
        bad += os.waitpid(pid, 0)[1] != 0
    sys.exit(bool(bad))


def run(config, requests, outpath):
    cfg = dict(DEFAULTS)
    cfg.update(json.load(open(config)))
    tiered = "hicache_write_policy" in cfg
    if tiered:
        for k, v in HICACHE_TIMES.items():
            cfg.setdefault(k, v)
    unknown = set(cfg) - set(DEFAULTS) - set(OPTIONAL) - {"name", "comment"} - (set(HICACHE) | set(HICACHE_TIMES) if tiered else set())
    assert not unknown, unknown
    for k, v in cfg["env"].items():
        os.environ[k] = str(v)
    reqs = [json.loads(l) for l in open(requests) if l.strip()]

    import torch
    copies = Copies(cfg) if tiered else None
    s, M, sa = build(cfg)
    from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
    from sglang.srt.managers.utils import GenerationBatchResult
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.sampling.sampling_params import SamplingParams
    import sglang

    trk = s.new_token_ratio_tracker
    eff = dict(page_size=s.page_size, max_total_num_tokens=s.max_total_num_tokens,
               max_running_requests=s.max_running_requests, chunked_prefill_size=s.chunked_prefill_size,
               max_prefill_tokens=s.max_prefill_tokens, schedule_policy=s.schedule_policy,
               is_mixed_chunk=s.is_mixed_chunk, enable_overlap=s.enable_overlap,
               max_req_len=s.max_req_len, max_req_input_len=s.max_req_input_len,
               tree_cache=type(s.tree_cache).__name__, tree_core=type(getattr(s.tree_cache, "tree_core", None)).__name__,
               allocator=type(s.token_to_kv_pool_allocator).__name__,
               new_token_ratio=dict(init=trk.init, min=trk.min, decay=trk.decay))
    if tiered:
        eff["host_tokens"] = int(s.tree_cache.cache_controller.mem_pool_host.available_size())
    out = io.TextIOWrapper(gzip.GzipFile(outpath, "wb", mtime=0)) if outpath.endswith(".gz") else open(outpath, "w")
    emit = lambda o: out.write(json.dumps(o, separators=(",", ":")) + "\n")
    emit({"kind": "config", "engine": "sglang", "version": sglang.__version__, "config": cfg, "effective": eff})

    # ---- capture hooks -------------------------------------------------------
    hmap, captured, requeued, retracts, finished, toks_out = {}, [], [], [], [], {}
    hid = lambda h: None if h is None else hmap.setdefault(h, len(hmap))

    def drain():
        for e in s.tree_cache.take_events():
            n = type(e).__name__
            if n == "BlockStored":
                captured.append({"t": "stored", "parent": hid(e.parent_block_hash),
                                 "hashes": [hid(h) for h in e.block_hashes],
                                 "n_tokens": len(e.token_ids), "block_size": e.block_size, "medium": e.medium})
            elif n == "BlockRemoved":
                captured.append({"t": "removed", "hashes": [hid(h) for h in e.block_hashes], "medium": e.medium})
            else:
                captured.append({"t": n})
    if cfg["kv_events"]:
        class Shim:
            def __getattr__(self, k):
                return getattr(self._o, k)
            def publish_kv_events(self):
                drain()
            def emit_kv_metrics(self):
                pass
        sh = Shim(); sh._o = s.kv_events_publisher
        s.kv_events_publisher = sh

    admitting = [False]
    orig_add = s._add_request_to_queue
    def add_q(req, is_retracted=False):
        if not admitting[0]:
            requeued.append([req.rid, bool(is_retracted)])
        return orig_add(req, is_retracted)
    s._add_request_to_queue = add_q

    orig_ret = ScheduleBatch.retract_decode
    def ret(self, *x, **k):
        before = s.token_to_kv_pool_allocator.available_size()
        r = orig_ret(self, *x, **k)
        retracts.append({"retracted": [q.rid for q in r[0]], "new_ratio": round(r[1], 6),
                         "aborted": [q.rid for q in r[2]], "avail_before": before,
                         "avail_after": s.token_to_kv_pool_allocator.available_size()})
        return r
    ScheduleBatch.retract_decode = ret

    # The engine collects the victims of one preemption in a set, so they are requeued in the order of their addresses,
    # which no run repeats. Here in the order of the running batch, one of the orders the engine may take.
    adder = s.get_prefill_adder_class()
    orig_preempt = adder.preempt_to_schedule
    def preempt(self, req):
        before, place = len(self.preempt_list), {id(q): i for i, q in enumerate(self.running_batch.reqs)}
        r = orig_preempt(self, req)
        self.preempt_list[before:] = sorted(self.preempt_list[before:], key=lambda q: place[id(q)])
        return r
    adder.preempt_to_schedule = preempt

    def stream(rs, *x, **k):
        for q in rs:
            toks_out[q.rid] = len(q.output_ids)
            if q.finished() and q.rid not in done:
                done.add(q.rid)
                finished.append([q.rid, str(q.finished_reason.to_json().get("type"))])
    done = set()
    sos = s.output_streamer
    type(sos).stream_output = lambda self, rs, *x, **k: stream(rs, *x, **k)

    outs = {}
    for i, r in enumerate(reqs):
        outs[r["id"]] = r.get("output_token_ids") or [100000 + (i * 997 + k) % 90000 for k in range(r["max_tokens"])]

    def forward(batch, **kw):
        ids = []
        for q in batch.reqs:
            # A result still in the queue gives one token more, unless it is that of a middle chunk. (The
            # queue holds copies of batches, which do not know their chunked_req.)
            n = len(q.output_ids)
            middle = q.inflight_middle_chunks - (batch.chunked_req is q)
            for qb, _ in list(s.result_queue):
                if any(x is q for x in qb.reqs) and middle <= 0 and not q.is_retracted:
                    n += 1
            ids.append(outs[q.rid][n] if n < len(outs[q.rid]) else 199999)
        return GenerationBatchResult(
            logits_output=LogitsProcessorOutput(next_token_logits=None),
            next_token_ids=torch.tensor(ids, dtype=torch.int64), can_run_cuda_graph=False)
    s.tp_worker.forward_batch_generation = forward

    pending = sorted(reqs, key=lambda r: (r.get("arrival_ms", 0.0), r.get("arrival_step", 0)))
    aborts = [(r["abort_step"], r["id"]) for r in reqs if r.get("abort_step") is not None]
    seen, admitted, retracted_set = {}, set(), set()

    def admit(t, step):
        added = []
        admitting[0] = True
        while pending:
            r = pending[0]
            if "arrival_step" in r and "arrival_ms" not in r:
                if r["arrival_step"] > step:
                    break
            elif r.get("arrival_ms", 0.0) > t + 1e-9:
                break
            pending.pop(0)
            sp = SamplingParams(max_new_tokens=r["max_tokens"], stop_token_ids=r.get("stop_token_ids"), ignore_eos=r.get("ignore_eos", cfg["ignore_eos"]), temperature=0.0)
            sp.normalize(None)
            q = TokenizedGenerateReqInput(
                rid=r["id"], input_text=None, input_ids=array("q", r["prompt_token_ids"]), input_embeds=None,
                mm_inputs=None, token_type_ids=None, sampling_params=sp, return_logprob=False,
                logprob_start_len=-1, top_logprobs_num=0, token_ids_logprob=None, stream=False,
                priority=r.get("priority") if cfg["enable_priority_scheduling"] else None)
            s.handle_generate_request(q)
            added.append(r["id"])
        for w in s.waiting_queue:
            seen.setdefault(w.rid, w)
        admitting[0] = False
        for st, i in list(aborts):
            if step >= st and i in seen:
                from sglang.srt.managers.io_struct import AbortReq
                s.abort_request(AbortReq(rid=i))
                aborts.remove((st, i))
        return added

    al = s.token_to_kv_pool_allocator
    tree = s.tree_cache
    def evictable():
        try:
            return int(tree.evictable_size())
        except Exception:
            return int(tree.full_evictable_size())
    def protected():
        try:
            return int(tree.protected_size())
        except Exception:
            return int(tree.full_protected_size())

    def snap_batch(batch, before_waiting):
        rec = {}
        if batch is None:
            rec.update(mode=None, sched=[], total=0)
            return rec
        mode = batch.forward_mode.name
        ids = [q.rid for q in batch.reqs]
        if batch.forward_mode.is_extend():
            ext, pre = list(batch.extend_lens), list(batch.prefix_lens)
            dec = set(id(x) for x in (batch.decoding_reqs or []))
            rec["sched"] = [[r, int(n)] for r, n in zip(ids, ext)]
            rec["prefix"] = {q.rid: int(p) for q, p in zip(batch.reqs, pre) if id(q) not in dec}
            rec["mixed_decode"] = [q.rid for q in batch.reqs if id(q) in dec]
            new, resumed, cont = [], [], []
            for q in batch.reqs:
                if id(q) in dec:
                    continue
                if q.rid not in before_waiting:
                    cont.append(q.rid)
                elif q.rid in admitted:
                    resumed.append(q.rid)
                else:
                    new.append(q.rid)
                admitted.add(q.rid)
            rec.update(new=new, resumed=resumed, chunk_cont=cont)
        else:
            rec["sched"] = [[r, 1] for r in ids]
        rec["mode"] = mode
        rec["total"] = sum(n for _, n in rec["sched"])
        rec["chunked_req"] = batch.chunked_req.rid if batch.chunked_req is not None else None
        rec["seq_lens"] = [int(x) for x in batch.seq_lens_cpu.tolist()] if batch.seq_lens_cpu is not None else None
        return rec

    def host(rec):
        """The keys that a host tier adds: the copies that started with the line, and the tier behind it."""
        if tiered:
            rec["copies"] = rec.get("copies", []) + copies.started
            copies.started = []
            rec["host_free"] = int(tree.cache_controller.mem_pool_host.available_size())
            rec["writing"], rec["loading"] = len(tree.ongoing_write_through), len(tree.ongoing_load_back)

    def schedule(t, step, added):
        requeued.clear(); retracts.clear(); captured.clear()
        bw = set(q.rid for q in s.waiting_queue)
        wq0 = [q.rid for q in s.waiting_queue]
        av0, ev0 = int(al.available_size()), evictable()
        ratio0 = trk.current
        if tiered:
            copies.now, copies.load_end = t, 0.0
        plan = s.get_next_batch_to_run(running_batch=s.running_batch, last_batch=s.last_batch)
        s.running_batch = plan.running_batch
        b = plan.batch_to_run
        rec = {"kind": "step", "step": step, "t_sched_ms": round(t, 4), "arrived": added, "waiting_before": wq0}
        rec.update(snap_batch(b, bw))
        rec.update({"requeued": list(requeued), "retract": list(retracts), "ratio_before": round(ratio0, 6),
                    "ratio_after": round(trk.current, 6), "avail_before": av0, "evictable_before": ev0,
                    "avail_after_sched": int(al.available_size()), "evictable_after_sched": evictable(),
                    "protected_after_sched": protected(),
                    "running": [q.rid for q in s.running_batch.reqs], "waiting": [q.rid for q in s.waiting_queue],
                    "batch_is_full": bool(s.running_batch.batch_is_full)})
        host(rec)
        return b, rec

    def finish_rec(rec, t):
        drain() if cfg["kv_events"] else None
        rec.update({"t_end_ms": round(t, 4), "finished": list(finished), "tokens_out": dict(toks_out),
                    "avail_after": int(al.available_size()), "evictable_after": evictable(),
                    "protected_after": protected(), "events": list(captured)})
        host(rec)
        finished.clear(); toks_out.clear(); captured.clear()
        emit(rec)

    dur = lambda n: (cfg["step_ms_base"] + cfg["step_ms_per_token"] * n) if n else 0.0
    step, t, idle, stuck = 0, 0.0, 0, False
    torch.set_grad_enabled(False)

    def idle_jump():
        nonlocal t, step
        if tiered and copies.next_end() is not None and not (
                pending and pending[0].get("arrival_ms", 0.0) <= copies.next_end()):
            t = copies.next_end()
            return True
        if not pending:
            return False
        if "arrival_ms" in pending[0]:
            t = max(t, pending[0]["arrival_ms"])
        else:
            step = max(step, pending[0]["arrival_step"])
        return True

    if not s.enable_overlap:
        while step < cfg["max_steps"]:
            added = admit(t, step)
            b, rec = schedule(t, step, added)
            if tiered:
                t = copies.now
            if b:
                res = s.run_batch(b)
                t += dur(rec["total"])
                if tiered:
                    # Each layer computes when it is there.
                    copies.now = copies.gpu_free = t = max(t, copies.load_end)
                s.process_batch_result(b, res)
                idle = 0
            else:
                s._sched_idled = True
                s.on_idle()
                idle += 1
            s.last_batch = b
            rec["ratio_end"] = round(trk.current, 6)
            if b or rec["requeued"] or rec["retract"] or captured or added or finished:
                finish_rec(rec, t)
                step += 1
            if not b:
                empty = not s.waiting_queue and s.running_batch.is_empty() and s.chunked_req is None
                if empty or idle >= 5:
                    if not idle_jump():
                        stuck = not empty
                        break
    else:
        s.enable_skip_finishing_decode = True
        q, gpu_free, recs = s.result_queue, 0.0, []
        def pop():
            nonlocal t
            tb, tr = q.popleft()
            r0, end = recs.pop(0)
            t = max(t, end)
            if tiered:
                copies.now = t
            s.process_batch_result(tb, tr)
            finish_rec(r0, t)
        while step < cfg["max_steps"]:
            added = admit(t, step)
            b, rec = schedule(t, step, added)
            if tiered:
                t = copies.now
            dis = s.is_disable_overlap_for_batch(b, last_batch=s.last_batch)
            rec["disable_overlap"] = bool(dis)
            sched_events = list(captured); captured.clear()
            if dis:
                pop()
            if b:
                res = s.run_batch(b)
                start = max(t, gpu_free)
                gpu_free = start + dur(rec["total"])
                if tiered:
                    copies.gpu_free = gpu_free = max(gpu_free, copies.load_end)
                rec["t_start_ms"] = round(start, 4)
                recs.append((rec, gpu_free))
                q.append((b.copy(), res))
                step += 1
                idle = 0
            else:
                res = None
                s._sched_idled = True
            captured[:0] = sched_events
            if s.last_batch:
                if not dis:
                    pop()
            elif b is None:
                s.on_idle()
                idle += 1
            if s.is_generation:
                s.launch_batch_sample_if_needed(res, b)
            s.last_batch = b
            if not b and not q:
                empty = not s.waiting_queue and s.running_batch.is_empty() and s.chunked_req is None
                if (empty and idle >= 1) or idle >= 5:
                    if not idle_jump():
                        stuck = not empty
                        break
    emit({"kind": "summary", "steps": step, "t_ms": round(t, 4), "finished": len(done), "requests": len(reqs),
          "stuck": stuck, "unfinished": [r["id"] for r in reqs if r["id"] not in done]})
    out.close()
    print(f"{cfg.get('name', config)}: steps={step} finished={len(done)}/{len(reqs)} stuck={stuck}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
