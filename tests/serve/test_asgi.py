"""A response ends with its client: whichever goes first, a stream is closed once, and nothing is left running."""

from __future__ import annotations

import asyncio

import pytest

from playhead.serve.asgi import ClientGone, Exchange, read_body
from playhead.serve.call import Answer, EventStream
from playhead.serve.refusals import Refusal


class Client:
    """The other end of an exchange: what it got, and when it leaves."""

    def __init__(self, *parts: bytes) -> None:
        self.parts, self.got, self.left, self.is_reading = list(parts), [], asyncio.Event(), asyncio.Event()
        self.is_reading.set()

    async def receive(self):
        if self.parts:
            part = self.parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self.parts)}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        await self.is_reading.wait()
        self.got.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.got)


class Source:
    """A handler that streams: one event for each `put`, and an error for an exception."""

    def __init__(self) -> None:
        self.queue, self.num_closed = asyncio.Queue(), 0

    async def events(self):
        while (one := await self.queue.get()) is not None:
            if isinstance(one, Exception):
                raise one
            yield one

    async def answer(self) -> EventStream:
        return EventStream(events=self.events(), close=self.close)

    def close(self) -> None:
        self.num_closed += 1


async def settled() -> None:
    """Every task that can go on has gone on."""
    for _ in range(20):
        await asyncio.sleep(0)


def streamed(play, **options):
    """Run an exchange beside `play(client, source)`, to its end."""

    async def both():
        client, source = Client(), Source()
        exchange = Exchange(client.receive, client.send, **options)
        running = asyncio.create_task(exchange.run(source.answer()))
        await settled()
        await play(client, source)
        await running
        assert len(asyncio.all_tasks()) == 1
        return client, source, exchange

    return asyncio.run(both())


def test_a_stream_is_sent_event_by_event_and_closed_once():
    async def play(client, source):
        for i in range(3):
            source.queue.put_nowait(b"data: %d\n\n" % i)
            await settled()
            assert client.body.endswith(b"data: %d\n\n" % i)
        source.queue.put_nowait(None)

    client, source, exchange = streamed(play)
    assert client.got[0]["status"] == exchange.status == 200
    assert client.got[-1] == {"type": "http.response.body", "body": b""}
    assert source.num_closed == 1
    assert not exchange.is_gone


def test_a_client_that_leaves_closes_its_stream_at_once():
    async def play(client, source):
        source.queue.put_nowait(b"data: 0\n\n")
        await settled()
        client.left.set()
        await settled()
        assert source.num_closed == 1

    _, source, exchange = streamed(play)
    assert source.num_closed == 1
    assert exchange.is_gone


def test_a_client_that_does_not_read_holds_one_event_and_can_leave():
    async def play(client, source):
        client.is_reading.clear()
        for i in range(100):
            source.queue.put_nowait(b"data: %d\n\n" % i)
        await settled()
        assert source.queue.qsize() == 99
        client.left.set()

    _, source, _ = streamed(play)
    assert source.num_closed == 1
    assert source.queue.qsize() == 99


def test_a_stream_that_raises_ends_with_an_error_that_tells_nothing():
    async def play(client, source):
        source.queue.put_nowait(b"data: 0\n\n")
        source.queue.put_nowait(ValueError("the prompt was 'secret'"))

    client, source, exchange = streamed(play)
    assert b'"type":"server_error"' in client.body
    assert b"secret" not in client.body
    assert client.got[-1] == {"type": "http.response.body", "body": b""}
    assert isinstance(exchange.failure, ValueError)
    assert source.num_closed == 1


def test_a_silent_stream_sends_comments_if_asked_to():
    async def play(client, source):
        while b": keep-alive\n\n" not in client.body:
            await asyncio.sleep(0.001)
        source.queue.put_nowait(None)

    client, _, _ = streamed(play, keep_alive_s=0.001)
    assert client.got[-1] == {"type": "http.response.body", "body": b""}


def test_a_client_that_leaves_before_the_answer_cancels_the_handler():
    async def both():
        client, was_cancelled = Client(), asyncio.Event()

        async def handler() -> Answer:
            try:
                await asyncio.Event().wait()
            finally:
                was_cancelled.set()
            return Answer()

        exchange = Exchange(client.receive, client.send)
        running = asyncio.create_task(exchange.run(handler()))
        await settled()
        client.left.set()
        await running
        assert was_cancelled.is_set()
        assert exchange.is_gone
        assert client.got == []

    asyncio.run(both())


def test_a_stream_that_comes_as_its_client_leaves_is_closed():
    async def both():
        client, source = Client(), Source()

        async def stubborn() -> EventStream:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return await source.answer()
            raise AssertionError("nobody sets it")

        exchange = Exchange(client.receive, client.send)
        running = asyncio.create_task(exchange.run(stubborn()))
        await settled()
        client.left.set()
        await settled()
        source.queue.put_nowait(None)
        await running
        assert source.num_closed == 1

    asyncio.run(both())


def test_a_body_is_counted_while_it_is_read():
    assert asyncio.run(read_body(Client(b"ab", b"", b"cd").receive, 4)) == b"abcd"
    client = Client(b"ab", b"cde", b"never read")
    with pytest.raises(Refusal) as refusal:
        asyncio.run(read_body(client.receive, 4))
    assert refusal.value.status == 413
    assert client.parts == [b"never read"]


def test_a_client_that_leaves_in_its_body_is_gone():
    async def read():
        client = Client(b"ab", b"cd")
        client.left.set()
        await client.receive()
        client.parts.clear()
        with pytest.raises(ClientGone):
            await read_body(client.receive, 100)

    asyncio.run(read())
