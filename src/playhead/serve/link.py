"""The engine's process as the event loop has it: spoken to, listened to, ended. No torch."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from typing import cast

from playhead.serve import wire
from playhead.serve.engine_child import EngineChild

END_S = 10.0  # a GPU's memory takes a moment to be given back


class EngineLink(asyncio.Protocol):
    """One process and the socket to it. `on_lost` is called once, when the socket has ended for whatever reason."""

    def __init__(self, on_frame: Callable[[int, bytes], None], on_lost: Callable[[EngineLink], None]) -> None:
        self._on_frame, self._on_lost = on_frame, on_lost
        self._frames = wire.Frames()
        self._transport: asyncio.WriteTransport | None = None
        self._process: subprocess.Popen[bytes] | None = None

    async def connect(self, child: EngineChild) -> None:
        """Take over a process that was started."""
        self._process = child.process
        child.connection.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=child.connection)

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None, "it was started"
        return self._process.pid

    def send(self, message: wire.Order) -> None:
        """Say something. The event loop does not wait; what is said to a process that has gone is lost."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(wire.framed(message))

    async def end(self) -> None:
        """Close the socket, which ends the process; one that does not end is killed."""
        if self._transport is not None:
            self._transport.close()
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(end_process, process)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is none of asyncio's classes, and can the same.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None, "it is connected"
        try:
            for kind, payload in self._frames.feed(data):
                self._on_frame(kind, payload)
        except wire.FrameError:
            self._transport.abort()  # what follows cannot be understood either

    def connection_lost(self, error: Exception | None) -> None:
        self._on_lost(self)


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that is about to end, and kill one that does not."""
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
