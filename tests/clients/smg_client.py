"""smg (Shepherd Model Gateway) against mock workers of SGLang.

    python smg_client.py path/to/windtunnel
"""

import sys

from sglang_routers import aggregated, prefill_decode

COMMAND = ["smg", "launch"]

if __name__ == "__main__":
    aggregated("smg", COMMAND, sys.argv[1])
    prefill_decode("smg", COMMAND, sys.argv[1])
