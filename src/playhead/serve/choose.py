"""Where the engine of a server runs: in the server's process or in one of its own. No torch."""

from __future__ import annotations

from playhead.engine.config import EMBEDDED, EngineConfig
from playhead.serve.backend import Backend
from playhead.serve.config import Processes, ServeConfig
from playhead.serve.engine_child import has_own_process
from playhead.serve.limits import ServeLimits
from playhead.serve.remote import RemoteBackend


def backend_for(
    model: str = EMBEDDED,
    config: EngineConfig | None = None,
    limits: ServeLimits | None = None,
    *,
    processes: Processes = Processes.AUTO,
    name: str | None = None,
) -> Backend:
    """The backend that was asked for, or the one that suits the device. `start` loads the model."""
    if has_own_process(processes, config or EngineConfig()):
        return RemoteBackend(model, config, limits, name=name)
    from playhead.serve.local import LocalBackend  # brings torch, which the other kind does without

    return LocalBackend(model, config, limits, name=name)


def limits_of(config: ServeConfig) -> ServeLimits:
    """How many requests these settings let in, and for how long."""
    return ServeLimits(
        max_queued_requests=config.max_queued_requests,
        queue_timeout=config.queue_timeout,
        request_timeout=config.request_timeout,
    )
