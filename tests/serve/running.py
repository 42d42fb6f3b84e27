"""A server with the embedded model in a thread of the test's own process: a test can look at the engine behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from playhead.engine.config import EngineConfig
from playhead.scale.build import replicated_backend
from playhead.scale.replicas import ReplicatedBackend
from playhead.serve.app import Application
from playhead.serve.assemble import make_application
from playhead.serve.auth import KeyRing, NamedKey
from playhead.serve.config import ServeConfig
from playhead.serve.limits import ServeLimits
from playhead.serve.local import LocalBackend
from tests.serve.listening import listening, wait_until

ENGINE = EngineConfig(max_model_len=256, max_num_seqs=4, max_num_batched_tokens=64, kv_memory_bytes=1 << 24, seed=3)
KEYS = {"alice": "alice-0123456789abcdef", "bob": "bob-0123456789abcdef01"}
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server that answers on 127.0.0.1. `locked_port` wants one of `KEYS`; both have the same engine."""

    port: int
    locked_port: int
    apps: list[Application]
    backend: LocalBackend | ReplicatedBackend
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def locked_url(self) -> str:
        return f"http://127.0.0.1:{self.locked_port}"

    def wait_until_idle(self) -> None:
        """Return when no request is with the server or the engine."""
        wait_until(lambda: not self.num_open and not self.has_work)

    @property
    def has_work(self) -> bool:
        if isinstance(self.backend, ReplicatedBackend):
            return self.backend.num_sequences > 0
        return self.backend.engine.has_work

    @property
    def num_open(self) -> int:
        return sum(app.num_open for app in self.apps)

    def on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run this where the server runs."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()


@contextmanager
def running(engine: EngineConfig = ENGINE, limits: ServeLimits | None = None, **settings: Any) -> Iterator[Running]:
    """Two servers over one engine, one without keys and one with. `settings` are those of `ServeConfig`."""
    config = ServeConfig(port=0, **settings)
    if config.has_replicas:
        backend = replicated_backend(config, engine, limits)
    else:
        backend = LocalBackend(config.model, engine, limits, name=config.served_model_name)
    keys = KeyRing([NamedKey(name=name, key=key, where=name) for name, key in KEYS.items()])
    apps = [make_application(backend, ring, config) for ring in (KeyRing([]), keys)]
    with listening(apps) as made:
        port, locked_port = made.ports
        yield Running(port=port, locked_port=locked_port, apps=apps, backend=backend, loop=made.loop)
