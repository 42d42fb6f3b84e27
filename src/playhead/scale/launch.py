"""Where the engines of replicas run: what a fleet asks of it, and processes of this machine. No torch."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from playhead.engine.config import EngineConfig
from playhead.errors import ConfigError
from playhead.serve.engine_child import EngineChild, start_child, wants_gpu
from playhead.serve.link import EngineHost

DEVICES = Path("/dev")
GPU_FILE = re.compile(r"nvidia\d+")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Launched:
    """A process that waits for its first message, and the settings of the engine that it is to load."""

    host: EngineHost
    config: EngineConfig


class Launcher(Protocol):
    """Starts processes for engines, here or elsewhere."""

    async def launch(self) -> Launched:
        """Start one process. What keeps it from starting is raised as `PlayheadError`."""

    async def close(self) -> None:
        """There will be no more. Processes that were started end with their sockets."""


class LocalLauncher:
    """Children of this process. On a machine with GPUs each has its own, one per rank; a lost one's are used again."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._has_gpus = wants_gpu(config)
        self._of_gpu: dict[int, EngineChild | None] = {}
        """Who has a GPU. None: a process that is being started."""

    async def launch(self) -> Launched:
        if not self._has_gpus:
            return Launched(host=await started(self._config), config=self._config)
        gpu = self._first_free_gpu()
        config = replace(self._config, device=f"cuda:{gpu}")
        self._of_gpu[gpu] = None  # at once: replicas are launched together, and the next one must not find it free
        try:
            child = self._of_gpu[gpu] = await started(config)
        except BaseException:
            del self._of_gpu[gpu]
            raise
        return Launched(host=child, config=config)

    async def close(self) -> None:
        pass  # the children end with their sockets

    def _first_free_gpu(self) -> int:
        """The first of as many GPUs in a row as a replica has ranks."""
        there = sum(1 for path in DEVICES.iterdir() if GPU_FILE.fullmatch(path.name)) or 1
        num_ranks = self._config.tensor_parallel_size
        for gpu in range(0, there - num_ranks + 1, num_ranks):
            if gpu not in self._of_gpu:
                return gpu
            child = self._of_gpu[gpu]
            if child is not None and child.process.poll() is not None:
                return gpu
        raise ConfigError(f"replicas: each needs {num_ranks} of {there} GPUs, and not enough are free. Ask for fewer.")


async def started(config: EngineConfig) -> EngineChild:
    """A child, started beside the event loop. If the caller is cancelled meanwhile, the child ends."""
    starting = asyncio.ensure_future(asyncio.to_thread(start_child, config))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        child = await starting
        await asyncio.to_thread(child.discard)
        raise
