"""Ways to damage a file: bytes, JSON values, JSON text. Each is a function of a seeded random generator."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

NASTY: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    7,
    2**31,
    2**32 + 1,
    2**53,
    -(2**63),
    2**63,
    2**64,
    10**100,
    0.0,
    -0.0,
    0.5,
    -1.5,
    1e-300,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "0",
    "nan",
    "\x00",
    "\ud800",
    "a" * 100_000,
    "../../etc/passwd",
    "é日🙂",
    "{{ 1 / 0 }}",
    [],
    {},
    [[]],
    [None],
    [1, "a", {}],
    {"": {}},
    {"type": "x"},
    [0] * 10_000,
    {str(i): i for i in range(1000)},
)

RAW_JSON: tuple[bytes, ...] = (
    b"",
    b"\x00" * 100,
    b"null",
    b"[]",
    b"{}",
    b"7",
    b'"text"',
    b"{",
    b"}",
    b'{"a": 1,}',
    b"{'a': 1}",
    b"\xef\xbb\xbf{}",
    b"\xff\xfe{\x00}\x00",
    b'{"a": "\xff\xfe"}',
    b'{"a": "\\ud800"}',
    b"[" * 100_000,
    b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    b"[" * 2_000 + b"]" * 2_000,
    b"1" * 5_000_000,
    b'{"a": 1' + b"0" * 5_000_000 + b"}",
    b'{"a": 0.' + b"1" * 5_000_000 + b"}",
    b'{"a": 1e' + b"9" * 1_000_000 + b"}",
    b'{"a": -' + b"9" * 5000 + b"}",
    b'{"a": [' + b"[]," * 3_000_000 + b"[]]}",
    b'{"a": [' + b"{}," * 3_000_000 + b"{}]}",
    b'{"a": [' + b"0," * 5_000_000 + b"0]}",
    b'{"' + b"a" * 10_000_000 + b'": 1}',
    b'{"a": "' + b"\\u0041" * 2_000_000 + b'"}',
    b'"' + b"\\" * 2_000_001,
    b'"\\' * 1_000_000,
    b'{"a": 1, "a": 2}',
    b"<html>404</html>",
    b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    b"\x80\x02cos\nsystem\n",
    b"PK\x03\x04" + bytes(100),
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value inside a JSON value is."""
    found = [at]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        found += paths(child, (*at, key))
    return found


def with_value(value: Any, at: Sequence[Any], new: Any) -> Any:
    """A copy with another value at a path."""
    if not at:
        return new
    changed = copy.deepcopy(value)
    inside = changed
    for key in at[:-1]:
        inside = inside[key]
    inside[at[-1]] = new
    return changed


def edited(value: Any, rng: random.Random) -> Any:
    """One value, chosen at random, replaced, removed, moved or wrapped."""
    places = paths(value)[1:]
    at = places[rng.randrange(len(places))]
    *parent_at, key = at
    kind = rng.randrange(6)
    if kind <= 2:
        return with_value(value, at, rng.choice(NASTY))
    changed = copy.deepcopy(value)
    parent = changed
    for step in parent_at:
        parent = parent[step]
    if kind == 3:
        del parent[key]
    elif kind == 4:
        parent[key] = {"value": parent[key]} if rng.random() < 0.5 else [parent[key]]
    elif isinstance(parent, dict):
        parent[str(key) + rng.choice(["_", " ", "\u0000", "x" * 1000])] = parent.pop(key)
    else:
        parent.extend(parent * rng.randrange(1, 4))
    return changed


def edited_json(raw: bytes, rng: random.Random, num_edits: int = 1) -> bytes:
    value = json.loads(raw)
    for _ in range(num_edits):
        if isinstance(value, dict | list) and value:
            value = edited(value, rng)
    return json.dumps(value).encode()


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """Bytes changed, cut off, left out, put in or repeated."""
    data = bytearray(raw)
    at = rng.randrange(len(data))
    if rng.random() < 0.5:
        at = rng.randrange(min(len(data), 600))  # where headers are
    kinds: list[Callable[[], object]] = [
        lambda: data.__setitem__(at, data[at] ^ (1 << rng.randrange(8))),
        lambda: data.__setitem__(slice(at, at + 8), rng.randbytes(8)),
        lambda: data.__setitem__(slice(at, at + 8), b"\xff" * 8),
        lambda: data.__delitem__(slice(at, None)),
        lambda: data.__delitem__(slice(at, at + rng.randrange(1, 64))),
        lambda: data.__setitem__(slice(at, at), rng.randbytes(rng.randrange(1, 64))),
        lambda: data.__setitem__(slice(at, at), data[at : at + 64] * rng.randrange(1, 100)),
        lambda: data.extend(rng.randbytes(rng.randrange(1, 4096))),
    ]
    for _ in range(rng.randrange(1, 4)):
        kinds[rng.randrange(len(kinds))]()
        at = min(at, max(len(data) - 1, 0))
        if not data:
            break
    return bytes(data)
