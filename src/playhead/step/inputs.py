"""What a step reads: every input declared together with the function that makes its values from the step's requests.

A new input is one more `StepInput` here; no runner changes. Requests and tokens that do not exist look like one null
request: position 0, the sink location, length 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from playhead.attention.base import PAST_EVERY_TOKEN
from playhead.graph.slots import (
    GraphSlot,
    IndexSpace,
    host_vector,
)
from playhead.kv.cache import HybridKVCache
from playhead.kv.tables import Int32Array
from playhead.schedule.request import Chunk
from playhead.schedule.step_plan import StepPlan
from playhead.step.optional_inputs import POSITIONS, SHORTEST_LENGTH
from playhead.step.outbox import FIRST_BOX
from playhead.step.sampling import NUMBERS, SamplerRows, dtype_of

# 2^31 locations of the smallest layer geometry in use are more memory than any device has.
FULL_LOCS = IndexSpace(name="full locations", dtype=torch.int32)
ROWS = IndexSpace(name="request rows", dtype=torch.int32)
OUTBOX = IndexSpace(name="boxes", dtype=torch.int32)
SAMPLING_ROWS = IndexSpace(name="request rows", dtype=torch.int64)  # torch's scatter takes no others


class TokenLayout(NamedTuple):
    """Where each request's tokens are in a step."""

    ends: Int32Array
    """How long each request is with them."""
    lens: Int32Array
    """Tokens of each request."""
    stops: Int32Array
    """The index in the step after each request's last token."""
    rows: Int32Array
    """The row of each token's request."""
    positions: Int32Array


def layout_of(planned: StepPlan) -> TokenLayout:
    """Where a plan's tokens are: request after request, as decode has them one by one."""
    lens, ends, rows = planned.lens, planned.ends, planned.rows
    if planned.is_decode:
        return TokenLayout(ends, lens, np.arange(1, len(lens) + 1, dtype=np.int32), rows, ends - np.int32(1))
    if len(lens) == 1:  # a lone prompt waits for every call of numpy
        num_tokens, end = planned.num_tokens, ends[0]
        return TokenLayout(ends, lens, lens, rows.repeat(num_tokens), np.arange(end - num_tokens, end, dtype=np.int32))
    stops = lens.cumsum(dtype=np.int32)
    # The token at index i stands as far before its request's end as i before the request's stop.
    positions = np.arange(planned.num_tokens, dtype=np.int32) + (ends - stops).repeat(lens)
    return TokenLayout(ends, lens, stops, rows.repeat(lens), positions)


class StepRequests:
    """The requests of a step: their rows, their lengths with this step's tokens, and where these tokens are."""

    def __init__(self, chunks: Sequence[Chunk], kv: HybridKVCache, sampler: SamplerRows, box: int = FIRST_BOX) -> None:
        self.chunks, self.kv, self.sampler, self.box = StepPlan.of(chunks), kv, sampler, box
        self.rows = self.chunks.rows

    @property
    def is_decode(self) -> bool:
        """Whether the step runs as decode."""
        return self.chunks.is_decode

    # Computed when first read: a step whose inputs are in the slots already needs neither.

    @cached_property
    def numbers(self) -> dict[str, npt.NDArray[Any]]:
        """What each request's sampling parameters are, by name."""
        return self.sampler.numbers_of(self.rows, self.chunks.kind)

    @cached_property
    def tokens(self) -> TokenLayout:
        return layout_of(self.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """A slot, and the function that makes its values: an array with one row per request or token of the step.

    With `advances` a decode graph leaves the slot as the next step's. Without it the values must stay the same while a
    request decodes: a step that its slots hold already is not made again.
    """

    slot: GraphSlot
    make: Callable[[StepRequests], npt.NDArray[Any]]
    advances: bool = False


def token_ids(step: StepRequests) -> Int32Array:
    """An id below zero is -row: that row's newest token, which is on the device alone."""
    if step.is_decode:
        return step.chunks.first_tokens
    planned = step.chunks
    num_newest, others = planned.num_going_on, (chunk.tokens for chunk in planned.newcomers)
    ids = np.fromiter(chain.from_iterable(others), dtype=np.int32, count=planned.num_tokens - num_newest)
    return np.concatenate((planned.first_tokens[:num_newest], ids)) if num_newest else ids


def full_locs(step: StepRequests) -> Int32Array:
    return step.kv.full_locs(step.tokens.rows, step.tokens.positions)


def sampling_rows(step: StepRequests) -> npt.NDArray[np.int64]:
    """A request with more of its prompt to come shows the sink's row: what is drawn for it goes nowhere."""
    return np.multiply(step.rows, step.chunks.samples, dtype=np.int64)


def last_tokens(step: StepRequests) -> Int32Array:
    """The index of each request's last token, then zeros: a graph over tokens reads as many as requests may run."""
    found = np.zeros(step.chunks.num_tokens, dtype=np.int32)
    np.subtract(step.tokens.stops, 1, out=found[: len(step.rows)])
    return found


def num_generated(step: StepRequests) -> npt.NDArray[np.int64]:
    return step.chunks.num_generated


def sampler_numbers(name: str) -> Callable[[StepRequests], npt.NDArray[Any]]:
    return lambda step: step.numbers[name]


def usual_inputs(seq_len_fill_value: int = SHORTEST_LENGTH) -> tuple[StepInput, ...]:
    """What every model reads. Padded requests have the length that the attention backend wants there."""
    return (
        StepInput(slot=host_vector("input_ids", "tokens", torch.int32), make=token_ids, advances=True),
        StepInput(
            slot=host_vector("positions", "tokens", POSITIONS.dtype, index=POSITIONS),
            make=lambda step: step.tokens.positions,
            advances=True,
        ),
        StepInput(
            slot=host_vector("out_cache_loc", "tokens", FULL_LOCS.dtype, index=FULL_LOCS),
            make=full_locs,
            advances=True,
        ),
        StepInput(slot=host_vector("req_pool_indices", "bs", ROWS.dtype, index=ROWS), make=lambda step: step.rows),
        StepInput(
            slot=host_vector("seq_lens", "bs", torch.int32, pad_value=seq_len_fill_value),
            make=lambda step: step.tokens.ends,
            advances=True,
        ),
    )


QUERIES = (
    StepInput(
        slot=host_vector("query_starts", "bs", torch.int32, pad_value=PAST_EVERY_TOKEN),
        make=lambda step: step.tokens.stops - step.tokens.lens,
    ),
    StepInput(slot=host_vector("query_lens", "bs", torch.int32), make=lambda step: step.tokens.lens),
)
"""What attention reads of a step over tokens: where each request's queries are."""

OVER_TOKENS = (
    *QUERIES,
    StepInput(slot=host_vector("token_rows", "tokens", ROWS.dtype, index=ROWS), make=lambda step: step.tokens.rows),
    StepInput(slot=host_vector("last_token_index", "tokens", torch.int32), make=last_tokens),
    StepInput(slot=host_vector("sampling_rows", "bs", SAMPLING_ROWS.dtype, index=SAMPLING_ROWS), make=sampling_rows),
)
"""What a step over tokens reads besides."""

SAMPLING = (
    *(
        StepInput(slot=host_vector(name, "bs", dtype_of(one.off), pad_value=one.off), make=sampler_numbers(name))
        for name, one in NUMBERS.items()
    ),
    StepInput(slot=host_vector("num_generated", "bs", torch.int64), make=num_generated, advances=True),
)
"""What sampling reads: one number per request for each parameter that has one, and how many tokens it has."""


BOXES = StepInput(
    slot=host_vector("boxes", "bs", OUTBOX.dtype, index=OUTBOX),
    make=lambda step: np.full(len(step.rows), step.box, dtype=np.int32),
    advances=True,
)
"""Where a decode step leaves each request's token for the host (`outbox.py`)."""


def batch_of(inputs: Sequence[StepInput], step: StepRequests) -> dict[str, Any]:
    """The values of a step's inputs, by name."""
    return {one.slot.name: one.make(step) for one in inputs}
