"""Reasoning, then an answer with a form, through template, engine, grammar and parser: a real server over HTTP."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from openai import OpenAI

from tests.serve.running import ENGINE, running

TEMPLATE = """{% for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}assistant: {{ '<think>\n' if enable_thinking | default(true) else '<think>\n\n</think>\n\n' }}"""
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}},
    "required": ["answer"],
    "additionalProperties": False,
}
SHORT = 'start: /[a-zA-Z ,.;\\n]{10,30}/ "</think>" /\\n{0,2}/'
"""Reasoning that ends: this model's own would not."""


@pytest.fixture(scope="module")
def client():
    with (
        running(replace(ENGINE, chat_template=TEMPLATE)) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="k") as client,
    ):
        yield client


def asked(client: OpenAI, *, stream: bool = False, **fields: object):
    messages = [{"role": "user", "content": "Shall we go?"}]
    body = {"structured_outputs": {"json": SCHEMA}, **fields}
    return client.chat.completions.create(
        model="embedded", messages=messages, max_tokens=60, temperature=0, stream=stream, extra_body=body
    )


def test_the_form_begins_when_the_reasoning_has_ended(client):
    choice = asked(client, structured_outputs={"json": SCHEMA, "before": SHORT}).choices[0]
    assert choice.finish_reason == "stop"
    assert json.loads(choice.message.content)["answer"] in ("yes", "no")
    assert 10 <= len(choice.message.reasoning_content) <= 30
    chunks = list(asked(client, stream=True, structured_outputs={"json": SCHEMA, "before": SHORT}))
    deltas = [chunk.choices[0].delta.model_dump() for chunk in chunks if chunk.choices]
    said = {name: "".join(delta.get(name) or "" for delta in deltas) for name in ("reasoning_content", "content")}
    assert said["content"] == choice.message.content
    assert said["reasoning_content"] == choice.message.reasoning_content


def test_a_model_may_reason_as_long_as_it_likes(client):
    choice = asked(client).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.reasoning_content
    assert not choice.message.content


def test_a_prompt_that_has_ended_the_reasoning_is_answered_at_once(client):
    choice = asked(client, chat_template_kwargs={"enable_thinking": False}).choices[0]
    assert choice.finish_reason == "stop"
    assert json.loads(choice.message.content)["answer"] in ("yes", "no")
    assert not getattr(choice.message, "reasoning_content", None)
