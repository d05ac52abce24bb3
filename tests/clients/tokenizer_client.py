"""A mock worker with a tokenizer and a chat template against Hugging Face's own libraries: the same tokens for the
same texts and messages, and replies that come back.

    python tokenizer_client.py path/to/windtunnel
"""

import json
import os
import sys
import tempfile

import model_folder
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from workers import Mocker, check, events, post

TEXTS = [
    "the old sea and the red sun",
    "  two  spaces\n\n\tand a tab, 1234567 digits; it's don't",
    "Äpfel, 日本語, 🙂🏽 and \u0000\u0001 and e\u0301",
    "<|im_start|>user<|im_end|> <|im_start",
    " " * 300 + "x" + "\n" * 50,
    "a" * 2000,
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Says how it is, <now> & there: 'é'",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"default": 1.5}}},
        },
    }
]
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo", "at": [1, null]}'}}
CHATS = [
    {"messages": [{"role": "user", "content": "hi"}]},
    {"messages": [{"role": "system", "content": " be brief "}, {"role": "user", "content": "the sea?"}], "tools": TOOLS},
    {
        "messages": [
            {"role": "user", "content": "how is it in Oslo?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "cold"},
            {"role": "user", "content": "thanks"},
        ],
        "tools": TOOLS,
    },
    {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"enable_thinking": False}},
    {
        "messages": [{"role": "user", "content": "go on:"}, {"role": "assistant", "content": " the old "}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
]
TEMPLATES = {
    "plain": """{{- bos_token }}
{% for message in messages %}
    {% if message.role == 'system' and not loop.first %}
        {{ raise_exception('The system message comes first.') }}
    {% endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' }}
    {% if message.content is string %}
        {{- message.content | trim }}
    {% endif %}
    {% for call in message.tool_calls or [] %}
        {{- '\\n<call>' + {'name': call.function.name, 'arguments': call.function.arguments} | tojson + '</call>' }}
    {% endfor %}
    {{- '<|im_end|>\\n' -}}
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}""",
    "tools": """{% set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == "user" %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- macro show(tool) %}{{ tool.function | tojson(indent=2) }}{% endmacro -%}
{% if tools is not none and tools %}
# Tools
{% for tool in tools %}
{{ show(tool) }}
{% endfor %}
{% for name, p in tools[0].function.parameters.properties.items() %}{{ name }}={{ p.get('type', 'any') }},{% endfor %}
{% endif %}
{% for m in messages[::-1] | reverse %}
[{{ loop.index }}/{{ messages | length }}]{{ m.role.upper() }}:{{ (m.content or '').strip().replace('e', 'E') }}
{%- if loop.index0 == ns.last %} <- last{% endif %}
{%- for call in m.tool_calls or [] %}
 {% for key, value in call.function.arguments | items %}{{ key ~ '=' ~ (value | tojson) }};{% endfor %}
{%- endfor %}
{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}

{% endfor %}
{{ (messages | selectattr('role', 'equalto', 'user') | list | length) ~ strftime_now('%Y') }}
{%- if add_generation_prompt %} >{% endif %}""",
}


def metaspace(folder):
    """Pieces with a space before them, `<s>` before prompts, bytes where there is no piece."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "<|im_start|>", "<|im_end|>"]
    trainer = trainers.UnigramTrainer(vocab_size=500, special_tokens=special, unk_token="<unk>")
    tokenizer.train_from_iterator(model_folder.TEXTS * 20, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    save(tokenizer, folder, {"bos_token": "<s>", "eos_token": "</s>"})


def words(folder):
    """Whole words and their parts, in lower case, framed by two special tokens."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(model_folder.TEXTS * 20, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    save(tokenizer, folder, {"cls_token": "[CLS]", "eos_token": "[SEP]"})


def save(tokenizer, folder, config):
    os.makedirs(folder, exist_ok=True)
    tokenizer.save(f"{folder}/tokenizer.json")
    with open(f"{folder}/tokenizer_config.json", "w") as file:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", **config}, file)


def same_tokens(url, folder):
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    for text in TEXTS:
        for special in [True, False]:
            status, cut = post(f"{url}/tokenize", {"prompt": text, "add_special_tokens": special})
            expected = tokenizer.encode(text, add_special_tokens=special).ids
            check(status == 200 and cut["tokens"] == expected, f"{folder} {text!r}: {cut} instead of {expected}")
        status, joined = post(f"{url}/detokenize", {"tokens": expected})
        text = tokenizer.decode(expected, skip_special_tokens=False)
        check(joined["prompt"] == text, f"{folder}: {joined} instead of {text!r}")
    body = {"prompt": "the sea", "max_tokens": 40, "ignore_eos": True, "return_token_ids": True}
    _, answer = post(f"{url}/v1/completions", body)
    tokens, text = answer["choices"][0]["token_ids"], answer["choices"][0]["text"]
    check(len(tokens) == answer["usage"]["completion_tokens"] == 40, f"{answer}")
    check(tokenizer.encode(text, add_special_tokens=False).ids == tokens, f"{folder}: {text!r} is not {tokens}")
    pieces = [event["choices"][0]["text"] for event in events(f"{url}/v1/completions", body) if event["choices"]]
    check("".join(pieces) == text, f"{folder}: {pieces} instead of {text!r}")


def same_prompts(binary, folder):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    for name, template in TEMPLATES.items():
        with Mocker(binary, "--tokenizer", folder, "--chat-template", template) as mocker:
            for chat in CHATS:
                # As vLLM does before it renders: arguments of calls are objects.
                messages = json.loads(json.dumps(chat["messages"]))
                for message in messages:
                    for call in message.get("tool_calls") or []:
                        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
                if name == "tools" and chat.get("continue_final_message"):
                    continue  # It does not repeat a last message as it is.
                expected = tokenizer.apply_chat_template(
                    messages,
                    tools=chat.get("tools"),
                    chat_template=template,
                    tokenize=False,
                    add_generation_prompt=chat.get("add_generation_prompt", True),
                    continue_final_message=chat.get("continue_final_message", False),
                    **chat.get("chat_template_kwargs", {}),
                )
                _, rendered = post(f"{mocker.urls[0]}/v1/chat/completions/render", chat)
                check("token_ids" in rendered, f"{name}: {rendered}")
                _, text = post(f"{mocker.urls[0]}/detokenize", {"tokens": rendered["token_ids"]})
                check(text["prompt"] == expected, f"{name}:\n{text['prompt']!r}\ninstead of\n{expected!r}")
            if name == "plain":
                wrong = {"messages": [*CHATS[0]["messages"], {"role": "system", "content": "late"}]}
                status, answer = post(f"{mocker.urls[0]}/v1/chat/completions", wrong)
                message = answer["error"]["message"]
                check(status == 400 and message == "The system message comes first.", f"{status} {answer}")


def main():
    binary = sys.argv[1]
    with tempfile.TemporaryDirectory() as root:
        folders = {"byte level": model_folder.write, "metaspace": metaspace, "words": words}
        for name, write in folders.items():
            write(f"{root}/{name}")
            with Mocker(binary, "--tokenizer", f"{root}/{name}", "--speedup-ratio", "0") as mocker:
                same_tokens(mocker.urls[0], f"{root}/{name}")
        same_prompts(binary, f"{root}/byte level")
    print(f"transformers: {len(folders)} tokenizers and {len(TEMPLATES)} chat templates give the same tokens")


main()
