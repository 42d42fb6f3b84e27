"""Strict JSON, read piece by piece: where a value ends, or where the text stops being JSON."""

from __future__ import annotations

import re
from enum import Enum, auto

MAX_DEPTH = 64
MAX_SCALAR_CHARS = 128

SPACE = re.compile(r"[ \t\n\r]*")
PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
ESCAPE_BEGUN = re.compile(r"(?:\\(?:u[0-9a-fA-F]{0,3})?)?")
SCALAR_RUN = re.compile(r"[-+.0-9a-zA-Z]*")
SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
CLOSER = {"{": "}", "[": "]"}


class Status(Enum):
    """How far a value is."""

    OPEN = auto()
    WHOLE = auto()
    FAULTY = auto()


class Expect(Enum):
    """What may come next, white space aside."""

    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()


class JsonScanner:
    """Reads one JSON object or array. Everything it has read is the beginning of some valid JSON.

    `depth` counts open brackets. `token` is the first character of the token that was read last ("0" stands for
    numbers, true, false and null), or "" inside a string and between tokens.
    """

    def __init__(self) -> None:
        self.status = Status.OPEN
        self.expect = Expect.VALUE
        self.token = ""
        self._open: list[str] = []
        self._in_string = False

    @property
    def depth(self) -> int:
        return len(self._open)

    def read(self, text: str, at: int, end: int, *, floor: int = -1) -> int:
        """Read `text[at:end]`, and return where reading stopped.

        Reading stops at the end of the value, at a fault, at `end`, before a token that may go on in the next piece (a
        few characters, which are to be given again), and after every token that leaves the depth at `floor` or below.
        """
        self.token = ""
        while at < end and self.status is Status.OPEN:
            stop = self._string_part(text, at, end) if self._in_string else self._token(text, at, end)
            if stop == at:
                break
            at = stop
            if self.token and self.depth <= floor:
                break
        return at

    def _string_part(self, text: str, at: int, end: int) -> int:
        self.token = ""
        at = _end(PLAIN, text, at, end)
        if at == end:
            return at
        if text[at] == '"':
            self._in_string, self.token = False, '"'
            self.expect = Expect.COLON if self.expect in (Expect.KEY, Expect.KEY_OR_END) else Expect.COMMA_OR_END
            return at + 1
        escape = ESCAPE.match(text, at, end)
        if escape is not None:
            return escape.end()
        if _end(ESCAPE_BEGUN, text, at, end) != end:
            self.status = Status.FAULTY
        return at

    def _token(self, text: str, at: int, end: int) -> int:
        self.token = ""
        at = _end(SPACE, text, at, end)
        if at == end:
            return at
        char, expect = text[at], self.expect
        takes_value = expect in (Expect.VALUE, Expect.VALUE_OR_END)
        if char == '"' and (takes_value or expect in (Expect.KEY, Expect.KEY_OR_END)):
            self._in_string = bool(self._open)
        elif char in CLOSER and takes_value and self.depth < MAX_DEPTH:
            self._open.append(char)
            self.expect = Expect.KEY_OR_END if char == "{" else Expect.VALUE_OR_END
        elif self._open and char == CLOSER[self._open[-1]] and expect.name.endswith("OR_END"):
            self._open.pop()
            self.expect = Expect.COMMA_OR_END
            self.status = Status.OPEN if self._open else Status.WHOLE
        elif char == ":" and expect is Expect.COLON:
            self.expect = Expect.VALUE
        elif char == "," and expect is Expect.COMMA_OR_END:
            self.expect = Expect.KEY if self._open[-1] == "{" else Expect.VALUE
        elif takes_value and self._open:
            return self._scalar(text, at, end)
        else:
            self.status = Status.FAULTY
            return at
        if self._open == [] and self.status is Status.OPEN:
            self.status = Status.FAULTY  # a value that is no object and no array
            return at
        self.token = "" if self._in_string else char
        return at + 1

    def _scalar(self, text: str, at: int, end: int) -> int:
        stop = _end(SCALAR_RUN, text, at, end)
        is_whole = stop < end
        if stop - at > MAX_SCALAR_CHARS or (is_whole and SCALAR.fullmatch(text, at, stop) is None):
            self.status = Status.FAULTY
        if not is_whole or self.status is Status.FAULTY:
            return at
        self.expect, self.token = Expect.COMMA_OR_END, "0"
        return stop


def _end(pattern: re.Pattern[str], text: str, at: int, end: int) -> int:
    """Where a match of a pattern that can match nothing ends."""
    found = pattern.match(text, at, end)
    assert found is not None, "the pattern matches the empty text"
    return found.end()
