"""One server with the embedded model for all tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.serve.running import Running


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """A server in a thread: `server.url`, and `server.locked_url`, which wants an API key."""
    from tests.serve.running import running  # many tests here need no model

    with running() as made:
        yield made
