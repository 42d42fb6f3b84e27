"""What one step computes, and how the plan of a decode step follows from the plan before. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import overload

import numpy as np
import numpy.typing as npt

from playhead.kv.sequence import SequenceKV, Stride
from playhead.kv.tables import Int32Array
from playhead.sampling_params import SamplingKind
from playhead.schedule.request import Chunk, Request


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
    max_new_tokens: npt.NDArray[np.int64]
    first_tokens: Int32Array
    """Each chunk's first token. Below zero it is -row: the newest of that row, which the device has."""
    samples: npt.NDArray[np.bool_]
    is_plain: npt.NDArray[np.bool_]
    """Whether nobody looks at the token that a request gets. A request that gets none counts as looked at."""
    outputs: list[list[int]]
    formed: list[int]
    """Where the requests are whose next token a grammar limits."""
    ending_ids: frozenset[int]
    """Those of all requests; of some that are here no more, too."""
    num_tokens: int
    is_decode: bool
    num_on: int = 0
    """Steps since the plan that `first_ends` and `first_generated` are of."""
    goes_on: bool = False
    is_sure: bool = False
    """Whether it goes on as the plan before knew it would."""
    num_ended_before: int = 0
    """Requests that had ended when this was planned."""
    num_sure: int = 0
    """So many decode steps after this one end no request by its length and need no page (`Scheduler`)."""
    kind: SamplingKind | None = None
    """How its tokens are chosen, once somebody has asked."""
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
            max_new_tokens=np.array([chunk.request.max_new_tokens for chunk in chunks], dtype=np.int64),
            first_tokens=np.array([chunk.tokens[0] for chunk in chunks], dtype=np.int32),
            samples=np.array([chunk.samples for chunk in chunks], dtype=np.bool_),
            is_plain=np.array([chunk.samples and chunk.request.is_plain for chunk in chunks], dtype=np.bool_),
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
        return self.max_new_tokens - self.num_generated - self.samples

    def next_decode(self) -> StepPlan:
        """The decode step after this one, whose sequences are each one token longer."""
        following = self._copied()
        if not self.goes_on:
            following.first_tokens, following.num_tokens = -self.rows, len(self.requests)
            following.goes_on, following._chunks = True, ()
        following.num_on, following.num_sure, following.is_sure = self.num_on + 1, self.num_sure - 1, self.num_sure > 0
        return following

    def follows(self, before: StepPlan) -> bool:
        """Whether this is the step after that one, for which it knew a place for every token."""
        return self.is_sure and self.seqs is before.seqs and self.num_on == before.num_on + 1

    def _copied(self) -> StepPlan:
        """The same plan, to be changed. In less time than `copy` takes: it is a step's own time."""
        copied = object.__new__(StepPlan)
        copied.__dict__.update(self.__dict__)
        return copied

    def only(self, is_kept: npt.NDArray[np.bool_]) -> StepPlan:
        """Without the requests that do not go on."""
        kept = is_kept.tolist()
        rest = self._copied()
        rest.requests, rest.seqs = list(compress(self.requests, kept)), list(compress(self.seqs, kept))
        rest.outputs = list(compress(self.outputs, kept))
        rest.rows, rest.first_ends = self.rows[is_kept], self.first_ends[is_kept]
        rest.first_generated, rest.max_new_tokens = self.first_generated[is_kept], self.max_new_tokens[is_kept]
        rest.kind, rest.num_tokens = None, len(rest.requests)
        rest.first_tokens, rest.samples = self.first_tokens[is_kept], self.samples[is_kept]
        if self.formed:
            rest.formed = [at for at, request in enumerate(rest.requests) if request.matcher is not None]
        rest.is_plain, rest._chunks = self.is_plain[is_kept], list(compress(self._chunks, kept))
        return rest

    def are_open(self) -> npt.NDArray[np.bool_]:
        """Whether each request has not ended."""
        return np.array([request.finish_reason is None for request in self.requests], dtype=np.bool_)

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


def decodes(chunks: Sequence[Chunk]) -> bool:
    """Whether a step is one of decode: a token of every request, and a new one for each.

    A prompt's chunk of one token, with more to come, gets none: a decode graph would count what it draws for it.
    """
    return all(len(chunk.tokens) == 1 and chunk.samples for chunk in chunks)
