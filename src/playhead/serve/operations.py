"""Endpoints about the server itself: `/health`, `/ready`, `/version`. They answer whatever the engine does."""

from __future__ import annotations

import json
from collections.abc import Callable

from playhead import __version__
from playhead.serve.backend import Backend, BackendState
from playhead.serve.call import Answer, Call
from playhead.serve.endpoint import Endpoint


def operations(backend: Backend, is_draining: Callable[[], bool]) -> tuple[Endpoint, ...]:
    """The endpoints. `/health` asks whether to restart the server, `/ready` whether to send it requests."""

    async def health(call: Call) -> Answer:
        state = backend.state
        return status_of(state, is_good=state.is_alive)

    async def ready(call: Call) -> Answer:
        if is_draining():
            return status_of("draining", is_good=False)
        return status_of(backend.state, is_good=backend.state is BackendState.READY)

    async def version(call: Call) -> Answer:
        return Answer(body=json.dumps({"version": __version__}).encode())

    return (
        Endpoint(method="GET", path="/health", answer=health, is_public=True, needs_engine=False),
        Endpoint(method="GET", path="/ready", answer=ready, is_public=True, needs_engine=False),
        Endpoint(method="GET", path="/version", answer=version, needs_engine=False),
    )


def status_of(state: str, *, is_good: bool) -> Answer:
    """A state as a probe reads it: by the status code."""
    return Answer(status=200 if is_good else 503, body=json.dumps({"status": str(state)}).encode())
