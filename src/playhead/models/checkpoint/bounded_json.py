"""JSON of foreign files, parsed only when it is known to be small: in values, in depth, in digits.

A parser builds all it reads before its caller can look at it. "[],[],[]" takes thirty times its length as Python lists,
ten thousand brackets take the stack, and a number of a million digits takes minutes.
"""

from __future__ import annotations

import json
import re
from typing import Any

MAX_DEPTH = 64
MAX_DIGITS = 128

# A string without an end goes to the end of the file: searched for again from each of its quotes, it would take n * n.
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
NO_BRACKET = re.compile(rb"[^\[\]{}]+")


def parse_json(raw: bytes, *, max_values: int, unique_keys: bool = False) -> Any:
    """The value, or `ValueError` with what is too large or wrong. With `unique_keys` no table may say a key twice."""
    num_values = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    if num_values > max_values:
        raise ValueError(f"{num_values} values or more; at most {max_values} are read")
    check_depth(raw)
    try:
        return json.loads(
            raw, parse_int=_integer, parse_float=_float, object_pairs_hook=_unique if unique_keys else None
        )
    except RecursionError:
        raise ValueError("too deeply nested") from None


def check_depth(raw: bytes) -> None:
    """Refuse brackets within brackets beyond `MAX_DEPTH`, by taking innermost pairs away level by level."""
    brackets = NO_BRACKET.sub(b"", STRING.sub(b"", raw))
    for _ in range(MAX_DEPTH):
        if not brackets:
            return
        # The two kinds in turn: a pair that the first replacement uncovers belongs to the same round or the next.
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    if brackets:
        raise ValueError(f"nested deeper than {MAX_DEPTH}, or brackets that do not match")


def _integer(digits: str) -> int:
    return int(_short(digits))


def _float(digits: str) -> float:
    return float(_short(digits))


def _short(digits: str) -> str:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits; at most {MAX_DIGITS} are read")
    return digits


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Two readers must not see two different files: a name that appears twice is refused."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice")
    return found
