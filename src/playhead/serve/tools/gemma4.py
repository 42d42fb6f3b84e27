"""The arguments of Gemma 4's calls: a dialect of JSON, passed on as JSON.

    <|tool_call>call:weather{city:<|"|>Rome<|"|>,days:[1,2]}<tool_call|>    is    {"city":"Rome","days":[1,2]}

Keys have no quotes, and a token of its own stands around texts. Arguments that begin as JSON are read as JSON: a forced
call is written so.
"""

from __future__ import annotations

import json
import re

from playhead.serve.tools.calls import CallLog
from playhead.serve.tools.json_scanner import Expect, JsonScanner, Status
from playhead.serve.tools.text import MarkerFinder

QUOTE = MarkerFinder(['<|"|>'])
KEY = re.compile(r"[^{}\[\]:,<\"\x00-\x1f]{1,128}")
SCALAR = re.compile(r"[-+.0-9a-zA-Z]{1,128}")
SPACE = re.compile(r"[ \t\n\r]+")
BEGIN = re.compile(r"\{[ \t\n\r]{0,64}([^ \t\n\r])")
MAX_BEGIN_CHARS = 66


class Gemma4Arguments:
    """The arguments of a call whose name is known. Reading starts at their `{`."""

    held = ""
    """Nothing is kept: the call has started."""

    def __init__(self, log: CallLog, name: str) -> None:
        self._log, self._scanner = log, JsonScanner()
        self._index = log.start(name)
        self._is_json: bool | None = None
        self._in_text = False
        self._json = ""

    @property
    def status(self) -> Status:
        return self._scanner.status

    def feed(self, text: str, at: int) -> int:
        """Read from `at`; returns where reading stopped."""
        if self._is_json is None:
            begun = BEGIN.match(text, at)
            if begun is None and len(text) - at < MAX_BEGIN_CHARS:
                return at
            self._is_json = begun is not None and begun[1] == '"'
        if self._is_json:
            end = self._scanner.read(text, at, len(text))
            self._log.arguments(self._index, text[at:end])
            return end
        while at < len(text) and self.status is Status.OPEN:
            end, translated = self._text_part(text, at) if self._in_text else self._token(text, at)
            if end == at:
                break
            at = end
            self._pass_on(translated)
        return at

    def _text_part(self, text: str, at: int) -> tuple[int, str]:
        found = QUOTE.find(text, at)
        end = QUOTE.end_of_plain(text, at) if found is None else found.start()
        inner = json.dumps(text[at:end], ensure_ascii=False)[1:-1]
        if found is None:
            return end, inner
        self._in_text = False
        return found.end(), f'{inner}"'

    def _token(self, text: str, at: int) -> tuple[int, str]:
        """Where the token at `at` ends, and what it is in JSON. A token that may go on is not read yet."""
        (quote,) = QUOTE.markers
        rest = text[at : at + len(quote)]
        if rest == quote:
            self._in_text = True
            return at + len(quote), '"'
        if quote.startswith(rest):
            return at, ""
        is_key = self._scanner.expect in (Expect.KEY, Expect.KEY_OR_END)
        space = SPACE.match(text, at)
        word = None if space is not None else (KEY if is_key else SCALAR).match(text, at)
        if word is None:
            end = at + 1 if space is None else space.end()
            return end, text[at:end]
        if word.end() == len(text) and word.end() - at < 128:
            return at, ""
        return word.end(), json.dumps(word[0].strip(), ensure_ascii=False) if is_key else word[0]

    def _pass_on(self, translated: str) -> None:
        self._json += translated
        end = self._scanner.read(self._json, 0, len(self._json))
        self._log.arguments(self._index, self._json[:end])
        self._json = self._json[end:]
