"""Applications that listen, in a thread of the test's own process."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import uvloop

from playhead.serve.app import Application
from playhead.serve.run import Server, bind


@dataclass(frozen=True, kw_only=True)
class Listening:
    """The ports of applications, their servers, and the event loop on which all of them run."""

    ports: list[int]
    servers: list[Server]
    loop: asyncio.AbstractEventLoop

    def signal(self) -> None:
        """What SIGTERM does to a server that has a process of its own."""
        for server in self.servers:
            server.handle_exit(signal.SIGTERM, None)


@contextmanager
def listening(apps: Sequence[Application]) -> Iterator[Listening]:
    """Serve these until the end, which is a drain. Their backend is started once."""
    sockets = [bind(app.config) for app in apps]
    ports = [sock.getsockname()[1] for sock in sockets]
    is_up, loops, servers = threading.Event(), [], []

    async def serve() -> None:
        servers.extend(Server(app) for app in apps)
        tasks = [asyncio.create_task(one.serve([sock])) for one, sock in zip(servers, sockets, strict=True)]
        try:
            await apps[0].backend.start()
            loops.append(asyncio.get_running_loop())
        finally:
            is_up.set()
        await asyncio.gather(*tasks)

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, name="test server", daemon=True)
    thread.start()
    is_up.wait()
    made = Listening(ports=ports, servers=servers, loop=loops[0])
    try:
        yield made
    finally:
        made.signal()
        thread.join()


class Wire:
    """A bare connection to a server here. Its timeout fails a test that would hang, and decides nothing else."""

    def __init__(self, port: int, data: bytes = b"") -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        if data:
            self.send(data)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *error: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        """Send this, unless the server has closed already: what it said is still there to be read."""
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def hang_up(self) -> None:
        """Send no more, and still read."""
        with suppress(OSError):  # the server may have cut the connection off
            self.sock.shutdown(socket.SHUT_WR)

    def response(self) -> tuple[int, bytes]:
        """Status and bytes of the next response with a length; (0, b"") if the server closed without one."""
        data = b""
        while b"\r\n\r\n" not in data:
            more = self._more()
            if not more:
                return 0, data
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 100 "):
            return self._rest_of(body)
        lengths = [
            line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
        ]
        while lengths and len(body) < int(lengths[0]) and (more := self._more()):
            body += more
        return int(head.split(b" ", 2)[1]), head + b"\r\n\r\n" + body

    def events(self, count: int) -> bytes:
        """Everything until so many events of a stream have come."""
        data = b""
        while data.count(b"data: ") < count:
            more = self._more()
            assert more, f"the server closed after {data!r}"
            data += more
        return data

    def to_the_end(self) -> bytes:
        """Everything until the server closes."""
        data = b""
        while more := self._more():
            data += more
        return data

    def _rest_of(self, data: bytes) -> tuple[int, bytes]:
        while b"\r\n\r\n" not in data:
            data += self._more()
        return int(data.split(b" ", 2)[1]), data

    def _more(self) -> bytes:
        try:
            return self.sock.recv(1 << 16)
        except ConnectionResetError:
            return b""
