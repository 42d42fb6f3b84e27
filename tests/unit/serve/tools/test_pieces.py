"""However an answer is cut into pieces, its events are the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playhead.serve.tools.events import ToolCallStart
from playhead.serve.tools.formats import FORMATS, format_for
from tests.unit.serve.tools.answers import events_of, in_pieces, merged

REASONING = format_for("</think>", name="hermes")
ALL = {**FORMATS, "thinking": REASONING}

FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]"),
    *('{"name": "weather", "arguments": ', '{"city": "Rome"}', "}", "weather", '"parameters": ', '"name": "clock", '),
    *('{"name": "clock"}', '{"a": [1, {"b": "\\u00e9\\n"}]}', "{", "[", "]", ",", ";", '"', "\\", "1", "null", "x"),
    *(" ", "\n", "\n\n", "é", "```json", "```", '{"name": "weather", "parameters": {"city": 1}}'),
    *("<|channel|>", "analysis", "commentary", "final", "<|message|>", "<|end|>", "<|start|>assistant", "<|call|>"),
    *(
        "<|tool_call>",
        "call:weather",
        '{city:<|"|>R',
        '<|tool_call>call:weather{ "city": "Rome"}<tool_call|>',
        '<|"|>',
        "<tool_call|>",
        "days:[1,",
        "<|channel>thought\n",
        "<channel|>",
    ),
    *(" to=functions.weather", " <|constrain|>json", "<|return|>", "[CALL_ID]abc", "[THINK]", "[/THINK]"),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)
CUTS = st.lists(st.integers(0, 10_000), max_size=12)


@pytest.mark.parametrize("name", ALL)
@given(text=TEXTS, cuts=CUTS)
def test_every_cut_gives_the_same_events(name, text, cuts):
    whole = merged(events_of(ALL[name], [text]))
    assert merged(events_of(ALL[name], in_pieces(text, cuts))) == whole
    assert merged(events_of(ALL[name], list(text))) == whole


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gemma4", '<|tool_call>call:weather{ \n"city": "Rome", "n": [1, {"é": "}\\u00e9\\""}]}<tool_call|> b'),
        ("gemma4", '<|tool_call>call:weather{ city : <|"|>R{"}ome<|"|> , n:[ 1 ,{b:null}] }<tool_call|>'),
        ("harmony", '<|channel|>commentary to=functions.weather<|message|>{"city": "<|x"}\n <|call|>'),
        ("hermes", 'a <tool_call>\n{"name": "weather", "arguments": "{\\"city\\": \\"R\\\\u00e9\\"}"}\n</tool_call>'),
        ("mistral", '[TOOL_CALLS] [{"name": "weather", "arguments": {"a": "[{"}}, {"name": "clock"}] b'),
        ("mistral-args", 'a[TOOL_CALLS]weather[CALL_ID]abc[ARGS] {"a": "]"}[TOOL_CALLS]clock[ARGS]{}'),
        ("llama3", '<|python_tag|>{"name": "weather", "parameters": {"a": "; {"}}; {"name": "clock"} b'),
        ("gemma", '```json\n{"name": "weather", "parameters": {"a": "```"}}\n``` b'),
        ("thinking", '<think>\n<tool_call>hm</think>\n\n<tool_call>{"name": "clock"}</tool_call>'),
    ],
)
def test_every_pair_of_cuts_gives_the_same_events(name, text):
    """Random texts seldom are whole calls: here are some, cut at every two places."""
    whole = merged(events_of(ALL[name], [text]))
    assert any(isinstance(event, ToolCallStart) for event in whole)
    for first in range(len(text)):
        for second in range(first, len(text)):
            assert merged(events_of(ALL[name], [text[:first], text[first:second], text[second:]])) == whole
