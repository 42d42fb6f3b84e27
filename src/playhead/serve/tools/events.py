"""What a parser makes of an answer's text, and the whole message that such events add up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Text for the reader of the answer."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """Text that the model wrote for itself before it answered."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallStart:
    """A call of a function begins. `index` counts the calls of one answer from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallArguments:
    """More of a call's arguments. All pieces of one call together are the text of a JSON object."""

    index: int
    text: str


Event = Content | Reasoning | ToolCallStart | ToolCallArguments


class Parser(Protocol):
    """Reads one answer. Pieces of any size give the same events, apart from where their texts are cut."""

    def feed(self, text: str) -> list[Event]:
        """What is certain now."""

    def finish(self) -> list[Event]:
        """The rest. Text that was kept because it could have become a call is content. Called once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One whole call. `arguments` is JSON text, as clients get it; cut short if the answer was."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAnswer:
    """A whole answer. A part that does not occur is None or empty."""

    content: str | None
    reasoning: str | None
    calls: tuple[ToolCall, ...]


def gathered(events: Iterable[Event]) -> ParsedAnswer:
    """The events of one whole answer as one message."""
    content: list[str] = []
    reasoning: list[str] = []
    starts: list[ToolCallStart] = []
    arguments: list[list[str]] = []
    for event in events:
        match event:
            case Content():
                content.append(event.text)
            case Reasoning():
                reasoning.append(event.text)
            case ToolCallStart():
                starts.append(event)
                arguments.append([])
            case ToolCallArguments():
                arguments[event.index].append(event.text)
    return ParsedAnswer(
        content="".join(content) or None,
        reasoning="".join(reasoning) or None,
        calls=tuple(
            ToolCall(id=start.id, name=start.name, arguments="".join(text))
            for start, text in zip(starts, arguments, strict=True)
        ),
    )
