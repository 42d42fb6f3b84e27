"""What each token stands for, in bytes.

Text comes out of a model token by token, and a character can span several. Bytes are the only unit in which a token
has a value of its own, so detokenisation works on them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache

from tokenizers import Tokenizer as Backend

from playhead.models.errors import UnsupportedModelError

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
WORD_START = "▁"
SUPPORTED_DECODERS = ("ByteLevel", "Metaspace", "Sequence of Replace, ByteFallback, Fuse and Strip")


class TokenBytes:
    """The bytes of one token at a time, and whether text begins with a space that was never there."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        kinds = _decoder_kinds(json.loads(backend.to_str()).get("decoder"))
        self._is_byte_level = "ByteLevel" in kinds
        self.drops_first_space = "Strip" in kinds or "Metaspace" in kinds

    def of(self, token_id: int) -> bytes:
        """The token's bytes; nothing for an id the vocabulary does not have."""
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            table = byte_level_table()
            if all(char in table for char in token):
                return bytes(table[char] for char in token)
            return token.encode()  # an added token is spelled as it is
        if match := BYTE_TOKEN.fullmatch(token):
            return bytes([int(match.group(1), 16)])
        return token.replace(WORD_START, " ").encode()


def _decoder_kinds(decoder: Mapping[str, object] | None) -> set[str]:
    """The parts of a tokenizer's decoder, refused if one of them does something else to the text."""
    parts: object = [decoder or {}]
    if decoder is not None and decoder.get("type") == "Sequence":
        parts = decoder.get("decoders")
    kinds = {str(part.get("type")) for part in parts} if isinstance(parts, list) else {"none"}
    if unknown := sorted(kinds - {"ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}):
        raise UnsupportedModelError("tokenizer decoder", ", ".join(unknown), SUPPORTED_DECODERS)
    return kinds


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
