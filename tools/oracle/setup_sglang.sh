#!/bin/bash
# setup_sglang.sh VENV [PYTHON]: an environment in which SGLang 0.5.23's scheduler runs on CPU. PYTHON is a Python 3.11 with venv;
# gcc is needed. About 2 minutes and 3 GB.
set -euo pipefail
H=$(cd "$(dirname "$0")" && pwd); V=$1; PY=${2:-python3.11}
"$PY" -m venv "$V"
"$V/bin/pip" install -q --no-cache-dir --no-deps -r "$H/requirements-deps-sglang.txt"
"$V/bin/pip" install -q --no-cache-dir --no-deps torch==2.14.1 nvidia-cuda-runtime==13.0.96 sglang==0.5.23
bash "$H/torch_cpu_stub.sh" "$V"
