"""One call inside an answer, read piece by piece.

    {"name": "weather", "arguments": {"city": "Rome"}}
                                     ^ from here on the arguments are passed on as they come

Until then nothing is passed on: the text may turn out to be no call, and is content in that case. After that the call
cannot be taken back. Arguments that stop being JSON end the call there, and the text after them is content.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from playhead.serve.tools.events import Event, ToolCallArguments, ToolCallStart
from playhead.serve.tools.json_scanner import JsonScanner, Status

MAX_HELD_CHARS = 1 << 16
"""A call whose name has not come after so many characters is content."""

ARGUMENT_KEYS = ("arguments", "parameters")
OTHER_KEYS = ("id", "type")
SURROGATE = re.compile(r"[\ud800-\udfff]")


def new_call_id() -> str:
    """An id that no other call has."""
    return f"call_{secrets.token_hex(12)}"


@dataclass(slots=True, kw_only=True)  # mutable: calls are counted
class CallLog:
    """What all calls of one answer share: the functions there are, and the number of calls so far."""

    names: frozenset[str]
    new_id: Callable[[], str] = new_call_id
    num_calls: int = 0
    events: list[Event] = field(default_factory=list)

    def knows(self, name: str | None) -> bool:
        """Whether a call of this function is a call. Clients run what they are told to."""
        return name in self.names

    def start(self, name: str) -> int:
        """A call of this function begins. Returns its index."""
        index, self.num_calls = self.num_calls, self.num_calls + 1
        self.events.append(ToolCallStart(index=index, id=self.new_id(), name=name))
        return index

    def arguments(self, index: int, text: str) -> None:
        if text:
            self.events.append(ToolCallArguments(index=index, text=text))


class ArgumentsReader:
    """The arguments of a call whose name is known: a JSON object, passed on as it comes. Reading starts at its `{`."""

    held = ""
    """Nothing is kept: the call has started."""

    def __init__(self, log: CallLog, name: str) -> None:
        self._log, self._scanner = log, JsonScanner()
        self._index = log.start(name)

    @property
    def status(self) -> Status:
        return self._scanner.status

    def feed(self, text: str, at: int) -> int:
        """Read from `at`; returns where reading stopped."""
        end = self._scanner.read(text, at, len(text))
        self._log.arguments(self._index, text[at:end])
        return end


class Place(Enum):
    """Where in the outer object of a call reading is."""

    KEY = auto()
    COLON = auto()
    VALUE = auto()


class CallReader:
    """A call as one JSON object with a name and arguments, in either order. Reading starts at its `{`."""

    def __init__(self, log: CallLog) -> None:
        self._log, self._scanner = log, JsonScanner()
        self._is_refused = False
        self._held: list[str] = []
        self._num_held = 0
        self._place = Place.KEY
        self._key = ""
        self._token: list[str] = []
        self._name: str | None = None
        self._arguments: list[str] | None = None
        self._index: int | None = None

    @property
    def status(self) -> Status:
        return Status.FAULTY if self._is_refused else self._scanner.status

    @property
    def held(self) -> str:
        """What was read while there was no call yet. Empty once the call has started."""
        return "".join(self._held)

    def feed(self, text: str, at: int) -> int:
        """Read from `at`; returns where reading stopped."""
        while self.status is Status.OPEN and at < len(text):
            # Cut at the same character whatever the pieces are, so that all cuts of a text give the same events.
            most = len(text) if self._index is not None else at + MAX_HELD_CHARS - self._num_held
            end = self._scanner.read(text, at, min(most, len(text)), floor=1)
            if end == at:
                self._is_refused = most < len(text)
                break
            self._take(text[at:end])
            at = end
        if self.status is Status.WHOLE:
            self._end()
        return at

    def _take(self, piece: str) -> None:
        """One token of the outer object, or a part of one. A value inside it is one token, however long."""
        token, depth = self._scanner.token, self._scanner.depth
        if self._index is None:
            self._held.append(piece)
            self._num_held += len(piece)
        if self._place is Place.VALUE:
            self._take_value(piece)
            if token and depth == 1:
                self._end_value()
        elif self._place is Place.COLON:
            self._place = Place.VALUE if token else Place.COLON
        elif token == '"':
            self._end_key("".join([*self._token, piece]))
        elif token:
            self._token = []
        else:
            self._token.append(piece)

    def _end_key(self, text: str) -> None:
        key = self._key = json.loads(text)
        self._token, self._place = [], Place.COLON
        is_second = (key == "name" and self._name is not None) or (key in ARGUMENT_KEYS and self._arguments is not None)
        is_unknown = key not in ("name", *ARGUMENT_KEYS, *OTHER_KEYS)
        self._is_refused = is_second or (is_unknown and self._index is None)

    def _take_value(self, piece: str) -> None:
        if self._key in ARGUMENT_KEYS and self._arguments is not None:
            self._take_arguments(piece)
            return
        piece = piece if self._token else piece.lstrip()
        if self._key in ARGUMENT_KEYS and not self._token and piece.startswith("{"):
            self._arguments = []
            self._take_arguments(piece)
        elif piece and (self._key == "name" or self._key in ARGUMENT_KEYS):
            self._token.append(piece)

    def _take_arguments(self, piece: str) -> None:
        assert self._arguments is not None, "the arguments have begun"
        if self._index is not None:
            self._log.arguments(self._index, piece)
            return
        self._arguments.append(piece)
        if self._name is not None:
            self._start(self._name)

    def _end_value(self) -> None:
        text, self._token, self._place = "".join(self._token), [], Place.KEY
        if self._key == "name":
            self._name = json.loads(text) if text.startswith('"') else None
            self._is_refused = not self._log.knows(self._name)
            if self._name is not None and self._arguments is not None and not self._is_refused:
                self._start(self._name)
        elif text:
            self._take_quoted_arguments(text)

    def _take_quoted_arguments(self, text: str) -> None:
        """Arguments as a text that is JSON. They are known when the text has ended."""
        quoted = json.loads(text) if text.startswith('"') else ""
        scanner = JsonScanner()
        end = scanner.read(quoted, 0, len(quoted)) if quoted.lstrip().startswith("{") else 0
        # Half of a surrogate pair is JSON inside quotes, and no text once the quotes are gone.
        is_text = SURROGATE.search(quoted) is None
        if not is_text or scanner.status is not Status.WHOLE or quoted[end:].strip():
            self._is_refused = True
            return
        self._arguments = [quoted.strip()]
        if self._name is not None:
            self._start(self._name)

    def _end(self) -> None:
        """The object has ended. A call without arguments has none to give: `{}`."""
        if self._index is None and self._name is not None:
            self._arguments = ["{}"]
            self._start(self._name)
        self._is_refused = self._index is None

    def _start(self, name: str) -> None:
        assert self._arguments is not None, "the arguments have begun"
        self._index = self._log.start(name)
        self._log.arguments(self._index, "".join(self._arguments))
        self._held, self._arguments = [], []
