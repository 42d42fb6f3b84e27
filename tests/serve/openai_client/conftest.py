"""Every case runs with the sync and the async client of `openai`, against the embedded model and against SmolLM2.

A slice runs in the suite; PLAYHEAD_SERVE=full runs all. SmolLM2 needs PLAYHEAD_SMOLLM2_GGUF. With
PLAYHEAD_SERVE_BEHIND=replicas or =ray the embedded model is served by two replicas, of this machine or of Ray.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.serve.openai_client.asking import Asking
    from tests.serve.running import Running

SMOLLM2 = os.environ.get("PLAYHEAD_SMOLLM2_GGUF", "")
IS_FULL = os.environ.get("PLAYHEAD_SERVE") == "full"
BEHIND = os.environ.get("PLAYHEAD_SERVE_BEHIND", "")
SLICE = 10
MODELS = [
    "embedded",
    *([pytest.param(SMOLLM2, id="smollm2", marks=pytest.mark.real)] if SMOLLM2 and IS_FULL else []),
]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one case in ten. Which ones depends on their names alone."""
    if IS_FULL:
        return
    here = os.path.dirname(__file__)
    others = [one for one in items if not str(one.path).startswith(here)]
    mine = [one for one in items if str(one.path).startswith(here)]
    kept = [one for one in mine if zlib.crc32(one.name.encode()) % SLICE == 0]
    if len(mine) > SLICE:  # a case that is asked for by its name runs
        config.hook.pytest_deselected(items=[one for one in mine if one not in kept])
        items[:] = [*others, *kept]


@pytest.fixture(scope="session", params=MODELS)
def served(request: pytest.FixtureRequest) -> Iterator[Running]:
    """The server that the clients speak with."""
    if request.param == "embedded" and not BEHIND:
        yield request.getfixturevalue("server")
        return
    if BEHIND:
        from tests.serve.running import running

        with running(replicas=2, ray=BEHIND == "ray", max_queued_requests=12) as made:  # as many as one holds
            yield made
        return
    from playhead.engine.config import EngineConfig
    from tests.serve.running import running

    engine = EngineConfig(max_model_len=512, max_num_seqs=4, seed=3)
    with running(engine, model=request.param, served_model_name="smollm2") as made:
        yield made


@pytest.fixture(params=["sync", "async"])
def ask(served: Running, request: pytest.FixtureRequest) -> Iterator[Asking]:
    """A client without retries."""
    from tests.serve.openai_client.asking import Asking

    made = Asking(served.url, served.backend.facts.name, request.param)
    yield made
    made.close()
