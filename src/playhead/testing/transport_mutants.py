"""Bugs between a socket and a route, and what notices them. Nothing listens: bytes are fed to the protocol by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from uvicorn.server import ServerState

import playhead.serve.app
import playhead.serve.asgi
import playhead.serve.auth
import playhead.serve.guard
from playhead.errors import ConfigError
from playhead.serve.app import Application
from playhead.serve.asgi import Exchange, Receive
from playhead.serve.auth import KeyRing, NamedKey
from playhead.serve.call import Answer, Call, EventStream, Tenant
from playhead.serve.config import ServeConfig
from playhead.serve.endpoint import Endpoint
from playhead.serve.guard import Connection, GuardedConfig
from playhead.serve.recorder import Recorder
from playhead.serve.run import hear_uvicorn
from playhead.testing.mutant import Checker, Mutant, Patch, mutant, swapped
from playhead.testing.scripted_backend import ScriptedBackend

LEAVING, HALF_WAY, READINGS, TRAILERS = "a client that leaves", "a stream left half-way", "two readings", "trailers"
PIPELINES, KEYS, SIZES, ENDS = "a pipeline that is left", "keys", "a body in chunks", "a body that is not read"
FOLLOWS, NAMES, SLOW = "what follows a body", "names of keys", "a client that reads slowly"
OLD = "a client of HTTP/1.0"
KEY = "a-key-0123456789abcdef"
MAX_BODY = 64
HEAD = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@mutant("a client that left is served on", source="generators whose send() stays silent", killed_by=(LEAVING,))
def departure_unseen() -> Patch:
    async def deaf(self: Exchange) -> None:
        await asyncio.Event().wait()

    return swapped(Exchange, "_client_left", deaf)


@mutant(
    "a generator left half-way", source="found here: a client that left while it was sent to", killed_by=(HALF_WAY,)
)
def generator_left() -> Patch:
    return swapped(playhead.serve.asgi, "AsyncGenerator", NoGenerator)


class NoGenerator:
    """What no stream is."""


@mutant("what two readers read differently", source="request smuggling", killed_by=(READINGS,))
def any_head() -> Patch:
    return swapped(playhead.serve.guard, "fault_of", lambda target, headers, version: None)


@mutant("a trailer passes for a header", source="servers that add trailers to headers", killed_by=(TRAILERS,))
def trailers_are_headers() -> Patch:
    def trusting(self: Connection, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    return swapped(Connection, "on_header", trusting)


@mutant("what follows a body has no end", source="found here: a trailer of many megabytes", killed_by=(FOLLOWS,))
def follows_uncounted() -> Patch:
    counting = Connection.data_received

    def trusting(self: Connection, data: bytes) -> None:
        if not self.is_in_headers:
            self.num_header_bytes = -len(data)
        counting(self, data)

    return swapped(Connection, "data_received", trusting)


@mutant("only the newest of a pipeline hears", source="uvicorn 0.54", killed_by=(PIPELINES,))
def newest_hears() -> Patch:
    def forgetful(self: Connection, exc: Exception | None) -> None:
        self.cycle.disconnected = True
        self.cycle.message_event.set()

    return swapped(Connection, "connection_lost", forgetful)


@mutant("the beginning of a key is enough", source="comparisons that stop early", killed_by=(KEYS,))
def beginnings_open() -> Patch:
    def early(self: KeyRing, authorizations: Sequence[bytes]) -> Tenant | None:
        return Tenant() if any(f"Bearer {KEY}".encode().startswith(one) for one in authorizations) else None

    return swapped(KeyRing, "tenant_of", early)


@mutant("two keys named key-1", source="found here: a file with a key, and a variable with another", killed_by=(NAMES,))
def numbered_anew() -> Patch:
    parsed = playhead.serve.auth.parsed_keys

    def anew(lines: Iterable[tuple[str, str]], *, first_number: int = 1) -> list[NamedKey]:
        return parsed(lines)

    return swapped(playhead.serve.auth, "parsed_keys", anew)


@mutant("a body without a length has no end", source="limits on Content-Length alone", killed_by=(SIZES,))
def chunks_uncounted() -> Patch:
    async def trusting(receive: Receive, max_bytes: int) -> bytes:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        return body

    return swapped(playhead.serve.app, "read_body", trusting)


@mutant("a connection ends unannounced", source="found here: httpx sent its next request into it", killed_by=(ENDS,))
def end_unannounced() -> Patch:
    return swapped(playhead.serve.app, "has_body", lambda headers: False)


@mutant("slow is dead", source="found here: a long answer was cut off while its client read it", killed_by=(SLOW,))
def slow_is_dead() -> Patch:
    def impatient(self: Connection, now: float) -> None:
        tap = self.tap
        if tap is not None and tap.closed_at is not None and now - tap.closed_at > playhead.serve.guard.LINGER_S:
            tap.abort()

    return swapped(Connection, "sweep", impatient)


@mutant("chunks in HTTP/1.0", source="found here: uvicorn sends every client chunks", killed_by=(OLD,))
def chunks_for_all() -> Patch:
    return swapped(playhead.serve.guard, "speak_http_1_0", lambda cycle: None)


class Memory(asyncio.Transport):
    """A client in memory: what it was sent, and whether it was cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.data, self.is_cut_off = b"", False

    def write(self, data: Any) -> None:
        self.data += bytes(data)

    def is_closing(self) -> bool:
        return self.is_cut_off

    def is_reading(self) -> bool:
        return True

    def can_write_eof(self) -> bool:
        return False

    def abort(self) -> None:
        self.is_cut_off = True

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return


class SlowClient(Memory):
    """A client that has `num_unsent` bytes before it, and reads as many at each look as it is told to."""

    def __init__(self, num_unsent: int, reads: int = 0) -> None:
        super().__init__()
        self.num_unsent, self.reads = num_unsent, reads

    def get_write_buffer_size(self) -> int:
        self.num_unsent = max(0, self.num_unsent - self.reads)
        return self.num_unsent


class Endless:
    """Streams without an end. `num_closed` counts those that were closed, `num_closed_in_time` those that were closed
    before the checker ends the rest, `num_left` those whose generators have ended."""

    def __init__(self) -> None:
        self.num_open = self.num_closed = self.num_left = self.num_closed_in_time = 0
        self.seen: list[bytes] = []

    async def events(self) -> AsyncIterator[bytes]:
        try:
            while True:
                await asyncio.sleep(0)
                yield b"data: 0\n\n"
        finally:
            self.num_left += 1

    async def stream(self, call: Call) -> EventStream:
        self.num_open += 1
        return EventStream(events=self.events(), close=self.close)

    def close(self) -> None:
        self.num_closed += 1

    async def echo(self, call: Call) -> Answer:
        self.seen.append(call.body)
        return Answer(body=call.request_id.encode())


def spoken(*pieces: bytes, leaves: bool = False, keys: KeyRing | None = None) -> tuple[bytes, Endless]:
    """What a client that sends these pieces is sent, and what it did to the endpoints."""

    async def speak() -> tuple[bytes, Endless]:
        endless, client = Endless(), Memory()
        config = ServeConfig(max_body_bytes=MAX_BODY)
        app = Application(ScriptedBackend(), keys or KeyRing([]), config, Recorder())
        app.serve(
            [Endpoint(method="POST", path=f"/{one.__name__}", answer=one) for one in (endless.echo, endless.stream)]
        )
        hear_uvicorn()
        state = ServerState()
        connection = Connection(GuardedConfig(app, config), state, {}, asyncio.get_running_loop())
        connection.connection_made(client)
        for piece in pieces:
            connection.data_received(piece)
            await turns()
        if leaves:
            connection.connection_lost(ConnectionResetError())
            await turns()
        endless.num_closed_in_time = endless.num_closed
        for task in list(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        return client.data, endless

    return asyncio.run(speak())


async def turns() -> None:
    """Every task that can go on goes on for a while."""
    for _ in range(60):
        await asyncio.sleep(0)


def post(path: bytes, body: bytes = b"{}", *more: bytes) -> bytes:
    lines = b"".join(line + b"\r\n" for line in more)
    return HEAD.replace(b"/echo", path) + lines + b"Content-Length: %d\r\n\r\n" % len(body) + body


def check_leaving() -> list[str]:
    """A client that leaves closes its stream before anything else ends it."""

    async def leave() -> int:
        endless, left = Endless(), asyncio.Event()

        async def receive() -> dict[str, Any]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            await asyncio.sleep(0)

        running = asyncio.create_task(
            Exchange(receive, send).run(endless.stream(Call(request_id="r", tenant=Tenant())))
        )
        await turns()
        left.set()
        await turns()
        num_closed = endless.num_closed
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return num_closed

    num_closed = asyncio.run(leave())
    return [] if num_closed == 1 else [f"the stream of a client that left was closed {num_closed} times"]


def check_half_way() -> list[str]:
    """A client that leaves while it is sent to leaves no generator behind."""

    async def leave() -> int:
        endless, left = Endless(), asyncio.Event()

        async def receive() -> dict[str, Any]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                left.set()
                await asyncio.Event().wait()

        kept = await endless.stream(Call(request_id="r", tenant=Tenant()))

        async def answer() -> EventStream:
            return kept

        await Exchange(receive, send).run(answer())
        return endless.num_left

    return [] if asyncio.run(leave()) == 1 else ["the generator of a client that left was not ended"]


def check_readings() -> list[str]:
    """A request that could be read in two ways reaches no endpoint."""
    found = []
    for name, data in {
        "two Hosts": post(b"/echo", b"{}", b"Host: elsewhere"),
        "two types": post(b"/echo", b"{}", b"Content-Type: text/plain"),
        "a coding": CHUNKED.replace(b"chunked", b"gzip, chunked") + b"2\r\n{}\r\n0\r\n\r\n",
        "HTTP/2": post(b"/echo").replace(b"HTTP/1.1", b"HTTP/2.0"),
    }.items():
        sent, endless = spoken(data)
        if endless.seen or not sent.startswith(b"HTTP/1.1 400"):
            found.append(f"{name}: reached an endpoint")
    return found


def check_trailers() -> list[str]:
    """A field after the body changes nothing."""
    sent, _ = spoken(CHUNKED + b"2\r\n{}\r\n0\r\nX-Request-Id: from-a-trailer\r\n\r\n")
    return ["a trailer named a request"] if b"from-a-trailer" in sent else []


def check_follows() -> list[str]:
    """Bytes after a body, and between its chunks, are headers to the limit."""
    many = [b"a" * ServeConfig().max_header_bytes] * 2
    begun = {"a trailer": b"2\r\n{}\r\n0\r\na: ", "the head of a chunk": b"2;a="}
    found = {name: spoken(CHUNKED + begin, *many)[0] for name, begin in begun.items()}
    return [f"{name} had no end" for name, sent in found.items() if not sent.startswith(b"HTTP/1.1 431")]


def check_pipelines() -> list[str]:
    """A client that leaves ends the request that runs, not only the newest one."""
    _, endless = spoken(post(b"/stream") + post(b"/stream"), leaves=True)
    num_closed = endless.num_closed_in_time
    return [] if num_closed == 1 else [f"{endless.num_open} streams, {num_closed} closed"]


def check_keys() -> list[str]:
    """Only the whole key opens."""
    ring = KeyRing([NamedKey(name="a", key=KEY, where="here")])
    wrong = [f"Bearer {KEY[:-1]}", "Bearer ", "B", KEY, f"Bearer {KEY}x"]
    found = [one for one in wrong if ring.tenant_of([one.encode()]) is not None]
    return [f"{one!r} opened" for one in found] + (
        [] if ring.tenant_of([f"Bearer {KEY}".encode()]) else ["nothing opens"]
    )


def check_names() -> list[str]:
    """Keys without names in a file and in the environment are all taken."""
    in_file = [NamedKey(name="key-1", key=KEY, where="here")]
    auth = playhead.serve.auth
    with swapped(auth, "keys_of_file", lambda path: in_file), swapped(auth, "api_keys_text", lambda: f"{KEY}-2"):
        return [] if len(auth.load_keys("a file")) == 2 else ["a key was lost"]


def check_sizes() -> list[str]:
    """A body over the limit is refused, whether it announced its length or not."""
    sent, endless = spoken(CHUNKED + b"20\r\n%s\r\n" % (b" " * 32) * 3 + b"0\r\n\r\n")
    return [] if sent.startswith(b"HTTP/1.1 413") and not endless.seen else ["96 bytes were read, and 64 are the most"]


def check_ends() -> list[str]:
    """A refusal before the body says that the connection ends."""
    sent, _ = spoken(post(b"/none").removesuffix(b"{}"))
    return [] if b"\r\nconnection: close\r\n" in sent else ["a connection ended, and its client was not told"]


def check_slow() -> list[str]:
    """A client that goes on reading is not cut off, though its answer was written long ago."""

    async def read() -> bool:
        client, config = SlowClient(1000, reads=10), ServeConfig()
        app = Application(ScriptedBackend(), KeyRing([]), config, Recorder())
        connection = Connection(GuardedConfig(app, config), ServerState(), {}, asyncio.get_running_loop())
        connection.connection_made(client)
        assert connection.tap is not None, "it is connected"
        connection.tap.close()
        now = asyncio.get_running_loop().time()
        for i in range(9):
            connection.sweep(now + i * config.send_timeout)
        return client.is_cut_off

    return ["a client was cut off while it read"] if asyncio.run(read()) else []


def check_old() -> list[str]:
    """A stream for HTTP/1.0 has its events, and nothing between them."""
    sent, _ = spoken(post(b"/stream").replace(b"/1.1", b"/1.0"))
    _, _, body = sent.partition(b"\r\n\r\n")
    return [] if body.startswith(b"data: 0\n\ndata: 0\n\n") else [f"a stream for HTTP/1.0 begins with {body[:30]!r}"]


TRANSPORT_MUTANTS: tuple[Mutant, ...] = (
    departure_unseen,
    generator_left,
    any_head,
    trailers_are_headers,
    follows_uncounted,
    newest_hears,
    beginnings_open,
    numbered_anew,
    chunks_uncounted,
    end_unannounced,
    slow_is_dead,
    chunks_for_all,
)
TRANSPORT_CHECKERS: tuple[Checker, ...] = (
    Checker(name=LEAVING, run=check_leaving),
    Checker(name=HALF_WAY, run=check_half_way),
    Checker(name=READINGS, run=check_readings),
    Checker(name=TRAILERS, run=check_trailers),
    Checker(name=FOLLOWS, run=check_follows),
    Checker(name=PIPELINES, run=check_pipelines),
    Checker(name=KEYS, run=check_keys),
    Checker(name=NAMES, run=check_names, raises=(ConfigError,)),
    Checker(name=SIZES, run=check_sizes),
    Checker(name=ENDS, run=check_ends),
    Checker(name=SLOW, run=check_slow),
    Checker(name=OLD, run=check_old),
)
