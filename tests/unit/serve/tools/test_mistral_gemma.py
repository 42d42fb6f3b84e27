"""Calls of Mistral's two formats, of Gemma, and of models whose template knows no tools."""

from __future__ import annotations

import json

import pytest

from playhead.serve.tools.formats import FORMATS
from tests.unit.serve.tools.answers import calls_of, read

OLD, NEW, GEMMA, NONE = (FORMATS[name] for name in ("mistral", "mistral-args", "gemma", "none"))
GEMMA_4 = FORMATS["gemma4"]
ROME = '{"city": "Rome"}'


@pytest.mark.parametrize("tool_format", [OLD, NEW], ids=lambda one: one.name)
def test_both_ways_of_mistral_are_read_whichever_the_template_writes(tool_format):
    both = [("weather", ROME), ("clock", "{}")]
    listed = f'[TOOL_CALLS][{{"name": "weather", "arguments": {ROME}, "id": "abcdefghi"}}, {{"name": "clock"}}]'
    named = f"[TOOL_CALLS]weather[ARGS]{ROME}[TOOL_CALLS]clock[CALL_ID]abcdefghi[ARGS]{{}}"
    for text in (listed, named, f"Well.{listed}", f"Well.\n{named}"):
        answer = read(tool_format, text)
        assert calls_of(answer) == both
        assert answer.content in (None, "Well.")


@pytest.mark.parametrize(
    "text",
    [
        "[TOOL_CALLS]",
        "[TOOL_CALLS]weather",
        "[TOOL_CALLS]weather[ARGS]Rome {",
        "[TOOL_CALLS]rm[ARGS]{}",
        "[TOOL_CALLS]weather in Rome{}",
        "[TOOL_CALLS]" + "w" * 300,
        '[TOOL_CALLS][{"name": "rm", "arguments": {}}]',
        "[TOOL_CALLS][[]]",
        "weather[ARGS]{}",
    ],
)
def test_what_is_no_call_of_mistral_is_content_to_the_letter(text):
    answer = read(NEW, text)
    assert (answer.content, answer.calls) == (text, ())


def test_ids_are_as_mistral_s_templates_want_them():
    made = {OLD.new_id() for _ in range(50)}
    assert len(made) == 50
    assert all(len(one) == 9 and one.isalnum() for one in made)


@pytest.mark.parametrize(
    "text",
    [
        f'{{"name": "weather", "parameters": {ROME}}}',
        f'```json\n{{"name": "weather", "parameters": {ROME}}}\n```',
        f'```json\n[{{"name": "weather", "arguments": {ROME}}}]\n```',
        f'```tool_code\n{{"name": "weather", "parameters": {ROME}}}\n```\n',
        f'I look.\n```tool_call\n{{"name": "weather", "parameters": {ROME}}}\n```',
    ],
)
def test_gemma_writes_json_bare_or_between_fences(text):
    answer = read(GEMMA, text)
    assert calls_of(answer) == [("weather", ROME)]
    assert answer.content in (None, "I look.")


@pytest.mark.parametrize(
    "text",
    ['```json\n{"city": "Rome"}\n```', "```tool_code\nweather(city='Rome')\n```", "```python\nprint()\n```\n"],
)
def test_gemma_s_code_and_other_json_are_content(text):
    answer = read(GEMMA, text)
    assert (answer.content, answer.calls) == (text, ())


def test_a_model_without_tools_calls_only_where_it_is_forced_to():
    call = f'{{"name": "weather", "parameters": {ROME}}}'
    assert calls_of(read(NONE, call)) == [("weather", ROME)]
    parser = NONE.parser(names=["weather"])
    assert [event.text for event in parser.feed(call) + parser.finish()] == [call]


def test_gemma_4_s_arguments_become_json():
    text = '<|tool_call>call:weather{city:<|"|>"Rome"\n<|"|>,days:[1, -2.5e3],deep:{a b:null,c:<|"|><|"|>}}<tool_call|>'
    (call,) = read(GEMMA_4, f"{text}\n").calls
    assert json.loads(call.arguments) == {"city": '"Rome"\n', "days": [1, -2500.0], "deep": {"a b": None, "c": ""}}


def test_gemma_4_thinks_in_a_channel_and_calls_several_functions():
    thought = "<|channel>thought\nRome, then.\n<channel|>"
    answer = read(GEMMA_4, f"{thought}I look.<|tool_call>call:clock{{}}<tool_call|><|tool_call>call:weather{ROME}")
    assert (answer.reasoning, answer.content) == ("Rome, then.", "I look.")
    assert calls_of(answer) == [("clock", "{}"), ("weather", ROME)]


@pytest.mark.parametrize(
    "text",
    ["<|tool_call>call:rm{}<tool_call|>", "<|tool_call>weather{}", "<|tool_call>call:weather", "<tool_call|>"],
)
def test_what_is_no_call_of_gemma_4_is_content_to_the_letter(text):
    assert read(GEMMA_4, text).content == text


def test_arguments_of_gemma_4_that_break_off_end_the_call():
    answer = read(GEMMA_4, '<|tool_call>call:weather{city:<|"|>Rome<|"|>;<tool_call|>')
    assert (calls_of(answer), answer.content) == ([("weather", '{"city":"Rome"')], "<tool_call|>")
