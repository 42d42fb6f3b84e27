"""What is not one clear HTTP/1.1 request is answered 4xx or cut off, and never reaches a handler."""

from __future__ import annotations

import json

import pytest

from tests.serve.listening import Wire, wait_until
from tests.serve.plain import plain_server

HEAD = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
GOOD = HEAD + b"Content-Length: 2\r\n\r\n{}"


@pytest.fixture(scope="module")
def served():
    with plain_server() as made:
        yield made


@pytest.fixture(scope="module")
def hasty():
    """A server with little patience and little room."""
    times = dict.fromkeys(("header_timeout", "body_timeout", "send_timeout", "keep_alive_timeout"), 0.2)
    with plain_server(**times, max_header_bytes=2048, max_body_bytes=4096, max_connections=4) as made:
        yield made


SMUGGLED = {
    "two lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "two lengths that differ": HEAD + b"Content-Length: 2\r\nContent-Length: 50\r\n\r\n{}",
    "a list of lengths": HEAD + b"Content-Length: 2, 2\r\n\r\n{}",
    "a length and chunks": HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
    "a signed length": HEAD + b"Content-Length: +2\r\n\r\n{}",
    "a negative length": HEAD + b"Content-Length: -2\r\n\r\n{}",
    "a hexadecimal length": HEAD + b"Content-Length: 0x2\r\n\r\n{}",
    "an endless length": HEAD + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n{}",
    "no length": HEAD + b"Content-Length:\r\n\r\n{}",
    "another coding": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "an unknown coding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "two codings": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "identity": HEAD + b"Transfer-Encoding: identity\r\n\r\n{}",
    "chunks in HTTP/1.0": CHUNKED.replace(b"/1.1", b"/1.0") + b"2\r\n{}\r\n0\r\n\r\n",
    "a space before a colon": HEAD + b"Content-Length : 2\r\n\r\n{}",
    "a folded header": HEAD + b"X-Long: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
    "a header that is folded first": HEAD.replace(b"Host:", b" Host:") + b"Content-Length: 2\r\n\r\n{}",
    "a bare LF": GOOD.replace(b"\r\n", b"\n"),
    "a bare LF in a header": HEAD + b"X-A: a\nContent-Length: 2\r\n\r\n{}",
    "a bare CR in a header": HEAD + b"X-A: a\rContent-Length: 2\r\n\r\n{}",
    "a NUL in a value": HEAD + b"X-A: a\0b\r\nContent-Length: 2\r\n\r\n{}",
    "a NUL in a name": HEAD + b"X-\0A: b\r\nContent-Length: 2\r\n\r\n{}",
    "a control character": HEAD + b"X-A: a\x0bb\r\nContent-Length: 2\r\n\r\n{}",
    "a header without a name": HEAD + b": b\r\nContent-Length: 2\r\n\r\n{}",
    "a line without a colon": HEAD + b"nothing\r\nContent-Length: 2\r\n\r\n{}",
    "no Host": GOOD.replace(b"Host: localhost\r\n", b""),
    "two Hosts": GOOD.replace(b"Host: localhost\r\n", b"Host: localhost\r\nHost: localhost\r\n"),
    "an empty Host": GOOD.replace(b"Host: localhost", b"Host:"),
    "a Host with a path": GOOD.replace(b"Host: localhost", b"Host: localhost/health"),
    "two types": HEAD + b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    "two keys": HEAD + b"Authorization: a\r\nAuthorization: b\r\nContent-Length: 2\r\n\r\n{}",
    "HTTP/2": GOOD.replace(b"/1.1", b"/2.0"),
    "HTTP/0.9": b"GET /health\r\n\r\n",
    "HTTP/1.2": GOOD.replace(b"/1.1", b"/1.2"),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "no HTTP": b"hello\r\n\r\n",
    "an unknown method": GOOD.replace(b"POST", b"P0ST"),
    "CONNECT": b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a target without a path": b"GET http://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an asterisk": b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a target that is not ASCII": b"GET /h\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a space in a target": b"GET /health /x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an upgrade with a body": HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}",
    "a chunk size in words": CHUNKED + b"two\r\n{}\r\n0\r\n\r\n",
    "a chunk size with a prefix": CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n",
    "a chunk size with a sign": CHUNKED + b"+2\r\n{}\r\n0\r\n\r\n",
    "a chunk size with a space": CHUNKED + b"2 \r\n{}\r\n0\r\n\r\n",
    "an endless chunk size": CHUNKED + b"f" * 20 + b"\r\n{}\r\n0\r\n\r\n",
    "a chunk that is too long": CHUNKED + b"2\r\n{}}\r\n0\r\n\r\n",
    "a chunk with a bare LF": CHUNKED + b"2\n{}\n0\n\n",
}


@pytest.mark.parametrize("data", SMUGGLED.values(), ids=SMUGGLED)
def test_a_request_that_can_be_read_in_two_ways_is_refused(served, data):
    port, plain, _ = served
    with Wire(port, data) as wire:
        status, response = wire.response()
        assert status == 400, response
        assert json.loads(response.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
        assert wire.to_the_end() == b""
    assert plain.seen == []


def test_a_request_that_can_be_read_in_one_way_is_served(served):
    port, plain, _ = served
    for data in (
        GOOD,
        CHUNKED + b"2\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"1;ext=a\r\n{\r\n1\r\n}\r\n0\r\nX-Trailer: a\r\n\r\n",
        GOOD.replace(b"POST /echo", b"POST http://localhost/echo"),
        GOOD.replace(b"application/json", b'application/json; charset="UTF-8"'),
        HEAD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    ):
        with Wire(port, data) as wire:
            assert wire.response()[0] == 200
    assert [plain.seen.pop() for _ in range(6)] == [b"{}"] * 6


@pytest.mark.parametrize("more", [b"", b"Connection: keep-alive\r\n", b"Expect: 100-continue\r\n"])
def test_a_client_of_http_1_0_gets_whole_answers_and_streams_without_chunks(served, more):
    port, plain, _ = served
    old = HEAD.replace(b"/1.1", b"/1.0") + more
    with Wire(port, old + b"Content-Length: 2\r\n\r\n{}") as wire:
        head, _, body = wire.to_the_end().partition(b"\r\n\r\n")
    assert (head[:15], body, plain.seen.pop()) == (b"HTTP/1.1 200 OK", b"{}", b"{}")
    assert {b"content-length: 2", b"connection: close"} <= set(head.split(b"\r\n"))
    with Wire(port, old.replace(b"/echo", b"/stream") + b"Content-Length: 6\r\n\r\n[3, 5]") as wire:
        head, _, body = wire.to_the_end().partition(b"\r\n\r\n")
    assert (head[:15], body) == (b"HTTP/1.1 200 OK", b"data: xxxxx\n\n" * 3)
    assert b"connection: close" in head.split(b"\r\n")
    assert b"transfer-encoding" not in head
    plain.ended.get()


def test_a_field_after_the_body_is_no_header(served):
    """A proxy in front checks headers. It may pass trailers on unseen."""
    port, plain, _ = served
    with Wire(port, CHUNKED + b"2\r\n{}\r\n0\r\nX-Request-Id: from-a-trailer\r\n\r\n") as wire:
        status, response = wire.response()
    assert status == 200
    assert b"from-a-trailer" not in response
    plain.seen.clear()


@pytest.mark.parametrize(
    "data",
    [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 100 + b"\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 70_000,
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"a%d: %s\r\n" % (i, b"b" * 1000) for i in range(70)),
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /" + b"a" * 70_000,
        CHUNKED + b"2\r\n{}\r\n0\r\n" + b"a: b\r\n" * 200,
        CHUNKED + b"2\r\n{}\r\n0\r\na: " + b"a" * 1_000_000,
        CHUNKED + b"2;a=" + b"a" * 1_000_000,
    ],
    ids=[
        *("many", "long", "endless", "long together", "a long target", "an endless target"),
        *("many trailers", "an endless trailer", "an endless head of a chunk"),
    ],
)
def test_headers_over_the_limits_are_refused(served, data):
    port, plain, _ = served
    with Wire(port, data) as wire:
        assert wire.response()[0] == 431
        assert wire.to_the_end() == b""
    assert plain.seen == []


def test_a_body_in_many_small_chunks_may_have_more_bytes_around_it_than_headers(served):
    port, plain, _ = served
    body = b'{"a": "' + b"a" * 30_000 + b'"}'
    chunks = b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in body)
    with Wire(port, CHUNKED + chunks + b"0\r\na: b\r\n\r\n") as wire:
        assert wire.response()[0] == 200
        wire.send(GOOD)
        assert wire.response()[0] == 200
    assert [plain.seen.pop() for _ in range(2)] == [b"{}", body]


def test_a_client_that_sends_its_headers_slowly_is_answered_and_cut_off(hasty):
    with Wire(hasty[0], b"GET /health HTTP/1.1\r\nHost: loc") as wire:
        assert wire.response()[0] == 408
        assert wire.to_the_end() == b""


def test_a_client_that_sends_nothing_is_cut_off(hasty):
    with Wire(hasty[0]) as wire:
        assert wire.to_the_end() == b""


def test_a_client_that_sends_line_ends_for_ever_is_cut_off(hasty):
    with Wire(hasty[0], b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as wire:
        assert wire.response()[0] == 200
        wire.send(b"\r\n")
        assert wire.response()[0] in (0, 408)


def test_an_idle_connection_is_closed(hasty):
    with Wire(hasty[0], b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as wire:
        assert wire.response()[0] == 200
        assert wire.to_the_end() == b""


def test_a_body_that_comes_slowly_is_refused(hasty):
    with Wire(hasty[0], HEAD + b"Content-Length: 20\r\n\r\n{") as wire:
        assert wire.response()[0] == 408
        assert wire.to_the_end() == b""


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"Content-Length: 4097\r\n\r\n",
        HEAD + b"Content-Length: 200000\r\n\r\n" + b" " * 200_000,
        CHUNKED + b"1000\r\n" + b" " * 4096 + b"\r\n1\r\n \r\n",
        CHUNKED + b"1\r\n \r\n" * 5000,
    ],
    ids=["announced", "sent", "in chunks", "in many chunks"],
)
def test_a_body_over_the_limit_is_refused_while_it_comes(hasty, data):
    port, plain, _ = hasty
    with Wire(port, data) as wire:
        assert wire.response()[0] == 413
    assert plain.seen == []


def test_a_refusal_before_the_body_was_read_says_that_the_connection_ends(served):
    """A client that sends its body after its headers would send its next request into a connection that is closed."""
    head = HEAD.replace(b"/echo", b"/none") + b"Content-Length: 2\r\n\r\n"
    with Wire(served[0], head) as wire:
        status, response = wire.response()
        assert (status, b"\r\nconnection: close\r\n" in response) == (404, True)
        wire.send(b"{}")
        assert wire.to_the_end() == b""


def test_a_client_that_does_not_read_is_dropped_and_its_stream_closed(hasty):
    port, plain, _ = hasty
    head = HEAD.replace(b"/echo", b"/stream") + b"X-Request-Id: deaf\r\nContent-Length: 14\r\n\r\n"
    with Wire(port, head + b"[1000, 100000]") as wire:
        assert plain.ended.get() == "deaf"
        num_bytes = len(wire.to_the_end())
    assert num_bytes < 100_000_000
    assert plain.ended.empty()


def test_connections_over_the_limit_are_refused(hasty):
    held = [Wire(hasty[0], b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(6)]
    statuses = [wire.response()[0] for wire in held]
    for wire in held:
        wire.sock.close()
    assert sorted(set(statuses)) == [200, 503]
    assert statuses.count(200) <= 4


def test_a_pipeline_is_served_in_order_and_has_an_end(served):
    port, _, _ = served
    one = b"GET /values/%d HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with Wire(
        port,
        b"".join(one % i for i in range(5)) + b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ) as wire:
        bodies = wire.to_the_end().split(b"\r\n\r\n")
    assert [part[:1] for part in bodies[1:6]] == [b"0", b"1", b"2", b"3", b"4"]
    with Wire(port, one % 1 * 100) as wire:
        assert wire.to_the_end().count(b"HTTP/1.1 200") < 100


def test_a_client_that_leaves_a_pipeline_ends_all_of_it(served):
    port, plain, app = served
    head = HEAD.replace(b"/echo", b"/stream") + b"X-Request-Id: %d\r\nContent-Length: 12\r\n\r\n[1000000, 1]"
    with Wire(port, head % 1 + head % 2) as wire:
        wire.sock.recv(100)
    assert plain.ended.get() == "1"
    wait_until(lambda: not app.num_open)
    assert plain.ended.empty()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (b"/health", 200),
        (b"http://elsewhere/health", 200),
        (b"/health?a=b", 200),
        (b"/values/org/name", 200),
        (b"/values/org%2Fname", 200),
        (b"//health", 404),
        (b"/health/", 404),
        (b"/./health", 404),
        (b"/x/../health", 404),
        (b"/%68ealth", 404),
        (b"/health%00", 404),
        (b"/health;a=b", 404),
        (b"/health%2f..", 404),
        (b"/HEALTH", 404),
        (b"/values/", 404),
        (b"/%76alues/a", 404),
        (b"\\health", 400),
    ],
)
def test_a_path_has_one_way_to_be_written(served, path, status):
    with Wire(served[0], b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n") as wire:
        assert wire.response()[0] == status


@pytest.mark.parametrize("host", [b"localhost", b"localhost:80", b"127.0.0.1:1", b"[::1]:8000", b"LOCALHOST"])
def test_a_server_without_keys_answers_under_the_names_of_its_machine(served, host):
    with Wire(served[0], b"GET /health HTTP/1.1\r\nHost: " + host + b"\r\n\r\n") as wire:
        assert wire.response()[0] == 200


@pytest.mark.parametrize("host", [b"evil.example", b"localhost.evil.example", b"127.0.0.1.evil.example", b"10.0.0.1"])
def test_a_server_without_keys_answers_under_no_other_name(served, host):
    """A page from elsewhere whose name was pointed at this machine would be read by its browser as the page's own."""
    with Wire(served[0], b"GET /health HTTP/1.1\r\nHost: " + host + b"\r\n\r\n") as wire:
        assert wire.response()[0] == 421
