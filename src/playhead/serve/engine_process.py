"""The engine in a process of its own, where no Python work of the HTTP side can slow a step.

`python -m playhead.serve.engine_entry FD` talks over the socket FD, and ends when the socket does: a server that was
killed leaves no engine behind. Stop strings are found on the HTTP side, which then aborts; no text is made here.

    reader thread    socket -> orders
    main thread      orders -> engine, a step, its tokens -> socket
    writer thread    what the socket had no room for
    grammar thread   compiles what structured answers must match
    beat thread      twice a second: how many steps are done; ends the process if its front is silent for too long

The main thread never waits for the HTTP side: what does not fit into the socket waits in the outbox.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from playhead import __version__
from playhead.engine.build import build_engine
from playhead.engine.config import EngineConfig
from playhead.engine.engine import Engine
from playhead.engine.front import CheckedPrompt, RequestOptions
from playhead.engine.response import ResponseBuilder
from playhead.engine.snapshot import take_snapshot
from playhead.engine.tokenizer_files import resolve_model_name, tokenizer_path
from playhead.errors import ConfigError, PlayheadError, RankLost, RequestError, RequestFailed, StepFailed, caused
from playhead.models.checkpoint.hub import resolve_model
from playhead.outputs import CompletionOutput, RequestOutput
from playhead.serve import wire
from playhead.serve.contact import BEAT_S, FRONT_SILENT_S, Listening
from playhead.serve.facts import facts_of

RECEIVED_BYTES = 1 << 18
REPORTS_PER_FRAME = 1 << 16
"""Logprobs in one message, a megabyte or two. Those of a long prompt could be more than a frame may have."""


class Outbox:
    """Frames on their way to the HTTP side. `send` never waits."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._filled = threading.Condition()
        self._unsent: deque[bytes] = deque()
        threading.Thread(target=self._keep_writing, name="playhead writer", daemon=True).start()

    @property
    def is_behind(self) -> bool:
        """Whether the other side reads more slowly than this one writes."""
        return bool(self._unsent)

    def send(self, frames: bytes) -> None:
        """Write what the socket has room for, and leave the rest to the writer thread."""
        with self._filled:
            num_sent = 0
            if not self._unsent:
                try:
                    num_sent = self._socket.send(frames, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    num_sent = 0
                except OSError:  # the other side is gone, which the reader thread finds out
                    return
            if num_sent < len(frames):
                self._unsent.append(frames[num_sent:])
                self._filled.notify()

    def wait_until_sent(self) -> None:
        """For the last message."""
        with self._filled:
            self._filled.wait_for(lambda: not self._unsent)

    def _keep_writing(self) -> None:
        while True:
            with self._filled:
                self._filled.wait_for(lambda: self._unsent)
                first = self._unsent[0]
            try:
                self._socket.sendall(first)
            except OSError:
                return
            with self._filled:
                self._unsent.popleft()  # only now: `send` must not overtake it
                self._filled.notify_all()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Compiled:
    """A sequence with the grammar that was compiled for it, or with the error of that."""

    number: int
    checked: CheckedPrompt
    options: RequestOptions
    error: PlayheadError | None


class Inbox:
    """Orders from the HTTP side. `on_end` is called in the reader thread when no more can come.

    `front` is how long nothing has come; `num_heard` is the number of the last `Here`, which is no order to follow.
    """

    def __init__(
        self, connection: socket.socket, on_end: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._socket, self._on_end = connection, on_end
        self.front, self.num_heard = Listening(clock, BEAT_S), 0
        self._came = threading.Condition()
        self._orders: deque[wire.Order | Compiled] = deque()
        threading.Thread(target=self._keep_reading, name="playhead reader", daemon=True).start()

    def put(self, order: wire.Order | Compiled) -> None:
        """From any thread."""
        with self._came:
            self._orders.append(order)
            self._came.notify()

    def take(self, *, waits: bool) -> list[wire.Order | Compiled]:
        """The orders that have come; with `waits` at least one."""
        with self._came:
            if waits:
                self._came.wait_for(lambda: self._orders)
            orders = list(self._orders)
            self._orders.clear()
            return orders

    def first(self) -> wire.Order | Compiled:
        """The next order alone."""
        with self._came:
            self._came.wait_for(lambda: self._orders)
            return self._orders.popleft()

    def _keep_reading(self) -> None:
        frames = wire.Frames()
        try:
            while data := self._received():
                self.front.heard()
                for _, payload in frames.feed(data):
                    self._take(wire.read_order(payload))
        finally:
            self._on_end()

    def _received(self) -> bytes:
        """What came next; nothing at the end."""
        try:
            return self._socket.recv(RECEIVED_BYTES)
        except ConnectionError:  # the front has ended, with something of ours unread
            return b""

    def _take(self, order: wire.Order) -> None:
        if isinstance(order, wire.Here):
            self.num_heard = order.number
        else:
            self.put(order)


@dataclass(slots=True, kw_only=True, eq=False)  # mutable: more is sent with every step
class Sent:
    """A sequence here, and how much of it the HTTP side has. Of the first prompt token there is no report."""

    number: int
    response: ResponseBuilder
    num_tokens: int = 0
    num_prompt: int = 1

    @property
    def wants_reports(self) -> bool:
        params = self.response.request.params
        return params.logprobs is not None or params.prompt_logprobs is not None

    def new_reports(self) -> list[wire.Reports]:
        """The logprobs that the HTTP side does not have yet, in messages of a bounded size."""
        response = self.response
        tokens = tuple(wire.report_of(table) for table in response.logprobs[self.num_tokens :])
        prompt = tuple(wire.report_of(table or {}) for table in response.prompt_logprobs[self.num_prompt :])
        self.num_prompt += len(prompt)
        most = max(1, REPORTS_PER_FRAME // max(map(len, prompt), default=1))
        parts = [wire.Reports(self.number, (), prompt[at : at + most]) for at in range(0, len(prompt), most)]
        return [*parts, wire.Reports(self.number, tokens)] if tokens else parts


class EngineLoop:
    """Follows orders, runs steps, and tells what they gave."""

    def __init__(self, engine: Engine, inbox: Inbox, outbox: Outbox) -> None:
        self._engine, self._inbox, self._outbox = engine, inbox, outbox
        self._sent: dict[str, Sent] = {}
        self._captures = CapturesLeft(engine)
        self._compiling: set[int] = set()
        self._is_about_to_capture = self._is_compiling = False
        self._is_on_cpu = engine.worker.device.type == "cpu"
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="playhead grammars")
        engine.max_waiting = sys.maxsize  # the HTTP side refuses what is too much

    @property
    def beat(self) -> wire.Beat:
        """How far the engine is. Any thread may ask."""
        # A grammar that nobody wants any more is compiled to its end, and may silence this process until then.
        is_compiling = self._is_compiling or bool(self._compiling)
        is_preparing = self._is_about_to_capture or is_compiling or self._engine.worker.is_capturing
        cpu_s = time.process_time() if self._is_on_cpu else 0.0  # a GPU's driver may compute while it waits
        return wire.Beat(self._engine.stats.num_steps, is_preparing, self._inbox.num_heard, cpu_s)

    def turn(self) -> None:
        """Follow the orders that have come, then run a step or capture a graph. Without either, wait for an order."""
        is_idle = not self._engine.has_work
        for order in self._inbox.take(waits=is_idle and not self._captures.are_left):
            self._follow(order)
        if self._engine.has_work:
            self._step()
        elif self._captures.are_left:
            self._capture()

    def _follow(self, order: wire.Order | Compiled) -> None:
        if isinstance(order, wire.Submit):
            self._submit(order)
        elif isinstance(order, wire.Abort):
            self._compiling.difference_update(order.numbers)
            for name in map(str, order.numbers):
                self._engine.abort(name)
                self._sent.pop(name, None)
        elif isinstance(order, Compiled):
            self._take_compiled(order)
        elif isinstance(order, wire.Ask):
            shown = take_snapshot(self._engine, order.after_step)
            self._outbox.send(wire.framed(wire.Shown(shown)))

    def _capture(self) -> None:
        self._is_about_to_capture = True
        self._tell_beat()
        try:
            self._captures.do_one()
        finally:
            self._is_about_to_capture = False

    def _tell_beat(self) -> None:
        """Before work that may let no other Python thread run for seconds: the front must know why it hears nothing."""
        self._outbox.send(wire.framed(self.beat))

    def _submit(self, order: wire.Submit) -> None:
        """Queue a sequence, after its grammar is compiled if it has one. If that raises, the sequence alone ends."""
        try:
            checked = CheckedPrompt(
                text=None,
                ids=tuple(wire.words_of(order.ids)),
                params=wire.params_of(order.params),
                max_new_tokens=order.max_new_tokens,
                bad_words=order.bad_words,
                ending_ids=frozenset(order.ending_ids),
                late_ids=frozenset(order.late_ids),
                salt=order.salt,
            )
        except PlayheadError as error:
            self._refuse(order.number, error)
            return
        options = RequestOptions(priority=order.priority, streams=False, resume_from=resumed_from(order))
        if checked.params.structured_outputs is None:
            self._queue(order.number, checked, options)
        else:
            self._compiling.add(order.number)
            self._tell_beat()
            self._compiler.submit(self._compile, order.number, checked, options)

    def _compile(self, number: int, checked: CheckedPrompt, options: RequestOptions) -> None:
        """In a thread of its own: a grammar takes up to a second, and steps go on meanwhile."""
        if number not in self._compiling:
            return  # aborted while it waited: clients that come and leave must not keep those that stay waiting
        form, error = checked.params.structured_outputs, None
        assert form is not None, "it has a grammar"
        self._is_compiling = True
        try:
            checked = replace(checked, grammar=self._engine.reader.grammars.compile(form))
        except PlayheadError as refusal:
            error = refusal
        except Exception as raised:  # noqa: BLE001  whatever it is, it is this request's
            error = caused(RequestFailed(str(number)), raised)
        finally:
            self._is_compiling = False
        self._inbox.put(Compiled(number=number, checked=checked, options=options, error=error))

    def _take_compiled(self, compiled: Compiled) -> None:
        if compiled.number not in self._compiling:
            return  # aborted meanwhile
        self._compiling.discard(compiled.number)
        if compiled.error is not None:
            self._refuse(compiled.number, compiled.error)
        else:
            self._queue(compiled.number, compiled.checked, compiled.options)

    def _queue(self, number: int, checked: CheckedPrompt, options: RequestOptions) -> None:
        try:
            response = self._engine.submit(str(number), checked, options)
        except PlayheadError as error:
            self._refuse(number, error)
        else:
            self._sent[str(number)] = Sent(number=number, response=response, num_tokens=len(response.request.output))

    def _refuse(self, number: int, error: PlayheadError) -> None:
        self._outbox.send(wire.framed(wire.Failed(number, wire.note_of(error))))

    def _step(self) -> None:
        error: BaseException | None = None
        try:
            self._engine.advance()
        except BaseException as raised:  # noqa: BLE001  the requests must hear of any error
            error = raised
        self._tell(self._engine.take_ready())
        if error is None:
            return
        if device_is_lost(self._engine.worker.device):  # the requests can go on with another process
            raise error
        self._give_all_up()
        if isinstance(error, RankLost):  # no step will ever run again: the server starts another process
            raise error

    def _give_all_up(self) -> None:
        """A step raised: end the requests that were in it. If that raises too, the process ends."""
        for name, sent in list(self._sent.items()):
            self._engine.abort(name)
            self._outbox.send(wire.framed(wire.Failed(sent.number, wire.note_of(StepFailed(name)))))
        self._sent.clear()

    def _tell(self, ended: Sequence[RequestOutput]) -> None:
        """Send what the step gave, as one write."""
        frames: list[bytes] = []
        rows: list[tuple[Sent, int]] = []
        for request in self._engine.running:
            sent = self._sent.get(request.id)
            if sent is not None and len(request.output) > sent.num_tokens:
                rows.append((sent, 0))
        for output in ended:
            sent = self._sent.pop(output.request_id, None)
            if sent is None:
                continue
            if output.error is not None:
                frames.append(wire.framed(wire.Failed(sent.number, wire.note_of(output.error))))
            else:
                rows.append((sent, wire.ENDS.index(output.outputs[0].finish_reason)))
        tokens: list[int] = []
        counts: list[int] = []
        for sent, _ in rows:
            if sent.wants_reports:
                frames += map(wire.framed, sent.new_reports())
            new = sent.response.request.output[sent.num_tokens :]
            sent.num_tokens += len(new)
            counts.append(len(new))
            tokens += new
        step = wire.StepTokens(
            num_steps=self._engine.stats.num_steps,
            numbers=[sent.number for sent, _ in rows],
            counts=counts,
            ends=[end for _, end in rows],
            cached=[sent.response.request.num_cached_tokens for sent, _ in rows],
            tokens=tokens,
        )
        self._outbox.send(b"".join((*frames, wire.framed_step(step))))


def device_is_lost(device: torch.device) -> bool:
    """Whether a GPU refuses all work since an error: an illegal access breaks what a process has there, for good.

    Such an engine would fail every request at once, have the least to do, and so be sent the next ones.
    """
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def resumed_from(order: wire.Submit) -> tuple[CompletionOutput, ...]:
    """What the sequence has already, with empty tables in place of logprobs, which the HTTP side has."""
    ids = wire.words_of(order.output).tolist()
    if not ids:
        return ()
    return (CompletionOutput(index=0, text="", token_ids=ids, finish_reason=None, logprobs=[{} for _ in ids]),)


class CapturesLeft:
    """The graphs that no request has asked for yet, captured one by one while nothing else is to do.

    A CPU gains nothing: its graphs are captured as fast as they run.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Ranks capture together, when a step wants it: one that captured alone would wait for the others.
        self.are_left = engine.worker.device.type == "cuda" and engine.worker.leader is None
        self._failed: set[tuple[int, int]] = set()

    def do_one(self) -> None:
        """Capture the largest size that is missing. After the last one, finish as `Engine.capture_graphs` does."""
        for i, runner in enumerate(self._engine.worker.usual_runners):
            sizes = set(runner.dispatcher.buckets) - runner.captured.keys()
            left = [size for size in sizes if (i, size) not in self._failed]
            if left and runner.dispatcher.within_budget():
                size = max(left)
                try:
                    with self._engine.entered():
                        runner.capture_bucket(size)
                except torch.OutOfMemoryError:
                    runner.dispatcher.mark_failed(size)
                    self._failed.add((i, size))
                return
        self.are_left = False
        if not self._failed:
            self._engine.capture_graphs()


class Beats:
    """What the beat thread says, from the first moment on. `loop` is None while the model is loaded.

    Nothing else tells a process that its front is out of reach: it would keep its GPU for ever. `on_silent` ends it.
    """

    def __init__(self, inbox: Inbox, outbox: Outbox, on_silent: Callable[[], None]) -> None:
        self._inbox, self._outbox, self._on_silent = inbox, outbox, on_silent
        self.loop: EngineLoop | None = None

    def once(self) -> None:
        """Say how far the engine is. A side that is behind with reading is told nothing twice."""
        self._inbox.front.look()
        if self._inbox.front.silent_s >= FRONT_SILENT_S:
            self._on_silent()
        if not self._outbox.is_behind:
            beat = wire.Beat(0, True, self._inbox.num_heard) if self.loop is None else self.loop.beat
            self._outbox.send(wire.framed(beat))

    def keep_beating(self) -> None:
        """For a thread."""
        waits = threading.Event()
        while not waits.wait(BEAT_S):
            self.once()


def ready(engine: Engine, model: str, config: EngineConfig, name: str | None) -> wire.Ready:
    """What the HTTP side must know of an engine."""
    facts = facts_of(engine, name)
    path = resolve_model(resolve_model_name(model), revision=config.revision)
    elsewhere = ("default_params", "has_chat_template")
    plain = {key: value for key, value in asdict(facts).items() if key not in elsewhere}
    return wire.Ready(
        facts=plain,
        default_params=wire.params_fields(facts.default_params),
        tokenizer_path=str(tokenizer_path(Path(path), config)),
        snapshot=take_snapshot(engine),
    )


def check_version(front: str) -> None:
    """`ConfigError` if the front is of another version: it may say things that mean something else here."""
    if front != __version__:
        raise ConfigError(
            f"engine process: it has Playhead {__version__}, and its front has {front}. Install the same on every node."
        )


def end_at_once() -> None:
    """End the process without cleaning up: its front is gone, nothing is to be saved, and a step may be stuck."""
    os._exit(0)


def serve_engine(descriptor: int) -> int:
    """Load what the first message asks for, then serve until the socket ends."""
    os.set_inheritable(descriptor, False)  # a compiler that is started here must not keep the socket open
    connection = socket.socket(fileno=descriptor)
    outbox, inbox = Outbox(connection), Inbox(connection, on_end=end_at_once)
    # The other end of a socket pair cannot be out of reach, and a front that stands in a debugger goes on some day.
    is_here = connection.family == socket.AF_UNIX
    beats = Beats(inbox, outbox, on_silent=(lambda: None) if is_here else end_at_once)
    threading.Thread(target=beats.keep_beating, name="playhead beat", daemon=True).start()
    begin = inbox.first()
    if not isinstance(begin, wire.Begin):
        raise RequestError("engine process", type(begin).__name__, "Begin", "Send it first.")
    try:
        check_version(begin.version)
        config = wire.config_of(begin.config)
        engine = build_engine(begin.model, config, reads_text=False)  # the HTTP side does
        outbox.send(wire.framed(ready(engine, begin.model, config, begin.name)))
    except PlayheadError as error:
        outbox.send(wire.framed(wire.Refused(wire.note_of(error))))
        outbox.wait_until_sent()
        return 1
    loop = beats.loop = EngineLoop(engine, inbox, outbox)
    while True:
        loop.turn()
