"""Bugs between a server and its engine, and what notices them."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import torch

import playhead.serve.engine_process
import playhead.serve.remote_engine
from playhead.engine.engine import Engine
from playhead.engine.front import CheckedPrompt, RequestOptions
from playhead.errors import NoTokenLeft, PlayheadError
from playhead.grammar.compiler import GrammarCompiler
from playhead.outputs import Logprob, RequestOutput
from playhead.sampling_params import SamplingParams
from playhead.serve import wire
from playhead.serve.engine_process import EngineLoop, Inbox, Outbox, Sent
from playhead.serve.limits import Lifetimes, Pulse, ServeLimits
from playhead.serve.remote_stream import RemoteStream, Sample
from playhead.structured_outputs import StructuredOutputs
from playhead.testing.mutant import Checker, Mutant, Patch, mutant, swapped
from playhead.testing.tiny_engine import small_llm

PIECES, LIMITS, IDLE, ORDER = "frames in pieces", "a request past its time", "an idle engine", "a reader that is behind"
STOPS, TOLD = "tokens after a stop string", "the engine hears of a stop string"
OWN_END, LEFT = "an answer that ends by itself", "grammars of requests that left"
EARLY = "an end that comes too early"
UNREAD = "a front that ends with something unread"
LASTS, SILENCED, SIZES = "a step that lasts", "a grammar that nobody waits for", "messages of a long prompt"
BROKEN = "a device that is lost"


@mutant("half a frame dropped", source="stream sockets: a read gives what there is", killed_by=(PIECES,))
def half_a_frame_dropped() -> Patch:
    feed = wire.Frames.feed

    def forgetful(self: wire.Frames, data: bytes) -> Iterator[tuple[int, bytes]]:
        yield from feed(self, data)
        self._bytes.clear()

    return swapped(wire.Frames, "feed", forgetful)


@mutant("limits that nobody keeps", source="servers whose requests never end", killed_by=(LIMITS,))
def limits_that_nobody_keeps() -> Patch:
    def forget(self: Lifetimes) -> None:
        self._open = {stream: life for stream, life in self._open.items() if not stream.is_over}

    return swapped(Lifetimes, "check", forget)


@mutant(
    "a reset is an error",
    source="found here: an engine whose server was killed ended with a traceback",
    killed_by=(UNREAD,),
)
def a_reset_is_an_error() -> Patch:
    def received(self: Inbox) -> bytes:
        return self._socket.recv(1 << 16)

    return swapped(Inbox, "_received", received)


@mutant("idle counts as stuck", source="health checks that restart an idle server", killed_by=(IDLE,))
def idle_counts_as_stuck() -> Patch:
    saw = Pulse.saw

    def always_busy(self: Pulse, num_steps: int, *, has_work: bool) -> None:
        saw(self, num_steps, has_work=True)

    return swapped(Pulse, "saw", always_busy)


@mutant("a step that computes is stuck", source="found here: a long prompt on a CPU ended a fleet", killed_by=(LASTS,))
def computing_is_stuck() -> Patch:
    return swapped(Pulse, "used", lambda self, cpu_s: None)


@mutant(
    "work that nobody waits for is not announced",
    source="found here: a client that left while a vocabulary's tables were built",
    killed_by=(SILENCED,),
)
def only_what_is_wanted() -> Patch:
    def beat(self: EngineLoop) -> wire.Beat:
        return wire.Beat(0, self._is_about_to_capture or bool(self._compiling))

    return swapped(EngineLoop, "beat", property(beat))


@mutant("logprobs of a prompt in one message", source="found here: frames have a largest size", killed_by=(SIZES,))
def one_message() -> Patch:
    return swapped(playhead.serve.engine_process, "REPORTS_PER_FRAME", 1 << 60)


@mutant("an engine without a device serves on", source="found here: the idlest replica fails all", killed_by=(BROKEN,))
def serves_without_a_device() -> Patch:
    def step(self: EngineLoop) -> None:
        try:
            self._engine.advance()
        except Exception:  # noqa: BLE001  the mutant
            self._give_all_up()

    return swapped(EngineLoop, "_step", step)


@mutant("news overtake each other", source="queues between engine and slow clients", killed_by=(ORDER,))
def news_overtake_each_other() -> Patch:
    def hasty(self: Outbox, frames: bytes) -> None:
        with self._filled:
            self._unsent.appendleft(frames)
            self._filled.notify()

    return swapped(Outbox, "send", hasty)


@mutant("tokens after the stop kept", source="text found to have ended a step late", killed_by=(STOPS,))
def tokens_after_the_stop_kept() -> Patch:
    def greedy(self: Sample) -> None:
        for token in self._unread:
            self.request.output.append(token)
            self._response.take(token, ())
        self._unread.clear()

    return swapped(Sample, "read", greedy)


@mutant("the engine not told of a stop", source="pages held for a text that has ended", killed_by=(TOLD,))
def the_engine_not_told_of_a_stop() -> Patch:
    def quiet(self: RemoteStream, sample: Sample) -> None:
        self._changed.set()

    return swapped(RemoteStream, "came", quiet)


@mutant("the end left behind", source="an engine without a tokenizer decodes on", killed_by=(OWN_END,))
def the_end_left_behind() -> Patch:
    submission = playhead.serve.remote_engine.submission

    def endless(sample: Sample) -> wire.Submit:
        return msgspec.structs.replace(submission(sample), ending_ids=())

    return swapped(playhead.serve.remote_engine, "submission", endless)


@mutant("early ends left behind", source="an engine without a tokenizer", killed_by=(EARLY,))
def early_ends_left_behind() -> Patch:
    submission = playhead.serve.remote_engine.submission

    def at_once(sample: Sample) -> wire.Submit:
        return msgspec.structs.replace(submission(sample), late_ids=())

    return swapped(playhead.serve.remote_engine, "submission", at_once)


@mutant("grammars for nobody", source="found here: clients that come and leave at once", killed_by=(LEFT,))
def grammars_for_nobody() -> Patch:
    compile_one = EngineLoop._compile

    def diligent(self: EngineLoop, number: int, checked: CheckedPrompt, options: RequestOptions) -> None:
        self._compiling.add(number)
        compile_one(self, number, checked, options)

    return swapped(EngineLoop, "_compile", diligent)


def frames_in_pieces() -> list[str]:
    """A frame that comes byte by byte is the frame that was sent."""
    sent, frames = wire.framed(wire.Abort((1, 2, 3))), wire.Frames()
    found = [wire.read_order(payload) for byte in sent for _, payload in frames.feed(bytes([byte]))]
    return [] if found == [wire.Abort((1, 2, 3))] else [f"found {found}"]


class Waiting:
    """A stream that never begins."""

    request_id, has_begun, is_over = "r", False, False
    error: PlayheadError | None = None

    def give_up(self, error: PlayheadError) -> None:
        self.error = error


def request_past_its_time() -> list[str]:
    """A request that waits too long ends with an error."""
    now, stream = [0.0], Waiting()
    lifetimes = Lifetimes(ServeLimits(queue_timeout=5), lambda: now[0])
    lifetimes.add(stream)
    now[0] = 6.0
    lifetimes.check()
    return [] if stream.error is not None else ["it waits for ever"]


def idle_engine() -> list[str]:
    """An engine without work is well, however long ago its last step was."""
    now = [0.0]
    pulse = Pulse(ServeLimits(wedged_after_s=4), lambda: now[0])
    for now[0], has_work in ((0.0, True), (1.0, False), (100.0, False)):
        pulse.saw(1, has_work=has_work)
    now[0] = 200.0
    return ["it counts as stuck"] if pulse.is_stuck else []


def step_that_lasts() -> list[str]:
    """A step of a minute, in which the engine computes, is no reason to replace it."""
    now = [0.0]
    pulse = Pulse(ServeLimits(wedged_after_s=4), lambda: now[0])
    pulse.saw(1, has_work=True)
    for i in range(120):
        now[0] = 0.5 * i
        pulse.saw(1, has_work=True)
        pulse.used(0.3 * i)
    return ["it counts as stuck"] if pulse.is_stuck else []


def grammar_that_nobody_waits_for() -> list[str]:
    """A front hears that an engine prepares for as long as its compiler works."""
    has_begun, may_end = threading.Event(), threading.Event()
    ours, theirs = socket.socketpair()
    llm = small_llm()

    def slowly(self: GrammarCompiler, form: StructuredOutputs) -> Any:
        has_begun.set()
        may_end.wait()
        raise NoTokenLeft("r", 0)

    with ours, theirs, swapped(GrammarCompiler, "compile", slowly):
        loop = EngineLoop(llm.engine, Inbox(theirs, on_end=lambda: None), Outbox(theirs))
        params = SamplingParams(structured_outputs=StructuredOutputs(choice=["a"]))
        loop._submit(wire.Submit(number=1, ids=b"", params=wire.params_fields(params), max_new_tokens=4))
        has_begun.wait()
        loop._follow(wire.Abort((1,)))
        is_announced = loop.beat.is_preparing
        may_end.set()
        loop._compiler.shutdown()
        ours.shutdown(socket.SHUT_RDWR)
    return [] if is_announced else ["it may be taken for lost"]


def messages_of_a_long_prompt() -> list[str]:
    """Reports of a thousand positions with twenty logprobs each are cut."""
    llm = small_llm()
    checked = llm.engine.reader.check([5], SamplingParams(prompt_logprobs=20, max_tokens=1))
    response = llm.engine.submit("r", checked, RequestOptions())
    table = {token: Logprob(logprob=-1.0, rank=1, decoded_token="") for token in range(20)}
    response.prompt_logprobs.extend(table for _ in range(10_000))
    sizes = [sum(map(len, one.prompt)) for one in Sent(number=1, response=response).new_reports()]
    llm.engine.abort("r")
    return [] if len(sizes) > 1 and sum(sizes) == 200_000 else [f"messages of {sizes} logprobs"]


def device_that_is_lost() -> list[str]:
    """An engine whose step raised, and whose device refuses all work since, ends with that error."""

    def refused(self: Engine) -> None:
        raise ZeroDivisionError

    def lost(device: torch.device) -> bool:
        return True

    ours, theirs = socket.socketpair()
    engine_process, llm = playhead.serve.engine_process, small_llm()
    with ours, theirs, swapped(Engine, "advance", refused), swapped(engine_process, "device_is_lost", lost):
        loop = EngineLoop(llm.engine, Inbox(theirs, on_end=lambda: None), Outbox(theirs))
        try:
            loop._step()
        except ZeroDivisionError:
            return []
        finally:
            ours.shutdown(socket.SHUT_RDWR)
    return ["it serves on"]


def reader_that_is_behind() -> list[str]:
    """Whoever reads late reads everything in the order it was sent."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        outbox, frames = Outbox(theirs), wire.Frames()
        for i in range(100):
            outbox.send(wire.framed(wire.Failed(i, wire.ErrorNote("x" * 10_000))))
        numbers: list[int] = []
        while len(numbers) < 100:
            news = [wire.read_news(payload) for _, payload in frames.feed(ours.recv(1 << 16))]
            numbers += [one.number for one in news if isinstance(one, wire.Failed)]
    return [] if numbers == list(range(100)) else [f"the order was {numbers[:5]}..."]


def stopped_stream() -> tuple[list[RequestOutput], list[int]]:
    """A request whose text stops after its third token, given six at once; and the samples that were aborted."""
    reader = small_llm().engine.reader
    aborted: list[int] = []
    ids = reader.tokenizer.encode("one two three four five six", add_special_tokens=False)
    stop = reader.tokenizer.decode(ids[:3])[-2:]

    async def run() -> list[RequestOutput]:
        def abort(samples: Sequence[Sample]) -> None:
            aborted.extend(sample.number for sample in samples)

        checked = reader.check([5], SamplingParams(stop=(stop,), max_tokens=60))
        stream = RemoteStream("r", checked, RequestOptions(), abort=abort)
        stream.add_samples(1, reader)
        stream.samples[0].came(ids, None, 0)
        stream.came(stream.samples[0])
        return [await anext(stream)]

    return asyncio.run(run()), aborted


def tokens_after_a_stop_string() -> list[str]:
    """Tokens that came after the one which completes a stop string are not shown."""
    (output,), _ = stopped_stream()
    found = len(output.outputs[0].token_ids)
    return [] if found == 3 and output.finished else [f"{found} tokens, finished: {output.finished}"]


def engine_hears_of_a_stop_string() -> list[str]:
    """A request whose text has ended is aborted."""
    _, aborted = stopped_stream()
    return [] if aborted == [1] else [f"aborted were {aborted}"]


def answer_that_ends_by_itself() -> list[str]:
    """An engine that is told by message alone which ids end an answer stops at one."""
    found = num_tokens_by_message(min_tokens=0)
    return [] if found == 1 else [f"it went on for {found} tokens"]


def end_that_comes_too_early() -> list[str]:
    """An engine that is told by message alone which ids must wait keeps them back for as many tokens."""
    found = num_tokens_by_message(min_tokens=3)
    return [] if found == 4 else [f"the end was token {found}"]


def num_tokens_by_message(*, min_tokens: int) -> int:
    """How many tokens an engine generates for a submitted answer that wants to end at once."""
    engine, own_end = small_llm().engine, 2
    params = SamplingParams(temperature=0, max_tokens=8, min_tokens=min_tokens, logit_bias={own_end: 100.0})
    stream = RemoteStream("r", engine.reader.check([5, 6], params), RequestOptions(), abort=lambda samples: None)
    stream.add_samples(1, engine.reader)
    ours, theirs = socket.socketpair()
    with theirs, ours:  # ours is closed first, which ends the reader thread
        loop = EngineLoop(engine, Inbox(theirs, on_end=lambda: None), Outbox(theirs))
        ours.sendall(wire.framed(playhead.serve.remote_engine.submission(stream.samples[0])))
        loop.turn()
        while engine.has_work:
            loop.turn()
    return engine.stats.num_generated_tokens


def grammars_of_requests_that_left() -> list[str]:
    """A grammar whose request was aborted while the compiler was busy is not compiled."""
    engine, is_free = small_llm().engine, threading.Event()
    params = SamplingParams(structured_outputs=StructuredOutputs(choice=["nobody waits for this"]))
    num_before = engine.reader.grammars.num_compiled
    ours, theirs = socket.socketpair()
    with theirs, ours:  # ours is closed first, which ends the reader thread
        loop = EngineLoop(engine, Inbox(theirs, on_end=lambda: None), Outbox(theirs))
        loop._compiler.submit(is_free.wait)
        loop._follow(wire.Submit(number=1, ids=b"", params=wire.params_fields(params), max_new_tokens=4))
        loop._follow(wire.Abort((1,)))
        is_free.set()
        loop._compiler.shutdown()
        ours.recv(1 << 16)  # unread bytes would reset the connection
    found = engine.reader.grammars.num_compiled - num_before
    return [] if not found else [f"{found} compiled"]


def front_that_ends_with_something_unread() -> list[str]:
    """The reader ends without an error, though the system resets the connection."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(b"nobody reads this")
        ours.close()
        inbox = Inbox.__new__(Inbox)  # without its thread
        inbox._socket, inbox._on_end = theirs, lambda: None
        inbox._keep_reading()
    return []


BACKEND_MUTANTS: tuple[Mutant, ...] = (
    half_a_frame_dropped,
    limits_that_nobody_keeps,
    idle_counts_as_stuck,
    news_overtake_each_other,
    tokens_after_the_stop_kept,
    the_engine_not_told_of_a_stop,
    the_end_left_behind,
    early_ends_left_behind,
    grammars_for_nobody,
    a_reset_is_an_error,
    computing_is_stuck,
    only_what_is_wanted,
    one_message,
    serves_without_a_device,
)

BACKEND_CHECKERS: tuple[Checker, ...] = (
    Checker(name=PIECES, run=frames_in_pieces),
    Checker(name=LIMITS, run=request_past_its_time),
    Checker(name=IDLE, run=idle_engine),
    Checker(name=ORDER, run=reader_that_is_behind),
    Checker(name=STOPS, run=tokens_after_a_stop_string),
    Checker(name=TOLD, run=engine_hears_of_a_stop_string),
    Checker(name=OWN_END, run=answer_that_ends_by_itself),
    Checker(name=EARLY, run=end_that_comes_too_early),
    Checker(name=LEFT, run=grammars_of_requests_that_left),
    Checker(name=LASTS, run=step_that_lasts),
    Checker(name=SILENCED, run=grammar_that_nobody_waits_for),
    Checker(name=SIZES, run=messages_of_a_long_prompt),
    Checker(name=BROKEN, run=device_that_is_lost),
    Checker(name=UNREAD, run=front_that_ends_with_something_unread, raises=(ConnectionResetError,)),
)
