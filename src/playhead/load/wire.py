"""HTTP/1.1 responses and server-sent events, read from bytes in whatever pieces they come. No sockets here."""

from __future__ import annotations

from enum import Enum

from playhead.errors import PlayheadError

MAX_HEAD_BYTES = 64 << 10
MAX_SIZE_LINE_BYTES = 1 << 10
MAX_EVENT_BYTES = 16 << 20


class BadResponse(PlayheadError):
    """A server sent what is no HTTP/1.1 response, or no stream of events."""


class Part(Enum):
    """Which part of a response comes next."""

    HEAD = 0
    SIZED_BODY = 1
    BODY_TO_EOF = 2
    CHUNK_SIZE = 3
    CHUNK = 4
    CHUNK_END = 5
    TRAILERS = 6
    DONE = 7


class ResponseReader:
    """One response. `feed` gives the body's bytes as they come; `is_done` says that the response is whole."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._part, self._rest, self._left = Part.HEAD, b"", 0

    @property
    def is_done(self) -> bool:
        return self._part is Part.DONE

    @property
    def is_event_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def keeps_alive(self) -> bool:
        """Whether another request may be sent on the same connection, once this response is whole."""
        return self.is_done and not self._rest and self.headers.get("connection", "").lower() != "close"

    def feed(self, data: bytes) -> bytes:
        """What these bytes add to the body."""
        data = self._rest + data if self._rest else data
        body: list[bytes] = []
        at = 0
        while True:
            step = self._next(data, at, body)
            if step < 0:
                break
            at = step
        self._rest = data[at:] if at < len(data) else b""
        return body[0] if len(body) == 1 else b"".join(body)

    def eof(self) -> None:
        """The server closed the connection."""
        if self._part is Part.BODY_TO_EOF:
            self._part = Part.DONE
        if not self.is_done:
            raise BadResponse("the server closed the connection in the middle of a response")

    def _next(self, data: bytes, at: int, body: list[bytes]) -> int:
        """Read one part. Gives where the next one begins, or -1 if more bytes are needed."""
        if self._part in (Part.SIZED_BODY, Part.CHUNK):
            return self._take(data, at, body)
        if self._part is Part.CHUNK_SIZE:
            return self._chunk_size(data, at)
        if self._part is Part.HEAD:
            return self._head(data, at)
        if self._part is Part.BODY_TO_EOF:
            body.append(data[at:])
            return -1 if at == len(data) else len(data)
        if self._part in (Part.CHUNK_END, Part.TRAILERS):
            return self._line_end(data, at)
        return -1

    def _take(self, data: bytes, at: int, body: list[bytes]) -> int:
        if at == len(data):
            return -1
        end = min(len(data), at + self._left)
        body.append(data[at:end])
        self._left -= end - at
        if not self._left:
            self._part = Part.CHUNK_END if self._part is Part.CHUNK else Part.DONE
        return end

    def _chunk_size(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n", at)
        if end < 0:
            if len(data) - at > MAX_SIZE_LINE_BYTES:
                raise BadResponse("a chunk without a size")
            return -1
        try:
            self._left = int(data[at:end].partition(b";")[0], 16)
        except ValueError:
            raise BadResponse("a chunk whose size is no number") from None
        if self._left < 0:
            raise BadResponse("a chunk of a negative size")
        self._part = Part.CHUNK if self._left else Part.TRAILERS
        return end + 2

    def _line_end(self, data: bytes, at: int) -> int:
        """The empty line after a chunk, or the trailers after the last one, up to their empty line."""
        end = data.find(b"\r\n", at)
        if end < 0:
            if len(data) - at > MAX_HEAD_BYTES:
                raise BadResponse("a chunk that does not end")
            return -1
        if self._part is Part.CHUNK_END:
            if end != at:
                raise BadResponse("a chunk that is longer than its size")
            self._part = Part.CHUNK_SIZE
        elif end == at:
            self._part = Part.DONE
        return end + 2

    def _head(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n\r\n", at)
        if end < 0:
            if len(data) - at > MAX_HEAD_BYTES:
                raise BadResponse("a response with too large a head")
            return -1
        line, *fields = data[at:end].decode("latin-1").split("\r\n")
        version, _, rest = line.partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not (code.isdecimal() and len(code) == 3):
            raise BadResponse("no HTTP/1.1 status line")
        if 100 <= int(code) < 200:
            return end + 4
        self.status = int(code)
        pairs = (field.partition(":") for field in fields)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self._part = self._body_part()
        return end + 4

    def _body_part(self) -> Part:
        if self.status in (204, 304):
            return Part.DONE
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            return Part.CHUNK_SIZE
        length = self.headers.get("content-length")
        if length is None:
            return Part.BODY_TO_EOF
        if not length.isdecimal():
            raise BadResponse("a content-length that is no number")
        self._left = int(length)
        return Part.SIZED_BODY if self._left else Part.DONE


class EventReader:
    """The data of server-sent events. Lines may end in LF, CRLF or CR; comments and other fields are passed over."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that these bytes complete."""
        data = self._rest + data if self._rest else data
        held = b""
        if b"\r" in data:
            if data.endswith(b"\r"):  # its LF may come next
                data, held = data[:-1], b"\r"
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, rest = data.split(b"\n\n")
        self._rest = rest + held
        if len(self._rest) > MAX_EVENT_BYTES:
            raise BadResponse("an event that does not end")
        # Nearly every event is one line.
        plain = [b[6:] if b.startswith(b"data: ") and b"\n" not in b else joined_data(b) for b in blocks]
        return [one for one in plain if one is not None]


def joined_data(block: bytes) -> bytes | None:
    """The data lines of an event, joined. None if it has none."""
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
