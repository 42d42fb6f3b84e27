"""The calls on one engine that a program has open, in any number of threads.

    thread A   generate -> turn: submit, step, deliver ----------> outputs in A's inbox
    thread B   stream   ----------------> turn: submit, step, ...

A step serves the requests of all calls. A thread whose inbox is empty waits for its turn; when that comes it runs a
step, unless another thread's step has filled its inbox meanwhile. A step that raises does so in the thread that runs
it, and ends that thread's call alone: the requests of other calls go on in the next turn.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn, TypeVar

import torch

from playhead.engine.engine import Engine
from playhead.engine.front import CheckedPrompt, RequestOptions, never_queued
from playhead.engine.output_kind import OutputView
from playhead.engine.turns import Turns
from playhead.engine.use import kept_here, used_after_close
from playhead.errors import MisuseError, PlayheadError
from playhead.inputs import Prompt
from playhead.logs import event
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams

LOG = logging.getLogger(__name__)

T = TypeVar("T")

Asked = tuple[str, Prompt, SamplingParams]
"""A request as a caller gives it, with its id."""

ALL = sys.maxsize  # tokens: more than any requests have


@dataclass(slots=True, kw_only=True, eq=False)  # mutable: requests move from waiting to running to their end
class Call:
    """One call: requests to check, requests that the engine has no room for yet, requests it has, and outputs not yet
    read.

    Any thread fills the inbox in its turn. All else belongs to the call's own thread.
    """

    unchecked: deque[Asked]
    options: RequestOptions
    waiting: deque[tuple[str, CheckedPrompt]] = field(default_factory=deque)
    running: set[str] = field(default_factory=set)
    inbox: deque[RequestOutput] = field(default_factory=deque)


def enough_for_a_step(engine: Engine, requests: Sequence[Asked]) -> int:
    """How many tokens of prompts are to be checked before the first step is launched.

    Where a launch returns at once the device has work while the others are checked. A form may take its compiler
    seconds, in which the device would wait for its second step.
    """
    has_forms = any(params.structured_outputs is not None for _, _, params in requests)
    return ALL if has_forms or not engine.overlap else engine.worker.config.limits.chunk_tokens


class Calls:
    """All open calls on an engine. Any thread may call; only a thread that has its turn touches the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine | None = engine
        self._facts = engine.facts
        self._names = itertools.count(1)
        self._turns = Turns()
        self._by_request: dict[str, Call] = {}
        # Requests whose calls ended early. A generator may end in any thread, even in the middle of a step.
        self._left: deque[str] = deque()

    def __reduce__(self) -> NoReturn:
        raise kept_here()

    @property
    def description(self) -> str:
        """The model, where it runs and how, and what it is doing, as a `repr` shows it."""
        return f"{self._facts}, {'closed' if self._engine is None else self._engine.state}"

    @property
    def engine(self) -> Engine:
        """The engine underneath, until `close`."""
        if self._engine is None:
            raise used_after_close()
        return self._engine

    @property
    def is_busy(self) -> bool:
        """Whether a call is under way."""
        return bool(self._by_request)

    def new_name(self) -> str:
        """A request id that no other request has."""
        return f"r{next(self._names)}"

    def close(self) -> None:
        """Close the engine, after the step under way. A second call does nothing.

        An open stream gets what it has so far as its last output. Any other open call raises `MisuseError`.
        """
        if self._engine is not None:
            self._turn(self._close)

    def alone(self, work: Callable[[Engine], T]) -> T:
        """Do something with the engine while no step runs."""
        return self._turn(lambda: work(self.engine))

    def outputs_of(self, requests: Sequence[Asked], options: RequestOptions) -> Generator[RequestOutput, None, None]:
        """Every output of these requests, each with a new id, as they come. All are checked before the first output.

        The engine is given more as it has room. Closing the generator aborts what is left.
        """
        engine = self.engine
        engine.use.check_caller()
        call = Call(unchecked=deque(requests), options=options)
        self._check(call, engine, enough_for_a_step(engine, requests))
        try:
            while call.unchecked or call.waiting or call.running:
                if not call.inbox:
                    try:
                        self._turn(partial(self._serve, call))
                    except MisuseError:
                        if not call.inbox:  # closed while the call waited, and its last output is there
                            raise
                self._check(call, engine, ALL)  # while the first step runs
                while call.inbox:
                    output = call.inbox.popleft()
                    if output.finished:
                        if output.request_id not in call.running:
                            continue  # an interrupted delivery was repeated
                        call.running.discard(output.request_id)
                        self._by_request.pop(output.request_id, None)
                    yield output
        finally:
            for request_id in call.running:
                self._by_request.pop(request_id, None)
                self._left.append(request_id)
            self._let_go()

    def _check(self, call: Call, engine: Engine, enough: int) -> None:
        """Check the call's requests until they have so many tokens, or raise what is wrong with one."""
        num_tokens = 0
        while call.unchecked and num_tokens < enough:
            request_id, prompt, params = call.unchecked.popleft()
            checked = engine.reader.check(prompt, params)
            call.waiting.append((request_id, checked))
            num_tokens += len(checked.ids)

    def _turn(self, work: Callable[[], T]) -> T:
        """Do the work in this thread's turn."""
        self.engine.use.check_caller()
        try:
            return self._turns.take(partial(self._use, work))
        finally:
            self._let_go()

    # What follows runs in a thread's turn.

    def _use(self, work: Callable[[], T]) -> T:
        """The thread takes the engine over, ends the requests of calls that are gone, and works."""
        if self._engine is None:
            raise MisuseError("engine: closed while this call waited or ran. Close it when all calls have returned.")
        self._engine.take_over()
        self._abort_left(self._engine)
        return work()

    def _serve(self, call: Call) -> None:
        """Give the engine the call's requests, and run a step if nothing has come for the call meanwhile.

        The requests that the step has no room for are given behind its launch: the device has work by then.
        """
        engine = self.engine
        while call.waiting and engine.can_take_now:
            self._submit_one(call, engine)
        if call.inbox:
            return
        if not engine.has_work:
            raise PlayheadError(
                f"request {min(call.running)!r} vanished without a final output. This is a bug in Playhead; "
                "please report it."
            )
        # Its outputs go to the inboxes of the calls that asked for them.
        engine.advance()
        engine.hand_out(self._deliver)
        while call.waiting and engine.can_take:  # room that a step makes goes to the calls in turn
            self._submit_one(call, engine)

    def _submit_one(self, call: Call, engine: Engine) -> None:
        request_id, checked = call.waiting.popleft()
        self._by_request[request_id] = call
        call.running.add(request_id)
        try:
            engine.submit(request_id, checked, call.options)
        except MisuseError:
            raise
        except PlayheadError as error:
            call.inbox.append(never_queued(request_id, checked, error))

    def _deliver(self, output: RequestOutput) -> None:
        call = self._by_request.get(output.request_id)
        if call is not None:
            call.inbox.append(output)

    def _let_go(self) -> None:
        """Abort the requests of calls that are gone. While a thread has its turn, that thread does so at the end.

        Waiting for that thread instead could be a deadlock: the garbage collector may have interrupted its very turn.
        """
        while self._left and not self._turns.is_taken and not self._turns.is_here:
            engine = self._engine
            if engine is None or engine.use.is_in_child:
                self._left.clear()
            else:
                self._turns.take(partial(self._abort_left, engine))

    def _abort_left(self, engine: Engine) -> None:
        while self._left:
            engine.take_over()
            try:
                engine.abort(self._left[0])
            except Exception as error:  # noqa: BLE001  its call is gone, and this thread's call is another
                event(LOG, logging.WARNING, "abort failed", request=self._left[0], error=type(error).__name__)
            self._left.popleft()

    def _close(self) -> None:
        for request_id in sorted(self._by_request):
            output, call = self.engine.abort(request_id), self._by_request.get(request_id)
            if output is not None and call is not None and call.options.streams:
                call.inbox.append(output)
        self.engine.close()
        device, self._engine = self.engine.worker.device, None
        if device.type == "cuda":
            torch.cuda.empty_cache()  # what was this engine's is the device's again, for other processes too


class Stream:
    """One request's outputs; if it failed, its error is raised in the place of the last one."""

    def __init__(self, outputs: Generator[RequestOutput, None, None], view: OutputView) -> None:
        self._outputs, self._view, self._is_busy = outputs, view, False
        self._newest: RequestOutput | None = None

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> RequestOutput:
        if self._is_busy:
            raise MisuseError("stream: asked for its next output while it makes one. Give every thread its own stream.")
        while True:
            self._is_busy = True
            try:
                output = next(self._outputs)
            finally:
                self._is_busy = False
            if output.error is not None:
                raise output.error
            self._newest, shown = output, self._view.of(output)
            if shown is not None:
                return shown

    def __repr__(self) -> str:
        newest = self._newest
        if newest is None:
            return "Stream(not begun)"
        state = "finished" if newest.finished else "open"
        return f"Stream({newest.request_id!r}, {len(newest.outputs[0].token_ids)} tokens, {state})"

    def close(self) -> None:
        """Abort the request, unless it has ended."""
        self._outputs.close()
