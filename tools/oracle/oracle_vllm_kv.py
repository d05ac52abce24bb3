#!/usr/bin/env python3
"""Run vLLM's real v1 scheduler + KV-cache manager on CPU with a KV connector and/or speculative decoding, and write a trace.

  oracle_vllm_kv.py --config cfg.json --requests reqs.jsonl --out trace.jsonl[.gz]
  oracle_vllm_kv.py --list jobs.txt     (lines: cfg.json<TAB>reqs.jsonl<TAB>out; one process, one import)

Everything of oracle_vllm.py (same keys, same trace lines) plus the keys in DEFAULTS under "new here"; see docs/conformance.md.
One trace line per scheduler.schedule() call; first line is the config ("kind":"config"), last a summary.
"""
import argparse, gzip, io, json, os, shutil, sys, tempfile

if os.environ.get("PYTHONHASHSEED") != "0" and __name__ == "__main__":  # the engine iterates over sets of ids
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable] + sys.argv)
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

DEFAULTS = dict(
    num_blocks=101, block_size=16, enable_prefix_caching=True, enable_chunked_prefill=True,
    max_num_batched_tokens=2048, max_num_seqs=128, max_model_len=8192, policy="fcfs",
    long_prefill_token_threshold=0, async_scheduling=False, watermark=0.0,
    scheduler_reserve_full_isl=True, prefill_schedule_interval=1, kv_events=True,
    dump_free_queue=False, step_ms_base=10.0, step_ms_per_token=0.05, max_steps=2000,
    # new here: scheduler
    max_num_active_seqs=None, dp_prefill_interval=1,
    # KV connector: kv_role null | kv_consumer (decode side) | kv_producer (prefill side) | offload
    kv_role=None, kv_load_failure_policy="fail",
    load_latency_ms=5.0, load_ms_per_token=0.02, send_latency_ms=8.0, send_ms_per_token=0.02,
    offload_chunks=64, store_latency_ms=2.0, store_ms_per_token=0.02, offload_extra={},
    # a tier of files behind the host (TieringOffloadingSpec, "fs"): reads, writes, and how long look-ups take
    offload_disk=False, read_latency_ms=3.0, read_ms_per_token=0.02, write_latency_ms=3.0, write_ms_per_token=0.02,
    look_up_ms=1.0,
    # speculative decoding: spec_method null | ngram | ngram_gpu | draft_model | eagle
    spec_method=None, spec_k=0, spec_drafts="full", spec_extra={})

TINY = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
        "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 4, "vocab_size": 200000, "max_position_embeddings": 131072,
        "torch_dtype": "float16", "rms_norm_eps": 1e-5, "hidden_act": "silu"}


def build(cfg, files=None):
    import torch
    from vllm.config import (CacheConfig, DeviceConfig, KVEventsConfig, KVTransferConfig, ModelConfig,
                             ParallelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig)
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    d = tempfile.mkdtemp(prefix="tinymodel")
    with open(os.path.join(d, "config.json"), "w") as f:
        json.dump(TINY, f)
    model_config = ModelConfig(model=d, tokenizer=d, skip_tokenizer_init=True, dtype="float16",
                               seed=0, max_model_len=cfg["max_model_len"])
    kw = {} if cfg["max_num_active_seqs"] is None else dict(max_num_active_seqs=cfg["max_num_active_seqs"])
    scheduler_config = SchedulerConfig(
        max_model_len=cfg["max_model_len"], is_encoder_decoder=False,
        max_num_batched_tokens=cfg["max_num_batched_tokens"], max_num_seqs=cfg["max_num_seqs"],
        enable_chunked_prefill=cfg["enable_chunked_prefill"], policy=cfg["policy"],
        long_prefill_token_threshold=cfg["long_prefill_token_threshold"],
        async_scheduling=cfg["async_scheduling"], watermark=cfg["watermark"],
        scheduler_reserve_full_isl=cfg["scheduler_reserve_full_isl"],
        prefill_schedule_interval=cfg["prefill_schedule_interval"], **kw)
    cache_config = CacheConfig(block_size=cfg["block_size"], gpu_memory_utilization=0.9,
                               cache_dtype="auto", enable_prefix_caching=cfg["enable_prefix_caching"])
    parallel_config = ParallelConfig()
    kvt = None
    if cfg["kv_role"] == "offload":
        from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
        extra, engine_id, one = {}, "e0", CPUOffloadingSpec.BLOCK_SIZE_ALIGNMENT
        if cfg["offload_disk"]:
            from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec
            one, engine_id = TieringOffloadingSpec.BLOCK_SIZE_ALIGNMENT, f"oracle{os.getpid()}"
            extra = dict(spec_name="TieringOffloadingSpec", secondary_tiers=[dict(
                type="fs", root_dir=files, n_read_threads=1, n_write_threads=1, enable_kv_events=True)])
        kvt = KVTransferConfig(kv_connector="OffloadingConnector", kv_role="kv_both", engine_id=engine_id,
                               kv_connector_extra_config=dict(
                                   cpu_bytes_to_use=cfg["offload_chunks"] * one, **extra, **cfg["offload_extra"]))
    elif cfg["kv_role"]:
        kvt = KVTransferConfig(kv_connector="ScriptedPull", kv_connector_module_path="scripted_connector",
                               kv_role=cfg["kv_role"], engine_id="e0",
                               kv_load_failure_policy=cfg["kv_load_failure_policy"])
    spec = None
    if cfg["spec_method"]:
        x = dict(method=cfg["spec_method"], num_speculative_tokens=cfg["spec_k"], **cfg["spec_extra"])
        if cfg["spec_method"] in ("eagle", "draft_model"):
            x["model"] = d
        else:
            x.update(prompt_lookup_max=3, prompt_lookup_min=1)
        spec = SpeculativeConfig(target_model_config=model_config, target_parallel_config=parallel_config, **x)
    vllm_config = VllmConfig(
        model_config=model_config, cache_config=cache_config, scheduler_config=scheduler_config,
        parallel_config=parallel_config, device_config=DeviceConfig(device="cpu"),
        kv_transfer_config=kvt, speculative_config=spec,
        kv_events_config=KVEventsConfig(enable_kv_cache_events=bool(cfg["kv_events"]), publisher="null"))
    vllm_config.cache_config.num_gpu_blocks = cfg["num_blocks"]
    kv = KVCacheConfig(num_blocks=cfg["num_blocks"], kv_cache_tensors=[], kv_cache_groups=[
        KVCacheGroupSpec(["layer"], FullAttentionSpec(block_size=cfg["block_size"], num_kv_heads=1,
                                                      head_size=1, dtype=torch.float32))])
    cls = AsyncScheduler if cfg["async_scheduling"] else Scheduler
    sched = cls(vllm_config=vllm_config, kv_cache_config=kv, block_size=cfg["block_size"],
                log_stats=True, structured_output_manager=StructuredOutputManager(vllm_config))
    # VllmConfig may adjust these; the trace must show what really ran.
    sc = vllm_config.scheduler_config
    eff = dict(async_scheduling=sc.async_scheduling, enable_chunked_prefill=sc.enable_chunked_prefill,
               enable_prefix_caching=vllm_config.cache_config.enable_prefix_caching,
               max_num_batched_tokens=sc.max_num_batched_tokens, max_num_seqs=sc.max_num_seqs,
               block_size=vllm_config.cache_config.block_size,
               use_v2_model_runner=vllm_config.use_v2_model_runner,
               max_concurrent_batches=vllm_config.max_concurrent_batches,
               max_num_active_seqs=sched.max_num_active_reqs,
               num_spec_tokens=sched.num_spec_tokens, num_lookahead_tokens=sched.num_lookahead_tokens,
               num_prefill_lookahead=sched.num_prefill_lookahead,
               num_hash_lookahead_tokens=sched.num_hash_lookahead_tokens,
               eagle_block_drop=sched.use_eagle_block_drop,
               draft_slots=spec.max_num_new_slots_for_drafting if spec else 0,
               can_skip_drafts=sched.can_skip_drafts, spec_decode_step_blocks=sched._spec_decode_step_blocks,
               defer_block_free=sched.defer_block_free, requires_kv_delivery=sched.requires_kv_delivery,
               dynamic_k=sched.dynamic_sd_lookup)
    fn = get_hash_fn_by_name("sha256_cbor")
    init_none_hash(fn)
    hasher = get_request_block_hasher(cfg["block_size"], fn, sched.num_hash_lookahead_tokens)
    shutil.rmtree(d)
    return sched, hasher, eff, vllm_config, kv


class NoWorker:
    """No connector."""
    def dispatch(self, so, t, rec):
        return None, t

    def next_event(self):
        return None


class PullWorker:
    """Worker side of the pull connector: only times. A load starts when the step that carries it is dispatched;
    finished transfers are polled once a step, at dispatch, after the new loads were started."""
    def __init__(self, cfg, S, reqs, R):
        self.cfg, self.S, self.reqs, self.R = cfg, S, reqs, R
        self.recv, self.send = {}, {}  # id -> (done_ms, seq, ...)
        self.seq = 0

    def dispatch(self, so, t, rec):
        from vllm.v1.outputs import KVConnectorOutput
        cfg, m = self.cfg, so.kv_connector_metadata
        rs, ns, ss = [], [], []
        for i, meta in m.reqs_to_recv.items():
            blocks = list(meta.local_block_ids[0]) if len(meta.local_block_ids) else []
            if not meta.awaiting_kvs:
                ns.append(i)  # nothing to read: only the prefill side is told to free
                continue
            n = self.S.connector.ext[i]
            ms = self.reqs[i].get("load_ms", cfg["load_latency_ms"] + n * cfg["load_ms_per_token"])
            self.seq += 1
            self.recv[i] = (round(t + ms, 4), self.seq, blocks)
            rs.append([i, n, len(blocks), self.recv[i][0]])
        for i in m.reqs_to_send:
            n = self.R[i].num_computed_tokens
            ms = self.reqs[i].get("send_ms", cfg["send_latency_ms"] + n * cfg["send_ms_per_token"])
            self.seq += 1
            self.send[i] = (round(t + ms, 4), self.seq)
            ss.append([i, n, self.send[i][0]])
        out = KVConnectorOutput()
        rd = [i for i in sorted(self.recv, key=lambda i: self.recv[i][:2]) if self.recv[i][0] <= t + 1e-9]
        sd = [i for i in sorted(self.send, key=lambda i: self.send[i][:2]) if self.send[i][0] <= t + 1e-9]
        failed = []
        for i in rd:
            blocks = self.recv.pop(i)[2]
            f = self.reqs[i].get("load_fail")
            if f == "request":  # what the pull worker reports: the request and all blocks it was reading
                out.failed_recving.add(i)
                out.invalid_block_ids.update(blocks)
                failed.append(i)
            elif f is not None:  # a connector that knows which blocks: from the f-th block read on
                out.invalid_block_ids.update(blocks[f:])
                failed.append(i)
        for i in sd:
            del self.send[i]
        # the engine has sets here; lists keep the order defined (completion time, then start order)
        out.finished_recving, out.finished_sending = rd or None, sd or None
        rec.update(recv_start=rs, notify_only=ns, send_start=ss, recv_done=rd, recv_failed=failed, send_done=sd)
        return out, t

    def next_event(self):
        return min([x[0] for x in self.recv.values()] + [x[0] for x in self.send.values()], default=None)


class Disk:
    """The engine's own tier of files, in a temporary folder. Its threads are replaced by times: a copy is made, and a batch
    of look-ups answered, by the engine's own code when its time has come. The manager is told of it when it next asks."""
    def __init__(self, cfg, manager):
        import queue
        self.cfg, self.now, self.seq, self.due, self.ended, self.started = cfg, 0.0, 0, [], [], []
        tier, = manager.secondary_tiers
        tier._pool.shutdown()
        tier._pool = self
        self.answers = answers = tier._lookup_manager
        answers.shutdown()
        answers._lookup_queue = self
        self.queue = queue.SimpleQueue

    def add(self, kind, tokens, ms, what):
        self.seq += 1
        at = round(self.now + ms, 4)
        self.due.append((at, self.seq, what))
        self.started.append([kind, tokens, at])

    # the pool's interface
    def enqueue_load(self, job_id, n_tasks, tasks):
        self.copy("read", job_id, tasks)

    def enqueue_store(self, job_id, n_tasks, tasks):
        self.copy("write", job_id, tasks)

    def copy(self, kind, job_id, tasks):
        task, = tasks
        n = self.jobs[job_id].transfer_job.keys
        tokens = len(n) * self.cfg["block_size"]
        ms = self.cfg[kind + "_latency_ms"] + tokens * self.cfg[kind + "_ms_per_token"]
        def done():
            task()
            self.ended.append((job_id, True, 0.0))
        self.add(kind, tokens, ms, done)

    def get_finished(self):
        done, self.ended = self.ended, []
        return done

    def wait_idle(self):
        pass

    def shutdown(self, wait=True):
        pass

    # the queue of look-ups
    def put(self, batch):
        if batch is None:
            return
        def done():
            q = self.queue()
            q.put(batch)
            q.put(None)
            self.answers._lookup_queue = q
            self.answers._worker()
            self.answers._lookup_queue = self
        self.add("look_up", len(batch), self.cfg["look_up_ms"], done)

    def run_until(self, t):
        self.now = t
        for x in sorted((x for x in self.due if x[0] <= t + 1e-9), key=lambda x: x[:2]):
            self.due.remove(x)
            x[2]()


class OffloadWorker:
    """vLLM's own OffloadingConnectorWorker; only the device copies are replaced by times."""
    def __init__(self, cfg, S, vcfg, kv):
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
        self.cfg, self.S = cfg, S
        self.conn = OffloadingConnector(vcfg, KVConnectorRole.WORKER, kv)
        self.conn.connector_worker.worker = self
        self.jobs, self.now, self.submitted, self.size = {}, 0.0, [], {}
        # The engine iterates over two sets: the keys of a completed job (order of the events) and the ids that finished
        # since the last step (order of their last stores and host recency). Here: order of the store, order of the ids.
        man, seq = S.connector.connector_scheduler.manager, {}
        self.disk = None
        if cfg["offload_disk"]:
            self.disk = Disk(cfg, man)
            self.disk.jobs = man._jobs
        prep, cs, cl = man.prepare_store, man.complete_store, man.complete_load
        def prepare_store(keys, ctx):
            keys = list(keys)
            for k in keys:
                seq.setdefault(k, len(seq))
            return prep(keys, ctx)
        man.prepare_store = prepare_store
        man.complete_store = lambda keys, *a, **k: cs(sorted(keys, key=seq.get), *a, **k)
        man.complete_load = lambda keys, *a, **k: cl(sorted(keys, key=seq.get), *a, **k)
        meta = S.connector.build_connector_meta
        def build_connector_meta(so):
            ids = so.finished_req_ids
            so.finished_req_ids = dict.fromkeys(sorted(ids))
            try:
                return meta(so)
            finally:
                so.finished_req_ids = ids
        S.connector.build_connector_meta = build_connector_meta

    # the engine's OffloadingWorker interface
    def submit_load(self, job_id, src_spec, dst_spec, expedited=False):
        n = self.size[job_id]
        self.jobs[job_id] = (round(self.now + self.cfg["load_latency_ms"] + n * self.cfg["load_ms_per_token"], 4), n)
        self.submitted.append(["load", job_id, self.jobs[job_id][0]])
        return True

    def submit_store(self, job_id, src_spec, dst_spec):
        n = self.size[job_id]
        self.jobs[job_id] = (round(self.now + self.cfg["store_latency_ms"] + n * self.cfg["store_ms_per_token"], 4), n)
        self.submitted.append(["store", job_id, self.jobs[job_id][0]])
        return True

    def wait(self, job_ids):
        for j in job_ids:
            if j in self.jobs:
                self.now = max(self.now, self.jobs[j][0])

    def get_finished(self):
        from types import SimpleNamespace
        done = sorted((v[0], j) for j, v in self.jobs.items() if v[0] <= self.now + 1e-9)
        for _, j in done:
            del self.jobs[j]
        return [SimpleNamespace(job_id=j, success=True, transfer_time=None, transfer_size=None) for _, j in done]

    def dispatch(self, so, t, rec):
        from vllm.v1.outputs import KVConnectorOutput
        m, c = so.kv_connector_metadata, self.conn
        self.now, self.submitted = max(self.now, t), []  # the worker may still be waiting for a flush
        desc = lambda jobs: [[j, x.req_id, [int(b) for b in (x.dst_spec if load else x.src_spec).block_ids],
                              [int(b) for b in (x.src_spec if load else x.dst_spec).block_ids]]
                             for load in (jobs is m.load_jobs,) for j, x in jobs.items()]
        rec["load_jobs"], rec["store_jobs"] = desc(m.load_jobs), desc(m.store_jobs)
        rec["flush"] = sorted(m.jobs_to_flush or ())
        for l in (rec["load_jobs"], rec["store_jobs"]):
            for j, _, gpu, _ in l:
                self.size[j] = len(gpu) * self.cfg["block_size"]
        rec["load_sync"] = [j for j, x in m.load_jobs.items() if x.sync]
        c.handle_preemptions(m)
        c.bind_connector_metadata(m)
        c.start_load_kv(None)
        c.wait_for_save()
        out = KVConnectorOutput()
        r = c.get_transfer_results(set())
        out.finished_recving = sorted(r.finished_recving) or None
        out.kv_connector_worker_meta = c.build_connector_worker_meta()
        c.clear_connector_metadata()
        rec["submitted"] = self.submitted
        rec["jobs_done"] = list(out.kv_connector_worker_meta.completed_jobs) if out.kv_connector_worker_meta else []
        rec["recv_done"] = out.finished_recving or []
        rec["t_waited_ms"] = round(self.now, 4)
        return out, self.now

    def next_event(self):
        due = self.disk.due if self.disk else []
        return min([v[0] for v in self.jobs.values()] + [x[0] for x in due], default=None)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--config")
    ap.add_argument("--requests")
    ap.add_argument("--out")
    ap.add_argument("--list")
    a = ap.parse_args()
    if not a.list:
        return run(a.config, a.requests, a.out)
    bad = 0
    for l in open(a.list):
        try:
            run(*l.rstrip("\n").split("\t"))
        except Exception as e:
            bad += 1
            import traceback
            traceback.print_exc()
            print(l.split("\t")[0], "FAILED", repr(e)[:500], flush=True)
    sys.exit(bool(bad))


def run(config, requests, outpath):
    cfg = dict(DEFAULTS)
    cfg.update(json.load(open(config)))
    unknown = set(cfg) - set(DEFAULTS) - {"name", "comment"}
    assert not unknown, unknown
    opn = gzip.open if requests.endswith(".gz") else open
    reqs = [json.loads(l) for l in opn(requests, "rt") if l.strip()]
    byid = {r["id"]: r for r in reqs}

    import vllm
    from vllm.sampling_params import SamplingParams
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus

    files = tempfile.mkdtemp(prefix="oracle_kv_") if cfg["offload_disk"] else None
    S, hasher, eff, vcfg, kvcfg = build(cfg, files)
    km, pool = S.kv_cache_manager, S.kv_cache_manager.block_pool
    r2b = km.coordinator.single_type_managers[0].req_to_blocks
    out = io.TextIOWrapper(gzip.GzipFile(outpath, "wb", mtime=0)) if outpath.endswith(".gz") else open(outpath, "w")
    emit = lambda o: out.write(json.dumps(o, separators=(",", ":")) + "\n")
    emit({"kind": "config", "engine": "vllm", "version": vllm.__version__, "config": cfg, "effective": eff})

    hmap = {}
    hid = lambda h: None if h is None else hmap.setdefault(h, len(hmap))
    captured = []

    class Pub:
        def publish(self, batch):
            for e in batch.events:
                n = type(e).__name__
                x = {} if getattr(e, "medium", None) in (None, "GPU") else {"medium": e.medium}
                if n == "BlockStored":
                    captured.append({"t": "stored", "parent": hid(e.parent_block_hash),
                                     "hashes": [hid(h) for h in e.block_hashes],
                                     "n_tokens": len(e.token_ids), "block_size": e.block_size, **x})
                elif n == "BlockRemoved":
                    captured.append({"t": "removed", "hashes": [hid(h) for h in e.block_hashes], **x})
                else:
                    captured.append({"t": n})
        def shutdown(self):
            pass
    S.kv_event_publisher = Pub()

    R, outs = {}, {}
    W = NoWorker() if not cfg["kv_role"] else OffloadWorker(cfg, S, vcfg, kvcfg) if cfg["kv_role"] == "offload" \
        else PullWorker(cfg, S, byid, R)
    disk = getattr(W, "disk", None)
    pending = []
    for i, r in enumerate(reqs):
        outs[r["id"]] = r.get("output_token_ids") or [100000 + (i * 997 + k) % 90000 for k in range(r["max_tokens"])]
        pending.append(r)
    pending.sort(key=lambda r: (r.get("arrival_ms", 0.0), r.get("arrival_step", 0)))  # stable
    aborts = [(r["abort_step"], r["id"]) for r in reqs if r.get("abort_step") is not None]
    aborts_ms = [(r["abort_ms"], r["id"]) for r in reqs if r.get("abort_ms") is not None]
    n_verify = {r["id"]: 0 for r in reqs}  # verifications of real drafts so far: index into "accept"
    n_draft = {r["id"]: 0 for r in reqs}

    # prefix hits at admission, as the cache manager records them (also for resumed requests)
    hits = []
    orig = km.record_prefix_cache_stats
    def rec_hits(request, num_hits):
        hits.append([request.request_id, num_hits, request.num_tokens])
        return orig(request, num_hits)
    km.record_prefix_cache_stats = rec_hits
    # lookups (also those whose admission then failed)
    lookups = [0]
    orig_l = km.get_computed_blocks
    def lk(*x, **k):
        lookups[0] += 1
        return orig_l(*x, **k)
    km.get_computed_blocks = lk
    # NIXL declares support for diverging hits of hybrid models: the same lookup by another name
    orig_lc = km.get_computed_blocks_for_connector
    def lkc(*x, **k):
        n = lookups[0]
        res = orig_lc(*x, **k)
        lookups[0] = n + 1
        return res
    km.get_computed_blocks_for_connector = lkc

    def add(r, t):
        sp = SamplingParams(max_tokens=r["max_tokens"], ignore_eos=True, temperature=0.0,
                            stop_token_ids=r.get("stop_token_ids"))
        kp = None
        if r.get("remote_prefill"):
            n = -(-len(r["prompt_token_ids"]) // cfg["block_size"])
            kp = dict(do_remote_prefill=True, do_remote_decode=False, remote_engine_id="p0", remote_request_id="p-" + r["id"],
                      remote_host="h", remote_port=1, tp_size=1, remote_block_ids=[list(range(1, n + 1))])
        elif r.get("remote_decode"):
            kp = dict(do_remote_decode=True, do_remote_prefill=False)
        if kp:
            sp.extra_args = {"kv_transfer_params": kp}
        q = Request(request_id=r["id"], prompt_token_ids=list(r["prompt_token_ids"]), sampling_params=sp,
                    pooling_params=None, arrival_time=t / 1e3, priority=r.get("priority", 0),
                    block_hasher=hasher)
        R[r["id"]] = q
        S.add_request(q)

    def admit(t, step):
        added = []
        while pending:
            r = pending[0]
            if "arrival_step" in r and "arrival_ms" not in r:
                if r["arrival_step"] > step:
                    break
            elif r.get("arrival_ms", 0.0) > t + 1e-9:
                break
            pending.pop(0)
            add(r, max(t, r.get("arrival_ms", t)) if "arrival_ms" not in r else r["arrival_ms"])
            added.append(r["id"])
        gone = []
        for s, i in list(aborts):
            if step >= s and i in R:
                if S.finish_requests(i, RequestStatus.FINISHED_ABORTED):
                    gone.append(i)
                aborts.remove((s, i))
        for m, i in list(aborts_ms):
            if t >= m - 1e-9 and i in R:
                if S.finish_requests(i, RequestStatus.FINISHED_ABORTED):
                    gone.append(i)
                aborts_ms.remove((m, i))
        return added, gone

    blocks_of = lambda i: [b.block_id for b in r2b.get(i, ())]

    def do_schedule(t, step, added, gone, throttle):
        before = {k: (q.status, q.num_preemptions) for k, q in R.items()}
        hits.clear(); lookups[0] = 0
        free0 = pool.get_num_free_blocks()
        if disk:
            disk.run_until(t)
        so = S.schedule(throttle)
        new, resumed, preempted = [], [], []
        for k in so.num_scheduled_tokens:
            st, pre = before[k]
            if st == RequestStatus.PREEMPTED or (st == RequestStatus.WAITING_FOR_REMOTE_KVS and pre):
                resumed.append(k)
            elif st in (RequestStatus.WAITING, RequestStatus.WAITING_FOR_REMOTE_KVS):
                new.append(k)
        for k, q in R.items():
            if q.num_preemptions > before[k][1]:
                preempted.append(k)
        sampling = [k for k in so.num_scheduled_tokens if not R[k].is_prefill_chunk]
        rec = {"kind": "step", "step": step, "t_sched_ms": round(t, 4), "arrived": added}
        if gone:
            rec["aborted"] = gone
        rec.update({
               "sched": [[k, n] for k, n in so.num_scheduled_tokens.items()],
               "total": so.total_num_scheduled_tokens,
               "new": new, "resumed": resumed, "preempted": preempted,
               "cached": [k for k in so.num_scheduled_tokens if k not in new and k not in resumed],
               "hits": [list(h) for h in hits], "lookups": lookups[0],
               "computed": {k: R[k].num_computed_tokens for k in so.num_scheduled_tokens},
               "free_before": free0, "free_after_sched": pool.get_num_free_blocks(),
               "running": [q.request_id for q in S.running],
               "waiting": [q.request_id for q in S.waiting],
               "sampled": sampling})
        if cfg["dp_prefill_interval"] > 1:
            rec["throttle"] = throttle
            rec["capacity_bound"] = S.prefill_capacity_bound
        if cfg["kv_role"]:
            rec["kv_holding"] = [q.request_id for q in S.kv_holding_waiting]
            rec["wait_state"] = {q.request_id: q.status.name for w in (S.kv_holding_waiting, S.waiting) for q in w
                                 if q.status != RequestStatus.WAITING}
            rec["deferred"] = sorted(q.request_id for q in S.deferred_waiting)
            rec["inflight_prefills"] = sorted(q.request_id for q in S._inflight_prefills)
            rec["reserved"] = S._inflight_prefill_reserved_blocks()
            if cfg["kv_role"] != "kv_producer":
                rec["parked"] = sum(len(b) for _, b in S.deferred_frees)
        if cfg["kv_role"] or cfg["spec_method"]:
            rec["held"] = {k: len(b) for k in S.requests for b in (r2b.get(k, ()),) if b}
        if cfg["spec_method"]:
            sd = so.scheduled_spec_decode_tokens
            rec["drafts"] = {k: len(v) for k, v in sd.items()}
            rec["padded"] = [k for k in sd if k in new or k in resumed]
            rec["skip_drafts"] = so.skip_drafts
            rec["k_next"] = so.num_spec_tokens_to_schedule
            if cfg["async_scheduling"]:
                rec["placeholders"] = {k: R[k].num_output_placeholders for k in so.num_scheduled_tokens}
        if cfg["dump_free_queue"]:
            rec["blocks"] = {k: blocks_of(k) for k in so.num_scheduled_tokens}
            if cfg["kv_role"]:
                rec["blocks_waiting"] = {q.request_id: blocks_of(q.request_id) for q in S.kv_holding_waiting}
        kvout, t_start = W.dispatch(so, t, rec)
        if disk:
            rec["disk"], disk.started = disk.started, []
        return so, kvout, rec, t_start

    def do_update(so, kvout, rec, t):
        ids = list(so.num_scheduled_tokens)
        toks, acc, spec = [], {}, so.scheduled_spec_decode_tokens
        smp = set(rec["sampled"])
        for k in ids:
            if k not in smp:
                toks.append([])
                continue
            a = 0
            if k in spec and k not in rec["padded"]:
                script = byid[k].get("accept") or [0]
                a = min(script[n_verify[k] % len(script)], len(spec[k]))
                n_verify[k] += 1
            if k in spec:
                acc[k] = a
            n = R[k].num_output_tokens
            o = outs[k][n:n + 1 + a]
            toks.append(o + [199999] * (1 + a - len(o)))
        mro = ModelRunnerOutput(req_ids=ids, req_id_to_index={k: i for i, k in enumerate(ids)},
                                sampled_token_ids=toks, kv_connector_output=kvout)
        captured.clear()
        stale = [k for k in ids if R[k].num_stale_output_tokens > 0]
        if disk:
            disk.now = t
        eo = S.update_from_output(so, mro)
        if disk:
            rec["disk"], disk.started = rec["disk"] + disk.started, []
        fin, toks_out = [], {}
        for o in eo.values():
            for x in o.outputs:
                if x.new_token_ids:
                    toks_out[x.request_id] = len(x.new_token_ids)
                if x.finish_reason is not None:
                    fin.append([x.request_id, str(x.finish_reason)])
        # The engine ends those whose load failed in the order of a set; here in that of the reports.
        failed = rec.get("recv_failed") or []
        ours = sorted((x for x in fin if x[1] == "error"), key=lambda x: failed.index(x[0]))
        fin = [x for x in fin if x[1] != "error"] + ours
        # EngineCore.post_step: synchronous only, after the update. The V2 runner proposes k tokens for every
        # request of the batch ("full"), the V1 runner's n-gram as many as it finds ("scripted").
        if cfg["spec_method"] and not cfg["async_scheduling"] and ids:
            d = []
            for k in ids:
                m = 0 if so.skip_drafts else so.num_spec_tokens_to_schedule
                if cfg["spec_drafts"] == "scripted" and m:
                    m = 0
                    if k in smp:
                        script = byid[k].get("drafts") or [cfg["spec_k"]]
                        m = script[n_draft[k] % len(script)]
                        n_draft[k] += 1
                d.append([7] * m)
            S.update_draft_token_ids(DraftTokenIds(ids, d))
        rec.update({"t_end_ms": round(t, 4), "finished": fin, "tokens_out": toks_out,
                    "free_after_update": pool.get_num_free_blocks(),
                    "n_running": len(S.running), "n_waiting": len(S.waiting),
                    "n_preemptions_total": sum(q.num_preemptions for q in R.values()),
                    "cached_blocks": len(pool.cached_block_hash_to_block),
                    "events": list(captured)})
        if cfg["spec_method"]:
            rec["accepted"] = acc
            rec["computed_after"] = {k: R[k].num_computed_tokens for k in ids if not R[k].is_finished()}
        if stale:
            rec["stale"] = stale
        if cfg["kv_role"]:
            rec["n_kv_holding"] = len(S.kv_holding_waiting)
            rec["held_finished"] = {k: len(b) for k, q in S.requests.items() if q.is_finished()
                                    for b in (r2b.get(k, ()),) if b}
        if cfg["dump_free_queue"]:
            rec["free_queue"] = [b.block_id for b in pool.free_block_queue.get_all_free_blocks()]
        emit(rec)
        return bool(fin or rec["preempted"] or rec.get("recv_done") or rec.get("send_done") or rec.get("jobs_done")
                    or rec.get("submitted") or rec.get("store_jobs") or rec.get("disk") or rec["total"])

    def next_event():
        x = [W.next_event(), pending[0].get("arrival_ms") if pending else None]
        x += [m for m, i in aborts_ms if i in R and not R[i].is_finished()]
        return min((e for e in x if e is not None), default=None)

    step, t, idle, counter = 0, 0.0, 0, 0
    dur = lambda n: (cfg["step_ms_base"] + cfg["step_ms_per_token"] * n) if n else 0.0
    stuck = False
    iv = cfg["dp_prefill_interval"]
    if not cfg["async_scheduling"]:
        while step < cfg["max_steps"]:
            added, gone = admit(t, step)
            if not S.has_requests():
                counter = 0  # a wave ended: the DP engine's step counter restarts
                if not pending:
                    break
                if "arrival_ms" in pending[0]:
                    t = max(t, pending[0]["arrival_ms"])
                else:
                    step = max(step, pending[0]["arrival_step"])
                continue
            so, kvout, rec, t0 = do_schedule(t, step, added, gone, iv > 1 and counter % iv != 0)
            counter += 1
            t = t0 + dur(so.total_num_scheduled_tokens)
            busy = do_update(so, kvout, rec, t)
            step += 1
            idle = 0 if busy else idle + 1
            if not busy and S.has_requests():  # nothing ran, nothing was reported: the next thing to happen is an event
                e = next_event()
                if e is not None:
                    t = max(t, e)
                    idle = 0 if e > t - 1e-9 else idle
            if idle >= 5:
                stuck = True
                break
    else:  # EngineCore.step_with_batch_queue, queue of max_concurrent_batches (2)
        q, gpu_free = [], 0.0
        while step < cfg["max_steps"]:
            added, gone = admit(t, step)
            if not S.has_requests() and not q:
                counter = 0
                if not pending:
                    break
                if "arrival_ms" in pending[0]:
                    t = max(t, pending[0]["arrival_ms"])
                else:
                    step = max(step, pending[0]["arrival_step"])
                continue
            if S.has_requests():
                so, kvout, rec, t0 = do_schedule(t, step, added, gone, iv > 1 and counter % iv != 0)
                counter += 1
                step += 1
                n = so.total_num_scheduled_tokens
                start = max(t0, gpu_free)
                gpu_free = start + dur(n)
                rec["t_start_ms"] = round(start, 4)
                q.insert(0, (so, kvout, rec, gpu_free))
                if len(q) < eff["max_concurrent_batches"] and (n > 0 or S.has_requests()):
                    continue
            so, kvout, rec, end = q.pop()
            t = max(t, end)
            busy = do_update(so, kvout, rec, t)
            empty = lambda x: not (x["total"] or x.get("recv_done") or x.get("send_done") or x.get("jobs_done")
                                   or x.get("submitted") or x.get("store_jobs") or x.get("disk"))
            if not busy and all(empty(x[2]) for x in q) and S.has_requests():
                idle += 1
                e = next_event()
                if e is not None and e > t:
                    t, idle = e, 0
            else:
                idle = 0
            if idle >= 8:
                stuck = True
                break
    for x in (q[::-1] if cfg["async_scheduling"] else ()):  # only when max_steps or stuck cut the run
        do_update(x[0], x[1], x[2], max(t, x[3]))
    done = [k for k, x in R.items() if x.is_finished()]
    emit({"kind": "summary", "steps": step, "t_ms": round(t, 4), "finished": len(done), "requests": len(reqs),
          "stuck": stuck, "preemptions": {k: x.num_preemptions for k, x in R.items() if x.num_preemptions},
          "unfinished": [k for k, x in R.items() if not x.is_finished()] + [r["id"] for r in pending],
          "free_blocks": pool.get_num_free_blocks()})
    out.close()
    if disk:
        S.connector.connector_scheduler.manager.primary_tier.shutdown()
        shutil.rmtree(files)
    print(f"{cfg.get('name', config)}: steps={step} finished={len(done)}/{len(reqs)} "
          f"preempt={sum(x.num_preemptions for x in R.values())} stuck={stuck} free={pool.get_num_free_blocks()}/{cfg['num_blocks'] - 1}", flush=True)


if __name__ == "__main__":
    main()
