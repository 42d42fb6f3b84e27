"""Types that many packages share: an index says in its type which space it lives in. No torch here."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, NewType

FullLoc = NewType("FullLoc", int)
"""One token's place in the full pool: the identity of that token everywhere."""

WindowLoc = NewType("WindowLoc", int)
"""One token's place in a window group's pool; only the pool translates to it."""

Row = NewType("Row", int)
"""A running request's place in device tables; row 0 belongs to padding."""

Step = NewType("Step", int)
"""The number of a launched forward; 0 is 'before the first'."""


class TokenReport(NamedTuple):
    """What a sampler reports of one token. `rank` counts from 1, the likeliest."""

    token_id: int
    logprob: float
    rank: int


class Mode(StrEnum):
    """How a step runs."""

    FULL = "full"
    BREAKABLE = "breakable"
    PIECEWISE = "piecewise"
    EAGER = "eager"


class LoadFormat(StrEnum):
    """Where weights come from. vLLM's words."""

    AUTO = "auto"
    """The checkpoint, whatever its files are."""
    SAFETENSORS = "safetensors"
    """A directory, and no GGUF file."""
    GGUF = "gguf"
    """A GGUF file, and no directory."""
    DUMMY = "dummy"
    """Random numbers of the model's shapes, for speed work."""


class TPMode(StrEnum):
    """What the ranks of a tensor-parallel engine promise about its tokens."""

    EXACT = "exact"
    """The tokens of one rank, for every number of ranks."""
    FAST = "fast"
    """Half the messages; sums over ranks round differently."""
