"""A server of a few lines that answers as a test says, byte for byte, and misbehaves where it should."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from playhead.load.client import Target

Reply = Callable[["Visit"], Awaitable[None]]


@dataclass(kw_only=True)
class Visit:
    """One request on one connection. `number` counts requests of the server from 0."""

    number: int
    head: str
    body: bytes
    writer: asyncio.StreamWriter
    server: SmallServer

    async def send(self, *pieces: bytes) -> None:
        """Each piece in a write of its own, with the loop run between them."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    def reset(self) -> None:
        self.writer.transport.abort()


@dataclass(kw_only=True)
class SmallServer:
    """`async with SmallServer(reply=...) as server:` listens on a port of the kernel's choice."""

    reply: Reply
    visits: list[Visit] = field(default_factory=list)
    num_connections: int = 0
    handlers: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict)

    async def __aenter__(self) -> SmallServer:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.target = Target.of(f"http://127.0.0.1:{self.port}/v1", key="the-key")
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._server.close()
        for handler, writer in self.handlers.items():
            writer.transport.abort()
            handler.cancel()
        await asyncio.gather(*self.handlers, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self.handlers[asyncio.current_task()] = writer
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                sizes = [line.split(":")[1] for line in head.split("\r\n") if line.lower().startswith("content-length")]
                body = await reader.readexactly(int(sizes[0])) if sizes else b""
                visit = Visit(number=len(self.visits), head=head, body=body, writer=writer, server=self)
                self.visits.append(visit)
                await self.reply(visit)
        writer.close()


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(value: object) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def text_event(text: str) -> bytes:
    return event({"object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": None}]})


def usage_event(num_tokens: int, *, num_prompt: int = 3, num_cached: int = 0) -> bytes:
    usage = {"completion_tokens": num_tokens, "prompt_tokens": num_prompt}
    return event({"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": num_cached}}})


def stream_of(texts: Iterable[str], *, usage: bool = True) -> bytes:
    """A whole well-formed stream."""
    texts = list(texts)
    events = [*map(text_event, texts), *([usage_event(len(texts))] if usage else []), event(b"[DONE]")]
    return STREAM_HEAD + b"".join(map(chunk, events)) + b"0\r\n\r\n"


def whole(status: int, body: object, *headers: str) -> bytes:
    content = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} x", "Content-Type: application/json", f"Content-Length: {len(content)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + content


@contextmanager
def in_a_thread(reply: Reply) -> Iterator[SmallServer]:
    """The server on an event loop of its own, for callers that have one themselves."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = SmallServer(reply=reply)
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
        yield server
        asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
