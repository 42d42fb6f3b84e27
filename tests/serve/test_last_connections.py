"""The end of a server with clients that stay connected."""

from __future__ import annotations

from tests.serve.listening import Wire
from tests.serve.plain import plain_server


def test_a_client_that_does_not_leave_is_cut_off_when_the_server_ends():
    """Its connection would keep the event loop, and with it the process, from ending."""
    with plain_server() as (port, *_):
        wire = Wire(port, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        status, _ = wire.response()
    with wire:
        assert (status, wire.to_the_end()) == (200, b"")
