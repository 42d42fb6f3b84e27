"""A server without a model, for tests of the transport alone."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from playhead.serve.app import Application
from playhead.serve.auth import KeyRing
from playhead.serve.backend import BackendState
from playhead.serve.call import Answer, Call, EventStream
from playhead.serve.config import ServeConfig
from playhead.serve.endpoint import Endpoint
from playhead.serve.operations import operations
from playhead.serve.recorder import Recorder
from tests.serve.listening import listening


class NoEngine:
    """The state of a backend, and nothing behind it."""

    def __init__(self) -> None:
        self.state = BackendState.READY

    async def start(self) -> None:
        return

    async def close(self) -> None:
        self.state = BackendState.DEAD


class Plain:
    """Endpoints that show what reached them. `ended` has the ids of streams that were closed, in that order."""

    def __init__(self) -> None:
        self.ended: queue.Queue[str] = queue.Queue()
        self.seen: list[bytes] = []
        self.more = asyncio.Event()

    async def echo(self, call: Call) -> Answer:
        self.seen.append(call.body)
        return Answer(body=call.body)

    async def value(self, call: Call) -> Answer:
        return Answer(body=call.path_value.encode(), headers={"X-Tenant": call.tenant.name})

    async def fail(self, call: Call) -> Answer:
        raise ValueError(f"the prompt was {call.body!r}")

    async def wait(self, call: Call) -> Answer:
        await self.more.wait()
        return Answer()

    async def stream(self, call: Call) -> EventStream:
        """As many events as the body says, each as long as it says: `[3, 10]`."""
        num_events, num_bytes = (int(part) for part in call.body.strip(b"[]").split(b","))

        async def events() -> AsyncIterator[bytes]:
            for _ in range(num_events):
                await asyncio.sleep(0)
                yield b"data: " + b"x" * num_bytes + b"\n\n"

        return EventStream(events=events(), close=lambda: self.ended.put(call.request_id))

    @property
    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(method="POST", path="/echo", answer=self.echo),
            Endpoint(method="POST", path="/fail", answer=self.fail),
            Endpoint(method="POST", path="/wait", answer=self.wait),
            Endpoint(method="POST", path="/stream", answer=self.stream),
            Endpoint(method="GET", path="/values/{name}", answer=self.value),
        ]


@contextmanager
def plain_server(keys: KeyRing | None = None, **settings: Any) -> Iterator[tuple[int, Plain, Application]]:
    """Its port, what its endpoints saw, and the application."""
    app, plain = plain_application(keys, **settings)
    with listening([app]) as made:
        yield made.ports[0], plain, app


def plain_application(keys: KeyRing | None = None, **settings: Any) -> tuple[Application, Plain]:
    """The application, and what its endpoints see."""
    app = Application(NoEngine(), keys or KeyRing([]), ServeConfig(port=0, **settings), Recorder())
    plain = Plain()
    app.serve([*operations(app.backend, lambda: app.is_draining), *plain.endpoints])
    return app, plain
