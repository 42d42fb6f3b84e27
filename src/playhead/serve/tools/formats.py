"""The chat formats whose tool calls and reasoning are read, and how the one of a model is found.

A format is found by the markers that a chat template writes, never by the name of a model alone: fine-tuned models
bring templates of their own.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Protocol

from playhead.errors import ConfigError, RequestError, did_you_mean
from playhead.serve.tools.calls import CallLog, new_call_id
from playhead.serve.tools.constraint import AnswerGrammar, CallText, TokenNames
from playhead.serve.tools.definitions import ToolRequest
from playhead.serve.tools.events import Content, Event, Parser
from playhead.serve.tools.gemma4 import Gemma4Arguments
from playhead.serve.tools.harmony import CHANNEL, HARMONY_TEXT, MARKERS, MESSAGE, HarmonyMessages
from playhead.serve.tools.json_calls import JsonCalls, JsonCallSyntax
from playhead.serve.tools.messages import as_text, for_template, one_call_each
from playhead.serve.tools.reasoning import ReasoningMarks, ReasoningSplitter
from playhead.structured_outputs import MAX_GRAMMAR_BYTES


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


class CallsAlone:
    """A parser of answers that a grammar makes calls. What is left of a call that was cut off is no content."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser

    def feed(self, text: str) -> list[Event]:
        return without_content(self._parser.feed(text))

    def finish(self) -> list[Event]:
        return without_content(self._parser.finish())


def without_content(events: Sequence[Event]) -> list[Event]:
    return [one for one in events if not isinstance(one, Content)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSettings:
    """How a request must be sampled so that its format can be read: fields of `SamplingParams`."""

    skip_special_tokens: bool
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """One way of writing calls, with the reasoning of the model's template.

    `markers` are texts that must be seen in an answer. `stop_tokens` end an answer besides the model's own ends.
    `has_channels`: `calls` reads the reasoning too, whether there are tools or not.
    `template_knows`: the chat template writes tools, calls and results. Where it does not, messages have them as text.
    `to_template` makes messages with calls what such a template reads.
    `can_choose`: the model knows how to write a call. Where it does not, only a forced `tool_choice` makes calls.
    """

    name: str
    markers: tuple[str, ...] = ()
    stop_tokens: tuple[str, ...] = ()
    calls: Callable[[CallLog], CallStage]
    text: CallText
    has_channels: bool = False
    template_knows: bool = True
    can_choose: bool = True
    reasoning: ReasoningMarks | None = None
    new_id: Callable[[], str] = new_call_id
    to_template: Callable[[Sequence[Mapping[str, Any]]], list[dict[str, Any]]] = for_template

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
        finds_calls = self.has_channels or (bool(names) and (self.can_choose or is_forced))
        return ChatParser(splitter, self.calls(log) if finds_calls else PlainText(log), log.events)

    def messages(self, messages: Sequence[Mapping[str, Any]], request: ToolRequest) -> list[dict[str, Any]]:
        """The messages as the chat template takes them."""
        if self.template_knows:
            return self.to_template(messages)
        return as_text(messages, request if self.can_choose else ToolRequest())

    def template_tools(self, request: ToolRequest) -> list[dict[str, object]] | None:
        """The tools as the chat template takes them; None where there are none to show."""
        return request.for_template() if self.template_knows else None

    def structured_outputs(
        self, request: ToolRequest, tokens: TokenNames, *, prompt_end: str = ""
    ) -> dict[str, str] | None:
        """Fields of `StructuredOutputs` that make an answer the call that is forced; None if none is forced."""
        if not request.is_forced:
            return None
        grammar = self._writer.forced_calls(request, tokens, prompt_end=prompt_end)
        if (num_bytes := len(grammar.encode(errors="replace"))) > MAX_GRAMMAR_BYTES:
            wanted = f"at most {MAX_GRAMMAR_BYTES} where a call is forced"
            raise RequestError("tools", f"{num_bytes} bytes", wanted, "Send fewer, or name one in tool_choice.")
        return {"grammar": grammar}

    def before_form(self, tokens: TokenNames, *, prompt_end: str = "") -> str | None:
        """What stands before an answer that has a form, as `StructuredOutputs.before`: the model reasons first."""
        return self._writer.before_form(tokens, prompt_end=prompt_end)

    @property
    def _writer(self) -> AnswerGrammar:
        marks = self.text.reasoning or self.reasoning
        return AnswerGrammar(text=self.text, markers=self.all_markers, reasoning=marks)

    @property
    def all_markers(self) -> tuple[str, ...]:
        marks = () if self.reasoning is None else (self.reasoning.open.strip(), self.reasoning.close)
        return (*self.markers, *marks)

    def output_settings(self, tokens: TokenNames) -> OutputSettings:
        """Special tokens are shown if one of them is a marker, and the stop tokens that the model has end an answer."""
        stops = (tokens.token_id(token) for token in self.stop_tokens)
        return OutputSettings(
            skip_special_tokens=not any(tokens.is_special(marker) for marker in self.all_markers),
            stop_token_ids=tuple(one for one in stops if one is not None),
        )


def mistral_id() -> str:
    """The templates of Mistral refuse ids that are not nine letters and digits."""
    return secrets.token_hex(5)[:9]


HERMES = JsonCallSyntax(opens=("<tool_call>",), close="</tool_call>")
HERMES_TEXT = CallText(before='<tool_call>\n{"name": "NAME", "arguments": ', after="}\n</tool_call>", between="\n")
LLAMA = JsonCallSyntax(opens=("<|python_tag|>",), is_bare=True, separators=";,")
LLAMA_TEXT = CallText(before='{"name": "NAME", "parameters": ', after="}", between="; ")
MISTRAL_HEAD = re.compile(r"(?P<name>[A-Za-z0-9_.-]{1,64})(?:\[CALL_ID\][A-Za-z0-9_-]{1,64})?(?:\[ARGS\])?\s{0,16}")
MISTRAL = JsonCallSyntax(opens=("[TOOL_CALLS]",), head=MISTRAL_HEAD)
MISTRAL_TEXT = CallText(
    begin="[TOOL_CALLS][", before='{"name": "NAME", "arguments": ', after="}", between=", ", end="]"
)
MISTRAL_ARGS_TEXT = CallText(before="[TOOL_CALLS]NAME[ARGS]", between="")
GEMMA = JsonCallSyntax(opens=("```json", "```tool_code", "```tool_call"), close="```", is_bare=True, separators=",;")
GEMMA_4 = JsonCallSyntax(
    opens=("<|tool_call>",),
    close="<tool_call|>",
    head=re.compile(r"call:(?P<name>[A-Za-z0-9_.-]{1,64})\s{0,16}"),
    arguments=Gemma4Arguments,
)
GEMMA_4_TEXT = CallText(before="<|tool_call>call:NAME", after="<tool_call|>", between="")
PLAIN_JSON = JsonCallSyntax(is_bare=True, separators=";,")


def json_format(name: str, syntax: JsonCallSyntax, **facts: Any) -> ToolFormat:
    """A format whose calls are JSON objects."""
    markers = (*syntax.opens, *([syntax.close] if syntax.close else []))
    given: dict[str, Any] = {"markers": markers, "calls": partial(JsonCalls, syntax), **facts}
    return ToolFormat(name=name, **given)


MISTRAL_FACTS: dict[str, Any] = {"markers": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"), "new_id": mistral_id}
FORMATS = {
    one.name: one
    for one in (
        json_format("hermes", HERMES, text=HERMES_TEXT, stop_tokens=("<|im_end|>",)),
        json_format("llama3", LLAMA, text=LLAMA_TEXT, stop_tokens=("<|eot_id|>", "<|eom_id|>")),
        json_format("mistral", MISTRAL, text=MISTRAL_TEXT, **MISTRAL_FACTS),
        json_format("mistral-args", MISTRAL, text=MISTRAL_ARGS_TEXT, **MISTRAL_FACTS),
        ToolFormat(
            name="harmony",
            markers=MARKERS,
            stop_tokens=("<|return|>", "<|call|>"),
            calls=HarmonyMessages,
            text=HARMONY_TEXT,
            has_channels=True,
            to_template=one_call_each,
        ),
        json_format(
            "gemma4",
            GEMMA_4,
            text=GEMMA_4_TEXT,
            markers=("<|tool_call>", "<tool_call|>", '<|"|>'),
            stop_tokens=("<turn|>", "<|tool_response>"),
            reasoning=ReasoningMarks(open="<|channel>thought\n", close="<channel|>"),
        ),
        json_format("gemma", GEMMA, text=LLAMA_TEXT, template_knows=False, stop_tokens=("<end_of_turn>",)),
        json_format("none", PLAIN_JSON, text=LLAMA_TEXT, template_knows=False, can_choose=False),
    )
}
"""All formats by name, as `--tool-format` takes them."""

REASONING = (ReasoningMarks(), ReasoningMarks(open="[THINK]", close="[/THINK]"))


@lru_cache(maxsize=16)
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
    has_own = found.has_channels or found.reasoning is not None
    return found if marks is None or has_own else replace(found, reasoning=marks)


def detected(template: str, model_type: str | None) -> str:
    """The name of a template's format, by the markers it writes. gpt-oss knows one format alone."""
    if (CHANNEL in template and MESSAGE in template) or model_type == "gpt_oss":
        return "harmony"
    if "<|tool_call>" in template:
        return "gemma4"
    if "[TOOL_CALLS]" in template:
        return "mistral-args" if "[ARGS]" in template else "mistral"
    if "<tool_call>" in template:
        return "hermes"
    if "<|python_tag|>" in template or ("<|start_header_id|>" in template and '"parameters"' in template):
        return "llama3"
    return "gemma" if "<start_of_turn>" in template else "none"
