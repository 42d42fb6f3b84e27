"""Answers written as models write them, and parsers fed with them in pieces."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import count, pairwise

from playhead.serve.tools.events import (
    Content,
    Event,
    ParsedAnswer,
    Reasoning,
    ToolCallArguments,
    gathered,
)
from playhead.serve.tools.formats import ToolFormat

NAMES = ("weather", "clock")


def events_of(
    tool_format: ToolFormat, pieces: Sequence[str], *, names: Collection[str] = NAMES, prompt_end: str = ""
) -> list[Event]:
    """What a parser makes of these pieces. Calls have the ids id0, id1 and so on."""
    numbers = count()
    parser = tool_format.parser(names=names, prompt_end=prompt_end, is_forced=True, new_id=lambda: f"id{next(numbers)}")
    found = [event for piece in pieces for event in parser.feed(piece)]
    return found + parser.finish()


def read(tool_format: ToolFormat, text: str, **options: object) -> ParsedAnswer:
    return gathered(events_of(tool_format, [text], **options))


def merged(events: Sequence[Event]) -> list[Event]:
    """The same events, with neighbours of one kind as one."""
    out: list[Event] = []
    for event in events:
        match (out[-1] if out else None), event:
            case Content(text=before), Content(text=text):
                out[-1] = Content(text=before + text)
            case Reasoning(text=before), Reasoning(text=text):
                out[-1] = Reasoning(text=before + text)
            case ToolCallArguments(text=before, index=index), ToolCallArguments(text=text):
                out[-1] = ToolCallArguments(index=index, text=before + text)
            case _:
                out.append(event)
    return out


def calls_of(answer: ParsedAnswer) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in answer.calls]


def in_pieces(text: str, cuts: Sequence[int]) -> list[str]:
    """The text, cut at these places."""
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[begin:end] for begin, end in pairwise(places)]
