"""A function that the model calls, and an answer from its result: `python examples/openai_tools.py`."""

from __future__ import annotations

import json
import os

from openai import OpenAI

client = OpenAI(
    base_url=f"{os.environ.get('PLAYHEAD_URL', 'http://127.0.0.1:8000')}/v1",
    api_key=os.environ.get("PLAYHEAD_API_KEY", "none"),
)
model = client.models.list().data[0].id


def weather(city: str) -> str:
    return {"Rome": "sunny", "Ulm": "rain"}[city]


tools = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Rome", "Ulm"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]
messages = [{"role": "user", "content": "Is it sunny?"}]

# "required" makes the answer a call whose arguments fit the schema, whatever the model. With "auto", the default, the
# model decides; that needs a model whose chat template knows tools.
answer = client.chat.completions.create(
    model=model, messages=messages, tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=64
)
message = answer.choices[0].message
print("ended by:", answer.choices[0].finish_reason)

# The call goes back with its result, and the model goes on.
messages.append(message.model_dump(exclude_none=True))
for call in message.tool_calls:
    arguments = json.loads(call.function.arguments)
    print("call:", call.function.name, arguments)
    messages.append({"role": "tool", "tool_call_id": call.id, "content": weather(**arguments)})
answer = client.chat.completions.create(model=model, messages=messages, max_tokens=16)
print("answer:", answer.choices[0].message.content)

# In a stream the name comes first, then the arguments in pieces.
stream = client.chat.completions.create(
    model=model,
    messages=messages[:1],
    tools=tools,
    tool_choice={"type": "function", "function": {"name": "weather"}},
    max_tokens=64,
    stream=True,
)
print("streamed: ", end="")
for chunk in stream:
    for call in chunk.choices[0].delta.tool_calls or []:
        if call.function.name:
            print(call.function.name, end=" ")
        print(call.function.arguments or "", end="", flush=True)
print()
