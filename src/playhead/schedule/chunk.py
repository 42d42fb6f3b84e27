"""What a step computes of one request. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from playhead.kv.cache import SequenceKV


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One request's part in a step: `tokens` of a sequence that end before position `end`.

    In a running step they are the newest ones, which `kv.extend` has just made places for. A token below zero is -row:
    the newest of that row, sampled and not read yet. `samples` if the step gives the request its next token, its
    `num_generated`-th counted from 0.
    """

    seq: SequenceKV
    tokens: Sequence[int]
    end: int
    samples: bool = True
    num_generated: int = 0

    @classmethod
    def newest(cls, seq: SequenceKV, tokens: Sequence[int], *, samples: bool = True, num_generated: int = 0) -> Chunk:
        return cls(seq=seq, tokens=tokens, end=seq.num_tokens, samples=samples, num_generated=num_generated)
