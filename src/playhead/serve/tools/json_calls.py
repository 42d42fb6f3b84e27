"""Answers whose calls are JSON objects, with the markers of a format around them.

Hermes, Qwen    <tool_call>{"name": "f", "arguments": {}}</tool_call>
Llama 3         {"name": "f", "parameters": {}}              the answer begins so, or with <|python_tag|>
Mistral         [TOOL_CALLS][{"name": "f", "arguments": {}}]
Mistral, new    [TOOL_CALLS]f[ARGS]{}
Gemma 4         <|tool_call>call:f{}<tool_call|>
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from playhead.serve.tools.calls import ArgumentsReader, CallLog, CallReader
from playhead.serve.tools.events import Content
from playhead.serve.tools.gemma4 import Gemma4Arguments
from playhead.serve.tools.json_scanner import Status
from playhead.serve.tools.text import MarkerFinder, TextOut

SPACE = re.compile(r"\s*")
SPACE_BEFORE_CALL = re.compile(r"[ \t\n\r]{0,64}")
MAX_HEAD_CHARS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCallSyntax:
    """What stands around the JSON of calls.

    `opens` are markers that a call, or a list of calls, follows. `is_bare`: an answer that begins with a call needs no
    marker. `close` is dropped after a call. `separators` stand between calls that share a marker. `head` is what
    stands between a marker and the arguments, with the group `name`, where a call is no object of its own; `arguments`
    reads those.
    """

    opens: tuple[str, ...] = ()
    close: str = ""
    is_bare: bool = False
    separators: str = ""
    head: re.Pattern[str] | None = None
    arguments: Callable[[CallLog, str], ArgumentsReader | Gemma4Arguments] = ArgumentsReader


class JsonCalls:
    """Finds calls in the text of one answer. Everything else is content."""

    def __init__(self, syntax: JsonCallSyntax, log: CallLog) -> None:
        self._syntax, self._log = syntax, log
        self._opens = MarkerFinder(syntax.opens)
        self._out = TextOut(log.events, Content, trims_start=False)
        self._text, self._at = "", 0
        self._raw: list[str] = []
        self._reader: CallReader | ArgumentsReader | Gemma4Arguments | None = None
        self._in_list = False
        self._state: Callable[[], bool] = self._opened if syntax.is_bare else self._in_content

    def feed(self, text: str) -> None:
        """Make events of what is certain now."""
        self._text, self._at = self._text[self._at :] + text, 0
        while self._at < len(self._text) and self._state():
            pass

    def finish(self) -> None:
        """Make events of the rest. What is not a call by now is content."""
        if self._state == self._after and self._syntax.close.startswith(self._text[self._at :].lstrip()):
            return  # the end of a call, cut off
        if self._reader is None:
            self._out.put("".join(self._raw) + self._text[self._at :])
        elif self._reader.held:
            self._out.put("".join([*self._raw, self._reader.held, self._text[self._at :]]))
        self._out.flush()

    def _in_content(self) -> bool:
        found = self._opens.find(self._text, self._at)
        end = self._opens.end_of_plain(self._text, self._at) if found is None else found.start()
        self._out.put(self._text[self._at : end])
        self._at = end
        if found is None:
            return False
        self._read_raw(found.end())
        self._state, self._in_list = self._opened, False
        return True

    def _opened(self) -> bool:
        """A call begins here, or there is none."""
        space = SPACE_BEFORE_CALL.match(self._text, self._at)
        assert space is not None, "no white space is a match too"
        if space.end() == len(self._text):
            return False
        self._read_raw(space.end())
        char = self._text[self._at]
        if char == "{":
            self._reader, self._state = CallReader(self._log), self._in_call
        elif char == "[" and not self._in_list:
            self._in_list = True
            self._read_raw(self._at + 1)
        elif self._syntax.head is not None and self._raw:
            self._state = self._in_head
        else:
            self._give_up()
        return True

    def _in_head(self) -> bool:
        """A name with its markers, and the `{` of its arguments."""
        head = self._syntax.head
        assert head is not None, "the format has heads"
        brace = self._text.find("{", self._at, self._at + MAX_HEAD_CHARS)
        if brace < 0 and len(self._text) - self._at < MAX_HEAD_CHARS:
            return False
        found = head.fullmatch(self._text, self._at, brace) if brace >= 0 else None
        if found is not None and self._log.knows(found["name"]):
            self._out.drop_space()
            self._raw, self._at = [], brace
            self._reader, self._state = self._syntax.arguments(self._log, found["name"]), self._in_call
        else:
            self._give_up()
        return True

    def _in_call(self) -> bool:
        reader, num_calls = self._reader, self._log.num_calls
        assert reader is not None, "a call has begun"
        self._at = reader.feed(self._text, self._at)
        if self._log.num_calls > num_calls:
            self._out.drop_space()
            self._raw = []
        if reader.status is Status.WHOLE:
            self._reader, self._state = None, self._after
        elif reader.status is Status.FAULTY:
            self._raw.append(reader.held)
            self._reader = None
            self._give_up()
        return reader.status is not Status.OPEN

    def _after(self) -> bool:
        """After a call: another one that shares its marker, or the end of them."""
        syntax = self._syntax
        space = SPACE.match(self._text, self._at)
        assert space is not None, "no white space is a match too"
        self._at = space.end()
        rest = self._text[self._at : self._at + max(1, len(syntax.close))]
        if not rest or (len(rest) < len(syntax.close) and syntax.close.startswith(rest)):
            return False
        if syntax.close and rest == syntax.close:
            self._at += len(rest)
            self._state = self._in_content
        elif self._in_list and rest[0] == "]":
            self._at, self._in_list = self._at + 1, False
        elif (rest[0] == "," and self._in_list) or (rest[0] in syntax.separators and not self._in_list):
            self._read_raw(self._at + 1)
            self._state = self._opened
        elif rest[0] == "{" and syntax.is_bare:
            self._state = self._opened
        else:
            self._state = self._in_content
        return True

    def _read_raw(self, end: int) -> None:
        """Read on to `end`: content if no call follows."""
        self._raw.append(self._text[self._at : end])
        self._at = end

    def _give_up(self) -> None:
        """There is no call: what was kept for one is content."""
        self._out.put("".join(self._raw))
        self._raw, self._in_list, self._state = [], False, self._in_content
