"""Makes data/models/models.json from public config.json files.

    python3 tools/make_models.py FOLDER WINDTUNNEL > data/models/models.json

FOLDER holds OWNER--MODEL_config.json files and, where a model has one, OWNER--MODEL_hf_quant_config.json,
as the model_configs folder of the wheel aiconfigurator-core does. Beside them stand the figures of MORE.
Every model goes through `WINDTUNNEL models PATH --json`; one that it refuses is named on standard error
and left out.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

WHEEL = "config.json of huggingface.co/{}, as in aiconfigurator-core 0.12.0"
PUBLISHED = "figures of the config.json of huggingface.co/{}"


def dense(model_type, layers, hidden, inter, heads, kv_heads, vocab, context, **others):
    """A dense model with grouped queries."""
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inter,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "torch_dtype": "bfloat16",
    } | others


TIED = {"tie_word_embeddings": True}

MORE = {
    "meta-llama/Llama-2-7b-hf": dense("llama", 32, 4096, 11008, 32, 32, 32000, 4096, torch_dtype="float16"),
    "meta-llama/Llama-2-13b-hf": dense("llama", 40, 5120, 13824, 40, 40, 32000, 4096, torch_dtype="float16"),
    "meta-llama/Llama-2-70b-hf": dense("llama", 80, 8192, 28672, 64, 8, 32000, 4096, torch_dtype="float16"),
    "meta-llama/Meta-Llama-3-8B": dense("llama", 32, 4096, 14336, 32, 8, 128256, 8192),
    "meta-llama/Meta-Llama-3-70B": dense("llama", 80, 8192, 28672, 64, 8, 128256, 8192),
    "meta-llama/Llama-3.2-1B": dense("llama", 16, 2048, 8192, 32, 8, 128256, 131072, head_dim=64, **TIED),
    "meta-llama/Llama-3.2-3B": dense("llama", 28, 3072, 8192, 24, 8, 128256, 131072, head_dim=128, **TIED),
    "mistralai/Mistral-7B-v0.3": dense("mistral", 32, 4096, 14336, 32, 8, 32768, 32768),
    "mistralai/Mistral-Nemo-Base-2407": dense(
        "mistral", 40, 5120, 14336, 32, 8, 131072, 131072, head_dim=128
    ),
    "Qwen/Qwen2.5-0.5B-Instruct": dense("qwen2", 24, 896, 4864, 14, 2, 151936, 32768, **TIED),
    "Qwen/Qwen2.5-1.5B-Instruct": dense("qwen2", 28, 1536, 8960, 12, 2, 151936, 32768, **TIED),
    "Qwen/Qwen2.5-3B-Instruct": dense("qwen2", 36, 2048, 11008, 16, 2, 151936, 32768, **TIED),
    "Qwen/Qwen2.5-7B-Instruct": dense("qwen2", 28, 3584, 18944, 28, 4, 152064, 32768),
    "Qwen/Qwen2.5-14B-Instruct": dense("qwen2", 48, 5120, 13824, 40, 8, 152064, 32768),
    "Qwen/Qwen2.5-32B-Instruct": dense("qwen2", 64, 5120, 27648, 40, 8, 152064, 32768),
    "Qwen/Qwen2.5-72B-Instruct": dense("qwen2", 80, 8192, 29568, 64, 8, 152064, 32768),
    "Qwen/Qwen3-4B": dense("qwen3", 36, 2560, 9728, 32, 8, 151936, 40960, head_dim=128, **TIED),
    "Qwen/Qwen3-14B": dense("qwen3", 40, 5120, 17408, 40, 8, 151936, 40960, head_dim=128),
}


def read(path: Path):
    """JSON as Python writes it: not-a-number and infinity are words in it, and stand where none is needed."""
    return json.loads(path.read_text(), parse_constant=lambda word: None)


def describe(windtunnel: str, name: str, source: str, config, quantization=None):
    with tempfile.TemporaryDirectory() as work:
        Path(work, "config.json").write_text(json.dumps(config))
        if quantization is not None:
            Path(work, "hf_quant_config.json").write_text(json.dumps(quantization))
        done = subprocess.run([windtunnel, "models", work, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{name}: {done.stderr.strip().rpartition('config.json: ')[2]}", file=sys.stderr)
        return []
    return [json.loads(done.stdout) | {"name": name, "source": source.format(name)}]


def main(folder: Path, windtunnel: str) -> None:
    models = []
    for name, config in MORE.items():
        models += describe(windtunnel, name, PUBLISHED, config)
    for file in sorted(folder.glob("*_config.json")):
        stem = file.name.removesuffix("_config.json")
        if re.search("_hf_quant$", stem):
            continue
        beside = folder / f"{stem}_hf_quant_config.json"
        quantization = read(beside) if beside.exists() else None
        models += describe(windtunnel, stem.replace("--", "/"), WHEEL, read(file), quantization)
    models.sort(key=lambda model: model["name"].lower())
    lines = ",\n".join(json.dumps(model) for model in models)
    print(f"[\n{lines}\n]")


main(Path(sys.argv[1]), sys.argv[2])
