"""Answers made to harm: nested, unterminated, long. They are read to the end, and nothing of them is lost."""

from __future__ import annotations

import pytest

from playhead.serve.tools.calls import MAX_HELD_CHARS
from playhead.serve.tools.events import Content
from playhead.serve.tools.formats import FORMATS, format_for
from playhead.serve.tools.harmony import HEADER_END, MAX_HEADER_CHARS
from playhead.serve.tools.text import MarkerFinder
from tests.unit.serve.tools.answers import events_of, merged, read

SIZE = 1 << 17
UNITS = [
    *("<tool_call>", "<tool_call>{", '<tool_call>{"name": "', "[TOOL_CALLS]weather", "[TOOL_CALLS][", "```json\n{"),
    *("<|channel|>", "<|channel|>x<|end|>", "to=", "<|tool_call>call:weather ", "{", "[", "\\", '"', " ", "<", "<|"),
    *('{"name": "weather", "arguments": 1', '{"id": 1, ', "{}", "</think>", "\u2028", "\0", "\ud83d"),
]
CALLS = {
    "hermes": '<tool_call>{"name": "weather", "arguments": {"a": [1, 2, "x"]}}</tool_call>',
    "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": {"a": [1, 2, "x"]}}]',
    "mistral-args": '[TOOL_CALLS]weather[ARGS]{"a": [1, 2, "x"]}',
    "harmony": '<|channel|>commentary to=functions.weather<|message|>{"a": [1, 2, "x"]}<|call|>',
    "gemma4": '<|tool_call>call:weather{a:[1,2,<|"|>x<|"|>]}<tool_call|>',
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("unit", UNITS)
def test_a_marker_without_end_is_content(name, unit):
    text = "a" + unit * (2000 // len(unit))
    answer = read(FORMATS[name], text)
    assert answer.calls == ()
    assert answer.reasoning is None
    if name == "harmony":  # drops the ends of messages, and a header that the answer's end cuts off
        assert text.replace("<|end|>", "").startswith(answer.content)
    else:
        assert answer.content == text


@pytest.mark.parametrize("name", CALLS)
def test_many_calls_are_read_in_one_piece_as_in_many(name):
    text = CALLS[name] * 300
    whole = events_of(FORMATS[name], [text])
    assert len(read(FORMATS[name], text).calls) == 300
    assert merged(events_of(FORMATS[name], [text[i : i + 7] for i in range(0, len(text), 7)])) == merged(whole)


@pytest.mark.parametrize("step", [SIZE, 1000], ids=["whole", "pieces"])
def test_a_call_that_never_gets_its_name_is_let_go_at_the_same_character(step):
    text = '<tool_call>{"arguments": {"a": "' + "x" * SIZE + "<tool_call>"
    parser = FORMATS["hermes"].parser(names=["weather"])
    pieces = [text[i : i + step] for i in range(0, len(text), step)]
    events = [event for piece in pieces for event in parser.feed(piece)]
    assert sum(len(event.text) for event in events) == len(text) - len("<tool_call>")
    assert merged(events + parser.finish()) == [Content(text=text)]
    assert len(text) > MAX_HELD_CHARS


def test_long_arguments_are_not_kept():
    parser = FORMATS["hermes"].parser(names=["weather"])
    parser.feed('<tool_call>{"name": "weather", "arguments": {"a": "')
    for _ in range(64):
        (event,) = parser.feed("x" * 2048)
        assert len(event.text) == 2048


def test_arguments_nested_too_deeply_end_the_call():
    answer = read(FORMATS["hermes"], '<tool_call>{"name": "weather", "arguments": {"a": ' + "[" * 500)
    assert (len(answer.calls), answer.content.count("[") + answer.calls[0].arguments.count("[")) == (1, 500)


def test_long_reasoning_is_passed_on_as_it_comes():
    parser = format_for("</think>").parser()
    parser.feed("<think>")
    for _ in range(64):
        (event,) = parser.feed("x<" * 1024 + "x")
        assert len(event.text) == 2049


def test_a_header_without_end_is_looked_for_no_further_than_a_header_can_reach(monkeypatch):
    """Each marker of a long answer would be searched to the answer's end: a million characters took minutes."""
    find, ends = MarkerFinder.find, []

    def watched(self, text, at, end=None):
        if self is HEADER_END:
            ends.append(len(text) - at if end is None else end - at)
        return find(self, text, at, end)

    monkeypatch.setattr(MarkerFinder, "find", watched)
    read(FORMATS["harmony"], "<|channel|>" * 1000)
    assert len(ends) > 900
    assert max(ends) == MAX_HEADER_CHARS
