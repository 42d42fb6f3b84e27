"""Answers that fit a schema, an expression or a list of words: `python examples/openai_schema.py`."""

from __future__ import annotations

import json
import os

from openai import OpenAI

client = OpenAI(
    base_url=f"{os.environ.get('PLAYHEAD_URL', 'http://127.0.0.1:8000')}/v1",
    api_key=os.environ.get("PLAYHEAD_API_KEY", "none"),
)
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "Describe a person."}]

# A JSON schema. Every answer that ends by itself fits it: tokens that would break it are never chosen. An answer that
# max_tokens cuts off is the beginning of one that would.
schema = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 120}, "is_king": {"type": "boolean"}},
    "required": ["age", "is_king"],
    "additionalProperties": False,
}
answer = client.chat.completions.create(
    model=model,
    messages=messages,
    response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema}},
    max_tokens=64,
)
print("person:", json.loads(answer.choices[0].message.content))

# What OpenAI does not have goes into extra_body, under vLLM's names.
choice = client.chat.completions.create(
    model=model,
    messages=messages,
    extra_body={"structured_outputs": {"choice": ["king", "queen", "fool"]}},
    max_tokens=16,
)
print("choice:", choice.choices[0].message.content)
date = client.completions.create(
    model=model, prompt="Today is ", extra_body={"structured_outputs": {"regex": "[0-9]{4}-[0-9]{2}"}}, max_tokens=16
)
print("date:", date.choices[0].text)
