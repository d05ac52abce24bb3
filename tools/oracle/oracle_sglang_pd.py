#!/usr/bin/env python3
"""Run one side of SGLang's real prefill/decode scheduler on CPU, with scripted times in place of transfers, and write what
it decides, turn by turn.

  oracle_sglang_pd.py --list jobs.txt     (lines: scenario.json<TAB>trace.json; imports once, forks per job)

A scenario: {"side": "prefill" | "decode", "config": {...}, "requests": [...]}. Keys of config: those of oracle_sglang.py
and num_reserved_decode_tokens, disaggregation_decode_extra_slots, decode_radix. A request: id, arrival_ms,
prompt_token_ids, max_tokens, stop_after (output tokens up to a stop token), and
  decode side:  kv_ms, from the room that is made for its KV to its arrival
  prefill side: room_ms, from its arrival to the room on the other side; send_ms, from the end of its prompt until it was read
The trace is the scenario with "turns": every turn of the loop that did something.
"""
import argparse, json, os, sys
from array import array

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("PYTHONHASHSEED", "0")
HERE = os.path.dirname(os.path.abspath(__file__))
STOP = 199998


def build(cfg, side):
    """The scheduler of oracle_sglang.py, for one side."""
    source = open(os.path.join(HERE, "oracle_sglang.py")).read()
    more = ', disaggregation_mode=side, disaggregation_transfer_backend="nixl"'
    if side == "decode":
        more += (', disaggregation_decode_retraction_backup="cpu_tensor"'
                 ', num_reserved_decode_tokens=cfg["num_reserved_decode_tokens"]'
                 ', disaggregation_decode_extra_slots=cfg["disaggregation_decode_extra_slots"]'
                 ', disaggregation_decode_enable_radix_cache=cfg["decode_radix"]')
    source = source.replace("    sa = ServerArgs(**kw)", f"    kw.update(dict({more[2:]}))\n    sa = ServerArgs(**kw)")
    names = {"__name__": "oracle", "__file__": os.path.join(HERE, "oracle_sglang.py"), "side": side}
    exec(compile(source, "oracle_sglang.py", "exec"), names)
    full = dict(names["DEFAULTS"])
    full.update(kv_events=False, **cfg)
    return full, names["build"](full)


def script_transfers(clock, script):
    """Replaces the transfer library: a sender and a receiver that know only times."""
    from sglang.srt.disaggregation import decode as D, prefill as P, utils as U
    from sglang.srt.disaggregation.base import KVPoll
    from sglang.srt.disaggregation.base.conn import KVTransferMetric
    import sglang.srt.managers.scheduler as M

    class Info:
        dp_size = 1

    class Table(dict):
        def get(self, key, default=None):
            return Info

    class Manager:
        enable_deferred_decode_kv_release = False
        is_dummy_cp_rank = False

        def __init__(self, args, *a, **k):
            self.kv_args, self.prefill_info_table = args, Table()

        def register_to_bootstrap(self):
            pass

    class Sender:
        def __init__(self, mgr, bootstrap_addr, bootstrap_room, **k):
            self.kv_mgr, self.room, self.done = mgr, bootstrap_room, None
            self.wanted = clock.t + script(bootstrap_room)["room_ms"]
            self.inited = False

        def init(self, *a, **k):
            self.inited = True

        def pop_decode_prefix_len(self):
            return 0

        def poll(self):
            if self.done is not None:
                return KVPoll.Success if self.done <= clock.t + 1e-9 else KVPoll.Transferring
            return KVPoll.WaitingForInput if self.inited or self.wanted <= clock.t + 1e-9 else KVPoll.Bootstrapping

        def get_transfer_metric(self):
            return KVTransferMetric()

        def clear(self):
            pass

    class Receiver:
        require_staging = False
        abort_notified = False
        supports_host_destination = False

        def __init__(self, mgr, bootstrap_addr, bootstrap_room):
            self.kv_mgr, self.room, self.ready, self.init_time = mgr, bootstrap_room, None, None

        def init(self, rank):
            pass

        def send_metadata(self, kv_indices, aux_index=None, *a, **k):
            r = script(self.room)
            self.ready = clock.t + r["kv_ms"]
            buffers = clock.s.disagg_metadata_buffers
            buffers.output_ids[aux_index][0] = r["first"]
            buffers.bootstrap_room[aux_index][0] = self.room
            clock.rooms.append([r["id"], int(len(kv_indices))])

        def poll(self):
            if self.ready is None:
                return KVPoll.WaitingForInput
            return KVPoll.Success if self.ready <= clock.t + 1e-9 else KVPoll.Transferring

        def clear(self):
            pass

    original = U.get_kv_class

    def get(backend, kind):
        name = str(kind)
        for word, of in (("MANAGER", Manager), ("SENDER", Sender), ("RECEIVER", Receiver)):
            if word in name:
                return of
        return original(backend, kind)
    for module in (U, D, P, M):
        if hasattr(module, "get_kv_class"):
            module.get_kv_class = get


class Clock:
    t, s = 0.0, None
    rooms = []


def run(path, out):
    scenario = json.load(open(path))
    side, reqs = scenario["side"], scenario["requests"]
    for i, r in enumerate(reqs):
        r["first"] = STOP if r.get("stop_after") == 1 else 100000 + i * 97
    clock = Clock()
    script_transfers(clock, lambda room: reqs[room - 1])
    cfg, (s, M, sa) = build(scenario["config"], side)
    clock.s = s
    import torch
    from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
    from sglang.srt.managers.utils import GenerationBatchResult
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.sampling.sampling_params import SamplingParams
    torch.set_grad_enabled(False)
    by_id = {r["id"]: (i, r) for i, r in enumerate(reqs)}
    finished, done, retracted, given = [], set(), [], []

    def token(rid, k):
        i, r = by_id[rid]
        return STOP if r.get("stop_after") == k + 1 else 100000 + i * 97 + k

    def forward(batch, **kw):
        ids = []
        for q in batch.reqs:
            n = len(q.output_ids)
            for qb, _ in list(s.result_queue):
                n += any(x is q for x in qb.reqs) and qb.chunked_req is not q and not q.is_retracted
            ids.append(token(q.rid, n))
        return GenerationBatchResult(logits_output=LogitsProcessorOutput(next_token_logits=None),
                                     next_token_ids=torch.tensor(ids, dtype=torch.int64), can_run_cuda_graph=False)
    s.tp_worker.forward_batch_generation = forward
    outputs = {}

    def stream(self, rs, *a, **k):
        for q in rs:
            outputs[q.rid] = len(q.output_ids)
            if q.finished() and q.rid not in done:
                done.add(q.rid)
                finished.append([q.rid, str(q.finished_reason.to_json().get("type")), len(q.output_ids)])
    type(s.output_streamer).stream_output = stream
    original = ScheduleBatch.retract_decode

    def retract(self, *a, **k):
        r = original(self, *a, **k)
        retracted.extend(q.rid for q in r[0])
        return r
    ScheduleBatch.retract_decode = retract
    s.maybe_send_cached_prefix_chunk = lambda *a, **k: None

    def send_kv_chunk(req, last_chunk=False, end_idx=None):
        if last_chunk:
            req.disagg_kv_sender.done = clock.t + by_id[req.rid][1]["send_ms"]
    s.send_kv_chunk = send_kv_chunk
    pending = sorted(reqs, key=lambda r: r["arrival_ms"])

    def admit():
        while pending and pending[0]["arrival_ms"] <= clock.t + 1e-9:
            r = pending.pop(0)
            sp = SamplingParams(max_new_tokens=r["max_tokens"], stop_token_ids=[STOP], temperature=0.0)
            sp.normalize(None)
            s.handle_generate_request(TokenizedGenerateReqInput(
                rid=r["id"], input_text=None, input_ids=array("q", r["prompt_token_ids"]), input_embeds=None,
                mm_inputs=None, token_type_ids=None, sampling_params=sp, return_logprob=False, logprob_start_len=-1,
                top_logprobs_num=0, token_ids_logprob=None, stream=False, bootstrap_host="peer",
                bootstrap_port=1, bootstrap_room=by_id[r["id"]][0] + 1))

    allocator = s.token_to_kv_pool_allocator
    turns = []

    def decide():
        """One turn up to the launch. Its line, and the batch."""
        clock.rooms, line = [], {"t_ms": round(clock.t, 4)}
        retracted.clear()
        before = len(finished)
        if side == "decode":
            streamed = dict(outputs)
            s.process_decode_queue()
            plan = s.get_next_disagg_decode_batch_to_run(running_batch=s.running_batch)
        else:
            s.waiting_queue.extend(s.disagg_prefill_bootstrap_queue.pop_bootstrapped())
            plan = s.get_next_disagg_prefill_batch_to_run(running_batch=s.running_batch, last_batch=s.last_batch)
        s.running_batch = plan.running_batch
        b = plan.batch_to_run
        line["rooms"] = list(clock.rooms)
        if side == "decode":
            line["given"] = [rid for rid, n in outputs.items() if n == 1 and streamed.get(rid, 0) == 0]
            line["ended_at_once"] = [f[0] for f in finished[before:]]
            del finished[before:]
            line["retracted"] = list(retracted)
        if b is None:
            line["batch"] = []
        elif side == "decode":
            line["batch"] = [[q.rid, int(n)] for q, n in zip(b.reqs, b.seq_lens_cpu.tolist())]
        else:
            line["batch"] = [[q.rid, int(n)] for q, n in zip(b.reqs, b.extend_lens)]
            line["prefix"] = [int(n) for n in b.prefix_lens]
        line["waiting"] = [q.rid for q in s.waiting_queue]
        line["free"] = int(allocator.available_size())
        return line, b

    def duration(line):
        n = len(line["batch"]) if side == "decode" else sum(n for _, n in line["batch"])
        return cfg["step_ms_base"] + cfg["step_ms_per_token"] * n if n else 0.0

    def after(line):
        if side == "prefill":
            s.process_disagg_prefill_inflight_queue()
        line["finished"] = [list(f) for f in finished]
        line["free_after"] = int(allocator.available_size())
        finished.clear()

    def next_event():
        """When something next comes from outside."""
        times = [pending[0]["arrival_ms"]] if pending else []
        if side == "decode":
            times += [d.kv_receiver.ready for d in s.disagg_decode_transfer_queue.queue]
        else:
            times += [q.disagg_kv_sender.wanted for q in s.disagg_prefill_bootstrap_queue.queue]
            times += [q.disagg_kv_sender.done for q in s.disagg_prefill_inflight_queue]
        times = [t for t in times if t is not None and t > clock.t + 1e-9]
        return min(times, default=None)

    idle, stuck = 0, False
    busy, queue, busy_until = False, [], 0.0
    while len(turns) < 4000:
        admit()
        line, b = decide()
        interesting = line["batch"] or line["rooms"] or line.get("given") or line.get("retracted")
        if not s.enable_overlap:
            if b:
                result = s.run_batch(b)
                clock.t += duration(line)
                s.process_batch_result(b, result)
            after(line)
            s.last_batch = b
        else:
            result = None
            if b:
                result = s.run_batch(b)
                start = max(clock.t, busy_until)
                busy_until = start + duration(line)
                s.result_queue.append((b.copy(), result))
                queue.append((line, busy_until))
            popped = None
            if s.last_batch:
                tb, tr = s.result_queue.popleft()
                popped, end = queue.pop(0)
                clock.t = max(clock.t, end)
                s.process_batch_result(tb, tr)
            after(popped if popped is not None else line)
            s.launch_batch_sample_if_needed(result, b)
            s.last_batch = b
            line.setdefault("finished", [])
        if interesting or line.get("finished"):
            turns.append(line)
        idle = 0 if b or (s.enable_overlap and queue) else idle + 1
        if idle >= 3:
            t = next_event()
            if t is None:
                stuck = len(done) < len(reqs)
                break
            clock.t, idle = t, 0
    scenario["turns"], scenario["stuck"] = turns, stuck
    for r in reqs:
        r.pop("first")
    json.dump(scenario, open(out, "w"), separators=(",", ":"))
    print(os.path.basename(path), side, len(turns), "turns", len(done), "of", len(reqs), "stuck" if stuck else "", flush=True)
    os._exit(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", required=True)
    jobs = [line.rstrip("\n").split("\t") for line in open(parser.parse_args().list)]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import sglang.srt.managers.scheduler, sglang.srt.server_args, sglang.srt.models.llama  # noqa: F401
    bad = 0
    for job in jobs:
        pid = os.fork()
        if pid == 0:
            try:
                run(*job)
            except BaseException:
                import traceback
                traceback.print_exc()
                print(job[0], "FAILED", flush=True)
            os._exit(1)
        bad += os.waitpid(pid, 0)[1] != 0
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
