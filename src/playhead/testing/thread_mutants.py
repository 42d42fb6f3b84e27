"""Bugs between threads that share an LLM, and what notices them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from playhead.engine.async_engine import AsyncEngine
from playhead.engine.calls import Calls
from playhead.engine.engine import Engine
from playhead.engine.serving import Serving, Ticket
from playhead.engine.turns import Turns
from playhead.errors import PlayheadError
from playhead.grammar import compiler
from playhead.grammar.compiler import GrammarCompiler
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams
from playhead.structured_outputs import StructuredOutputs
from playhead.testing.fault_runs import leftovers
from playhead.testing.mutant import Checker, Mutant, Patch, mutant, swapped
from playhead.testing.structured import tiny_vocabulary
from playhead.testing.threads import Beside, in_a_step, in_line
from playhead.testing.tiny_engine import small_llm

T = TypeVar("T")

FEW = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)


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


@mutant(
    "a stopped engine lets in",
    source="found here: who left the line after the engine had stopped let in the next one, for ever",
    killed_by=("the line of a stopped engine",),
)
def a_stopped_engine_lets_in() -> Patch:
    def let_in(self: Serving) -> None:
        while self.line and self._has_room(len(next(iter(self.line)).samples)):
            self._hand_over(self.line.popitem(last=False)[0])

    return swapped(Serving, "_admit", let_in)


@mutant(
    "a cancelled close keeps the engine",
    source="found here: an engine whose close was cancelled could not be started, nor used by others",
    killed_by=("a close that is cancelled",),
)
def a_cancelled_close_keeps_the_engine() -> Patch:
    def join(self: Serving, thread: threading.Thread) -> None:
        thread.join()

    return swapped(Serving, "wait_for", join)


@mutant(
    "an abort is answered elsewhere",
    source="found here: an abort on another event loop than the request's waited for ever",
    killed_by=("an abort of a loop that ended",),
)
def an_abort_is_answered_elsewhere() -> Patch:
    async def abort(self: AsyncEngine, request_id: str | Iterable[str]) -> None:
        ticket = self._serving.ticket_of(str(request_id))
        if ticket is not None:
            done = asyncio.get_running_loop().create_future()
            self._serving.abort(ticket, done)
            await done

    return swapped(AsyncEngine, "abort", abort)


@mutant(
    "orders dropped at the end",
    source="found here: an abort that a close overtook was never answered",
    killed_by=("an abort before a close", "an abort of a loop that ended"),
)
def orders_dropped_at_the_end() -> Patch:
    stop = Serving._stop

    def drop(self: Serving, cause: BaseException | None) -> None:
        with self._work:
            self._orders.clear()
        stop(self, cause)

    return swapped(Serving, "_stop", drop)


@mutant(
    "who left keeps the id",
    source="found here: a caller that tried again after a time-out was told that its own id was in use",
    killed_by=("an id that was left",),
)
def who_left_keeps_the_id() -> Patch:
    def abort(self: Serving, ticket: Ticket) -> None:
        self.abort(ticket)

    return swapped(Serving, "leave", abort)


@mutant(
    "the program ends under llguidance",
    source="found here: a refused form that was still compiled at the end of the program, and exit code 139",
    killed_by=("a form that is still compiled",),
)
def the_program_ends_under_llguidance() -> Patch:
    def as_a_daemon(work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    return swapped(compiler, "begun", as_a_daemon)


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
    streams = [llm.stream([5, 6, 7], ENDLESS)]
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


async def settled() -> None:
    """Whatever needs nothing but turns of the event loop has happened."""
    for _ in range(20):
        await asyncio.sleep(0)


def line_of_a_stopped_engine() -> list[str]:
    """Whoever stands in line when an engine stops is told, also if somebody leaves the line just then."""
    llm = small_llm()

    async def stop() -> list[str]:
        engine = AsyncEngine.of(llm.engine, max_queued_requests=0)
        streams = [engine.generate([5 + i], ENDLESS) for i in range(engine.max_requests + 2)]
        tasks = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0)
        tasks[-2].cancel()
        engine.shutdown()
        await settled()
        waiting = [task for task in tasks if not task.done()]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return ["a request waits for an engine that has stopped" for _ in waiting]

    return asyncio.run(stop())


def close_that_is_cancelled() -> list[str]:
    """Others may use an engine whose close was cancelled, as soon as its thread has ended."""
    llm = small_llm()
    engine = AsyncEngine.of(llm.engine)

    async def cancel() -> None:
        await engine.start()
        closing = asyncio.ensure_future(engine.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)

    asyncio.run(cancel())  # waits for threads that it was asked to run
    return ["the engine still belongs to a thread that has ended"] if llm.engine.use.served_by is not None else []


def abort_of_a_loop_that_ended() -> list[str]:
    """A request whose event loop has ended can be aborted on the next one."""
    engine, loop = AsyncEngine.of(small_llm().engine), asyncio.new_event_loop()
    stream = engine.generate([5, 6], ENDLESS, "left")
    loop.run_until_complete(anext(stream))
    loop.close()

    async def abort() -> list[str]:
        aborting = asyncio.ensure_future(engine.abort("left"))
        await asyncio.sleep(0)
        await engine.close()
        await settled()
        return [] if aborting.done() or not aborting.cancel() else ["an abort was not answered"]

    return asyncio.run(abort())


def id_that_was_left() -> list[str]:
    """A consumer that has left may ask again under the same id, before the thread has heard of it."""
    engine = AsyncEngine.of(small_llm().engine)

    async def come_back() -> list[str]:
        await engine.start()
        try:
            with swapped(engine._serving, "_order", lambda order: None):
                for _ in range(2):
                    stream = engine.generate([5, 6], ENDLESS, "one")
                    reading = asyncio.ensure_future(anext(stream))
                    await settled()
                    reading.cancel()
                    (found,) = await asyncio.gather(reading, return_exceptions=True)
        finally:
            await engine.close()
        return [f"it was refused: {found}"] if isinstance(found, PlayheadError) else []

    return asyncio.run(come_back())


def abort_before_a_close() -> list[str]:
    """An abort is answered, also if the engine is closed before the thread has heard of it."""
    llm, permits = small_llm(), threading.Semaphore(0)
    step = llm.engine.step

    def gated() -> list[RequestOutput]:
        permits.acquire()
        return step()

    async def close() -> list[str]:
        engine = AsyncEngine.of(llm.engine)
        stream = engine.generate([5, 6], ENDLESS, "one")
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        aborting, closing = (asyncio.ensure_future(one) for one in (engine.abort("one"), engine.close()))
        await asyncio.sleep(0)
        permits.release(100)
        await closing
        await settled()
        await asyncio.gather(reading, return_exceptions=True)
        return [] if aborting.done() or not aborting.cancel() else ["an abort was not answered"]

    with swapped(llm.engine, "step", gated):
        return asyncio.run(close())


def form_that_is_still_compiled() -> list[str]:
    """The end of the program waits for every form that is compiled, one that was refused too."""
    release, before = threading.Event(), set(threading.enumerate())
    with swapped(compiler, "compiled", lambda form, tokenizer: release.wait()):
        try:
            GrammarCompiler(tiny_vocabulary, limit_s=0.0).compile(StructuredOutputs(regex="a"))
        except PlayheadError as refusal:
            left = set(threading.enumerate()) - before
            return [f"it waits for none of {left} after {refusal}"] if all(one.daemon for one in left) else []
        finally:
            release.set()
    return ["a form that takes too long is not refused"]


THREAD_MUTANTS: tuple[Mutant, ...] = (
    threads_without_turns,
    streams_dropped_in_a_step_forgotten,
    the_line_stands_still,
    a_stopped_engine_lets_in,
    a_cancelled_close_keeps_the_engine,
    an_abort_is_answered_elsewhere,
    orders_dropped_at_the_end,
    who_left_keeps_the_id,
    the_program_ends_under_llguidance,
)

THREAD_CHECKERS: tuple[Checker, ...] = (
    Checker(name="a call in the middle of a step", run=call_in_the_middle_of_a_step),
    Checker(name="a stream dropped in a step", run=stream_dropped_in_a_step),
    Checker(name="a line beside an idle engine", run=line_beside_an_idle_engine),
    Checker(name="the line of a stopped engine", run=line_of_a_stopped_engine),
    Checker(name="a close that is cancelled", run=close_that_is_cancelled),
    Checker(name="an abort of a loop that ended", run=abort_of_a_loop_that_ended),
    Checker(name="an abort before a close", run=abort_before_a_close),
    Checker(name="an id that was left", run=id_that_was_left),
    Checker(name="a form that is still compiled", run=form_that_is_still_compiled),
)
