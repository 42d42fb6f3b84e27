"""An engine for asyncio: every request is an `async for`, and one thread runs the steps.

async with AsyncEngine(build_engine("embedded")) as engine:
    async for output in engine.generate("The whale", SamplingParams(max_tokens=20)):
        print(output.outputs[0].text)

    event loop                                        thread
    generate -> checks -> orders  ------------------> submit, abort, step
    consumer <- event <- call_soon_threadsafe <------ newest output of each request

Nothing on the left ever waits for a step: the lock between the two is held for a few assignments. Outputs are
cumulative, so a request has room for one unread output and a newer one takes its place. A consumer slower than the
engine misses intermediate outputs, never text, and always gets the last one; its unread outputs do not pile up.

PlayheadError
├── EngineStopped   not started, closed, or dead; the request was not taken or will not be finished
└── StepFailed      a step raised, and this request was in flight; the engine takes new ones

An error of one request raises for its own consumer alone: `RequestError` or `RequestFailed`.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType

import torch

from playhead.engine.engine import Engine
from playhead.engine.front import CheckedPrompt, RequestOptions, checked_params, joined, split_n
from playhead.engine.timeline import EngineStats
from playhead.errors import EngineStopped, MisuseError, PlayheadError, RequestError, StepFailed, caused
from playhead.inputs import Prompt
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams

LONG_PROMPT_CHARS = 1 << 14  # encoding more takes milliseconds, and then happens beside the event loop


@dataclass(slots=True, kw_only=True, eq=False)  # mutable: the thread puts outputs in, the consumer takes them out
class Ticket:
    """One request between its consumer and the thread. `samples` are the engine's requests, one per sample.

    `latest` and `error` are written by the thread, under the engine's lock; `changed` belongs to the event loop.
    """

    request_id: str
    options: RequestOptions
    samples: dict[str, CheckedPrompt]
    latest: dict[str, RequestOutput] = field(default_factory=dict)
    error: PlayheadError | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_done(self) -> bool:
        """Whether every sample has ended, or the request has failed."""
        ended = [name for name, output in self.latest.items() if output.finished]
        return self.error is not None or len(ended) == len(self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An order of the event loop to the thread: queue a ticket's request or, with `is_abort`, abort it."""

    ticket: Ticket
    is_abort: bool = False
    done: asyncio.Future[None] | None = None


class AsyncEngine:
    """Requests of one event loop on one engine. Between `start` and `close` only its thread may use the engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        # Running requests count too, so the engine's own queue is never full.
        self.max_requests = engine.max_waiting
        self._numbers = itertools.count(1)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # All below is shared with the thread, under this condition's lock.
        self._work = threading.Condition()
        self._is_open = False
        self._cause: BaseException | None = None
        self._orders: deque[Order] = deque()
        self._tickets: dict[str, Ticket] = {}
        self._fresh: set[Ticket] = set()

    async def __aenter__(self) -> AsyncEngine:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def is_running(self) -> bool:
        """Whether requests are taken."""
        return self._is_open

    @property
    def stats(self) -> EngineStats:
        """The engine's counters at this moment."""
        return self.engine.stats.copy()

    async def start(self) -> None:
        """Start the thread. Until `close` the engine belongs to this event loop."""
        self.engine.check_use()
        if self.engine.has_work:
            raise MisuseError("AsyncEngine: the engine is at work for other calls. Close their streams first.")
        self._loop = asyncio.get_running_loop()
        self._is_open, self._cause = True, None
        # A daemon: a program that forgets to close the engine can still end.
        self._thread = threading.Thread(target=self._serve, name="playhead engine", daemon=True)
        self.engine.served_by = self._thread
        self._thread.start()

    async def close(self) -> None:
        """Stop after the step under way. Consumers that still wait get `EngineStopped`; others may use the engine."""
        thread = self._thread
        if thread is None:
            return
        with self._work:
            self._is_open = False
            self._work.notify()
        await asyncio.to_thread(thread.join)
        if self._thread is thread:  # it may have been closed twice at once, and started again
            self._thread, self.engine.served_by = None, None

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The output after every token, or after several if the consumer was slow; the last one is `finished`.

        A request that cannot be served raises `RequestError` before it is queued. Leaving early, by `break`, `aclose`
        or a cancelled task, aborts it. With n above 1 every output has all samples that have begun.
        """
        ticket = await self._checked(prompt, params, request_id, priority)
        self._take(ticket)
        try:
            while True:
                await ticket.changed.wait()
                output = self._newest(ticket)
                yield output
                if output.finished:
                    return
        finally:
            with self._work:
                if not ticket.is_done:
                    self._order(Order(ticket=ticket, is_abort=True))

    async def abort(self, request_id: str) -> None:
        """End a request; its consumer gets what there is as the last output. Returns when its memory is free."""
        done = asyncio.get_running_loop().create_future()
        with self._work:
            ticket = self._tickets.get(request_id)
            if ticket is None:
                return
            self._order(Order(ticket=ticket, is_abort=True, done=done))
        await done

    # What follows runs on the event loop.

    async def _checked(self, prompt: Prompt, params: object, request_id: object, priority: int) -> Ticket:
        """The request, checked. The thread does not know of it yet."""
        wanted = self.engine.reader.default_params if params is None else checked_params(params)
        name = f"a{next(self._numbers)}" if request_id is None else request_id
        if not isinstance(name, str):
            raise RequestError("request_id", f"a {type(name).__name__}", "a str", "Change it or leave it out.")
        options = RequestOptions(priority=priority)
        if isinstance(prompt, str) and len(prompt) > LONG_PROMPT_CHARS:
            checked = await asyncio.to_thread(self.engine.reader.check, prompt, wanted)
        else:
            checked = self.engine.reader.check(prompt, wanted)
        # The engine's names end in the sample's number, so that no request can be named like another's sample.
        samples = {f"{name}.{i}": replace(checked, params=one) for i, one in enumerate(split_n(wanted))}
        return Ticket(request_id=name, options=options, samples=samples)

    def _take(self, ticket: Ticket) -> None:
        """Hand the request to the thread, or refuse it at once with the limit."""
        where = f"request {ticket.request_id!r}"
        with self._work:
            if not self._is_open or asyncio.get_running_loop() is not self._loop:
                raise EngineStopped(where) from self._cause
            if ticket.request_id in self._tickets:
                raise RequestError(where, "an id in use", "a new id", "Wait for the other to end.")
            num_there = sum(len(other.samples) for other in self._tickets.values())
            if num_there + len(ticket.samples) > self.max_requests:
                found = f"{num_there} sequences running or waiting and {len(ticket.samples)} more"
                raise RequestError(where, found, f"at most {self.max_requests}", "Send it again when some are done.")
            self._tickets[ticket.request_id] = ticket
            self._order(Order(ticket=ticket))

    def _order(self, order: Order) -> None:
        """Under the lock."""
        self._orders.append(order)
        self._work.notify()

    def _newest(self, ticket: Ticket) -> RequestOutput:
        """The samples as they are now, or the error that ended them."""
        with self._work:
            ticket.changed.clear()
            self._fresh.discard(ticket)
            samples = [ticket.latest.get(name) for name in ticket.samples]
            if ticket.error is not None:
                raise ticket.error
        return joined(ticket.request_id, samples)

    def _wake(self) -> None:
        """Tell the consumers whose tickets changed."""
        with self._work:
            fresh, self._fresh = self._fresh, set()
        for ticket in fresh:
            ticket.changed.set()

    # What follows runs in the thread.

    def _serve(self) -> None:
        """Follow orders and run steps until closed, asleep while there are neither."""
        device = self.engine.worker.device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # each thread has a current device of its own
        cause: BaseException | None = None
        try:
            while (orders := self._next_orders()) is not None:
                try:
                    self._turn(orders)
                except BaseException as error:  # noqa: BLE001  consumers must hear of any error
                    self._fail_begun(error, orders)
        except Exception as error:  # noqa: BLE001  aborting the requests raised too
            cause = error
        finally:
            self._stop(cause)

    def _next_orders(self) -> list[Order] | None:
        """Wait until there is an order or a step to run; gives the orders, or None once closed."""
        with self._work:
            self._work.wait_for(lambda: not self._is_open or self._orders or self.engine.has_work)
            orders = list(self._orders)
            self._orders.clear()
            return orders if self._is_open else None

    def _turn(self, orders: Sequence[Order]) -> None:
        """Follow these orders, then run one step if anything is left to run."""
        for order in orders:
            if not order.is_abort:
                self._submit(order.ticket)
            elif self._tickets.get(order.ticket.request_id) is order.ticket:  # its id may have a new owner
                aborted = [self.engine.abort(name) for name in order.ticket.samples]
                self._deliver([output for output in aborted if output is not None])
            self._settle([order])
        if self.engine.has_work:
            self._deliver(self.engine.step())

    def _submit(self, ticket: Ticket) -> None:
        """Queue a request's samples. If the engine refuses one of them, this request alone ends with the error."""
        try:
            for name, checked in ticket.samples.items():
                self.engine.submit(name, checked, ticket.options)
        except PlayheadError as error:
            refusal = error
        else:
            return
        self._give_up([ticket], [], lambda request_id: refusal)

    def _deliver(self, outputs: Sequence[RequestOutput]) -> None:
        """Put each output in the place of the one before, and wake the consumers if they are not about to be woken."""
        failed: dict[Ticket, PlayheadError] = {}
        with self._work:
            was_told = bool(self._fresh)
            for output in outputs:
                ticket = self._tickets.get(output.request_id.rpartition(".")[0])
                if ticket is None:
                    continue
                if output.error is not None:
                    failed[ticket] = output.error
                else:
                    ticket.latest[output.request_id] = output
                    self._changed(ticket)
            is_news = bool(self._fresh) and not was_told
        if is_news:
            self._on_loop(self._wake)
        if failed:  # the other samples of a failed one end with it
            errors = {ticket.request_id: error for ticket, error in failed.items()}
            self._give_up(list(failed), [], errors.__getitem__)

    def _changed(self, ticket: Ticket) -> None:
        """Under the lock."""
        self._fresh.add(ticket)
        if ticket.is_done:
            self._tickets.pop(ticket.request_id, None)

    def _fail_begun(self, error: BaseException, orders: Sequence[Order]) -> None:
        """A turn raised: end the requests that had begun. Requests still in the orders are served next.

        Requests that had ended before the error get their last output.
        """
        self._deliver(self.engine.take_ready())
        with self._work:
            not_begun = {order.ticket for order in self._orders if not order.is_abort}
            begun = [ticket for ticket in self._tickets.values() if ticket not in not_begun]
        self._give_up(begun, orders, lambda request_id: caused(StepFailed(f"request {request_id!r}"), error))

    def _stop(self, cause: BaseException | None) -> None:
        """The thread ends: tell every consumer, and every caller whose order was not followed."""
        with self._work:
            self._is_open, self._cause = False, cause
            orders, tickets = list(self._orders), list(self._tickets.values())
            self._orders.clear()
        with suppress(Exception):  # a dead engine may not abort; a closed event loop has no consumers
            self._give_up(tickets, orders, lambda name: caused(EngineStopped(f"request {name!r}"), cause))
            while self.engine.has_work:  # a step that was launched and not read
                self.engine.step()

    def _give_up(
        self,
        tickets: Sequence[Ticket],
        orders: Sequence[Order],
        reason: Callable[[str], PlayheadError],
    ) -> None:
        """Abort these requests, tell their consumers why, and tell the callers of these orders that they are done."""
        try:
            for name in [name for ticket in tickets for name in ticket.samples]:
                self.engine.abort(name)
        finally:
            with self._work:
                for ticket in tickets:
                    ticket.error = reason(ticket.request_id)
                    self._changed(ticket)
            self._on_loop(self._wake)
            self._settle(orders)

    def _settle(self, orders: Sequence[Order]) -> None:
        for order in orders:
            if order.done is not None:
                self._on_loop(settle, order.done)

    def _on_loop(self, call: Callable[..., None], *args: object) -> None:
        assert self._loop is not None, "the thread was started on a loop"
        self._loop.call_soon_threadsafe(call, *args)


def settle(done: asyncio.Future[None]) -> None:
    """Tell the caller of an order that it was followed, unless the caller has gone."""
    if not done.done():
        done.set_result(None)
