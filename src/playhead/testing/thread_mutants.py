"""Bugs between threads that share an LLM, and what notices them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from playhead.engine.calls import Calls
from playhead.engine.engine import Engine
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


THREAD_MUTANTS: tuple[Mutant, ...] = (threads_without_turns, streams_dropped_in_a_step_forgotten)

THREAD_CHECKERS: tuple[Checker, ...] = (
    Checker(name="a call in the middle of a step", run=call_in_the_middle_of_a_step),
    Checker(name="a stream dropped in a step", run=stream_dropped_in_a_step),
)
