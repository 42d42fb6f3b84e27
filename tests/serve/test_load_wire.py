"""Responses and events are read alike in whatever pieces they come, and what is none is refused."""

from __future__ import annotations

import pytest

from playhead.load.wire import MAX_EVENT_BYTES, MAX_HEAD_BYTES, BadResponse, EventReader, ResponseReader

CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"6;x=y\r\ndata: \r\n8\r\none\n\ndat\r\nA\r\na: two\n\n: \r\n0\r\nTrailer: 1\r\n\r\n"
)
CHUNKED_BODY = b"data: one\n\ndata: two\n\n: "
SIZED = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 5\r\nRetry-After: 1\r\nConnection: close\r\n\r\nhello"
TO_EOF = b"HTTP/1.0 200 OK\r\n\r\nall of it"


def read_in_pieces(text: bytes, cuts: list[int]) -> tuple[ResponseReader, bytes]:
    reader, body = ResponseReader(), b""
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        body += reader.feed(text[start:end])
    return reader, body


@pytest.mark.parametrize(
    ("text", "status", "body", "is_done", "keeps_alive"),
    [
        (CHUNKED, 200, CHUNKED_BODY, True, True),
        (SIZED, 429, b"hello", True, False),
        (TO_EOF, 200, b"all of it", False, False),
    ],
    ids=["chunked", "sized", "to the end"],
)
def test_a_response_is_the_same_in_any_two_pieces_and_byte_by_byte(text, status, body, is_done, keeps_alive):
    for cuts in [[], *([i] for i in range(1, len(text))), list(range(1, len(text)))]:
        reader, found = read_in_pieces(text, cuts)
        assert (reader.status, found, reader.is_done, reader.keeps_alive) == (status, body, is_done, keeps_alive)
    assert reader.headers.get("retry-after") == ("1" if text is SIZED else None)


def test_the_end_of_the_connection_ends_only_a_response_without_a_size():
    reader, _ = read_in_pieces(TO_EOF, [])
    reader.eof()
    assert reader.is_done
    for text in (CHUNKED[:-2], SIZED[:-1], b"HTTP/1.1 200", b""):
        cut, _ = read_in_pieces(text, [])
        with pytest.raises(BadResponse, match="closed the connection"):
            cut.eof()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "status line"),
        (b"HTTP/1.1 2x0 OK\r\n\r\n", "status line"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n", "content-length"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n", "no number"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-4\r\n", "negative"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabc\r\n", "longer than its size"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"0" * 2000, "without a size"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * MAX_HEAD_BYTES, "too large a head"),
    ],
)
def test_what_is_no_response_is_refused(text, why):
    with pytest.raises(BadResponse, match=why):
        ResponseReader().feed(text)


EVENTS = b": hello\n\ndata: one\n\nevent: x\ndata:two\ndata: lines\nid: 4\n\n\ndata: [DONE]\n\ndata: unfinished"
EVENT_DATA = [b"one", b"two\nlines", b"[DONE]"]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_events_are_the_same_in_any_pieces_and_with_any_line_ends(newline):
    text = EVENTS.replace(b"\n", newline)
    for cuts in [[], *([i] for i in range(1, len(text))), list(range(1, len(text)))]:
        reader, found = EventReader(), []
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            found += reader.feed(text[start:end])
        assert found == EVENT_DATA, cuts


def test_an_event_without_an_end_is_refused_before_it_fills_the_memory():
    reader = EventReader()
    reader.feed(b"data: " + b"x" * (MAX_EVENT_BYTES - 6))
    with pytest.raises(BadResponse, match="does not end"):
        reader.feed(b"y")
