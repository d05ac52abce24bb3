"""OpenAI's own client against a mock worker: what it sends is understood, and what it gets it can read.

    python openai_client.py path/to/windtunnel
"""

import sys

import openai
from workers import Mocker

PROMPT = "tell me of the old sea and the red sun"
MESSAGES = [{"role": "user", "content": PROMPT}]


def check(condition, what):
    if not condition:
        sys.exit(f"openai {openai.__version__}: {what}")


def main(base):
    client = openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0)
    models = list(client.models.list())
    check(len(models) == 1 and models[0].owned_by == "vllm", f"models: {models}")
    model = models[0].id

    whole = client.chat.completions.create(
        model=model, messages=MESSAGES, max_completion_tokens=16, extra_body={"ignore_eos": True}
    )
    choice = whole.choices[0]
    check(whole.id.startswith("chatcmpl-"), f"id: {whole.id}")
    check(choice.finish_reason == "length", f"finish_reason: {choice.finish_reason}")
    check(whole.usage.completion_tokens == 16, f"usage: {whole.usage}")
    check(len(choice.message.content.split()) == 16, f"content: {choice.message.content}")

    stream = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        max_completion_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    check(text == choice.message.content, f"the stream says {text!r}, the answer {choice.message.content!r}")
    check(chunks[0].choices[0].delta.role == "assistant", f"first chunk: {chunks[0]}")
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    check([reason for reason in reasons if reason] == ["length"], f"reasons: {reasons}")
    check(chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 16, f"last chunk: {chunks[-1]}")
    cached = chunks[-1].usage.prompt_tokens_details.cached_tokens
    check(cached == whole.usage.prompt_tokens // 16 * 16, f"cached: {cached} of {whole.usage.prompt_tokens}")

    parts = [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}]
    again = client.chat.completions.create(model=model, messages=parts, max_tokens=4)
    check(again.usage.prompt_tokens == whole.usage.prompt_tokens, "parts are not the same prompt")

    completion = client.completions.create(model=model, prompt=PROMPT, max_tokens=8, n=2, logprobs=2, seed=1)
    check(len(completion.choices) == 2 and completion.id.startswith("cmpl-"), f"completion: {completion}")
    tokens = sum(len(choice.logprobs.tokens) for choice in completion.choices)
    check(tokens == completion.usage.completion_tokens, f"logprobs: {tokens}, usage: {completion.usage}")

    logprobs = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=4, logprobs=True, top_logprobs=3
    )
    entry = logprobs.choices[0].logprobs.content[0]
    check(len(entry.top_logprobs) == 3 and entry.token == entry.top_logprobs[0].token, f"logprobs: {entry}")

    stopped = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=64, stop=[" "], extra_body={"ignore_eos": True}
    )
    check(stopped.choices[0].finish_reason == "stop", f"stop: {stopped.choices[0]}")

    for error, extra in [
        (openai.NotFoundError, {"model": "other"}),
        (openai.BadRequestError, {"max_tokens": 0}),
        (openai.RateLimitError, {"extra_headers": {"x-return-error": "rate_limit"}}),
        (openai.InternalServerError, {"extra_headers": {"x-return-error": "server_error"}}),
        (openai.AuthenticationError, {"extra_headers": {"x-return-error": "invalid_api_key"}}),
    ]:
        try:
            client.chat.completions.create(**{"model": model, "messages": MESSAGES, **extra})
        except error as raised:
            check(raised.body["code"] == raised.status_code, f"body: {raised.body}")
        else:
            sys.exit(f"openai {openai.__version__}: no {error.__name__} for {extra}")
    print(f"openai {openai.__version__}: models, chat, completions, streams, logprobs, stops, errors")


if __name__ == "__main__":
    with Mocker(sys.argv[1], "--block-size", "16", "--speedup-ratio", "0") as mocker:
        main(mocker.urls[0])
