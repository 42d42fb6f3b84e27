"""What one step computes, and how the plan of a decode step follows from the plan before. No torch."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, overload

import numpy as np
import numpy.typing as npt

from playhead.kv.sequence import SequenceKV, Stride
from playhead.kv.tables import Int32Array
from playhead.sampling_params import SamplingKind
from playhead.schedule.request import Chunk, Request, lacks_token

T = TypeVar("T")


@dataclass(kw_only=True, eq=False)  # mutable: a plan is made from a copy of the one before
class StepPlan(Sequence[Chunk]):
    """The chunks of a step, and what the host needs of them as arrays with an entry for each.

    A batch that goes on decoding is the same batch with other numbers: `next_decode` shares what does not change and
    makes no chunk, so its cost hardly grows with the batch. The first `num_going_on` sequences are such a batch, and
    the others have chunks.
    """

    requests: list[Request]
    seqs: list[SequenceKV]
    rows: Int32Array
    first_ends: Int32Array
    first_generated: npt.NDArray[np.int64]
    first_left: npt.NDArray[np.int64]
    first_tokens: Int32Array
    """Each chunk's first token. Below zero it is -row: the newest of that row, which the device has."""
    lens: Int32Array
    """Each chunk's tokens."""
    samples: npt.NDArray[np.bool_]
    watched: list[int]
    """Places of the requests whose tokens are looked at one by one, or that get no token."""
    outputs: list[list[int]]
    formed: list[int]
    """Places of the requests whose next token a grammar limits."""
    ending_ids: frozenset[int]
    """The ids that end one of these requests, perhaps with those of requests that have left."""
    num_tokens: int
    is_decode: bool
    num_on: int = 0
    """Steps since the plan that `first_ends`, `first_generated` and `first_left` are of."""
    num_going_on: int = 0
    goes_on: bool = False
    """Whether all sequences go on."""
    num_ended_before: int = 0
    """Requests that had ended when this was planned."""
    num_sure: int = 0
    """How many decode steps after this one end no request by its length and need no page (`Scheduler`)."""
    kind: SamplingKind | None = None
    """How its tokens are chosen; None until it is asked for."""
    first_slack: npt.NDArray[np.int64] | None = None
    """Steps that each sequence could take from the plan of `first_ends` on, by its length and its pages."""
    ending: list[int] | None = None
    """Places of the requests for which no later step may sample; None until `at_their_end` is called."""
    stride: Stride | None = None
    """The stride that its sequences share; None before they have gone on together."""
    newcomers: Sequence[Chunk] = field(default=(), repr=False)
    """The chunks of the sequences after those that go on."""

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> StepPlan:
        """A plan of these chunks. Chunks that are a plan already are returned as they are."""
        if isinstance(chunks, StepPlan):
            return chunks
        num_tokens = [len(chunk.tokens) for chunk in chunks]
        # One call of numpy for many arrays: of a step with one prompt the calls are most of the work.
        rows, ends, tokens, lens = np.array(
            [
                *[one.seq.row for one in chunks],
                *[one.end for one in chunks],
                *[one.tokens[0] for one in chunks],
                *num_tokens,
            ],
            dtype=np.int32,
        ).reshape(4, len(chunks))
        generated, left = np.array(
            [*[one.num_generated for one in chunks], *map(num_left, chunks)], dtype=np.int64
        ).reshape(2, len(chunks))
        return cls(
            requests=[chunk.request for chunk in chunks],
            seqs=[chunk.seq for chunk in chunks],
            rows=rows,
            first_ends=ends,
            first_generated=generated,
            first_left=left,
            first_tokens=tokens,
            lens=lens,
            samples=np.array([chunk.samples for chunk in chunks], dtype=np.bool_),
            watched=[at for at, one in enumerate(chunks) if not (one.samples and one.request.is_plain)],
            outputs=[chunk.request.output for chunk in chunks],
            formed=[at for at, one in enumerate(chunks) if one.samples and one.request.matcher is not None],
            ending_ids=ending_ids_of(chunk.request for chunk in chunks),
            num_tokens=sum(num_tokens),
            is_decode=decodes(chunks),
            newcomers=chunks,
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

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of requests that have none of their own yet."""
        return sum(len(chunk.tokens) for chunk in self.newcomers if not chunk.num_generated)

    def next_decode(self) -> StepPlan:
        """The decode step after this one, whose sequences are each one token longer."""
        following = self._copied()
        if not self.goes_on:
            following.first_tokens, following.num_tokens = -self.rows, len(self.requests)
            following.lens, following.samples = (
                np.ones(len(self.requests), np.int32),
                np.ones(len(self.requests), np.bool_),
            )
            following.is_decode = True
            following.goes_on, following.num_going_on, following.newcomers = True, len(self.requests), ()
        following.num_on, following.num_sure = self.num_on + 1, self.num_sure - 1
        following.ending = None
        return following

    def follows(self, before: StepPlan) -> bool:
        """Whether this is the step after that one, of all its sequences."""
        return self.goes_on and self.seqs is before.seqs and self.num_on == before.num_on + 1

    def _copied(self) -> StepPlan:
        """The same plan, to be changed. In less time than `copy` takes: it is a step's own time."""
        copied = object.__new__(StepPlan)
        copied.__dict__.update(self.__dict__)
        return copied

    def following(self, gone: list[int]) -> StepPlan:
        """The decode step after this one without the requests at these places, which are in order.

        All others get a token in this step.
        """
        rest = self.next_decode()
        if not gone:
            return rest
        is_kept = self.samples.copy()  # a request that gets no token is gone
        is_kept[gone] = False
        kept = is_kept.nonzero()[0]
        rest.requests, rest.seqs = without(self.requests, gone), without(self.seqs, gone)
        rest.outputs = without(self.outputs, gone)
        rest.kind = self.kind if self.kind is SamplingKind.GREEDY else None  # the least kind of all stays the least
        rest.num_tokens = rest.num_going_on = len(rest.requests)
        rest.rows, rest.first_ends = self.rows[kept], self.first_ends[kept]
        rest.first_generated, rest.first_left = self.first_generated[kept], self.first_left[kept]
        rest.first_tokens = -rest.rows
        rest.first_slack = None if self.first_slack is None else self.first_slack[kept]
        rest.lens, rest.samples = rest.lens[: rest.num_tokens], rest.samples[: rest.num_tokens]
        if self.formed:
            rest.formed = [at for at, request in enumerate(rest.requests) if request.matcher is not None]
        if self.watched:
            rest.watched = [at for at, request in enumerate(rest.requests) if not request.is_plain]
        return rest

    def beside(self, chunks: Sequence[Chunk]) -> StepPlan:
        """A batch that goes on and, behind it, chunks of other requests: one step over tokens.

        `num_sure` stays the batch's own: it says nothing of the others.
        """
        both, others, num_before = self._copied(), StepPlan.of(chunks), len(self.requests)
        both.requests, both.seqs = self.requests + others.requests, self.seqs + others.seqs
        both.outputs, both.newcomers = self.outputs + others.outputs, chunks
        both.rows = np.concatenate((self.rows, others.rows))
        both.first_ends = np.concatenate((self.first_ends, others.first_ends - np.int32(self.num_on)))
        both.first_generated = np.concatenate((self.first_generated, others.first_generated - self.num_on))
        both.first_left = np.concatenate((self.first_left, others.first_left + self.num_on))
        both.first_tokens = np.concatenate((self.first_tokens, others.first_tokens))
        both.lens, both.samples = (
            np.concatenate((self.lens, others.lens)),
            np.concatenate((self.samples, others.samples)),
        )
        both.watched = self.watched + [num_before + place for place in others.watched]
        both.formed = self.formed + [num_before + place for place in others.formed]
        if not others.ending_ids <= self.ending_ids:
            both.ending_ids = ending_ids_of(both.requests)
        both.num_tokens = self.num_tokens + others.num_tokens
        both.is_decode, both.goes_on = others.is_decode, False
        both.kind = both.first_slack = both.ending = None
        return both

    def decoding_newcomers(self) -> list[Chunk]:
        """The newcomers that decode next: they get a token now, and may get another."""
        return [chunk for chunk in self.newcomers if chunk.samples and num_left(chunk) > 0]

    def beginners(self) -> list[int]:
        """The places of the newcomers that have no token of their own yet."""
        return [place for place, chunk in enumerate(self.newcomers, self.num_going_on) if not chunk.num_generated]

    def at_their_end(self) -> list[int]:
        """The places of the requests for which no later step may sample."""
        if self.ending is None:
            self.ending = (self.first_left <= self.num_on).nonzero()[0].tolist()
        return self.ending

    def give_out(self, tokens: list[int], looked_at: list[int]) -> tuple[int, list[int]]:
        """Add the step's tokens to their outputs, but those of some rows, which are in order. A second time adds none.

        Gives how many were added, and of the other rows those that get a token, the first one last.
        """
        outputs, left, first = self.outputs, list[int](), 0
        if looked_at:
            left = [row for row in reversed(looked_at) if self.is_decode or self.samples[row]]
            if len(looked_at) == len(outputs):
                return 0, left
            outputs, tokens = without(outputs, looked_at), without(tokens, looked_at)
            first = next((row for row, other in enumerate(looked_at) if row != other), len(looked_at))
        if not outputs or not lacks_token(outputs[0], self.first_generated[first] + self.num_on):
            return 0, left
        # One call, which no interrupt comes between: either all of them have their tokens, or none has.
        list(map(list.append, outputs, tokens))
        return len(outputs), left

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
        place = range(len(self.requests))[index]
        if place >= self.num_going_on:
            return self.newcomers[place - self.num_going_on]
        seq = self.seqs[place]
        return Chunk(
            request=self.requests[place],
            seq=seq,
            tokens=(-seq.row,),
            end=int(self.first_ends[place]) + self.num_on,
            num_generated=int(self.first_generated[place]) + self.num_on,
        )


def is_in_order(planned: StepPlan, gone: Container[int]) -> bool:
    """Whether a plan's newcomers belong behind the batch that goes on, in the order they have, but for some places."""
    if planned.goes_on:
        return True
    first = max(0, planned.num_going_on - 1)
    orders = [
        one.order for place, one in enumerate(planned.requests[first:], first) if place == first or place not in gone
    ]
    return orders == sorted(orders)


def without(items: Sequence[T], places: Sequence[int]) -> list[T]:
    """The items without those at these places, which are ascending. Mostly it is one place: a copy and one move."""
    kept = list(items)
    for place in reversed(places):
        del kept[place]
    return kept


def ending_ids_of(requests: Iterable[Request]) -> frozenset[int]:
    """The ids that end one of these requests. Most have the same ones."""
    return frozenset().union(*{request.ending_ids for request in requests})


def num_left(chunk: Chunk) -> int:
    """Tokens that steps after a chunk's may sample for its request."""
    return chunk.request.max_new_tokens - chunk.num_generated - chunk.samples


def decodes(chunks: Sequence[Chunk]) -> bool:
    """Whether a step is one of decode: a token of every request, and a new one for each.

    A chunk of one prompt token, with more of the prompt to come, gets no new token, but a decode graph would draw and
    count one.
    """
    return all(len(chunk.tokens) == 1 and chunk.samples for chunk in chunks)


def prompt_room(chunk_tokens: int, num_decoding: int) -> int:
    """Tokens that a step has for prompts: what decoding requests leave of `chunk_tokens`, so that both together fit the
    largest captured size. At least half of `chunk_tokens`, or many decoding requests would hold prompts up for ever.
    """
    return max(chunk_tokens - num_decoding, (chunk_tokens + 1) // 2)
