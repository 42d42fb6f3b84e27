"""What probes are told: whether to restart the server, and whether to send it requests."""

from __future__ import annotations

import asyncio

import pytest

from playhead.serve.backend import BackendState
from playhead.serve.call import Call, Tenant
from playhead.serve.operations import operations
from tests.serve.plain import NoEngine


def probed(state, *, is_draining=False):
    """The statuses of `/health` and `/ready`."""
    backend = NoEngine()
    backend.state = state
    endpoints = {one.path: one for one in operations(backend, lambda: is_draining)}
    call = Call(request_id="r", tenant=Tenant())
    return tuple(asyncio.run(endpoints[path].answer(call)).status for path in ("/health", "/ready"))


@pytest.mark.parametrize(
    ("state", "statuses"),
    [
        (BackendState.STARTING, (200, 503)),
        (BackendState.READY, (200, 200)),
        (BackendState.WEDGED, (503, 503)),
        (BackendState.RESTARTING, (200, 503)),
        (BackendState.DEAD, (503, 503)),
    ],
)
def test_a_probe_is_told_how_the_engine_is(state, statuses):
    """Whoever ended a server that is replacing its engine would end the requests that wait for the next one."""
    assert probed(state) == statuses
    assert probed(state, is_draining=True) == (statuses[0], 503)
