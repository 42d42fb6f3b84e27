"""Text from tokens as they come, in whole characters.

Bytes are the only unit in which a token has a value of its own: a character can span several tokens.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import islice

from tokenizers import Tokenizer as Backend

from playhead.models.text.decoder_rules import decoder_rules, part_state

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

MAX_OPEN_BYTES = 3
"""Bytes of a character that may wait for its last one: UTF-8 has at most four."""

MAX_OPEN_TOKENS = 16
"""How far back those bytes are looked for: some tokens between them may stand for nothing."""


class TokenBytes:
    """The bytes of one token at a time. They are kept: finding them is most of the work of making text."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.rules = decoder_rules(part_state(backend.decoder))
        self._inside: dict[int, bytes] = {}

    def of(self, token_id: int, *, is_first: bool = False) -> bytes | None:
        """The token's bytes where it stands inside a text or, with `is_first`, at its start; None for an unknown id."""
        known = None if is_first else self._inside.get(token_id)
        if known is not None:
            return known
        found = self._found(token_id, is_first=is_first)
        if found is not None and not is_first:  # unknown ids are not kept: there could be any number
            self._inside[token_id] = found
        return found

    def _found(self, token_id: int, *, is_first: bool) -> bytes | None:
        token, rules = self._backend.id_to_token(token_id), self.rules
        if token is None:
            return None
        if rules.is_byte_level:
            table = byte_level_table()
            if all(char in table for char in token):
                return bytes(table[char] for char in token)
            return token.encode()  # an added token is spelled as it is
        if rules.has_byte_fallback and (match := BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match.group(1), 16)])
        for old, new, new_at_start in rules.replacements:
            token = token.replace(old, new_at_start if is_first else new)
        return token.encode()


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
        return self._decoder.decode(b"".join(map(self._bytes_of, token_ids)))

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


@cache
def byte_level_table() -> Mapping[str, int]:
    """Which byte a character of a byte-level token stands for.

    Printable characters of Latin-1 stand for themselves; the other 68 bytes are moved up from 256 in order, so that no
    token contains a space or a control character.
    """
    itself = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    moved = [byte for byte in range(256) if byte not in set(itself)]
    table = {chr(byte): byte for byte in itself}
    return table | {chr(256 + i): byte for i, byte in enumerate(moved)}
