"""Where the engine of a server runs: in the server's process or in one of its own. No torch."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from playhead.engine.config import EMBEDDED, EngineConfig
from playhead.env import hides_gpus
from playhead.serve.backend import Backend
from playhead.serve.limits import ServeLimits
from playhead.serve.remote import RemoteBackend

GPU_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


class EngineIn(StrEnum):
    """Where the engine runs."""

    AUTO = "auto"
    """In a process of its own on a GPU, in the server's on a CPU."""
    SERVER = "server"
    OWN_PROCESS = "own-process"


def backend_for(
    model: str = EMBEDDED,
    config: EngineConfig | None = None,
    limits: ServeLimits | None = None,
    *,
    engine_in: EngineIn = EngineIn.AUTO,
    name: str | None = None,
) -> Backend:
    """The backend that was asked for, or the one that suits the device. `start` loads the model."""
    if engine_in is EngineIn.AUTO:
        engine_in = EngineIn.OWN_PROCESS if wants_gpu(config or EngineConfig()) else EngineIn.SERVER
    if engine_in is EngineIn.OWN_PROCESS:
        return RemoteBackend(model, config, limits, name=name)
    from playhead.serve.local import LocalBackend  # brings torch, which the other kind does without

    return LocalBackend(model, config, limits, name=name)


def wants_gpu(config: EngineConfig) -> bool:
    """Whether the engine is to run on a GPU, told without torch: a wrong guess costs speed and nothing else."""
    if config.device != "auto":
        return config.device.startswith("cuda")
    return not hides_gpus() and any(path.exists() for path in GPU_FILES)
