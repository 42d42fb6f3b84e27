"""A server from its first to its last moment: one socket, one event loop, signals, and a drain before the end.

    bind -> listen (/health 200, /ready 503) -> backend.start -> ready -> SIGTERM -> drain -> end

Draining: `/ready` is 503 at once and new requests are refused, while those under way go on. Requests that are not done
when the time is over get an error that says so. A second signal ends everything at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import cast

import uvicorn
import uvloop

from playhead.errors import ConfigError
from playhead.logs import event
from playhead.serve.app import Application
from playhead.serve.config import ServeConfig
from playhead.serve.guard import SWEEP_S, Connection, GuardedConfig

LOG = logging.getLogger(__name__)
TICK_S = 0.1
LAST_WORDS_S = 2.0  # for errors on their way to clients whose requests were cut off
CLOSE_S = 30.0  # for an engine to end; one in a process of its own is killed before
BACKLOG = 1024
SIGNALS = (signal.SIGINT, signal.SIGTERM)

STOPPED_AT_ONCE = 1

OnReady = Callable[[], Awaitable[None]]
"""Called once, when requests are served."""


class UvicornRecords(logging.Handler):
    """Writes down what uvicorn has to say, without tracebacks: lines of code and words of errors belong in no log."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[0] if record.exc_info else None
        kind = None if error is None else error.__name__
        event(LOG, record.levelno, "uvicorn", said=str(record.msg).strip(), error=kind)


def hear_uvicorn() -> None:
    """Have uvicorn's warnings among our own records."""
    logger = logging.getLogger("uvicorn.error")
    if not any(isinstance(handler, UvicornRecords) for handler in logger.handlers):
        logger.addHandler(UvicornRecords(logging.WARNING))
    logger.propagate = False


class Server(uvicorn.Server):
    """uvicorn's server with our end: it drains before it closes, and it exits with a code, not by its signal."""

    def __init__(self, app: Application) -> None:
        hear_uvicorn()
        super().__init__(GuardedConfig(app, app.config))
        self._app, self._backend, self._limits = app, app.backend, app.config
        self._swept_at = 0.0
        self.is_stuck = False  # the engine did not end, and never will

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Hear signals while the server runs. In a thread there are none to hear."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {one: signal.signal(one, self.handle_exit) for one in SIGNALS}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second one ends."""
        self.force_exit = self.should_exit
        self.should_exit = self._app.is_draining = True

    async def on_tick(self, counter: int) -> bool:
        now = asyncio.get_running_loop().time()
        if now - self._swept_at >= SWEEP_S:
            self._swept_at = now
            for connection in self._connections():
                connection.sweep(now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for the requests under way, as long as they may take; then end everything."""
        num_open = self._app.num_open
        event(LOG, logging.INFO, "draining", requests=num_open, timeout_s=self._limits.drain_timeout)
        await self._wait(self._is_drained, self._limits.drain_timeout)
        num_cut_off = self._app.num_open
        closing = asyncio.create_task(self._backend.close())
        await asyncio.wait({closing}, timeout=CLOSE_S)
        self.is_stuck = not closing.done()
        if not self.is_stuck:
            closing.result()
        await self._wait(lambda: self._app.num_open == 0, LAST_WORDS_S)
        for server in self.servers:
            server.close()
        for one in sockets or []:
            one.close()
        for connection in self._connections():
            connection.shutdown()
        await self._wait(lambda: not self.server_state.connections, LAST_WORDS_S)
        # Connections that are left are cut off. An event loop that is closed beside an open one would wait for it.
        for connection in self._connections():
            connection.abort()
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_WORDS_S)
        await asyncio.sleep(0)
        event(LOG, logging.INFO, "stopped", cut_off=num_cut_off)

    def _is_drained(self) -> bool:
        """Whether all requests are answered, and all clients have read their answers."""
        return self._app.num_open == 0 and not any(one.is_sending for one in self._connections())

    def _connections(self) -> list[Connection]:
        found = list(self.server_state.connections)
        assert all(isinstance(one, Connection) for one in found), "this server makes no others"
        return cast(list[Connection], found)

    async def _wait(self, is_done: Callable[[], bool], seconds: float) -> None:
        """Until it is done, the time is over, or a second signal came."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not is_done() and not self.force_exit and loop.time() < deadline:
            await self.on_tick(1)
            await asyncio.sleep(TICK_S / 2)


def bind(config: ServeConfig) -> socket.socket:
    """The one socket that listens, or `ConfigError`."""
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"host: {config.host!r} is no address here ({error.strerror}).") from None
    except UnicodeError:  # a label of it is empty or too long for a name
        raise ConfigError(f"host: {config.host!r:.200} is no address.") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"port: cannot listen on {config.host} port {config.port} ({error.strerror}). Choose another --port."
        ) from None
    return sock


def url_of(sock: socket.socket) -> str:
    """Where a socket that listens can be reached."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if sock.family == socket.AF_INET6 else f"http://{host}:{port}"


async def serve(app: Application, sock: socket.socket, on_ready: OnReady) -> int:
    """Serve until a signal ends it, and give the exit code. What keeps the backend from starting is raised."""
    server = Server(app)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    starting = asyncio.create_task(app.backend.start())
    await asyncio.wait((serving, starting), return_when=asyncio.FIRST_COMPLETED)
    # A signal closes the backend, which ends a start that is under way: that is no failure of the start.
    was_stopped = server.should_exit or not starting.done()
    if was_stopped:
        starting.cancel()
    elif starting.exception() is None:
        await on_ready()
    else:
        server.handle_exit(signal.SIGTERM, None)
    await serving
    if server.is_stuck:  # Python would wait for its thread, and a supervisor for this process
        event(LOG, logging.ERROR, "engine stuck")
        os._exit(STOPPED_AT_ONCE)
    failed = (await asyncio.gather(starting, return_exceptions=True))[0]
    if isinstance(failed, Exception) and not was_stopped:
        raise failed
    return STOPPED_AT_ONCE if server.force_exit else 0


def run(app: Application, sock: socket.socket, on_ready: OnReady) -> int:
    """`serve` on an event loop of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(app, sock, on_ready))
