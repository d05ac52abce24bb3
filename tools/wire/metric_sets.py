#!/usr/bin/env python3
"""The Prometheus metrics that an engine defines, as goldens for ours.

  metric_sets.py vllm   > tests/wire/vllm_metrics.jsonl      (environment of tools/oracle/setup.sh)
  metric_sets.py nixl   > tests/wire/vllm_nixl_metrics.jsonl (the same; those of a worker with NIXL's connector alone)
  metric_sets.py sglang > tests/wire/sglang_metrics.jsonl    (environment of tools/oracle/setup_sglang.sh)

Builds the engine's own collectors over the model of tools/oracle (context length 8192) and lists what they register:
name, type, label names, buckets, and of vLLM, which creates its series at the start, their labels. No help texts.
"""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../oracle")]


def emit(kind, name, labels, buckets, series):
    line = {"name": name, "type": kind, "labels": sorted(labels)}
    if buckets is not None:
        line["buckets"] = [b for b in buckets if b != float("inf")]
    if series is not None:
        line["series"] = series
    print(json.dumps(line, separators=(",", ":")), file=OUT)


def listed(prefix, with_series):
    from prometheus_client import REGISTRY
    seen = set()
    for collector in list(REGISTRY._collector_to_names):
        name = getattr(collector, "_name", "")
        if not name.startswith(prefix) or name in seen:
            continue
        seen.add(name)
        buckets = getattr(collector, "_upper_bounds", None) or collector._kwargs.get("buckets")
        if collector._type == "histogram" and buckets is None:
            from prometheus_client import Histogram
            buckets = Histogram.DEFAULT_BUCKETS
        series = None
        if with_series:
            series = [dict(zip(collector._labelnames, values)) for values in collector._metrics]
            for labels in series:
                if name.endswith("cache_config_info"):
                    labels.clear()
        emit(collector._type, name, collector._labelnames, buckets if collector._type == "histogram" else None, series)


def vllm():
    import oracle_vllm
    _, _, _, config = oracle_vllm.build(dict(oracle_vllm.DEFAULTS))
    from vllm.v1.metrics.loggers import PrometheusStatLogger
    config.model_config.served_model_name = "m"
    PrometheusStatLogger(config, [0]).log_engine_initialized()
    listed("vllm:", True)


def nixl():
    from types import SimpleNamespace
    from prometheus_client import Counter, Gauge, Histogram
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics  # noqa: F401
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlPromMetrics
    config = SimpleNamespace(kv_transfer_config=object())
    types = {Gauge: Gauge, Counter: Counter, Histogram: Histogram}
    NixlPromMetrics(config, types, ["model_name", "engine"], {0: ["m", "0"]})
    listed("vllm:nixl_", True)


def sglang():
    import oracle_sglang
    _, _, args = oracle_sglang.build(dict(oracle_sglang.DEFAULTS))
    import sglang.srt.observability.metrics_collector as collectors
    rank = {"model_name": "m", "engine_type": "unified", "tp_rank": 0, "pp_rank": 0, "moe_ep_rank": 0}
    collectors.SchedulerMetricsCollector(labels=dict(rank), server_args=args)
    collectors.TokenizerMetricsCollector(server_args=args, labels={"model_name": "m", "engine_type": "unified"})
    listed("sglang:", False)


OUT, sys.stdout = sys.stdout, sys.stderr
{"vllm": vllm, "nixl": nixl, "sglang": sglang}[sys.argv[1]]()
OUT.flush()
os._exit(0)
