"""Text around markers: finding them in pieces, and the white space that belongs to them and not to the text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from playhead.serve.tools.events import Content, Event, Reasoning

NOTHING = "(?!)"

MAX_SPACE_CHARS = 64
"""So much white space before a marker belongs to the marker. More is text, so that little has to be kept."""


class MarkerFinder:
    """Finds the first of some markers. No marker may begin with another one."""

    def __init__(self, markers: Sequence[str]) -> None:
        self.markers = tuple(markers)
        self._whole = re.compile("|".join(map(re.escape, markers)) or NOTHING)
        begun = [beginnings(marker) for marker in markers if len(marker) > 1]
        self._begun = re.compile(rf"(?:{'|'.join(begun) or NOTHING})\Z")
        self._num_held = max(map(len, markers), default=1) - 1

    def find(self, text: str, at: int, end: int | None = None) -> re.Match[str] | None:
        """The first marker in `text[at:end]`."""
        return self._whole.search(text, at, len(text) if end is None else end)

    def end_of_plain(self, text: str, at: int) -> int:
        """Up to where a text without markers can hold none, whatever comes next."""
        found = self._begun.search(text, max(at, len(text) - self._num_held))
        return len(text) if found is None else found.start()


def beginnings(marker: str) -> str:
    """A pattern of all beginnings of a marker that are not the whole of it: "a(?:b)?" for "abc"."""
    pattern = ""
    for char in reversed(marker[:-1]):
        pattern = re.escape(char) + (f"(?:{pattern})?" if pattern else "")
    return pattern


class TextOut:
    """Passes on one kind of text without the white space between it and markers.

    White space at the end waits until text follows it. `trims_start` drops white space at the beginning.
    """

    def __init__(self, events: list[Event], kind: type[Content] | type[Reasoning], *, trims_start: bool) -> None:
        self._events, self._kind = events, kind
        self._trims_start = trims_start
        self._space = ""

    def put(self, text: str) -> None:
        if self._trims_start:
            text = text.lstrip()
        if not text:
            return
        self._trims_start = False
        text = self._space + text
        end = min(len(text), max(len(text.rstrip()), len(text) - MAX_SPACE_CHARS))
        self._space = text[end:]
        self._emit(text[:end])

    def drop_space(self) -> None:
        """A marker follows: the white space before it and after it is not text."""
        self._space, self._trims_start = "", True

    def flush(self) -> None:
        """No marker follows."""
        space, self._space = self._space, ""
        self._emit(space)

    def _emit(self, text: str) -> None:
        if text:
            self._events.append(self._kind(text=text))
