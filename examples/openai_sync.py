"""A chat, a stream, a completion and an error through the `openai` package: `python examples/openai_sync.py`."""

from __future__ import annotations

import os

from openai import BadRequestError, OpenAI

# The client refuses to start without a key. A server without keys ignores it.
client = OpenAI(
    base_url=f"{os.environ.get('PLAYHEAD_URL', 'http://127.0.0.1:8000')}/v1",
    api_key=os.environ.get("PLAYHEAD_API_KEY", "none"),
)
model = client.models.list().data[0].id
print("model:", model)

# A chat. The seed makes a drawn answer repeatable.
answer = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Who is there?"}],
    max_tokens=24,
    seed=7,
)
print("answer:", answer.choices[0].message.content)
print("ended by:", answer.choices[0].finish_reason, "after", answer.usage.completion_tokens, "tokens")

# The same as a stream. The last chunk has no choices and the usage.
stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Who is there?"}],
    max_tokens=24,
    seed=7,
    stream=True,
    stream_options={"include_usage": True},
)
print("streamed: ", end="")
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    else:
        print("\ncached tokens:", chunk.usage.prompt_tokens_details.cached_tokens)

# A text that the model goes on with. Parameters that OpenAI does not have go into extra_body.
completion = client.completions.create(
    model=model, prompt="To be, or not", max_tokens=12, temperature=0, extra_body={"min_tokens": 4}
)
print("completion:", completion.choices[0].text)

# A request that cannot be served is refused, and the message says what to change.
try:
    client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Hello"}], max_tokens=8, temperature=-1
    )
except BadRequestError as error:
    print("refused:", error.body["message"] if isinstance(error.body, dict) else error)
