"""gpt-oss: channels for reasoning, calls and the answer."""

from __future__ import annotations

import pytest

from playhead.serve.tools.events import Content, Reasoning, ToolCallArguments, ToolCallStart
from playhead.serve.tools.formats import FORMATS
from tests.unit.serve.tools.answers import calls_of, events_of, merged, read

HARMONY = FORMATS["harmony"]
THOUGHT = "<|channel|>analysis<|message|>Rome, then.<|end|>"
ROME = '{"city": "Rome"}'


def test_reasoning_and_answer_have_channels():
    answer = read(HARMONY, f"{THOUGHT}<|start|>assistant<|channel|>final<|message|>Sunny.\n")
    assert (answer.reasoning, answer.content, answer.calls) == ("Rome, then.", "Sunny.\n", ())


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.weather<|message|>",
        " to=functions.weather<|channel|>commentary json<|message|>",
        "<|channel|>analysis to=functions.weather code<|message|>",
    ],
)
def test_a_call_has_its_recipient_before_or_after_the_channel(header):
    for text in (f"{header}{ROME}", f"{header}{ROME}<|call|>"):
        assert calls_of(read(HARMONY, text)) == [("weather", ROME)]
        answer = read(HARMONY, f"{THOUGHT}<|start|>assistant{text}")
        assert (answer.reasoning, calls_of(answer), answer.content) == ("Rome, then.", [("weather", ROME)], None)


@pytest.mark.parametrize("space", ["\n", " " * 70])
def test_white_space_between_a_call_and_its_end_is_no_content(space):
    header = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    for end in ("", "<|call|>", "<|call|><|start|>assistant"):
        for pieces in ([f"{header}{ROME}{space}{end}"], list(f"{header}{ROME}{space}{end}")):
            assert [type(one) for one in merged(events_of(HARMONY, pieces))] == [ToolCallStart, ToolCallArguments]


def test_events_come_in_the_order_of_the_messages():
    text = (
        f"{THOUGHT}<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{ROME}"
    )
    assert merged(events_of(HARMONY, list(text))) == [
        Reasoning(text="Rome, then."),
        Content(text="I look."),
        ToolCallStart(index=0, id="id0", name="weather"),
        ToolCallArguments(index=0, text=ROME),
    ]


def test_two_messages_for_one_reader_have_a_line_end_between_them():
    answer = read(HARMONY, f"{THOUGHT}<|start|>assistant<|channel|>analysis<|message|>Or not.<|end|>")
    assert answer.reasoning == "Rome, then.\nOr not."


def test_channels_are_read_without_tools_too():
    answer = read(HARMONY, f"{THOUGHT}<|start|>assistant<|channel|>final<|message|>Yes.", names=())
    assert (answer.reasoning, answer.content) == ("Rome, then.", "Yes.")


@pytest.mark.parametrize(
    "text",
    [
        "Just text.",
        "to=be or not",
        "<|channel|>commentary to=functions.rm<|message|>{}",
        "<|channel|>commentary to=browser.search<|message|>{}",
        "<|channel|>commentary to=functions.weather<|message|>Rome",
        "<|channel|>" + "x" * 600,
        "<",
    ],
)
def test_what_has_lost_the_format_is_content_to_the_letter(text):
    answer = read(HARMONY, text)
    assert (answer.content, answer.calls) == (text, ())


@pytest.mark.parametrize("rest", ["<|channel|>", "<|start|>assistant<|channel|>comm", "<|channel|>final"])
def test_a_header_that_was_cut_off_is_dropped(rest):
    answer = read(HARMONY, THOUGHT + rest)
    assert (answer.reasoning, answer.content) == ("Rome, then.", None)


def test_a_message_may_lack_its_end():
    answer = read(HARMONY, "<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>Yes.")
    assert (answer.reasoning, answer.content) == ("Hm.", "Yes.")
