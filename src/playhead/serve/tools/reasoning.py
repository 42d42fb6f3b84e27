"""Reasoning that stands before an answer, between two markers: `<think>...</think>`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from playhead.serve.tools.events import Event, Reasoning
from playhead.serve.tools.text import MarkerFinder, TextOut

SPACE = re.compile(r"\s{0,64}")
"""An answer that begins with more white space than this has no reasoning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningMarks:
    """The markers around reasoning. Some templates write the first one at the end of the prompt."""

    open: str = "<think>"
    close: str = "</think>"

    def is_open_after(self, prompt_end: str) -> bool:
        """Whether an answer to this prompt begins inside the reasoning."""
        return prompt_end.rstrip().endswith(self.open.rstrip())


class ReasoningSplitter:
    """Separates the reasoning at the beginning of an answer from the rest.

    The markers count once each, and the first one only at the beginning: an answer may speak about them.
    """

    def __init__(self, marks: ReasoningMarks, events: list[Event], *, is_open: bool) -> None:
        self._open, self._close = marks.open, MarkerFinder([marks.close])
        self._out = TextOut(events, Reasoning, trims_start=True)
        self._state = self._in_reasoning if is_open else self._at_start
        self._text = ""

    def feed(self, text: str) -> str:
        """Takes the reasoning out; returns the text that does not belong to it."""
        self._text += text
        return self._state()

    def finish(self) -> str:
        """The rest of the text that is no reasoning. Reasoning that was kept back has become an event."""
        rest, self._text = self._text, ""
        if self._state == self._in_reasoning:
            self._out.put(rest)
            return ""
        return rest

    def _at_start(self) -> str:
        space = SPACE.match(self._text)
        assert space is not None, "no white space is a match too"
        begun = self._text[space.end() : space.end() + len(self._open)]
        if begun == self._open:
            self._text, self._state = self._text[space.end() + len(begun) :], self._in_reasoning
            return self._state()
        if self._open.startswith(begun):
            return ""
        self._state = self._after
        return self._after()

    def _in_reasoning(self) -> str:
        found = self._close.find(self._text, 0)
        end = self._close.end_of_plain(self._text, 0) if found is None else found.start()
        self._out.put(self._text[:end])
        if found is None:
            self._text = self._text[end:]
            return ""
        self._text, self._state = self._text[found.end() :].lstrip(), self._before_answer
        return self._state()

    def _before_answer(self) -> str:
        text, self._text = self._text.lstrip(), ""
        self._state = self._after if text else self._before_answer
        return text

    def _after(self) -> str:
        text, self._text = self._text, ""
        return text
