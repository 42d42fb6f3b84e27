"""What one step computes, and how the plan of a decode step follows from the plan before. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar, overload

import numpy as np
import numpy.typing as npt

from playhead.kv.sequence import SequenceKV, Stride
from playhead.kv.tables import Int32Array
from playhead.sampling_params import SamplingKind
from playhead.schedule.request import Chunk, Request

T = TypeVar("T")


@dataclass(kw_only=True, eq=False)  # mutable: a plan is made from a copy of the one before
class StepPlan(Sequence[Chunk]):
    """The chunks of a step, and what the host needs of them as arrays with an entry for each.

    A batch that goes on decoding is the same batch with other numbers: `next_decode` shares what does not change and
    makes no chunk, so its cost hardly grows with the batch. With `goes_on` all sequences were in the plan before.
    """

    requests: list[Request]
    seqs: list[SequenceKV]
    rows: Int32Array
    first_ends: Int32Array
    first_generated: npt.NDArray[np.int64]
    first_left: npt.NDArray[np.int64]
    first_tokens: Int32Array
    """Each chunk's first token. Below zero it is -row: the newest of that row, which the device has."""
    samples: npt.NDArray[np.bool_]
    watched: list[int]
    """Where the requests are whose tokens somebody looks at, or that get none."""
    outputs: list[list[int]]
    formed: list[int]
    """Where the requests are whose next token a grammar limits."""
    ending_ids: frozenset[int]
    """Those of all requests; of some that are here no more, too."""
    num_tokens: int
    is_decode: bool
    num_on: int = 0
    """Steps since the plan that `first_ends`, `first_generated` and `first_left` are of."""
    goes_on: bool = False
    num_ended_before: int = 0
    """Requests that had ended when this was planned."""
    num_sure: int = 0
    """So many decode steps after this one end no request by its length and need no page (`Scheduler`)."""
    kind: SamplingKind | None = None
    """How its tokens are chosen, once somebody has asked."""
    first_slack: npt.NDArray[np.int64] | None = None
    """Steps that each sequence could take from the plan of `first_ends` on, by its length and its pages."""
    stride: Stride | None = None
    """What its sequences grow by, once they have gone on together."""
    _chunks: Sequence[Chunk] = field(default=(), repr=False)

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> StepPlan:
        """A plan of these chunks; a plan as it is."""
        if isinstance(chunks, StepPlan):
            return chunks
        return cls(
            requests=[chunk.request for chunk in chunks],
            seqs=[chunk.seq for chunk in chunks],
            rows=np.array([chunk.seq.row for chunk in chunks], dtype=np.int32),
            first_ends=np.array([chunk.end for chunk in chunks], dtype=np.int32),
            first_generated=np.array([chunk.num_generated for chunk in chunks], dtype=np.int64),
            first_left=np.array([num_left(chunk) for chunk in chunks], dtype=np.int64),
            first_tokens=np.array([chunk.tokens[0] for chunk in chunks], dtype=np.int32),
            samples=np.array([chunk.samples for chunk in chunks], dtype=np.bool_),
            watched=[at for at, one in enumerate(chunks) if not (one.samples and one.request.is_plain)],
            outputs=[chunk.request.output for chunk in chunks],
            formed=[at for at, one in enumerate(chunks) if one.samples and one.request.matcher is not None],
            ending_ids=frozenset().union(*{chunk.request.ending_ids for chunk in chunks}),
            num_tokens=sum(len(chunk.tokens) for chunk in chunks),
            is_decode=decodes(chunks),
            _chunks=chunks,
        )

    @property
    def ends(self) -> Int32Array:
        """How long each sequence is with this step."""
        return self.first_ends + np.int32(self.num_on) if self.num_on else self.first_ends

    @property
    def num_generated(self) -> npt.NDArray[np.int64]:
        """Tokens that steps before this one sampled for each request."""
        return self.first_generated + self.num_on if self.num_on else self.first_generated

    @property
    def num_left(self) -> npt.NDArray[np.int64]:
        """Tokens that steps after this one may sample for each request."""
        return self.first_left - self.num_on if self.num_on else self.first_left

    def next_decode(self) -> StepPlan:
        """The decode step after this one, whose sequences are each one token longer."""
        following = self._copied()
        if not self.goes_on:
            following.first_tokens, following.num_tokens = -self.rows, len(self.requests)
            following.goes_on, following._chunks = True, ()
        following.num_on, following.num_sure = self.num_on + 1, self.num_sure - 1
        return following

    def follows(self, before: StepPlan) -> bool:
        """Whether this is the step after that one. It took no page, so its places were there when that was launched."""
        return self.goes_on and self.seqs is before.seqs and self.num_on == before.num_on + 1

    def _copied(self) -> StepPlan:
        """The same plan, to be changed. In less time than `copy` takes: it is a step's own time."""
        copied = object.__new__(StepPlan)
        copied.__dict__.update(self.__dict__)
        return copied

    def without(self, places: list[int]) -> StepPlan:
        """A decode plan without the requests at these places, which are in order."""
        rest, is_kept = self._copied(), np.ones(len(self), np.bool_)
        is_kept[places] = False
        rest.requests, rest.seqs = without(self.requests, places), without(self.seqs, places)
        rest.outputs, rest._chunks = (
            without(self.outputs, places),
            without(self._chunks, places) if self._chunks else (),
        )
        rest.rows, rest.first_ends = self.rows[is_kept], self.first_ends[is_kept]
        rest.first_generated, rest.first_left = self.first_generated[is_kept], self.first_left[is_kept]
        rest.first_tokens = -rest.rows if self.goes_on else self.first_tokens[is_kept]
        rest.first_slack = None if self.first_slack is None else self.first_slack[is_kept]
        rest.num_tokens, rest.kind = len(rest.requests), None
        rest.samples = self.samples[: rest.num_tokens]  # a decode step samples for all
        if self.formed:
            rest.formed = [at for at, request in enumerate(rest.requests) if request.matcher is not None]
        if self.watched:
            rest.watched = [at for at, request in enumerate(rest.requests) if not request.is_plain]
        return rest

    def at_their_end(self) -> list[int]:
        """The places of the requests for which no later step may sample."""
        found: list[int] = np.flatnonzero(self.first_left <= self.num_on).tolist()
        return found

    def ended(self) -> list[int]:
        """The places of the requests that have ended."""
        return [place for place, request in enumerate(self.requests) if request.finish_reason is not None]

    def __len__(self) -> int:
        return len(self.requests)

    @overload
    def __getitem__(self, index: int) -> Chunk: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Chunk]: ...
    def __getitem__(self, index: int | slice) -> Chunk | Sequence[Chunk]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if self._chunks:
            return self._chunks[index]
        seq = self.seqs[index]
        return Chunk(
            request=self.requests[index],
            seq=seq,
            tokens=(-seq.row,),
            end=int(self.ends[index]),
            num_generated=int(self.num_generated[index]),
        )


def without(items: Sequence[T], places: Sequence[int]) -> list[T]:
    """The items but those at these places, which are in order. Mostly it is one place: a copy and one move."""
    kept = list(items)
    for place in reversed(places):
        del kept[place]
    return kept


def num_left(chunk: Chunk) -> int:
    """Tokens that steps after a chunk's may sample for its request."""
    return chunk.request.max_new_tokens - chunk.num_generated - chunk.samples


def decodes(chunks: Sequence[Chunk]) -> bool:
    """Whether a step is one of decode: a token of every request, and a new one for each.

    A prompt's chunk of one token, with more to come, gets none: a decode graph would count what it draws for it.
    """
    return all(len(chunk.tokens) == 1 and chunk.samples for chunk in chunks)
