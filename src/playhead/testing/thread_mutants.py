"""Bugs between threads that share an LLM, and what notices them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from playhead.engine.async_engine import AsyncEngine
from playhead.engine.calls import Calls
from playhead.engine.engine import Engine
from playhead.engine.serving import Serving
from playhead.engine.turns import Turns
from playhead.errors import PlayheadError
from playhead.sampling_params import SamplingParams
from playhead.testing.fault_runs import leftovers
from playhead.testing.mutant import Checker, Mutant, Patch, mutant, swapped
from playhead.testing.threads import Beside, in_a_step, in_line
from playhead.testing.tiny_engine import small_llm

T = TypeVar("T")

FEW = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@mutant(
    "threads without turns",
    source="found here: four threads broke an engine for good",
    killed_by=("a call in the middle of a step",),
)
def threads_without_turns() -> Patch:
    def at_once(self: Turns, work: Callable[[], T]) -> T:
        return work()

    return swapped(Turns, "take", at_once)


@mutant(
    "streams dropped in a step forgotten",
    source="leak on abort: a generator that the garbage collector ends",
    killed_by=("a stream dropped in a step",),
)
def streams_dropped_in_a_step_forgotten() -> Patch:
    def forget(self: Calls, engine: Engine) -> None:
        self._left.clear()

    return swapped(Calls, "_abort_left", forget)


@mutant(
    "the line stands still",
    source="queues between engine and clients: room that nobody is told of",
    killed_by=("a line beside an idle engine",),
)
def the_line_stands_still() -> Patch:
    def nobody(self: Serving) -> None:
        return None

    return swapped(Serving, "_admit", nobody)


def call_in_the_middle_of_a_step() -> list[str]:
    """A thread that calls while another is in the middle of a step gets the tokens it gets alone."""
    llm = small_llm()
    (alone,) = llm.generate([5, 6, 7], FEW)
    thread = Beside(lambda: llm.generate([5, 6, 7], FEW))
    with in_a_step(llm, lambda: in_line(thread, llm._calls._turns)):
        llm.generate([8, 9], FEW)
    try:
        (found,) = thread.result()
    except PlayheadError as error:
        return [f"its call raised {error!r}"]
    return [] if found.outputs[0].token_ids == alone.outputs[0].token_ids else ["its tokens are not its own"]


def stream_dropped_in_a_step() -> list[str]:
    """A stream that is dropped in the middle of a step is aborted after the step."""
    llm = small_llm()
    streams = [llm.stream([5, 6, 7], SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))]
    next(streams[0])
    with in_a_step(llm, streams.clear):
        llm.generate([8, 9], FEW)
    return leftovers(llm.engine)


def line_beside_an_idle_engine() -> list[str]:
    """Requests that wait in line get the places of those that end."""
    llm = small_llm()

    async def crowd() -> list[str]:
        async with AsyncEngine.of(llm.engine, max_queued_requests=0) as engine:

            async def consumer(token: int) -> None:
                async for _ in engine.generate([token], FEW):
                    pass

            first, *others = [asyncio.ensure_future(consumer(5 + i)) for i in range(3)]
            await asyncio.wait({first, *others}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)
            found = [f"{ticket.request_id} waits beside free places" for ticket in engine._serving.line]
        await asyncio.gather(first, *others, return_exceptions=True)
        return found

    return asyncio.run(crowd())


THREAD_MUTANTS: tuple[Mutant, ...] = (
    threads_without_turns,
    streams_dropped_in_a_step_forgotten,
    the_line_stands_still,
)

THREAD_CHECKERS: tuple[Checker, ...] = (
    Checker(name="a call in the middle of a step", run=call_in_the_middle_of_a_step),
    Checker(name="a stream dropped in a step", run=stream_dropped_in_a_step),
    Checker(name="a line beside an idle engine", run=line_beside_an_idle_engine),
)
