"""A model folder with nothing but a tokenizer, trained here, so that nothing has to be downloaded."""

import json
import os

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXTS = [
    "the old sea and the red sun, a boy with his dog, and the man who had one eye",
    "it was a cold day in the big city, and not a car was to be seen on the road",
    "system user assistant: be brief and say what you know of the weather in the north",
]


def write(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(TEXTS * 20, trainer)
    os.makedirs(folder, exist_ok=True)
    tokenizer.save(f"{folder}/tokenizer.json")
    template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128, "vocab_size": 600,
        "max_position_embeddings": 8192, "eos_token_id": 2, "bos_token_id": 0, "torch_dtype": "bfloat16",
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "bos_token": None,
        "chat_template": template, "model_max_length": 8192,
    }
    for name, content in [
        ("config.json", config),
        ("tokenizer_config.json", tokenizer_config),
        ("generation_config.json", {"eos_token_id": 2, "bos_token_id": 0}),
    ]:
        with open(f"{folder}/{name}", "w") as file:
            json.dump(content, file)
