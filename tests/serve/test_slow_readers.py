"""Clients that read slowly get their whole answer; those that stop reading are dropped. Nothing listens here."""

from __future__ import annotations

import asyncio

import pytest
from uvicorn.server import ServerState

from playhead.serve.guard import LINGER_S, Connection, GuardedConfig
from playhead.serve.run import Server
from playhead.testing.transport_mutants import SlowClient
from tests.serve.plain import plain_application

SEND_S = 30.0


def connected(client, state=None, *, is_closed=False):
    app, _ = plain_application(send_timeout=SEND_S)
    connection = Connection(GuardedConfig(app, app.config), state or ServerState(), {}, asyncio.get_running_loop())
    connection.connection_made(client)
    if is_closed:
        connection.tap.close()
    return connection


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_client_that_goes_on_reading_is_never_dropped(is_closed):
    async def read():
        client = SlowClient(1000, reads=10)
        connection = connected(client, is_closed=is_closed)
        now = asyncio.get_running_loop().time()
        for i in range(99):
            connection.sweep(now + i * SEND_S)
            assert not client.is_cut_off
        return client.num_unsent

    assert asyncio.run(read()) == 10


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_client_that_stops_reading_is_dropped(is_closed):
    async def stop():
        client = SlowClient(1000, reads=10)
        connection = connected(client, is_closed=is_closed)
        now = asyncio.get_running_loop().time()
        connection.sweep(now)
        client.reads = 0
        connection.sweep(now + SEND_S - 1)
        was_cut_off = client.is_cut_off
        connection.sweep(now + SEND_S + 1)
        return was_cut_off, client.is_cut_off

    assert asyncio.run(stop()) == (False, True)


def test_a_client_that_has_read_everything_has_a_moment_to_close():
    async def close():
        client = SlowClient(10)
        connection = connected(client)
        connection.tap.close()
        now = asyncio.get_running_loop().time()
        connection.sweep(now)
        client.reads = 10
        connection.sweep(now + LINGER_S + 1)
        was_cut_off = client.is_cut_off
        connection.sweep(now + 2 * LINGER_S + 2)
        return was_cut_off, client.is_cut_off

    assert asyncio.run(close()) == (False, True)


def test_a_server_that_drains_waits_for_who_reads_slowly():
    """The answer was made before the signal: no request is open, and the client has not read all of it."""
    client = SlowClient(100, reads=20)

    async def drain():
        app, _ = plain_application()
        server, unread = Server(app), []
        server.servers = []
        connected(client, server.server_state)

        async def close():
            unread.append(client.num_unsent)

        app.backend.close = close
        await server.shutdown()
        return unread

    assert asyncio.run(drain()) == [0]
