"""What a tokenizer's decoder does to tokens, from its description. Refused where a token has no bytes of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from playhead.errors import UnsupportedModelError

SUPPORTED_DECODERS = (
    "ByteLevel",
    "Metaspace",
    "a Sequence of Replace with a text pattern, ByteFallback, Metaspace, Fuse, and after Fuse one Strip at the start",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderRules:
    """What a tokenizer's decoder does to tokens, where each token can be turned into bytes on its own.

    `replacements` are made in every token, in order: what is replaced, with what, and with what in a text's first token
    (Metaspace turns its mark into a space everywhere but there). Up to `num_stripped` times `stripped` goes from the
    start of the text.
    """

    is_byte_level: bool = False
    has_byte_fallback: bool = False
    replacements: tuple[tuple[str, str, str], ...] = ()
    stripped: bytes = b" "
    num_stripped: int = 0

    @property
    def depend_on_start(self) -> bool:
        """Whether a token at the start of a text has other bytes than further on."""
        return self.num_stripped > 0 or any(inside != at_start for _, inside, at_start in self.replacements)


def part_state(part: Any) -> dict[str, Any]:
    """One part of a tokenizer as its file describes it; nothing for a part it does not have.

    Asking the part costs nothing; writing out the tokenizer to find it takes a second for a large vocabulary.
    """
    state: dict[str, Any] = {} if part is None else json.loads(part.__getstate__())
    return state


def decoder_rules(decoder: Mapping[str, Any]) -> DecoderRules:
    """The rules a decoder comes to. Refused if it does something else to the text, by its parts or their parameters."""
    parts = list(_flat(decoder))
    if "ByteLevel" in [part.get("type") for part in parts]:
        for part in parts:
            if part.get("type") not in ("ByteLevel", "Fuse"):
                raise _refused(part, "beside ByteLevel")
        return DecoderRules(is_byte_level=True)
    builder = _RulesBuilder()
    for part in parts:
        builder.add(part)
    return builder.rules()


def _flat(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if decoder.get("type") != "Sequence":
        yield decoder
        return
    for part in decoder["decoders"]:
        yield from _flat(part)


class _RulesBuilder:
    """Adds up the parts of a decoder that is not byte-level."""

    def __init__(self) -> None:
        self._replacements: list[tuple[str, str, str]] = []
        self._strips = ("", 0)
        self._has_byte_fallback = self._is_fused = False

    def add(self, part: Mapping[str, Any]) -> None:
        if self._strips[1]:
            raise _refused(part, "after Strip")
        replaced = str(part.get("replacement", part.get("pattern")))  # a pattern is written out as a table
        # It would replace bytes too. A mark of several bytes cannot be one byte token.
        if self._has_byte_fallback and part.get("type") in ("Replace", "Metaspace") and replaced.isascii():
            raise _refused(part, "after ByteFallback")
        match part:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
                # What follows Fuse sees the whole text; one character still lies inside one token.
                if self._is_fused and len(old) > 1:
                    raise _refused(part, "after Fuse")
                self._replacements.append((old, new, new))
            case {"type": "Metaspace", "replacement": str(mark), "prepend_scheme": str(scheme)}:
                if self._is_fused:
                    raise _refused(part, "after Fuse")
                self._replacements.append((mark, " ", " " if scheme == "never" else ""))
            case {"type": "ByteFallback"} if not self._is_fused:
                self._has_byte_fallback = True
            case {"type": "Fuse"}:
                self._is_fused = True
            case {"type": "Strip", "content": str(char), "start": int(start), "stop": 0} if self._is_fused:
                self._strips = char, start
            case _:
                raise _refused(part, "")

    def rules(self) -> DecoderRules:
        char, num_stripped = self._strips
        return DecoderRules(
            has_byte_fallback=self._has_byte_fallback,
            replacements=tuple(self._replacements),
            stripped=char.encode(),
            num_stripped=num_stripped,
        )


def _refused(part: Mapping[str, Any], place: str) -> UnsupportedModelError:
    shown = ", ".join(f"{key}={value!r:.40}" for key, value in part.items() if key != "type")
    found = f"{part.get('type', 'none')}({shown}) {place}".strip()
    return UnsupportedModelError("tokenizer decoder", found, SUPPORTED_DECODERS)
