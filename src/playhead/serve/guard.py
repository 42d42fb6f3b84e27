"""What stands between the network and the application: uvicorn's protocol with limits, and with no leniency.

A connection here has bounded headers, a time to send them, a bounded pipeline and a time to read what it is sent. Its
requests have one `Host`, and one way to tell where a body ends. Whatever breaks a rule is answered 4xx and closed, and
the application never sees it.

uvicorn calls the methods below by their names. One sweep twice a second checks all times, so that a request costs no
timer of its own.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Any, cast

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from playhead.serve.asgi import has_body
from playhead.serve.config import ServeConfig
from playhead.serve.refusals import Refusal

MAX_PIPELINED = 8
LINGER_S = 2.0  # from the last byte on, a client whose connection is closed has this long to close it too
LINGER_BYTES = 32 << 20
SWEEP_S = 0.5

HOST = re.compile(rb"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(:[0-9]{1,5})?")
TARGET = re.compile(rb"(https?://[^/?#]+)?/[\x21-\x7e]*", re.IGNORECASE)


class GuardedConfig(uvicorn.Config):
    """uvicorn's configuration, with the limits that `Connection` enforces."""

    def __init__(self, app: Any, config: ServeConfig) -> None:
        super().__init__(
            app,
            host=config.host,
            port=config.port,
            loop="uvloop",
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
        )
        self.limits = config
        self.timeout_keep_alive = cast(int, config.keep_alive_timeout)  # it goes to `call_later`, which takes both


class Tap(asyncio.Transport):
    """The transport as uvicorn sees it. Closing it leaves the client time to read the response.

    A socket that is closed while its client still sends is reset, and the client may lose a response that tells it
    why. So `close` first ends the sending side and discards what comes.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self.closed_at: float | None = None
        self.num_discarded = 0
        # Called for every event of a stream: bound methods, so that no call stands in between.
        self.write = transport.write  # type: ignore[method-assign]
        self.pause_reading = transport.pause_reading  # type: ignore[method-assign]
        self.resume_reading = transport.resume_reading  # type: ignore[method-assign]
        self.get_extra_info = transport.get_extra_info  # type: ignore[method-assign]
        self.get_write_buffer_size = transport.get_write_buffer_size  # type: ignore[method-assign]
        self.abort = transport.abort  # type: ignore[method-assign]

    def is_closing(self) -> bool:
        return self.closed_at is not None or self._transport.is_closing()

    def close(self) -> None:
        """Send what there is, and no more. The connection ends when the client ends it, or with a sweep."""
        if self.is_closing():
            return
        self.closed_at = asyncio.get_running_loop().time()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        if not self._transport.is_reading():
            self._transport.resume_reading()


class Connection(HttpToolsProtocol):
    """One connection of a client. `headers_since` is when the first byte of a request came whose headers are not whole.

    `num_unsent` are bytes that the client has not read, as the last sweep saw them, and `unsent_since` is when a sweep
    saw that number change; `cycles` are the requests that are not answered yet.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        assert isinstance(config, GuardedConfig), "the limits come with the configuration"
        super().__init__(config, server_state, app_state, _loop)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=False)
        self.limits = config.limits
        self.tap: Tap | None = None
        self.headers_since: float | None = None
        self.num_unsent, self.unsent_since = 0, 0.0
        self.num_header_bytes = 0
        self.num_headers = 0
        self.is_in_headers = True
        self.is_deaf = False
        self.refusal: Refusal | None = None
        self.cycles: list[RequestResponseCycle] = []

    # What asyncio calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.tap = Tap(transport)
        super().connection_made(self.tap)
        self.headers_since = self.loop.time()
        if len(self.connections) > self.limits.max_connections:
            self._refuse(Refusal(503, "The server has reached its limit of connections.", headers={"Retry-After": "1"}))

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in self.cycles:  # uvicorn would tell the newest of a pipeline alone
            if not cycle.response_complete:
                cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)
        self.cycles.clear()
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        assert self.tap is not None, "data comes after the connection"
        if self.is_deaf or self.tap.closed_at is not None:
            self.tap.num_discarded += len(data)
            if self.tap.num_discarded > LINGER_BYTES:
                self.tap.abort()
            return
        self._unset_keepalive_if_required()
        if self.is_in_headers:
            self.headers_since = self.headers_since or self.loop.time()
        self.num_header_bytes += len(data)  # unless `on_body` finds that they are of a body
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.is_deaf = True  # the request is answered as if it had asked for no upgrade, and the connection ends
        except httptools.HttpParserError:
            self._refuse(self.refusal or bad_request("The request is not valid HTTP/1.1."))
            return
        # Headers that fit are counted one by one. These bytes are of headers, trailers or the head of a chunk, and the
        # end of those has not come. The parser keeps the bytes, and copies all of them again for each piece.
        if self.num_header_bytes > self.limits.max_header_bytes:
            self._refuse(self._headers_too_large())

    # What the parser calls. An exception in here ends the parsing, and `data_received` refuses.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.is_in_headers, self.num_headers = True, 0
        self.headers_since = self.headers_since or self.loop.time()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self.limits.max_header_bytes:
            self._fail(self._headers_too_large())

    def on_header(self, name: bytes, value: bytes) -> None:
        self.num_headers += 1
        if self.num_headers > self.limits.max_headers:
            self._fail(self._headers_too_large())
        # A field after the body could pass for one that a proxy in front has checked.
        if self.is_in_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.is_in_headers, self.headers_since, self.num_header_bytes = False, None, 0
        if (
            len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            > self.limits.max_header_bytes
        ):
            self._fail(self._headers_too_large())
        fault = fault_of(self.url, self.headers, self.parser.get_http_version())
        if fault is not None:
            self._fail(bad_request(fault))
        if self.parser.should_upgrade() and has_body(self.headers):
            self._fail(bad_request("There is no other protocol to upgrade to. Send the request without Upgrade."))
        if len(self.pipeline) >= MAX_PIPELINED:
            self._fail(bad_request("Too many requests were sent ahead of their answers."))
        super().on_headers_complete()
        self.cycles = [cycle for cycle in self.cycles if not cycle.response_complete] + [self.cycle]
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False
        if self.parser.get_http_version() == "1.0":
            speak_http_1_0(self.cycle)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self.num_header_bytes = 0

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.is_in_headers, self.num_header_bytes = True, 0  # the next byte belongs to the next request

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # What is left of a body that was not read would have to be read for nothing.
        if self.cycle.response_complete and self.cycle.more_body and self.tap is not None:
            self.tap.close()

    # The rules.

    def sweep(self, now: float) -> None:
        """End this connection if one of its times has run out."""
        tap, limits = self.tap, self.limits
        if tap is None:
            return
        if (num_unsent := tap.get_write_buffer_size()) != self.num_unsent:
            # A client on a slow line reads: a long answer may take as long as it takes, to its last byte.
            self.num_unsent, self.unsent_since = num_unsent, now
        if num_unsent:
            if now - self.unsent_since > limits.send_timeout:
                tap.abort()
        elif tap.closed_at is not None:
            if now - max(tap.closed_at, self.unsent_since) > LINGER_S:
                tap.abort()
        elif self.headers_since is not None and now - self.headers_since > limits.header_timeout and not self._pending:
            message = f"The headers took more than {limits.header_timeout:g} s."
            self._refuse(Refusal(408, message) if self.num_header_bytes else None)

    def abort(self) -> None:
        """End this connection now, whatever is on its way."""
        if self.tap is not None:
            self.tap.abort()

    @property
    def is_sending(self) -> bool:
        """Whether the client has not read all that it was sent."""
        return self.tap is not None and self.tap.get_write_buffer_size() > 0

    @property
    def _pending(self) -> bool:
        """Whether a request has no whole answer yet."""
        return any(not cycle.response_complete for cycle in self.cycles)

    def _headers_too_large(self) -> Refusal:
        most = f"{self.limits.max_header_bytes} bytes and {self.limits.max_headers} fields"
        return Refusal(431, f"The headers are larger than {most}.")

    def _fail(self, refusal: Refusal) -> None:
        self.refusal = refusal
        raise refusal

    def _refuse(self, refusal: Refusal | None) -> None:
        """Answer and close; a client that waits for another answer, or has sent nothing, is only cut off."""
        assert self.tap is not None, "data comes after the connection"
        self.is_deaf = True
        self._unset_keepalive_if_required()
        waiting = [cycle for cycle in self.cycles if not cycle.response_complete]
        if refusal is None or len(waiting) > 1 or any(cycle.response_started for cycle in waiting):
            self.tap.abort()  # a second response in the middle of the first would pass for a part of it
            return
        for cycle in waiting:  # its body turned out to be no body
            cycle.disconnected = True
            cycle.message_event.set()
        body = refusal.answer.body
        lines = [STATUS_LINE[refusal.status].decode(), "content-type: application/json\r\n", "connection: close\r\n"]
        lines += [f"{name.lower()}: {value}\r\n" for name, value in refusal.headers.items()]
        lines += [f"content-length: {len(body)}\r\n\r\n"]
        self.tap.write("".join(lines).encode("latin-1") + body)
        self.tap.close()


def speak_http_1_0(cycle: RequestResponseCycle) -> None:
    """A client of HTTP/1.0 knows no chunks and no 100 Continue: a stream ends with its connection."""
    cycle.waiting_for_100_continue, send, has_length = False, cycle.send, True

    async def unchunked(message: Any) -> None:
        nonlocal has_length
        if message["type"] == "http.response.start":
            has_length = any(name.lower() == b"content-length" for name, _ in message["headers"])
            if not has_length:
                cycle.chunked_encoding = False
        elif not has_length:
            cycle.expected_content_length = len(message.get("body", b""))  # uvicorn counts down to the end
        await send(message)

    cycle.send = unchunked  # type: ignore[method-assign]


def bad_request(message: str) -> Refusal:
    """A request that is not HTTP/1.1 as this server reads it."""
    return Refusal(400, message)


def fault_of(target: bytes, headers: Iterable[tuple[bytes, bytes]], version: str) -> str | None:
    """What is wrong with a request's head, in words; None if nothing is. Header names are in lower case.

    The parser has refused what is not HTTP at all. What is left are requests that two readers could read differently.
    """
    values: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value)
    hosts, codings = values.get(b"host", []), values.get(b"transfer-encoding", [])
    if version not in ("1.0", "1.1"):
        return "The version of HTTP is not 1.1."
    if not TARGET.fullmatch(target):
        return "The request target is not a path."
    if len(hosts) != 1 or not HOST.fullmatch(hosts[0]):
        return "There is not exactly one valid Host header."
    if len(values.get(b"content-length", [])) > 1 or (codings and b"content-length" in values):
        return "The length of the body is given more than once."
    if codings and (version == "1.0" or len(codings) > 1 or codings[0].strip().lower() != b"chunked"):
        return "The Transfer-Encoding is not 'chunked'."
    for name in (b"authorization", b"content-type", b"expect"):
        if len(values.get(name, ())) > 1:
            return f"The header {name.decode().title()!r} is given more than once."
    return None
