"""Where the engine of a server runs: in the server's process or in one of its own. No torch."""

from __future__ import annotations

from pathlib import Path

from playhead.engine.config import EMBEDDED, EngineConfig
from playhead.env import hides_gpus
from playhead.serve.backend import Backend
from playhead.serve.config import Processes
from playhead.serve.limits import ServeLimits
from playhead.serve.remote import RemoteBackend

GPU_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


def backend_for(
    model: str = EMBEDDED,
    config: EngineConfig | None = None,
    limits: ServeLimits | None = None,
    *,
    processes: Processes = Processes.AUTO,
    name: str | None = None,
) -> Backend:
    """The backend that was asked for, or the one that suits the device. `start` loads the model."""
    if processes is Processes.AUTO:
        processes = Processes.TWO if wants_gpu(config or EngineConfig()) else Processes.ONE
    if processes is Processes.TWO:
        return RemoteBackend(model, config, limits, name=name)
    from playhead.serve.local import LocalBackend  # brings torch, which the other kind does without

    return LocalBackend(model, config, limits, name=name)


def wants_gpu(config: EngineConfig) -> bool:
    """Whether the engine is to run on a GPU, told without torch: a wrong guess costs speed and nothing else."""
    if config.device != "auto":
        return config.device.startswith("cuda")
    return not hides_gpus() and any(path.exists() for path in GPU_FILES)
