"""sglang-router against mock workers of SGLang.

    python sglang-router_client.py path/to/windtunnel
"""

import sys

from sglang_routers import aggregated, prefill_decode

COMMAND = [sys.executable, "-m", "sglang_router.launch_router"]

if __name__ == "__main__":
    aggregated("sglang-router", COMMAND, sys.argv[1])
    prefill_decode("sglang-router", COMMAND, sys.argv[1])
