"""What SGLang's bootstrap server answers, as JSON lines: method, path, body, status, answer.

The server is that of the wheel (srt/disaggregation/common/conn.py); prefill ranks register, and others ask. An answer is
JSON where the server says so, else text.
"""

import json
import time

import requests
from sglang.srt.disaggregation.common.conn import CommonKVBootstrapServer

PORT = 18998


def row(rank, tensor_rank, **more):
    """What a prefill rank of two by two registers with (`register_to_bootstrap`)."""
    fields = {
        "attn_tp_size": 2,
        "attn_tp_rank": tensor_rank,
        "attn_cp_size": 1,
        "attn_cp_rank": 0,
        "attn_dp_size": 2,
        "attn_dp_rank": rank,
        "pp_size": 1,
        "pp_rank": 0,
        "system_dp_size": 1,
        "system_dp_rank": 0,
        "rank_ip": f"10.0.0.{1 + rank}",
        "rank_port": 40000 + tensor_rank,
        "page_size": 16,
        "kv_cache_dtype": "auto",
        "kv_layout": None,
        "dsv41_spec_layout": None,
        "load_balance_method": "follow_bootstrap_room",
        "enable_dsa_cache_layer_split": False,
        "enable_kv_cache_sharding": False,
        "prefill_http_port": 30000,
        "decode_allocation_policy": "early",
    }
    return {**fields, **more}


def route(rank, context, tensor, pipeline):
    return (
        f"/route?prefill_dp_rank={rank}&prefill_cp_rank={context}&target_tp_rank={tensor}&target_pp_rank={pipeline}"
    )


EXCHANGES = [
    ("GET", "/health", None),
    ("GET", route(-1, -1, -1, -1), None),
    ("GET", route(0, 0, 0, 0), None),
    ("GET", "/route", None),
    ("GET", "/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=0", None),
    ("DELETE", "/route", None),
    ("PUT", "/route", row(0, 0)),
    ("PUT", "/route", row(0, 1)),
    ("PUT", "/route", row(1, 0)),
    ("GET", route(-1, -1, -1, -1), None),
    ("PUT", "/route", row(1, 1)),
    ("GET", route(-1, -1, -1, -1), None),
    ("GET", route(0, 0, 0, 0), None),
    ("GET", route(1, 0, 1, 0), None),
    ("GET", route(2, 0, 0, 0), None),
    ("GET", route(0, 1, 0, 0), None),
    ("GET", route(-1, 0, 0, 0), None),
    ("PUT", "/route", row(0, 0, decode_allocation_policy="prefill_complete")),
    ("PUT", "/route", row(0, 0, rank_ip="10.0.0.9")),
    ("GET", route(0, 0, 0, 0), None),
    ("POST", "/query_dp_ranks", {"bootstrap_rooms": [7]}),
    ("POST", "/register_dp_rank", {"bootstrap_room": 7, "dp_rank": 1}),
    ("POST", "/register_dp_rank", {"bootstrap_room": 9223372036854775807, "dp_rank": 0}),
    ("POST", "/query_dp_ranks", {"bootstrap_rooms": [7, 8, 9223372036854775807]}),
    ("POST", "/register_dp_rank", {"bootstrap_room": 7, "dp_rank": 0}),
    ("POST", "/query_dp_ranks", {"bootstrap_rooms": [7]}),
]

if __name__ == "__main__":
    CommonKVBootstrapServer("127.0.0.1", PORT)
    for _ in range(100):
        try:
            requests.get(f"http://127.0.0.1:{PORT}/health", timeout=1)
            break
        except requests.ConnectionError:
            time.sleep(0.1)
    for method, path, body in EXCHANGES:
        answer = requests.request(method, f"http://127.0.0.1:{PORT}{path}", json=body, timeout=5)
        is_json = answer.status_code == 200 and answer.headers["content-type"].startswith("application/json")
        told = answer.json() if is_json else answer.text
        print(json.dumps({"method": method, "path": path, "body": body, "status": answer.status_code, "answer": told}))
