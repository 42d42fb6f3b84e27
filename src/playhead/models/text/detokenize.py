"""Text from tokens as they come, in whole characters."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable

from playhead.models.text.token_bytes import TokenBytes


class IncrementalDetokenizer:
    """Feed tokens, get text. A character is given out when its last byte is there and never before.

    "日" as three byte tokens gives "", "", "日". Bytes that cannot become a character turn into U+FFFD and are held
    no longer than a character would be.
    """

    def __init__(self, token_bytes: TokenBytes, *, skipped_ids: Collection[int] = ()) -> None:
        self._token_bytes, self._skipped = token_bytes, frozenset(skipped_ids)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._drops_space = token_bytes.drops_first_space

    def feed(self, token_ids: Iterable[int]) -> str:
        """The characters these tokens complete."""
        return "".join(self._feed_one(token_id) for token_id in token_ids if token_id not in self._skipped)

    def _feed_one(self, token_id: int) -> str:
        data = self._token_bytes.of(token_id)
        if self._drops_space and data:
            self._drops_space = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What is left of a character whose end never came: one U+FFFD, or nothing."""
        return self._decoder.decode(b"", final=True)
