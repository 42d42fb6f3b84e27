"""Calls as JSON objects: `<tool_call>` of Hermes and Qwen, bare objects of Llama 3; reasoning before them."""

from __future__ import annotations

import msgspec
import pytest

from playhead.serve.tools.events import Content, Reasoning, ToolCallArguments, ToolCallStart
from playhead.serve.tools.formats import FORMATS, format_for
from tests.unit.serve.tools.answers import calls_of, events_of, merged, read

HERMES, LLAMA = FORMATS["hermes"], FORMATS["llama3"]
THINKING = format_for("{% if tools %}<tool_call>{% endif %}{{ content.split('</think>')[-1] }}")
WEATHER = '{"name": "weather", "arguments": {"city": "Rome", "days": [1, 2.5, null]}}'
ROME = '{"city": "Rome", "days": [1, 2.5, null]}'


def test_a_call_follows_its_content_without_the_white_space_between_them():
    answer = read(HERMES, f"Let me look.\n\n<tool_call>\n{WEATHER}\n</tool_call>")
    assert (answer.content, calls_of(answer)) == ("Let me look.", [("weather", ROME)])


def test_several_calls_are_numbered():
    text = f'<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>\n{{"name": "clock", "arguments": {{}}}}\n</tool_call>\n'
    assert merged(events_of(HERMES, [text])) == [
        ToolCallStart(index=0, id="id0", name="weather"),
        ToolCallArguments(index=0, text=ROME),
        ToolCallStart(index=1, id="id1", name="clock"),
        ToolCallArguments(index=1, text="{}"),
    ]


def test_arguments_are_passed_on_as_they_come():
    parser = HERMES.parser(names=["weather"], new_id=lambda: "id")
    assert parser.feed('<tool_call>{"name": "weather", "arguments": ') == []
    assert parser.feed('{"ci') == [
        ToolCallStart(index=0, id="id", name="weather"),
        ToolCallArguments(index=0, text='{"ci'),
    ]
    assert parser.feed('ty": "Ro') == [ToolCallArguments(index=0, text='ty": "Ro')]


def test_text_that_may_be_a_marker_waits():
    parser = HERMES.parser(names=["weather"])
    assert parser.feed("a <tool") == [Content(text="a")]
    assert parser.feed("box>") == [Content(text=" <toolbox>")]


def test_a_call_of_a_function_that_was_not_given_is_content():
    text = '<tool_call>{"name": "rm", "arguments": {"path": "x"}}</tool_call>'
    assert merged(events_of(HERMES, [text])) == [Content(text=text)]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>weather</tool_call>",
        "<tool_call>{'name': 'weather'}</tool_call>",
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": "Rome"}</tool_call>',
        '<tool_call>{"name": "weather", "name": "clock", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"function": "weather"}</tool_call>',
        '<tool_call>{"name": "wea',
        "<tool_call>",
        "<tool_c",
        "</tool_call>",
        "<tool_call><tool_call>",
    ],
)
def test_what_is_no_call_is_content_to_the_letter(text):
    answer = read(HERMES, f"a {text}")
    assert (answer.content, answer.calls) == (f"a {text}", ())


def test_arguments_may_stand_before_the_name_or_be_quoted_or_be_absent():
    swapped = read(HERMES, f'<tool_call>{{"arguments": {ROME}, "name": "weather"}}</tool_call>')
    quoted = read(HERMES, '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Rome\\"}"}</tool_call>')
    absent = read(HERMES, '<tool_call>{"id": "7", "name": "clock"}</tool_call>')
    assert calls_of(swapped) == [("weather", ROME)]
    assert calls_of(quoted) == [("weather", '{"city": "Rome"}')]
    assert calls_of(absent) == [("clock", "{}")]


def test_quoted_arguments_that_are_no_text_are_no_call():
    """Half of a surrogate pair cannot be sent: its answer would end with an error of ours."""
    for escaped, is_call in (
        ("\\\\ud83d", True),
        ("\\ud83d\\ude00", True),
        ("\\ud83d", False),
        ("\\ude00\\ud83d", False),
    ):
        text = f'<tool_call>{{"name": "weather", "arguments": "{{\\"city\\": \\"{escaped}\\"}}"}}</tool_call>'
        answer = read(HERMES, text)
        assert len(answer.calls) == is_call, escaped
        assert answer.content == (None if is_call else text)
        msgspec.json.encode([call.arguments for call in answer.calls])


def test_arguments_that_stop_being_json_end_the_call_and_the_rest_is_content():
    answer = read(HERMES, '<tool_call>{"name": "weather", "arguments": {"city": Rome}}</tool_call>')
    assert (calls_of(answer), answer.content) == ([("weather", '{"city": ')], "Rome}}</tool_call>")


def test_a_cut_answer_has_the_arguments_that_came():
    answer = read(HERMES, '<tool_call>{"name": "weather", "arguments": {"city": "Ro')
    assert (calls_of(answer), answer.content) == ([("weather", '{"city": "Ro')], None)


@pytest.mark.parametrize("num_chars", range(len("\n</tool_call>") + 1))
def test_an_end_of_a_call_that_was_cut_off_is_dropped(num_chars):
    """An answer may end at its limit of tokens there."""
    answer = read(HERMES, f"<tool_call>{WEATHER}" + "\n</tool_call>"[:num_chars])
    assert (answer.content, len(answer.calls)) == (None, 1)


def test_text_after_a_call_is_content():
    answer = read(HERMES, f"<tool_call>{WEATHER}</tool_call>\n\nDone.\n")
    assert (answer.content, len(answer.calls)) == ("Done.\n", 1)


def test_without_tools_there_are_no_calls():
    text = f" <tool_call>{WEATHER}</tool_call> "
    assert read(HERMES, text, names=()).content == text


def test_llama_writes_calls_as_the_answer_itself():
    call = '{"name": "weather", "parameters": {"city": "Rome"}}'
    for text in (call, f"\n{call}", f"<|python_tag|>{call}", f"Sure.<|python_tag|>{call}"):
        assert calls_of(read(LLAMA, text)) == [("weather", '{"city": "Rome"}')]
    for text in (f"{call}; {call}", f"{call}\n{call}", f"[{call}, {call}]"):
        assert len(read(LLAMA, text).calls) == 2


@pytest.mark.parametrize(
    "text",
    [
        '{"answer": 42}',
        'The call is {"name": "weather", "parameters": {}}',
        '<|python_tag|>brave_search.call(query="Rome")',
        '[{"answer": 42}]',
        "[1, 2]",
        "",
    ],
)
def test_llama_answers_that_are_no_calls_are_content(text):
    answer = read(LLAMA, text)
    assert (answer.content, answer.calls) == (text or None, ())


def test_reasoning_stands_before_content_and_calls():
    text = f"<think>\nRome, then.\n</think>\n\nLooking.\n<tool_call>{WEATHER}</tool_call>"
    answer = read(THINKING, text)
    assert (answer.reasoning, answer.content, len(answer.calls)) == ("Rome, then.", "Looking.", 1)


def test_reasoning_that_the_template_began_in_the_prompt_needs_no_first_marker():
    answer = read(THINKING, "Hm.\n</think>\n\nYes.", prompt_end="<|im_start|>assistant\n<think>\n")
    assert (answer.reasoning, answer.content) == ("Hm.", "Yes.")


def test_reasoning_that_the_template_ended_in_the_prompt_is_over():
    answer = read(THINKING, "Yes.", prompt_end="<think>\n\n</think>\n\n")
    assert (answer.reasoning, answer.content) == (None, "Yes.")


def test_calls_inside_reasoning_are_reasoning():
    answer = read(THINKING, f"<think>I could <tool_call>{WEATHER}</tool_call></think>No.")
    assert (answer.calls, answer.content) == ((), "No.")


def test_reasoning_that_does_not_end_is_reasoning_to_the_end():
    assert events_of(THINKING, ["<think>a", "b </thi"])[-1] == Reasoning(text=" </thi")
    assert read(THINKING, "<think>a").content is None


def test_a_marker_of_reasoning_inside_an_answer_is_content():
    text = "One writes <think> and </think>."
    assert read(THINKING, text).content == text
