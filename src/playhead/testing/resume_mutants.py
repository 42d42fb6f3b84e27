"""Bugs by which a request that goes on elsewhere gives other tokens than it would have, and what notices them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy

import numpy as np

from playhead.engine import engine as engine_module
from playhead.engine.response import ResponseBuilder
from playhead.engine.resume import take_up
from playhead.kv.cache import HybridKVCache
from playhead.outputs import CompletionOutput
from playhead.schedule.request import Chunk, Request
from playhead.step.inputs import StepRequests
from playhead.step.outbox import FIRST_BOX
from playhead.step.sampling import SamplerRows
from playhead.step.scores import SamplerTables
from playhead.testing.mutant import Checker, Mutant, Oracle, Patch, mutant, swapped
from playhead.testing.resumed import CASES, differences_at, plain_engine, undisturbed
from playhead.types import Row

CUTS = (1, 5, 7)
GOES_ON = "requests that go on"


@mutant("draws begin anew", source="retries that send the output so far as a prompt", killed_by=(GOES_ON,))
@contextmanager
def draws_begin_anew() -> Iterator[None]:
    """The draw after the tokens so far has the number of the first draw."""
    original = StepRequests.__init__
    num_resumed: dict[str, int] = {}

    def from_zero(
        self: StepRequests, chunks: Sequence[Chunk], kv: HybridKVCache, sampler: SamplerRows, box: int = FIRST_BOX
    ) -> None:
        original(self, chunks, kv, sampler, box)
        num_before = np.array([num_resumed[chunk.request.id] for chunk in self.chunks], dtype=np.int64)
        self.chunks = copy(self.chunks)
        self.chunks.first_generated = self.chunks.first_generated - num_before

    def remembered(response: ResponseBuilder, outputs: tuple[CompletionOutput, ...], vocab_size: int) -> None:
        take_up(response, outputs, vocab_size)
        num_resumed[response.request.id] = len(response.request.output)

    with swapped(StepRequests, "__init__", from_zero), swapped(engine_module, "take_up", remembered):
        yield


@mutant("penalties begin anew", source="retries that send the output so far as a prompt", killed_by=(GOES_ON,))
def penalties_begin_anew() -> Patch:
    """The tokens so far are not counted as output."""
    original = SamplerTables.write_

    def without_output(self: SamplerTables, row: Row, request: Request) -> None:
        output, request.output = request.output, []
        original(self, row, request)
        request.output = output

    return swapped(SamplerTables, "write_", without_output)


@mutant("lengths begin anew", source="max_tokens counted from the retry on", killed_by=(GOES_ON,))
def lengths_begin_anew() -> Patch:
    """A request may generate as many tokens again as it asked for."""

    def longer(response: ResponseBuilder, outputs: tuple[CompletionOutput, ...], vocab_size: int) -> None:
        take_up(response, outputs, vocab_size)
        response.request.max_new_tokens += len(response.request.output)

    return swapped(engine_module, "take_up", longer)


WHOLE = Oracle(
    name="undisturbed requests",
    compute=lambda: {name: undisturbed(plain_engine(), ask) for name, ask in CASES.items()},
)


def requests_that_go_on(wanted: dict[str, CompletionOutput]) -> list[str]:
    """Cut at a few places, every request gets what it would have got."""
    engine, found = plain_engine(), list[str]()
    for name, whole in wanted.items():
        for cut in CUTS:
            found += differences_at(engine, CASES[name], whole, cut)
    return found


RESUME_MUTANTS: tuple[Mutant, ...] = (draws_begin_anew, penalties_begin_anew, lengths_begin_anew)
RESUME_CHECKERS: tuple[Checker, ...] = (Checker(name=GOES_ON, run=requests_that_go_on, oracles=(WHOLE,)),)
