"""The engine's process as the event loop has it: spoken to, listened to, ended. No torch."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol, cast

from playhead.serve import wire


class EngineHost(Protocol):
    """A process that waits for its first message, and the socket to it."""

    @property
    def connection(self) -> socket.socket: ...

    @property
    def pid(self) -> int:
        """The process's id, on the machine where it runs."""

    def end(self) -> None:
        """Wait for the end of a process whose socket was closed, and kill one that does not end. This may take long."""


class EngineLink(asyncio.Protocol):
    """One process and the socket to it. `on_lost` is called once, when the socket has ended for whatever reason.

    `on_bytes` is called whenever something has come, before its frames are read.
    """

    def __init__(
        self, on_frame: Callable[[int, bytes], None], on_lost: Callable[[], None], on_bytes: Callable[[], None]
    ) -> None:
        self._on_frame, self._on_lost, self._on_bytes = on_frame, on_lost, on_bytes
        self._frames = wire.Frames()
        self._transport: asyncio.WriteTransport | None = None
        self._host: EngineHost | None = None

    async def connect(self, host: EngineHost) -> None:
        """Take over a process that was started."""
        self._host, loop = host, asyncio.get_running_loop()
        host.connection.setblocking(False)
        is_here = host.connection.family == socket.AF_UNIX
        await (loop.create_unix_connection if is_here else loop.create_connection)(lambda: self, sock=host.connection)

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._host is not None, "it was started"
        return self._host.pid

    def send(self, message: wire.Order) -> None:
        """Say something. The event loop does not wait; what is said to a process that has gone is lost."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(wire.framed(message))

    def drop(self) -> None:
        """Close the socket at once: what was not sent yet might never be. `on_lost` is called next."""
        if self._transport is not None:
            self._transport.abort()

    async def end(self) -> None:
        """Close the socket, which ends the process; one that does not end is killed."""
        self.drop()
        host, self._host = self._host, None
        if host is not None:
            await asyncio.to_thread(host.end)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is none of asyncio's classes, and can the same.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None, "it is connected"
        self._on_bytes()
        try:
            for kind, payload in self._frames.feed(data):
                self._on_frame(kind, payload)
        except wire.FrameError:
            self.drop()  # what follows cannot be understood either

    def connection_lost(self, error: Exception | None) -> None:
        self._on_lost()
