"""Responses over ASGI. A client that leaves ends its request at once: `receive()` tells, `send()` would not.

    Exchange.run(answering)
      sending:  the handler's answer, or each event as it comes  --> send()
      leaving:  waits for http.disconnect                        <-- receive()

The first of the two tasks that ends, ends the other. A client that does not read makes `send()` wait, so its request
has one event in hand and no more; `guard.py` drops such a client after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping
from typing import Any

from playhead.serve.call import Answer, EventStream
from playhead.serve.failures import failure_event
from playhead.serve.recorder import Refusal as Why
from playhead.serve.refusals import Refusal

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

KEEP_ALIVE = b": keep-alive\n\n"  # a comment, which clients skip


class ClientGone(Exception):
    """The client closed the connection before its request was read."""


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    """The whole body, counted while it comes. `Refusal` as soon as there is more than a client may send."""
    parts: list[bytes] = []
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        num_bytes += len(part)
        if num_bytes > max_bytes:
            raise too_large(max_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a body follows these headers."""
    found = dict(headers)
    return b"transfer-encoding" in found or found.get(b"content-length", b"0") != b"0"


def too_large(max_bytes: int) -> Refusal:
    """The body has more bytes than a client may send."""
    message = f"The body has more than {max_bytes} bytes, the most that this server reads."
    return Refusal(413, message, why=Why.TOO_LARGE)


class Exchange:
    """One response on its way to one client. `headers` are added to those of the answer.

    `status` is None until the response has begun. `is_gone` says that the client left before the end, `failure` what
    ended a stream of events early.
    """

    def __init__(self, receive: Receive, send: Send, *, keep_alive_s: float = 0.0) -> None:
        self._receive, self._send, self._keep_alive_s = receive, send, keep_alive_s
        self.headers: Headers = []
        self._stream: EventStream | None = None
        self._num_sent = 0
        self.status: int | None = None
        self.is_gone = False
        self.failure: Exception | None = None

    async def run(self, answering: Coroutine[Any, Any, Answer | EventStream]) -> None:
        """Send what the handler gives, until everything is sent or the client has gone."""
        sending = asyncio.create_task(self._send_result(answering))
        leaving = asyncio.create_task(self._client_left())
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            self.is_gone = not sending.done()
        finally:
            self._close()
            sending.cancel()
            leaving.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            self._close()  # a handler may have given its stream at the very end
        if not sending.cancelled():
            sending.result()

    async def send_answer(self, answer: Answer) -> None:
        """A whole response at once."""
        length = (b"content-length", str(len(answer.body)).encode())
        await self._start(answer.status, [*self._typed(answer.content_type), length, *encoded(answer.headers)])
        await self._send({"type": "http.response.body", "body": answer.body})

    async def _send_result(self, answering: Coroutine[Any, Any, Answer | EventStream]) -> None:
        result = await answering
        if isinstance(result, Answer):
            await self.send_answer(result)
            return
        self._stream = result
        await self._send_events(result)

    async def _send_events(self, stream: EventStream) -> None:
        no_cache = (b"cache-control", b"no-cache")
        await self._start(200, [*self._typed("text/event-stream; charset=utf-8"), no_cache, *encoded(stream.headers)])
        send = self._send
        comments = asyncio.create_task(self._send_comments()) if self._keep_alive_s else None
        try:
            async for event in stream.events:
                self._num_sent += 1
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except Exception as error:  # noqa: BLE001  the boundary of a request: others go on
            self.failure = error
            await send({"type": "http.response.body", "body": failure_event(error), "more_body": True})
        finally:
            if isinstance(stream.events, AsyncGenerator):
                await stream.events.aclose()  # a client that left while it was being sent to leaves it half-way
            if comments is not None:
                comments.cancel()
                await asyncio.gather(comments, return_exceptions=True)
        await send({"type": "http.response.body", "body": b""})

    async def _send_comments(self) -> None:
        """A comment whenever no event went out for a while: proxies close connections that look dead."""
        while True:
            num_before = self._num_sent
            await asyncio.sleep(self._keep_alive_s)
            if self._num_sent == num_before:
                await self._send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})

    async def _start(self, status: int, headers: Headers) -> None:
        self.status = status
        given = {name for name, _ in headers}
        common = [(name, value) for name, value in self.headers if name not in given]
        await self._send({"type": "http.response.start", "status": status, "headers": [*common, *headers]})

    def _typed(self, content_type: str) -> Headers:
        return [(b"content-type", content_type.encode("latin-1"))]

    async def _client_left(self) -> None:
        """Returns when the client has closed the connection. More bytes of a body that was read are of no interest."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._close()  # here and not when `run` wakes: the step under way should be the last one

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


def encoded(headers: Mapping[str, str]) -> Headers:
    """Headers of a response as ASGI has them."""
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
