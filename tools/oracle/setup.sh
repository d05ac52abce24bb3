#!/bin/bash
# setup.sh VENV [PYTHON]: an environment in which vLLM 0.33.0's scheduler runs on CPU. PYTHON is a Python 3.12 with venv;
# gcc is needed. About 2 minutes and 2.6 GB.
set -euo pipefail
H=$(cd "$(dirname "$0")" && pwd); V=$1; PY=${2:-python3.12}
"$PY" -m venv "$V"
"$V/bin/pip" install -q --no-cache-dir --no-deps -r "$H/requirements-deps.txt"
"$V/bin/pip" install -q --no-cache-dir --no-deps torch==2.14.0 nvidia-cuda-runtime==13.0.96 vllm==0.33.0
bash "$H/torch_cpu_stub.sh" "$V"
