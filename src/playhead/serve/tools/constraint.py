"""Answers that must be calls: the grammar of a forced `tool_choice`, in the text of a chat format.

The grammar is Lark as llguidance reads it. Arguments fit the JSON schema of their function.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from playhead.serve.tools.definitions import Choice, FunctionTool, ToolRequest
from playhead.serve.tools.reasoning import ReasoningMarks

SPACE = "/[ \\n]{0,2}/"
ANY_TEXT = "/(.|\\n)*/"
WHITE_SPACE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
MAX_CALLS = 8
"""So many calls can be forced by one answer. A model could go on with them without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallText:
    """How a format writes calls: `NAME` stands for the function, and its arguments stand between `before` and `after`.

    `begin` and `end` stand around all calls of an answer, `between` between two. Empty `between`: there is one call.
    """

    before: str
    after: str = ""
    begin: str = ""
    between: str = ""
    end: str = ""
    reasoning: ReasoningMarks | None = None
    """The format's own reasoning, where calls and reasoning are one syntax."""
    reasoning_end: str = ""
    """Stands between reasoning and what follows."""
    answer: str = ""
    """Stands before an answer that is no call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenNames:
    """Which texts are special tokens, that a grammar must name by their ids: their text is no text to it."""

    token_id: Callable[[str], int | None]
    special_ids: Collection[int]

    def is_special(self, text: str) -> bool:
        return self.token_id(text) in self.special_ids

    def terms(self, text: str, markers: Collection[str]) -> str:
        """The text as terms of a grammar."""
        special = [marker for marker in markers if marker in text and self.is_special(marker)]
        parts = re.split("(" + "|".join(map(re.escape, special)) + ")", text) if special else [text]
        return " ".join(self._term(part, is_token=part in special) for part in parts if part)

    def _term(self, part: str, *, is_token: bool) -> str:
        return f"<[{self.token_id(part)}]>" if is_token else json.dumps(part, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerGrammar:
    """Writes grammars of one format's answers. `markers` are texts that may be special tokens."""

    text: CallText
    markers: tuple[str, ...]
    reasoning: ReasoningMarks | None

    def before_form(self, tokens: TokenNames, *, prompt_end: str) -> str | None:
        """A grammar of what stands before an answer that has a form; None where nothing does.

        Reasoning that the prompt has ended, as templates do whose reasoning is switched off, does not begin again.
        """
        marks = self.reasoning
        can_reason = marks is not None and not prompt_end.rstrip().endswith(marks.close)
        parts = [self._reasoning_name() if can_reason else "", self._terms(self.text.answer, tokens)]
        if not any(parts):
            return None
        rules = self._reasoning_rules(tokens, is_open=self._is_open(prompt_end)) if can_reason else []
        return "\n".join([f"start: {' '.join(part for part in parts if part)}", *rules]) + "\n"

    def forced_calls(self, request: ToolRequest, tokens: TokenNames, *, prompt_end: str = "") -> str:
        """A grammar whose every text is a call that the request forces, after reasoning where the format has some."""
        parts = [
            self._reasoning_name(),
            self._terms(self.text.begin, tokens),
            "calls",
            self._terms(self.text.end, tokens),
        ]
        rules = [f"start: {' '.join(part for part in parts if part)}"]
        rules += self._reasoning_rules(tokens, is_open=self._is_open(prompt_end))
        rules.append(f"calls: {self._calls(request, tokens)}")
        rules.append(f"call: {' | '.join(f'call_{i}' for i in range(len(request.forced)))}")
        for i, tool in enumerate(request.forced):
            before = self._terms(self.text.before.replace("NAME", tool.name), tokens)
            rules.append(f"call_{i}: {before} arguments_{i} {self._terms(self.text.after, tokens)}")
            rules.append(f"arguments_{i}: %json {schema_text(tool)}")
        return "\n".join(rules) + "\n"

    def _calls(self, request: ToolRequest, tokens: TokenNames) -> str:
        if not self.text.between or not request.is_parallel or request.choice is Choice.NAMED:
            return "call"
        return f"call ({self._terms(self.text.between, tokens)} call){{0,{MAX_CALLS - 1}}}"

    def _is_open(self, prompt_end: str) -> bool:
        return self.reasoning is not None and self.reasoning.is_open_after(prompt_end)

    def _reasoning_name(self) -> str:
        return "reasoning" if self.reasoning is not None else ""

    def _reasoning_rules(self, tokens: TokenNames, *, is_open: bool) -> list[str]:
        """Reasoning that the prompt has begun must end; other reasoning may be left out."""
        marks = self.reasoning
        if marks is None:
            return []
        close = self._terms(marks.close, tokens)
        is_token = close.startswith("<[")
        inner = f"thought {close}" if is_token else "thought"
        whole = f"{inner} SPACE {self._terms(self.text.reasoning_end, tokens)}"
        begun = f"{self._terms(marks.open, tokens)} {whole}"
        return [
            f"reasoning: {whole}" if is_open else f"reasoning: ({begun})?",
            f"thought: {ANY_TEXT}" if is_token else f"thought[suffix={close}]: {ANY_TEXT}",
            f"SPACE: {SPACE}",
        ]

    def _terms(self, text: str, tokens: TokenNames) -> str:
        return tokens.terms(text, self.markers) if text else ""


def schema_text(tool: FunctionTool) -> str:
    """The JSON schema of a function's arguments. White space is fixed: a model could write it without end."""
    return json.dumps({**tool.parameters, "x-guidance": WHITE_SPACE}, ensure_ascii=False)
