"""Requests between an event loop and the thread that runs an engine's steps.

    event loop                                        thread
    take, leave -> orders  -------------------------> submit, abort, step
    wake        <- call_soon_threadsafe <------------ newest output of each request

Nothing on the left ever waits for a step: the lock between the two is held for a few assignments. Outputs are
cumulative, so a request has room for one unread output and a newer one takes its place. A consumer slower than the
engine misses intermediate outputs, never text, and always gets the last one; its unread outputs do not pile up.

The thread knows nothing of `AsyncEngine`, which can be dropped while the thread waits.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NoReturn

from playhead.engine.engine import Engine
from playhead.engine.front import CheckedPrompt, RequestOptions, joined, never_queued, split_n
from playhead.engine.output_kind import OutputView
from playhead.engine.response import ResponseBuilder
from playhead.engine.use import kept_here
from playhead.errors import EngineStopped, PlayheadError, QueueFull, RankLost, RequestError, StepFailed, caused
from playhead.logs import event
from playhead.outputs import FinishReason, RequestOutput

LOG = logging.getLogger(__name__)
END_S = 30.0  # a step may have a graph to capture


class WhenFull(StrEnum):
    """What happens to a request that finds the queue full."""

    WAIT = "wait"
    """It waits, behind those that came before it."""
    REFUSE = "refuse"
    """It raises `RequestError` at once, with the limit."""


@dataclass(slots=True, kw_only=True, eq=False)  # mutable: the thread puts outputs in, the consumer takes them out
class Ticket:
    """One request between its consumer and the thread. `samples` are the engine's requests, with `options` for each.

    `responses`, `latest` and `error` are written by the thread, the latter two under the lock; `changed` belongs to the
    event loop, and so do `given_up`, an error for the consumer that does not wait for the thread, and `is_left`: the
    consumer has gone, and another request may have the id.
    """

    request_id: str
    name: str
    options: list[RequestOptions]
    samples: dict[str, CheckedPrompt]
    loop: asyncio.AbstractEventLoop
    responses: list[ResponseBuilder] = field(default_factory=list)
    latest: dict[str, RequestOutput] = field(default_factory=dict)
    error: PlayheadError | None = None
    given_up: PlayheadError | None = None
    is_left: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def of(cls, request_id: str, number: int, checked: CheckedPrompt, options: RequestOptions) -> Ticket:
        """A request of this event loop. No other ticket has its `number`, and so none has its name: "job.7", with the
        samples "job.7.0", "job.7.1". A request that was left may still be there under the same id."""
        name, params = f"{request_id}.{number}", enumerate(split_n(checked.params))
        samples = {f"{name}.{i}": replace(checked, params=one) for i, one in params}
        each = options.of_samples(len(samples))
        return cls(request_id=request_id, name=name, options=each, samples=samples, loop=asyncio.get_running_loop())

    @property
    def has_begun(self) -> bool:
        """Whether a sample has its first token. Any thread may ask."""
        return any(response.first_token_s is not None for response in tuple(self.responses))

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """Something that the thread does with the engine between two steps."""

    work: Callable[[Engine], object]
    done: asyncio.Future[None]


class Serving:
    """One engine, one thread, and the requests of one event loop at a time.

    At most `max_requests` sequences are with the engine, running or queued. A request that finds no room stands in
    `line`, which belongs to the event loop. A request of more sequences than that has the engine to itself.

    `tickets` are with the engine, by their names. Nothing that a request does costs more in a long line.
    """

    def __init__(self, engine: Engine, *, max_requests: int, when_full: WhenFull) -> None:
        self.engine, self.max_requests, self.when_full = engine, max_requests, when_full
        self.thread: threading.Thread | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.numbers = itertools.count(1)
        self.line: OrderedDict[Ticket, None] = OrderedDict()
        self._by_id: dict[str, Ticket] = {}  # with the engine and in line, the newest of each id
        self._max_waiting = engine.max_waiting  # while the thread runs, `max_requests` takes its place
        # All below is shared with the thread, under this condition's lock.
        self._work = threading.Condition()
        self.is_open = False
        self.cause: BaseException | None = None
        self.tickets: dict[str, Ticket] = {}
        self._orders: deque[Order] = deque()
        self._errands: deque[Errand] = deque()
        self._fresh: set[Ticket] = set()

    def __reduce__(self) -> NoReturn:
        raise kept_here()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread. Until it ends no other caller may use the engine."""
        self.loop = loop
        self.is_open, self.cause = True, None
        # A daemon: a program that forgets to close the engine can still end.
        self.thread = threading.Thread(target=self._serve, name="playhead engine", daemon=True)
        self.engine.use.served_by, self.engine.max_waiting = self.thread, sys.maxsize
        self.thread.start()

    def ask_to_stop(self) -> None:
        """The thread ends after the step under way."""
        with self._work:
            self.is_open = False
            self._work.notify()

    def end(self) -> None:
        """Stop the thread and wait for its end. In a forked child, which has no such thread, nothing is done."""
        thread = self.thread
        if thread is None or self.engine.use.is_in_child:
            return
        self.ask_to_stop()
        if thread is not threading.current_thread():
            thread.join(END_S)
        self.forget(thread)

    def wait_for(self, thread: threading.Thread) -> None:
        """Return when the thread has ended and others may use the engine. Blocks: not for the event loop."""
        thread.join()
        self.forget(thread)

    def forget(self, thread: threading.Thread) -> None:
        """The thread has ended: others may use the engine. By now another may have been started."""
        if self.thread is thread:
            self.thread, self.engine.use.served_by, self.engine.max_waiting = None, None, self._max_waiting

    # What follows runs on the event loop.

    def move_to(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Serve another event loop from now on, unless the one before has requests and could still read them."""
        with self._work:
            assert self.loop is not None, "the thread was started on a loop"
            if (self.tickets or self.line) and not self.loop.is_closed():
                return False
            for ticket in self.tickets.values():
                ticket.is_left = True
                self._order(Order(ticket=ticket, is_abort=True))
            self.loop = loop
            self._fresh.clear()
            for ticket in self._all_in_line():
                self._forget(ticket)
            return True

    def take(self, ticket: Ticket) -> None:
        """Hand a request to the thread. If the queue is full, the request stands in line or is refused."""
        where = f"request {ticket.request_id!r}"
        with self._work:
            if not self.is_open:
                raise EngineStopped(where) from self.cause
            known = self._by_id.get(ticket.request_id)
            if known is not None and not known.is_left:
                raise RequestError(where, "an id in use", "a new id", "Wait for the other to end.")
            if not self.line and self._has_room(len(ticket.samples)):
                self._hand_over(ticket)
            elif self.when_full is WhenFull.WAIT:
                self.line[ticket] = None
            else:
                raise QueueFull.of(where, self._num_there, len(ticket.samples), self.max_requests)
            self._by_id[ticket.request_id] = ticket

    def check_room(self) -> None:
        """`QueueFull` if not even a request of one sequence would be taken now."""
        with self._work:
            if self.when_full is WhenFull.REFUSE and not self._has_room(1):
                raise QueueFull.of("request", self._num_there, 1, self.max_requests)

    def ticket_of(self, request_id: str) -> Ticket | None:
        """The newest request with this id, with the engine or in line."""
        return self._by_id.get(request_id)

    def newest(self, ticket: Ticket) -> RequestOutput:
        """The samples as they are now, or the error that ended them."""
        with self._work:
            ticket.changed.clear()
            self._fresh.discard(ticket)
            samples = [ticket.latest.get(name) for name in ticket.samples]
            error = ticket.given_up or ticket.error
            if error is not None:
                raise error
        return joined(ticket.request_id, samples)

    def abort(self, ticket: Ticket, done: asyncio.Future[None] | None = None) -> None:
        """End a request, wherever it is; its consumer gets what there is."""
        with self._work:
            if ticket in self.line:
                del self.line[ticket]
                self._forget(ticket)
                ticket.latest = {name: ended_in_line(name, checked) for name, checked in ticket.samples.items()}
                ticket.changed.set()
                self._admit()
            elif self.is_open and not ticket.is_done:  # a thread that stops aborts whatever there is
                self._order(Order(ticket=ticket, is_abort=True, done=done))
                return
        if done is not None:
            settle(done)

    def give_up(self, ticket: Ticket, error: PlayheadError) -> None:
        """End a request with an error of the event loop's, which its consumer gets even if the thread is stuck."""
        ticket.given_up = error
        self.abort(ticket)
        ticket.changed.set()

    def send(self, errand: Errand) -> None:
        """Have the thread do something between two steps."""
        with self._work:
            if not self.is_open:
                raise EngineStopped("engine") from self.cause
            self._errands.append(errand)
            self._work.notify()

    def leave(self, ticket: Ticket) -> None:
        """The consumer reads no more: abort its request, unless it has ended. The loop may have ended too."""
        if not self.engine.use.is_in_child:
            ticket.is_left = True
            self.abort(ticket)

    def wake(self) -> None:
        """Tell the consumers whose tickets changed, and let those in line in, as far as there is room."""
        with self._work:
            fresh, self._fresh = self._fresh, set()
            self._admit()
            if not self.is_open:
                for ticket in self._all_in_line():
                    ticket.error = caused(EngineStopped(f"request {ticket.request_id!r}"), self.cause)
                    self._forget(ticket)
                    fresh.add(ticket)
            loop = self.loop
        for ticket in fresh:
            if ticket.loop is loop:  # the consumers of a loop that has ended are gone
                ticket.changed.set()

    # Under the lock.

    @property
    def _num_there(self) -> int:
        return sum(len(ticket.samples) for ticket in self.tickets.values())

    def _has_room(self, num_sequences: int) -> bool:
        return not self.tickets or self._num_there + num_sequences <= self.max_requests

    def _admit(self) -> None:
        # A request that is let in after the thread was asked to end would never run. `wake` tells those in line.
        while self.is_open and self.line and self._has_room(len(next(iter(self.line)).samples)):
            self._hand_over(self.line.popitem(last=False)[0])

    def _all_in_line(self) -> list[Ticket]:
        """Empty the line; gives the tickets that stood in it."""
        found = list(self.line)
        self.line.clear()
        return found

    def _forget(self, ticket: Ticket) -> None:
        """Its id is free, unless a newer request has it."""
        if self._by_id.get(ticket.request_id) is ticket:
            del self._by_id[ticket.request_id]

    def _hand_over(self, ticket: Ticket) -> None:
        self.tickets[ticket.name] = ticket
        self._order(Order(ticket=ticket))

    def _order(self, order: Order) -> None:
        self._orders.append(order)
        self._work.notify()

    def _changed(self, ticket: Ticket) -> None:
        self._fresh.add(ticket)
        if ticket.is_done:
            self.tickets.pop(ticket.name, None)
            self._forget(ticket)

    # What follows runs in the thread.

    def _serve(self) -> None:
        """Follow orders and run steps until closed, asleep while there are neither."""
        cause: BaseException | None = None
        try:
            while (orders := self._next_orders()) is not None:
                try:
                    self._turn(orders)
                except BaseException as error:
                    self._fail_begun(error, orders)
                    if isinstance(error, RankLost):  # no step will ever run again
                        raise
        except Exception as error:  # noqa: BLE001  aborting the requests raised too, or a rank is lost
            cause = error
        finally:
            self._stop(cause)

    def _next_orders(self) -> list[Order] | None:
        """Wait until there is an order or a step to run; gives the orders, or None once closed."""
        with self._work:
            self._work.wait_for(lambda: not self.is_open or self._orders or self._errands or self.engine.has_work)
            if not self.is_open:
                return None  # `_stop` answers the orders there are
            orders = list(self._orders)
            self._orders.clear()
            return orders

    def _turn(self, orders: Sequence[Order]) -> None:
        """Follow these orders and run errands, then run one step if anything is left to run."""
        for order in orders:
            if not order.is_abort:
                self._submit(order.ticket)
            elif order.ticket.name in self.tickets:
                aborted = [self.engine.abort(name) for name in order.ticket.samples]
                self._deliver([output for output in aborted if output is not None])
            self._settle([order])
        while self._errands:
            errand = self._errands.popleft()
            errand.work(self.engine)
            self._on_loop(settle, errand.done)
        if self.engine.has_work:
            self._deliver(self.engine.step())

    def _submit(self, ticket: Ticket) -> None:
        """Queue a request's samples. If the engine refuses one of them, this request alone ends with the error."""
        try:
            for (name, checked), options in zip(ticket.samples.items(), ticket.options, strict=True):
                ticket.responses.append(self.engine.submit(name, checked, options))
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
                ticket = self.tickets.get(output.request_id.rpartition(".")[0])
                if ticket is None:
                    continue
                if output.error is not None:
                    failed[ticket] = output.error
                else:
                    ticket.latest[output.request_id] = output
                    self._changed(ticket)
            is_news = bool(self._fresh) and not was_told
        if is_news:
            self._on_loop(self.wake)
        if failed:  # the other samples of a failed one end with it
            errors = {ticket.request_id: error for ticket, error in failed.items()}
            self._give_up(list(failed), [], errors.__getitem__)

    def _fail_begun(self, error: BaseException, orders: Sequence[Order]) -> None:
        """A turn raised: end the requests that had begun. Requests still in the orders are served next.

        Requests that had ended before the error get their last output.
        """
        event(LOG, logging.WARNING, "step failed", error=type(error).__name__, requests=len(self.tickets))
        self._deliver(self.engine.take_ready())
        with self._work:
            not_begun = {order.ticket for order in self._orders if not order.is_abort}
            begun = [ticket for ticket in self.tickets.values() if ticket not in not_begun]
        self._give_up(begun, orders, lambda request_id: caused(StepFailed(f"request {request_id!r}"), error))

    def _stop(self, cause: BaseException | None) -> None:
        """The thread ends: tell every consumer, and every caller whose order was not followed."""
        with self._work:
            self.is_open, self.cause = False, cause
            orders, tickets = list(self._orders), list(self.tickets.values())
            self._orders.clear()
            errands = [self._errands.popleft() for _ in range(len(self._errands))]
        for errand in errands:
            self._on_loop(settle, errand.done)
        with suppress(Exception):  # a dead engine may not abort
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
            self._on_loop(self.wake)
            self._settle(orders)

    def _settle(self, orders: Sequence[Order]) -> None:
        for order in orders:
            if order.done is not None:
                self._on_loop(settle, order.done)

    def _on_loop(self, call: Callable[..., None], *args: object) -> None:
        assert self.loop is not None, "the thread was started on a loop"
        with suppress(RuntimeError):  # a loop that is closed has no consumers
            self.loop.call_soon_threadsafe(call, *args)


class TicketStream:
    """The outputs of a request that the thread has, as its `output_kind` says. A failed request raises its error."""

    def __init__(self, serving: Serving, ticket: Ticket, view: OutputView) -> None:
        self._serving, self.ticket, self._view, self.is_over = serving, ticket, view, False

    def __aiter__(self) -> TicketStream:
        return self

    async def __anext__(self) -> RequestOutput:
        while not self.is_over:
            await self.ticket.changed.wait()
            try:
                output = self._serving.newest(self.ticket)
            except PlayheadError:
                self.is_over = True
                raise
            self.is_over = output.finished
            shown = self._view.of(output)
            if shown is not None:
                return shown
        raise StopAsyncIteration

    def give_up(self, error: PlayheadError) -> None:
        """Abort the request; its consumer gets this error."""
        self._serving.give_up(self.ticket, error)

    def close(self) -> None:
        """Abort the request unless it has ended. A second call does nothing."""
        self.is_over = True
        self._serving.leave(self.ticket)


def settle(done: asyncio.Future[None]) -> None:
    """Tell the caller of an order that it was followed, unless the caller has gone."""
    if not done.done():
        done.set_result(None)


def ended_in_line(name: str, checked: CheckedPrompt) -> RequestOutput:
    """The only output of a sample that was aborted before the engine heard of it."""
    output = never_queued(name, checked, EngineStopped(name))
    nothing = replace(output.outputs[0], finish_reason=FinishReason.ABORT)
    return replace(output, outputs=[nothing], error=None)
