"""Sends planned requests at their moments and times what comes back. asyncio of the standard library alone.

The loop is open: a request is sent when its moment has come, whether or not earlier ones were answered. A server that
is too slow gets a queue, as it would from people.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, cast
from urllib.parse import urlsplit

from playhead.errors import ConfigError
from playhead.load.exchange import Exchange, Fetch, Outcome
from playhead.load.wire import BadResponse, ResponseReader

TICK_S = 0.2
FETCH_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go. `key` never shows."""

    host: str
    port: int
    is_tls: bool = False
    root: str = ""
    key: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, base_url: str, key: str | None = None) -> Target:
        """From http://host:port, with or without /v1."""
        try:
            parts = urlsplit(base_url if "//" in base_url else f"http://{base_url}")
            scheme, host, port = parts.scheme, parts.hostname, parts.port
        except ValueError:  # a bracket that is not closed, a port that is no port
            host = None
        if not host or scheme not in ("http", "https"):
            raise ConfigError(f"--base-url: found {base_url!r:.200}; wanted an address like http://127.0.0.1:8000.")
        is_tls = scheme == "https"
        root = parts.path.rstrip("/").removesuffix("/v1")
        return cls(host=host, port=port or (443 if is_tls else 80), is_tls=is_tls, root=root, key=key)

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.address}{self.root}"

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """A whole request as it goes over the wire."""
        lines = [f"{method} {self.root}{path} HTTP/1.1", f"Host: {self.address}"]
        if self.key is not None:
            lines.append(f"Authorization: Bearer {self.key}")
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body


class Receiver(Protocol):
    """Who gets a response: an `Exchange` or a `Fetch`."""

    def begin(self, response: ResponseReader) -> None: ...

    def body(self, data: bytes, now_s: float) -> bool: ...

    def end(self, now_s: float) -> None: ...

    def fail(self, why: Outcome, detail: str, now_s: float) -> None: ...


class Connection(asyncio.Protocol):
    """One connection, one request at a time. Bytes are read where they arrive: no task wakes up for a token."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._response = ResponseReader()
        self._has_begun, self._ended = False, asyncio.get_running_loop().create_future()
        self.is_open, self.num_used, self.lost = False, 0, asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is none of asyncio's classes, and can the same.
        self._transport, self.is_open = cast(asyncio.Transport, transport), True

    async def call(self, request: bytes, receiver: Receiver) -> None:
        """Send a request. Returns when the receiver has been told how it ended."""
        assert self._transport is not None, "connected"
        self._receiver, self._response, self._has_begun = receiver, ResponseReader(), False
        self._ended = asyncio.get_running_loop().create_future()
        self.num_used += 1
        self._transport.write(request)
        try:
            await self._ended
        except asyncio.CancelledError:
            self.leave(Outcome.LEFT, "cancelled")
            raise

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter()
        receiver, response = self._receiver, self._response
        if receiver is None:  # bytes nobody asked for: not to be trusted with another request
            self.close()
            return
        try:
            body = response.feed(data)
            if response.status and not self._has_begun:
                self._has_begun = True
                receiver.begin(response)
            stays = receiver.body(body, now_s) if body else True
            if response.is_done:
                receiver.end(now_s)
                self._settle(keeps=response.keeps_alive)
            elif not stays:
                self.leave(Outcome.LEFT, "")
        except BadResponse as error:
            self.leave(Outcome.BROKEN, str(error))

    def leave(self, why: Outcome, detail: str) -> None:
        """Disconnect at once, in the middle of a response if need be."""
        if self._receiver is not None:
            self._receiver.fail(why, detail, time.perf_counter())
            self._settle(keeps=False)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self.lost.set_result(None)
        receiver, now_s = self._receiver, time.perf_counter()
        if receiver is None:
            return
        try:
            self._response.eof()
            receiver.end(now_s)
        except BadResponse as bad:
            receiver.fail(Outcome.BROKEN, type(error).__name__ if error is not None else str(bad), now_s)
        self._settle(keeps=False)

    def _settle(self, *, keeps: bool) -> None:
        self._receiver = None
        if not self._ended.done():
            self._ended.set_result(None)
        if not keeps:
            self.close()

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()


class Connections:
    """Connections to one server: as many as there are requests at a time, each used again while it is open."""

    def __init__(self, target: Target) -> None:
        self._target, self._idle, self._made = target, list[Connection](), set[Connection]()
        self._tls = ssl.create_default_context() if target.is_tls else None

    async def call(self, request: bytes, receiver: Receiver, on_sent: Callable[[Connection], None]) -> None:
        """Send a request and wait until the receiver knows how it ended. `on_sent` gets the connection it went on."""
        while True:
            connection = self._reusable()
            if connection is None:
                try:
                    connection = await self._connect()
                except OSError as error:
                    receiver.fail(Outcome.UNREACHABLE, type(error).__name__, time.perf_counter())
                    return
            on_sent(connection)
            retry = Retry(receiver) if connection.num_used else None
            await connection.call(request, retry or receiver)
            if connection.is_open:
                self._idle.append(connection)
            # A server may close an idle connection just when the next request goes out. Nothing of it was read.
            if retry is None or not retry.was_lost:
                return

    def _reusable(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, self._target.host, self._target.port, ssl=self._tls)
        self._made.add(connection)
        connection.lost.add_done_callback(lambda _: self._made.discard(connection))
        return connection

    async def close(self) -> None:
        """Close every connection, and wait until their sockets are closed."""
        self._idle.clear()
        for connection in (made := list(self._made)):
            connection.close()
        if made:
            await asyncio.wait([connection.lost for connection in made])  # who is cancelled here cancels none of them


class Retry:
    """Keeps from a receiver that a used connection was lost before the first byte: the request will go again."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver, self._has_begun, self.was_lost = receiver, False, False

    def begin(self, response: ResponseReader) -> None:
        self._has_begun = True
        self._receiver.begin(response)

    def body(self, data: bytes, now_s: float) -> bool:
        return self._receiver.body(data, now_s)

    def end(self, now_s: float) -> None:
        self._receiver.end(now_s)

    def fail(self, why: Outcome, detail: str, now_s: float) -> None:
        if why is Outcome.BROKEN and not self._has_begun:
            self.was_lost = True
        else:
            self._receiver.fail(why, detail, now_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """How requests are sent. `max_concurrency` None: as many at a time as the plan says."""

    path: str = "/v1/completions"
    give_up_after_s: float = 600.0
    max_concurrency: int | None = None


class Load:
    """A load that runs: its exchanges, and what has happened so far."""

    def __init__(self, target: Target, exchanges: Sequence[Exchange], options: SendOptions) -> None:
        self.exchanges, self.started_s, self.num_ended = exchanges, 0.0, 0
        self._target, self._options, self._connections = target, options, Connections(target)
        self._places = None if options.max_concurrency is None else asyncio.Semaphore(options.max_concurrency)

    @property
    def num_sent(self) -> int:
        return sum(1 for exchange in self.exchanges if exchange.sent_s)

    async def run(self, on_tick: Callable[[Load], None] = lambda load: None) -> None:
        """Send everything, and wait until the last answer."""
        self.started_s = time.perf_counter()
        ticker = asyncio.create_task(self._tick(on_tick))
        try:
            async with asyncio.TaskGroup() as tasks:
                for exchange in sorted(self.exchanges, key=lambda exchange: exchange.plan.at_s):
                    wait_s = self.started_s + exchange.plan.at_s - time.perf_counter()
                    if wait_s > 0:
                        await asyncio.sleep(wait_s)
                    tasks.create_task(self._one(exchange))
        finally:
            ticker.cancel()
            with suppress(asyncio.CancelledError):
                await ticker
            await self._connections.close()
            on_tick(self)

    async def _one(self, exchange: Exchange) -> None:
        request = self._target.request("POST", self._options.path, exchange.plan.body)
        if self._places is None:
            await self._sent(exchange, request)
        else:
            async with self._places:
                await self._sent(exchange, request)
        self.num_ended += 1

    async def _sent(self, exchange: Exchange, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []

        def on_sent(connection: Connection) -> None:
            exchange.sent_s = exchange.sent_s or time.perf_counter()
            timers.append(loop.call_later(self._options.give_up_after_s, connection.leave, Outcome.TIMED_OUT, ""))
            if exchange.plan.leave_after_s is not None:
                timers.append(loop.call_later(exchange.plan.leave_after_s, connection.leave, Outcome.LEFT, ""))

        await self._connections.call(request, exchange, on_sent)
        for timer in timers:
            timer.cancel()

    async def _tick(self, on_tick: Callable[[Load], None]) -> None:
        while True:
            on_tick(self)
            await asyncio.sleep(TICK_S)


async def fetch(target: Target, path: str) -> Fetch:
    """GET one path. A failure is in `Fetch.error`."""
    connections, received = Connections(target), Fetch()
    try:
        async with asyncio.timeout(FETCH_TIMEOUT_S):
            await connections.call(target.request("GET", path), received, lambda connection: None)
    except TimeoutError:
        received.fail(Outcome.TIMED_OUT, "", 0.0)
    finally:
        await connections.close()
    return received
