"""Calls and results inside conversations: what templates get, and that parsers read what templates write."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from playhead.models.text.template_sandbox import compile_template, render
from playhead.serve.tools.definitions import tool_request
from playhead.serve.tools.formats import FORMATS
from tests.unit.serve.tools.answers import read

TOOLS = tool_request([{"type": "function", "function": {"name": "weather"}}])
ROME = {"city": "Rome", "days": [1, 2]}
ASKED = {"role": "user", "content": [{"type": "text", "text": "Is it"}, {"type": "text", "text": "sunny?"}]}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "weather", "arguments": json.dumps(ROME)}},
        {"id": "b", "type": "function", "function": {"name": "clock", "arguments": ""}},
    ],
}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "sunny"}
TALK = [{"role": "system", "content": "Be brief."}, ASKED, CALLED, RESULT, {**RESULT, "tool_call_id": "b"}]

BEGIN = "{% for m in messages %}{% for call in m.tool_calls %}{% set f = call.function %}"
END = "{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}{% endfor %}"
STYLES = {
    "hermes": BEGIN
    + "<tool_call>\n"
    + '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
    + "\n</tool_call>"
    + END,
    "llama3": BEGIN + '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}' + END,
    "mistral": "[TOOL_CALLS] [{% for m in messages %}{% for call in m.tool_calls %}"
    "{{ call.function | tojson }}{% if not loop.last %}, {% endif %}{% endfor %}{% endfor %}]",
    "mistral-args": BEGIN + "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}" + END,
    "harmony": BEGIN
    + "<|start|>assistant to=functions.{{ f.name }}<|channel|>commentary json<|message|>"
    + "{{ f.arguments | tojson }}<|call|>"
    + END,
    "gemma4": BEGIN
    + "<|tool_call>call:{{ f.name }}{{ '{' }}"
    + "{% for k, v in f.arguments.items() %}{{ k }}:"
    + '{% if v is string %}<|"|>{{ v }}<|"|>{% else %}{{ v | tojson }}{% endif %}'
    + "{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}<tool_call|>"
    + END,
    "gemma": "{{ messages[2].content }}",
    "none": "{{ messages[2].content }}",
}


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_template_writes_is_read_back(name):
    """The calls of an earlier answer are written as the model writes them: its next answer will look the same."""
    messages = FORMATS[name].messages(TALK, TOOLS)
    text = render(compile_template(STYLES[name]), {"messages": messages}, datetime(2026, 1, 1))
    calls = read(FORMATS[name], text).calls
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("weather", ROME), ("clock", {})]


def test_templates_that_know_tools_get_tables_names_and_texts():
    messages = FORMATS["hermes"].messages(TALK, TOOLS)
    assert messages[1]["content"] == "Is it\nsunny?"
    assert messages[2]["content"] == ""
    assert messages[2]["tool_calls"][0]["function"]["arguments"] == ROME
    assert [message["name"] for message in messages[3:]] == ["weather", "clock"]


@pytest.mark.parametrize("arguments", ['{"city": "Ro', "[1]", '"x"', "[" * 100_000])
def test_arguments_that_are_no_object_stay_text(arguments):
    called = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "weather", "arguments": arguments}}]}
    (message,) = FORMATS["hermes"].messages([called], TOOLS)
    assert message["tool_calls"][0]["function"]["arguments"] == arguments


def test_a_template_that_knows_no_tools_gets_them_as_text_in_turns_that_alternate():
    messages = FORMATS["gemma"].messages(TALK, TOOLS)
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert '"name": "weather"' in messages[0]["content"]
    assert messages[0]["content"].endswith("Be brief.")
    assert messages[3]["content"] == "Result of weather:\nsunny\n\nResult of clock:\nsunny"
    assert FORMATS["gemma"].template_tools(TOOLS) is None


def test_a_model_without_tools_is_told_nothing_of_them():
    messages = FORMATS["none"].messages(TALK, TOOLS)
    assert messages[0] == {"role": "system", "content": "Be brief."}


GPT_OSS = (
    "{% set last = namespace(name='') %}{% for m in messages %}{% if m.tool_calls %}"
    "{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}"
    "{% if m.thinking %}[{{ m.thinking }}]{% endif %}"
    "{% set last.name = m.tool_calls[0].function.name %}to={{ last.name }};"
    "{% elif m.role == 'tool' %}{{ last.name }}={{ m.content }};{% else %}{{ m.content }};{% endif %}{% endfor %}"
)
"""As the template of gpt-oss: it reads the first call of a message, and a result is of the call before it."""


@pytest.mark.parametrize(
    ("order", "wanted"),
    [
        ("ab", "[hm\nI look.]to=weather;weather=a;to=clock;clock=b;"),
        ("ba", "to=clock;clock=b;[hm\nI look.]to=weather;weather=a;"),
        ("a", "[hm\nI look.]to=weather;weather=a;to=clock;"),
        ("?", "[hm\nI look.]to=weather;weather=?;to=clock;"),
        ("", "[hm\nI look.]to=weather;to=clock;"),
    ],
)
def test_gpt_oss_sees_every_call_with_its_result_and_the_reasoning_before_them(order, wanted):
    called = {**CALLED, "content": "I look.", "reasoning_content": "hm"}
    results = [{"role": "tool", "tool_call_id": one, "content": one} for one in order]
    talk = [{"role": "user", "content": "Q"}, called, *results, {"role": "user", "content": "Q"}]
    messages = FORMATS["harmony"].messages(talk, TOOLS)
    text = render(compile_template(GPT_OSS), {"messages": messages}, datetime(2026, 1, 1))
    assert text == f"Q;{wanted}Q;"
