"""Text from tokens as they come, in whole characters."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from playhead.models.text.token_bytes import TokenBytes

MAX_OPEN_BYTES = 3
"""Bytes of a character that may wait for its last one: UTF-8 has at most four."""

MAX_OPEN_TOKENS = 16
"""How far back those bytes are looked for: some tokens between them may stand for nothing."""


class IncrementalDetokenizer:
    """Feed tokens, get text. A character is given out when its last byte is there and never before.

    "日" as three byte tokens gives "", "", "日". Bytes that cannot become a character turn into U+FFFD and are held
    no longer than a character would be.

    `prompt_ids` stand before the first token that is fed. Their text is not given out, but it decides what the first
    token means: "▁world" is "world" at the start of a text and " world" after "hello".
    """

    def __init__(
        self, token_bytes: TokenBytes, *, skipped_ids: Collection[int] = (), prompt_ids: Sequence[int] = ()
    ) -> None:
        self._token_bytes, self._skipped = token_bytes, frozenset(skipped_ids)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_first, self._num_to_strip = True, token_bytes.rules.num_stripped
        self._begin_after(prompt_ids)

    def _begin_after(self, prompt_ids: Sequence[int]) -> None:
        """Take the prompt's start, which may use up what is stripped there, and the open character at its end."""
        for token_id in prompt_ids if self._token_bytes.rules.depend_on_start else ():
            if not self._is_first and not self._num_to_strip:
                break
            self._bytes_of(token_id)
        tail = b""
        for token_id in islice(reversed(prompt_ids), MAX_OPEN_TOKENS):
            if len(tail) >= MAX_OPEN_BYTES:
                break
            tail = (b"" if token_id in self._skipped else self._token_bytes.of(token_id) or b"") + tail
        self._decoder.decode(tail)

    def feed(self, token_ids: Iterable[int]) -> str:
        """The characters these tokens complete."""
        return "".join(self._decoder.decode(self._bytes_of(token_id)) for token_id in token_ids)

    def _bytes_of(self, token_id: int) -> bytes:
        data = None if token_id in self._skipped else self._token_bytes.of(token_id, is_first=self._is_first)
        if data is None:
            return b""
        self._is_first = False
        while self._num_to_strip and data:
            if not data.startswith(self._token_bytes.rules.stripped):
                self._num_to_strip = 0
                break
            data = data.removeprefix(self._token_bytes.rules.stripped)
            self._num_to_strip -= 1
        return data

    def finish(self) -> str:
        """What is left of a character whose end never came: one U+FFFD, or nothing."""
        return self._decoder.decode(b"", final=True)
