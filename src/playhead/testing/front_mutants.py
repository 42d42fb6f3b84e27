"""Bugs between callers and the engine, and what notices them."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, NoReturn

import playhead.engine.front
from playhead.engine.async_engine import AsyncEngine
from playhead.engine.calls import Calls
from playhead.engine.serving import Order, Serving
from playhead.errors import EngineStopped, PlayheadError, RequestError, StepFailed
from playhead.kv.ledger import Ledger
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams
from playhead.testing.face_mutants import FACE_CHECKERS, FACE_MUTANTS
from playhead.testing.mutant import Checker, Mutant, Patch, mutant, swapped
from playhead.testing.text_mutants import TEXT_CHECKERS, TEXT_MUTANTS
from playhead.testing.thread_mutants import THREAD_CHECKERS, THREAD_MUTANTS
from playhead.testing.tiny_engine import small_llm

HANGS_S = 300.0  # no verdict depends on it: a checker that does not come back is ended
LOOP_TURNS = 100
MANY_TRIES = 20
ENDLESS = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
FEW = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)


@mutant("leavers forgotten", source="leak on abort: a client that disconnects", killed_by=("a consumer leaves",))
def leavers_forgotten() -> Patch:
    original = Serving._order

    def deaf(self: Serving, order: Order) -> None:
        if not order.is_abort:
            original(self, order)

    return swapped(Serving, "_order", deaf)


@mutant("failed step kept quiet", source="engines whose clients hang", killed_by=("a step fails under a consumer",))
def failed_step_kept_quiet() -> Patch:
    def quiet(self: Serving, error: Exception, orders: Sequence[Order]) -> None:
        return None

    return swapped(Serving, "_fail_begun", quiet)


@mutant("closed without a word", source="engines whose clients hang", killed_by=("closed under a consumer",))
def closed_without_a_word() -> Patch:
    def silent(self: Serving, cause: BaseException | None) -> None:
        self.is_open = False

    return swapped(Serving, "_stop", silent)


@mutant(
    "every output calls the loop", source="queues between engine and slow clients", killed_by=("calls on a busy loop",)
)
def every_output_calls_the_loop() -> Patch:
    deliver = Serving._deliver

    def one_by_one(self: Serving, outputs: Sequence[RequestOutput]) -> None:
        deliver(self, outputs)
        for _ in outputs:
            self._on_loop(self.wake)

    return swapped(Serving, "_deliver", one_by_one)


@mutant(
    "values printed whole",
    source="found here: Python prints no integer of 5,000 digits",
    killed_by=("an endless token id",),
)
def values_printed_whole() -> Patch:
    def whole(value: object) -> str:
        return repr(value)

    return swapped(playhead.engine.front, "shown", whole)


@mutant("streams lost at close", source="found here: KeyError after close", killed_by=("closed with a stream open",))
def streams_lost_at_close() -> Patch:
    def clear(self: Calls) -> None:
        for request_id in list(self._by_request):
            self.engine.abort(request_id)
        self._by_request.clear()

    return swapped(Calls, "close", clear)


def on_loop(work: Coroutine[object, object, list[str]]) -> list[str]:
    """What the work finds."""

    async def patiently() -> list[str]:
        async with asyncio.timeout(HANGS_S):
            return await work

    return asyncio.run(patiently())


def leaving() -> list[str]:
    """A consumer that is cancelled takes its request with it."""
    llm = small_llm()

    async def leave() -> list[str]:
        async with AsyncEngine.of(llm.engine) as engine:
            stream = engine.generate([5, 6], ENDLESS, request_id="leaves")
            await anext(stream)
            await stream.aclose()
            async for _ in engine.generate([7], FEW):
                pass
            return [f"{ticket.request_id} runs on for nobody" for ticket in engine._serving.tickets.values()]

    found = on_loop(leave())
    return found + [str(violation) for violation in Ledger(llm.engine.worker.kv).audit()]


def failing() -> list[str]:
    """Whoever waits when a step raises is told, before the engine tries again and again."""
    llm = small_llm()

    async def fail() -> list[str]:
        async with AsyncEngine.of(llm.engine) as engine:
            stream = engine.generate([5, 6], ENDLESS)
            await anext(stream)
            loop, tried_often, num_tries = asyncio.get_running_loop(), asyncio.Event(), itertools.count(1)

            def broken(*args: object, **kwargs: object) -> NoReturn:
                if next(num_tries) == MANY_TRIES:
                    loop.call_soon_threadsafe(tried_often.set)
                raise MemoryError("as a late capture may")

            with swapped(llm.engine.worker, "launch", broken):
                waiting, giving_up = (asyncio.ensure_future(work) for work in (last_word(stream), tried_often.wait()))
                await asyncio.wait({waiting, giving_up}, return_when=asyncio.FIRST_COMPLETED)
                found = await said_by_now(waiting, StepFailed)
                giving_up.cancel()
            return found

    return on_loop(fail())


def closing() -> list[str]:
    """Whoever waits when the engine is closed is told, and the engine is idle again."""
    llm = small_llm()

    async def close() -> list[str]:
        engine = AsyncEngine.of(llm.engine)
        await engine.start()
        stream = engine.generate([5, 6], ENDLESS)
        await anext(stream)
        waiting = asyncio.ensure_future(last_word(stream))
        await engine.close()
        found = await said_by_now(waiting, EngineStopped)
        return found + (["work left behind"] if llm.engine.has_work else [])

    return on_loop(close())


async def last_word(stream: AsyncGenerator[RequestOutput, None]) -> type[Exception] | None:
    """The error a stream ends with, or None if it just ends."""
    try:
        async for _ in stream:
            pass
    except (StepFailed, EngineStopped) as error:
        return type(error)
    return None


async def said_by_now(waiting: asyncio.Future[Any], wanted: type[Exception]) -> list[str]:
    """Silent if the consumer has got this error. The thread has said all it will say; the loop has to pass it on."""
    for _ in range(LOOP_TURNS):
        await asyncio.sleep(0)
    if waiting.done():
        return [] if waiting.result() is wanted else [f"the stream ended with {waiting.result()}"]
    waiting.cancel()
    return ["somebody waits for ever"]


def calls_on_a_busy_loop() -> list[str]:
    """While the event loop is busy, the outputs of any number of steps make one call on it."""
    llm = small_llm()

    async def busy() -> list[str]:
        async with AsyncEngine.of(llm.engine) as engine:
            finished, deliver, calls = threading.Event(), engine._serving._deliver, list[object]()

            def watched(outputs: Sequence[RequestOutput]) -> None:
                deliver(outputs)
                if any(output.finished for output in outputs):
                    finished.set()

            waiting = asyncio.ensure_future(anext(engine.generate([5, 6], ENDLESS)))
            await asyncio.sleep(0)  # it is queued
            with (
                swapped(engine._serving, "_on_loop", lambda call, *args: calls.append(call)),
                swapped(engine._serving, "_deliver", watched),
            ):
                finished.wait(HANGS_S)
            engine._serving.wake()
            await waiting
            return [f"{len(calls)} calls"] if len(calls) > 1 else []

    return on_loop(busy())


def bad_token_id() -> list[str]:
    """A refusal is a `RequestError`, however long the number it is about."""
    try:
        small_llm().generate([1, 10**5000], FEW)
    except RequestError:
        return []
    except ValueError as error:  # Python's own, from printing the number
        return [f"refused with {error!r}"]
    return ["a token id nobody has was taken"]


def closed_with_a_stream_open() -> list[str]:
    """A stream that is open when the LLM is closed ends with a last output."""
    llm = small_llm()
    stream = llm.stream([5, 6], ENDLESS)
    next(stream)
    llm.close()
    try:
        return [] if [output.finished for output in stream] == [True] else ["the stream did not end"]
    except PlayheadError as error:
        return [f"the stream ended with {error!r}"]


FRONT_MUTANTS: tuple[Mutant, ...] = (
    leavers_forgotten,
    failed_step_kept_quiet,
    closed_without_a_word,
    every_output_calls_the_loop,
    values_printed_whole,
    streams_lost_at_close,
    *TEXT_MUTANTS,
    *THREAD_MUTANTS,
    *FACE_MUTANTS,
)

FRONT_CHECKERS: tuple[Checker, ...] = (
    Checker(name="a consumer leaves", run=leaving),
    Checker(name="a step fails under a consumer", run=failing),
    Checker(name="closed under a consumer", run=closing),
    Checker(name="calls on a busy loop", run=calls_on_a_busy_loop),
    Checker(name="an endless token id", run=bad_token_id),
    Checker(name="closed with a stream open", run=closed_with_a_stream_open),
    *TEXT_CHECKERS,
    *THREAD_CHECKERS,
    *FACE_CHECKERS,
)
