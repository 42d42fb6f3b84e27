"""One server with the embedded model for all tests of this directory; what tests of backends share, per module."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playhead.llm import LLM
    from tests.serve.backends import HandClock
    from tests.serve.running import Running

# Imports are inside the fixtures: many tests here need no model.


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """A server in a thread: `server.url`, and `server.locked_url`, which wants an API key."""
    from tests.serve.running import running

    with running() as made:
        yield made


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """What every backend must agree with."""
    from playhead.llm import LLM
    from tests.serve.backends import CONFIG

    with LLM("embedded", CONFIG) as made:
        yield made


@pytest.fixture(scope="module")
def clock() -> HandClock:
    from tests.serve.backends import HandClock

    return HandClock()


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    """The server's kind of event loop: its transports are none of asyncio's classes."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield runner
