"""The chat formats whose tool calls and reasoning are read, and how the one of a model is found.

A format is found by the markers that a chat template writes, never by the name of a model alone: fine-tuned models
bring templates of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Protocol

from playhead.errors import ConfigError, did_you_mean
from playhead.serve.tools.calls import CallLog, new_call_id
from playhead.serve.tools.events import Content, Event, Parser
from playhead.serve.tools.json_calls import JsonCalls, JsonCallSyntax
from playhead.serve.tools.reasoning import ReasoningMarks, ReasoningSplitter


class CallStage(Protocol):
    """Makes events of the text that is not reasoning."""

    def feed(self, text: str) -> None: ...

    def finish(self) -> None: ...


class PlainText:
    """All text is content."""

    def __init__(self, log: CallLog) -> None:
        self._log = log

    def feed(self, text: str) -> None:
        if text:
            self._log.events.append(Content(text=text))

    def finish(self) -> None:
        """There is never anything left."""


class ChatParser:
    """Reasoning first, then content and calls."""

    def __init__(self, splitter: ReasoningSplitter | None, calls: CallStage, events: list[Event]) -> None:
        self._splitter, self._calls, self._events = splitter, calls, events

    def feed(self, text: str) -> list[Event]:
        self._calls.feed(text if self._splitter is None else self._splitter.feed(text))
        return self._taken()

    def finish(self) -> list[Event]:
        if self._splitter is not None:
            self._calls.feed(self._splitter.finish())
        self._calls.finish()
        return self._taken()

    def _taken(self) -> list[Event]:
        events = self._events[:]
        self._events.clear()
        return events


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSettings:
    """How a request must be sampled so that its format can be read: fields of `SamplingParams`."""

    skip_special_tokens: bool
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """One way of writing calls, with the reasoning of the model's template.

    `markers` are texts that must be seen in an answer. `stop_tokens` end an answer besides the model's own ends.
    `has_tools`: the template shows tools to the model. Without, a call comes only where `tool_choice` forces one.
    `wants_tables`: templates of this format read the arguments of earlier calls as tables, and not as JSON text.
    """

    name: str
    markers: tuple[str, ...] = ()
    stop_tokens: tuple[str, ...] = ()
    calls: Callable[[CallLog], CallStage]
    has_tools: bool = True
    wants_tables: bool = True
    reasoning: ReasoningMarks | None = None
    new_id: Callable[[], str] = new_call_id

    def parser(
        self,
        *,
        names: Collection[str] = (),
        prompt_end: str = "",
        is_forced: bool = False,
        new_id: Callable[[], str] | None = None,
    ) -> Parser:
        """A parser for one answer. `names` are the functions that may be called; none: there are no calls.

        `prompt_end` is the end of the prompt's text (32 characters are enough): a template may have begun the
        reasoning there. `is_forced`: the request forced a call.
        """
        log = CallLog(names=frozenset(names), new_id=new_id or self.new_id)
        splitter = None
        if self.reasoning is not None:
            is_open = self.reasoning.is_open_after(prompt_end)
            splitter = ReasoningSplitter(self.reasoning, log.events, is_open=is_open)
        finds_calls = bool(names) and (self.has_tools or is_forced)
        return ChatParser(splitter, self.calls(log) if finds_calls else PlainText(log), log.events)

    def output_settings(self, token_id: Callable[[str], int | None], special_ids: Collection[int]) -> OutputSettings:
        """Special tokens are shown if one of them is a marker, and the stop tokens that the model has end an answer."""
        marks = () if self.reasoning is None else (self.reasoning.open.strip(), self.reasoning.close)
        shown = any(token_id(marker) in special_ids for marker in (*self.markers, *marks))
        stops = (token_id(token) for token in self.stop_tokens)
        return OutputSettings(
            skip_special_tokens=not shown, stop_token_ids=tuple(one for one in stops if one is not None)
        )


HERMES = JsonCallSyntax(opens=("<tool_call>",), close="</tool_call>")
LLAMA = JsonCallSyntax(opens=("<|python_tag|>",), is_bare=True, separators=";,")
PLAIN_JSON = JsonCallSyntax(is_bare=True, separators=";,")


def json_format(name: str, syntax: JsonCallSyntax, **facts: Any) -> ToolFormat:
    """A format whose calls are JSON objects."""
    markers = (*syntax.opens, *([syntax.close] if syntax.close else []))
    return ToolFormat(name=name, markers=markers, calls=lambda log: JsonCalls(syntax, log), **facts)


FORMATS = {
    one.name: one
    for one in (
        json_format("hermes", HERMES, stop_tokens=("<|im_end|>",)),
        json_format("llama3", LLAMA, stop_tokens=("<|eot_id|>", "<|eom_id|>")),
        json_format("none", PLAIN_JSON, has_tools=False),
    )
}
"""All formats by name, as `--tool-format` takes them."""

REASONING = (ReasoningMarks(), ReasoningMarks(open="[THINK]", close="[/THINK]"))


def format_for(chat_template: str | None, model_type: str | None = None, *, name: str = "auto") -> ToolFormat:
    """The format that a chat template writes, or the named one. `none` where the template has no calls."""
    template = chat_template or ""
    if name == "auto":
        name = detected(template, model_type)
    if name not in FORMATS:
        known = ["auto", *FORMATS]
        fix = did_you_mean(name, known, f"Take one of {', '.join(known)}.")
        raise ConfigError(f"tool format {name!r}: no such format. {fix}")
    found = FORMATS[name]
    marks = next((marks for marks in REASONING if marks.close in template), None)
    return found if marks is None or found.reasoning is not None else replace(found, reasoning=marks)


def detected(template: str, model_type: str | None) -> str:
    """The name of a template's format, by the markers it writes."""
    if "<tool_call>" in template:
        return "hermes"
    if "<|python_tag|>" in template or ("<|start_header_id|>" in template and '"parameters"' in template):
        return "llama3"
    return "none"
