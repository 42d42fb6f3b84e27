"""Answers of a given form, and calls of tools, through the `openai` package."""

from __future__ import annotations

import json
import re

import jsonschema
import openai
import pytest
from pydantic import BaseModel

from tests.serve.openai_client.asking import CLOCK, HELLO, WEATHER, WHALE, content, text

pytest.importorskip("playhead.grammar", reason="no grammars here")

SCHEMA = {"type": "json_schema", "json_schema": {"name": "whale", "schema": WHALE, "strict": True}}
FLAT = {"type": "function", **WEATHER["function"]}
ROOM = {"max_tokens": 80}


class Whale(BaseModel):
    """The same form as `WHALE`, as a client writes it."""

    white: bool
    size: str


class Colour(BaseModel):
    """Whether a whale is white: an answer that always ends."""

    white: bool


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_chat_answers_by_a_schema(ask, stream, temperature):
    answer = ask.chat(response_format=SCHEMA, stream=stream, temperature=temperature, seed=3, **ROOM)
    made = content(answer) if stream else answer.choices[0].message.content
    jsonschema.validate(json.loads(made), WHALE)


@pytest.mark.parametrize("count", [2, 3])
def test_every_sample_fits_the_schema(ask, count):
    for choice in ask.chat(response_format=SCHEMA, n=count, temperature=1, **ROOM).choices:
        jsonschema.validate(json.loads(choice.message.content), WHALE)


def test_a_completion_answers_by_a_schema(ask):
    body = {"structured_outputs": {"json": WHALE}}
    jsonschema.validate(json.loads(ask.complete(extra_body=body, **ROOM).choices[0].text), WHALE)
    jsonschema.validate(json.loads(text(ask.complete(extra_body=body, stream=True, **ROOM))), WHALE)


def test_a_response_answers_by_a_schema(ask):
    form = {"format": {"type": "json_schema", "name": "whale", "schema": WHALE, "strict": True}}
    made = ask.respond(text=form, max_output_tokens=80)
    jsonschema.validate(json.loads(made.output_text), WHALE)


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"regex": "(yes|no) [0-9]{3}"}, "(yes|no) [0-9]{3}"),
        ({"regex": "[a-c]{2,4}"}, "[a-c]{2,4}"),
        ({"choice": ["left", "right"]}, "left|right"),
        ({"choice": ["a"]}, "a"),
        ({"grammar": 'start: "x" ("y" | "z")'}, "x(y|z)"),
        ({"json": {"type": "integer", "minimum": 10, "maximum": 99}}, "[0-9]{2}"),
        ({"json": {"type": "boolean"}}, "true|false"),
        ({"json": {"enum": ["a", 1, None]}}, '"a"|1|null'),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("way", ["chat", "complete", "streamed"])
def test_forms_of_all_kinds_are_kept(ask, form, pattern, way):
    fields = {"extra_body": {"structured_outputs": form}, "max_tokens": 40, "temperature": 1, "seed": 5}
    if way == "chat":
        made = ask.chat(**fields).choices[0].message.content
    elif way == "complete":
        made = ask.complete(**fields).choices[0].text
    else:
        made = content(ask.chat(stream=True, **fields))
    assert re.fullmatch(pattern, made)


def test_an_answer_of_a_form_ends_by_itself(ask):
    choice = ask.chat(extra_body={"structured_outputs": {"choice": ["left", "right"]}}).choices[0]
    assert choice.finish_reason == "stop"


def test_a_class_of_the_client_is_filled(ask):
    made = ask.run(
        ask.client.chat.completions.parse(
            model=ask.model, messages=HELLO, response_format=Whale, max_tokens=120, temperature=0, stop=None
        )
    )
    assert isinstance(made.choices[0].message.parsed, Whale) or made.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"regex": "("}, "structured_outputs"),
        ({"regex": "a", "choice": ["b"]}, "structured_outputs"),
        ({}, "structured_outputs"),
        ({"choice": []}, "structured_outputs.choice"),
        ({"grammar": "nonsense"}, "structured_outputs"),
        ({"json": {"type": "whale"}}, "structured_outputs"),
        ({"json": "{"}, "structured_outputs"),
        ({"xml": "a"}, "structured_outputs.xml"),
        ({"regex": "a" * 70_000}, "structured_outputs"),
    ],
    ids=lambda value: next(iter(value), "none") if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_form_that_cannot_be_kept_is_refused(ask, form, param, stream):
    error = ask.refusal(ask.chat, stream=stream, extra_body={"structured_outputs": form})
    assert error.status_code == 400
    assert error.param.startswith(param)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=["required", "named"]
)
def test_a_call_that_must_be_made_is_made(ask, choice, stream):
    answer = ask.chat(tools=[WEATHER], tool_choice=choice, stream=stream, parallel_tool_calls=False, **ROOM)
    if stream:
        pieces = [piece for chunk in answer for piece in chunk.choices]
        calls = [call for piece in pieces for call in piece.delta.tool_calls or ()]
        name, arguments = calls[0].function.name, "".join(call.function.arguments or "" for call in calls)
        finish = pieces[-1].finish_reason
    else:
        made = answer.choices[0].message.tool_calls[0]
        name, arguments, finish = made.function.name, made.function.arguments, answer.choices[0].finish_reason
    assert (name, finish) == ("weather", "tool_calls")
    assert json.loads(arguments)["city"] in ("Rome", "Oslo")


def test_one_of_several_tools_is_called(ask):
    answer = ask.chat(tools=[WEATHER, CLOCK], tool_choice="required", parallel_tool_calls=False, **ROOM)
    calls = answer.choices[0].message.tool_calls
    assert [call.function.name for call in calls] in (["weather"], ["clock"])


def test_a_response_calls_the_tool_it_must(ask):
    named = {"type": "function", "name": "weather"}
    made = ask.respond(tools=[FLAT], tool_choice=named, max_output_tokens=80)
    calls = [item for item in made.output if item.type == "function_call"]
    assert json.loads(calls[0].arguments)["city"] in ("Rome", "Oslo")
    events = ask.respond(tools=[FLAT], tool_choice=named, max_output_tokens=80, stream=True)
    done = next(event for event in events if event.type == "response.function_call_arguments.done")
    assert done.arguments == calls[0].arguments


@pytest.mark.parametrize("choice", ["auto", "none", None])
def test_tools_that_need_not_be_called_leave_an_answer(ask, choice):
    answer = ask.chat(tools=[WEATHER], tool_choice=choice, **ask.exact)
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls


def test_the_result_of_a_call_is_answered(ask):
    called = ask.chat(tools=[WEATHER], tool_choice="required", **ROOM).choices[0].message
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "It is sunny."}
    answer = ask.chat([*HELLO, called.model_dump(exclude_none=True), result], tools=[WEATHER], **ask.exact)
    assert answer.usage.completion_tokens == 8


def test_what_the_package_has_parsed_can_be_sent_back(ask):
    """`parse` adds fields to the answer's message and to its calls, and the package sends them with the message."""
    chats = ask.client.chat.completions
    fields = {"model": ask.model, "messages": HELLO, "temperature": 0, **ROOM}
    filled = ask.run(chats.parse(**fields, response_format=Colour)).choices[0].message
    assert filled.parsed is not None
    tool = openai.pydantic_function_tool(Colour)
    called = (
        ask.run(chats.parse(**fields, tools=[tool], tool_choice="required", parallel_tool_calls=False))
        .choices[0]
        .message
    )
    assert isinstance(called.tool_calls[0].function.parsed_arguments, Colour)
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "It is one."}
    answer = ask.chat([*HELLO, filled.model_dump(warnings=False), *HELLO, called, result], tools=[tool], **ask.exact)
    assert answer.usage.completion_tokens == 8


@pytest.mark.parametrize("is_dumped", [False, True])
def test_a_call_of_a_response_can_be_sent_back(ask, is_dumped):
    asked = {"model": ask.model, "input": "Who is there?", "temperature": 0, "max_output_tokens": 80}
    made = ask.run(ask.client.responses.parse(**asked, tools=[FLAT], tool_choice="required", parallel_tool_calls=False))
    filled = ask.run(ask.client.responses.parse(**asked, text_format=Colour))
    items = [one.model_dump(warnings=False) if is_dumped else one for one in [*filled.output, *made.output]]
    result = {"type": "function_call_output", "call_id": made.output[0].call_id, "output": "It is sunny."}
    answer = ask.respond([{"role": "user", "content": "Who is there?"}, *items, result], tools=[FLAT], **ask.exact)
    assert answer.usage.output_tokens == 8


def test_a_forced_call_and_a_form_exclude_each_other(ask):
    error = ask.refusal(ask.chat, tools=[WEATHER], tool_choice="required", response_format=SCHEMA)
    assert (error.status_code, error.param) == (400, "tool_choice")
