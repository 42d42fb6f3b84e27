"""One running request's memory, and sequences that grow together: a step costs the host as much for one as for many."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from playhead.types import Row

NEVER = np.iinfo(np.int64).max
NO_LOOKS: npt.NDArray[np.int64] = np.zeros(0, np.int64)  # every request begins with a stride of its own


@dataclass(slots=True, kw_only=True, eq=False)  # mutable: it counts
class Stride:
    """Decode steps of a batch, each of which makes every sequence of the batch one token longer.

    A sequence has the tokens it had when it joined, and one for each step since. `num_placed` counts the planned steps,
    `num_launched` the launched ones among them. A sequence that leaves joins another stride: this one may go on.
    """

    num_placed: int = 0
    num_launched: int = 0
    seqs: list[SequenceKV] = field(default_factory=list)
    looks_at: npt.NDArray[np.int64] = field(default_factory=lambda: NO_LOOKS)
    """After how many launched steps each sequence may have something to give up, or to offer."""
    next_look: int = 0
    """The least number in `looks_at`."""

    def add(self, seqs: Sequence[SequenceKV]) -> None:
        """Sequences that join, to be looked at after the next step. Those that have left are forgotten."""
        is_here = np.array([seq.growth.stride is self for seq in self.seqs], dtype=np.bool_)
        self.seqs = [*compress(self.seqs, is_here), *seqs]
        self.looks_at = np.concatenate((self.looks_at[is_here], np.zeros(len(seqs), np.int64)))
        self.next_look = 0

    def looks_at_next(self, seq: SequenceKV) -> int:
        """After how many launched steps a sequence may have pages to give up; 0 while it still has some to offer."""
        return seq.slides_at - seq.growth.num_launched_tokens if seq.is_offered else 0


class Growth(NamedTuple):
    """Tokens that a sequence has apart from those of its stride. One value, so that a change is one assignment."""

    num_tokens: int
    num_launched_tokens: int
    stride: Stride

    def joined(self, stride: Stride) -> Growth:
        """The same number of tokens, with another stride."""
        num_tokens = self.num_tokens + self.stride.num_placed - stride.num_placed
        num_launched_tokens = self.num_launched_tokens + self.stride.num_launched - stride.num_launched
        return Growth(num_tokens, num_launched_tokens, stride)


@dataclass(slots=True, kw_only=True, eq=False)
class SequenceKV:
    """One running request's memory. Mutable, but only `HybridKVCache` writes it.

    `num_tokens` counts tokens that have a place, `num_launched_tokens` those that a launched step writes;
    `frontiers[w]` is the first page still held in window group `w`, and before `slides_at` tokens none of them moves;
    `offered_key` are the tokens whose pages the prefix cache knows; with `is_offered` these are all of the prompt's.
    """

    request: str
    salt: str
    row: Row
    prompt_key: bytes
    pages: array[int]
    frontiers: list[int]
    num_hit_tokens: int
    offered_key: bytes
    growth: Growth = field(default_factory=lambda: Growth(0, 0, Stride()))
    slides_at: int = 0
    is_offered: bool = False

    @property
    def num_tokens(self) -> int:
        return self.growth.num_tokens + self.growth.stride.num_placed

    @num_tokens.setter
    def num_tokens(self, value: int) -> None:
        _, num_launched_tokens, stride = self.growth
        self.growth = Growth(value - stride.num_placed, num_launched_tokens, stride)

    @property
    def num_launched_tokens(self) -> int:
        return self.growth.num_launched_tokens + self.growth.stride.num_launched

    @num_launched_tokens.setter
    def num_launched_tokens(self, value: int) -> None:
        num_tokens, _, stride = self.growth
        self.growth = Growth(num_tokens, value - stride.num_launched, stride)

    def join(self, stride: Stride) -> None:
        """Grow with these steps from now on. Nothing else changes."""
        self.growth = self.growth.joined(stride)
