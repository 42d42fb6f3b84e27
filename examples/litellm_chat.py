"""LiteLLM, pointed at Playhead: `pip install litellm`, then run this file."""

from __future__ import annotations

import os

from litellm import completion

# The prefix openai/ says which API the server speaks. What follows it is the name of the model.
server = {
    "model": f"openai/{os.environ.get('PLAYHEAD_MODEL', 'embedded')}",
    "api_base": f"{os.environ.get('PLAYHEAD_URL', 'http://127.0.0.1:8000')}/v1",
    "api_key": os.environ.get("PLAYHEAD_API_KEY", "none"),
}
messages = [{"role": "user", "content": "Who is there?"}]
print(completion(messages=messages, max_tokens=32, **server).choices[0].message.content)
for chunk in completion(messages=messages, max_tokens=32, stream=True, **server):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
