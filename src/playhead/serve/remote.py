"""An engine in a process of its own. On a GPU this is the default: beside busy Python a step would take far longer.

Tokenizer, chat template, stop strings and texts are here; torch is not. A process that dies is started again once:
requests of which no token has come run again, the others end with `EngineStopped`. After `HEALTHY_S` without a death it
may die once more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence

from playhead.engine.config import EMBEDDED, EngineConfig
from playhead.engine.front import CheckedPrompt, RequestOptions
from playhead.engine.snapshot import EngineSnapshot
from playhead.errors import EngineStopped, PlayheadError
from playhead.logs import event
from playhead.serve import wire
from playhead.serve.backend import BackendScrape, BackendState
from playhead.serve.engine_child import EngineChild, start_child
from playhead.serve.limits import Clock, ServeLimits
from playhead.serve.remote_engine import RemoteEngine
from playhead.serve.remote_front import RemoteFront
from playhead.serve.remote_reader import RemoteReader
from playhead.serve.remote_stream import RemoteStream, Sample

LOG = logging.getLogger(__name__)
HEALTHY_S = 600.0


class RemoteBackend(RemoteFront):
    """A `Backend` over an engine's process. `name` is what clients call the model; the model's own name if left out."""

    def __init__(
        self,
        model: str = EMBEDDED,
        config: EngineConfig | None = None,
        limits: ServeLimits | None = None,
        *,
        name: str | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(limits or ServeLimits(), clock)
        self._config = config or EngineConfig()
        self._begin = wire.Begin(model, wire.config_fields(self._config), name)
        self._state = BackendState.STARTING
        self._child: EngineChild | None = None
        self._engine: RemoteEngine | None = None
        self._restarted_s: float | None = None
        self.num_restarts = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def state(self) -> BackendState:
        is_stuck = self._state is BackendState.READY and self._engine is not None and self._engine.is_stuck
        return BackendState.WEDGED if is_stuck else self._state

    @property
    def pid(self) -> int | None:
        """The engine's process. None while there is none."""
        return None if self._engine is None else self._engine.pid

    def adopt(self, child: EngineChild) -> None:
        """Load the model in this process, which was started already."""
        self._child = child

    async def start(self) -> None:
        """Start the process and wait until its model is loaded. What the model's files are refused for is raised."""
        try:
            self._model = await RemoteReader.beside(self._load(), self._begin.model, self._config)
        except BaseException:
            await self.close()
            raise
        self._state = BackendState.READY
        self._keep(self._keep_checking())

    def submit(self, request_id: str, checked: CheckedPrompt, options: RequestOptions) -> RemoteStream:
        """Queue a request, or `QueueFull` or `EngineStopped`."""
        if self._state is not BackendState.READY or self._engine is None:
            raise EngineStopped(f"request {request_id!r}")
        stream = self._queue(request_id, checked, options)
        for sample in stream.samples:
            self._engine.run(sample)
        return stream

    @property
    def num_sequences(self) -> int:
        return 0 if self._engine is None else len(self._engine.samples)

    @property
    def num_engines(self) -> int:
        return 1

    @property
    def most_engines(self) -> int:
        return 1

    async def snapshot(self, *, after_step: int = 0) -> EngineSnapshot:
        """The engine between two steps."""
        if self._engine is None:
            raise EngineStopped("engine")
        return await self._engine.snapshot(after_step)

    async def scrape(self) -> BackendScrape:
        return BackendScrape(snapshots={"": await self.snapshot()})

    def check(self) -> None:
        self._lifetimes.check()
        if self._engine is not None:
            self._engine.check()

    async def close(self) -> None:
        """End the process. A second call does nothing."""
        self._state = BackendState.DEAD
        for task in self._tasks:
            task.cancel()
        self._fail(self._streams.values())
        if self._engine is not None:
            await self._engine.end()
        if self._model is not None:
            self._model.reader.close()

    # The process.

    async def _load(self) -> wire.Ready:
        """Start a process and wait until it is ready."""
        last = None if self._engine is None else self._engine.last_snapshot
        self._engine = RemoteEngine(self, self._limits, self._clock)
        self._engine.last_snapshot = last
        child, self._child = self._child or start_child(self._config), None
        return await self._engine.load(child, self._begin)

    def on_lost(self, engine: RemoteEngine) -> None:
        """The process has died."""
        event(LOG, logging.ERROR, "engine process died", requests=len(self._streams))
        now, last = self._clock(), self._restarted_s
        if last is not None and now - last < HEALTHY_S:
            self._state = BackendState.DEAD
            self._fail(self._streams.values())
            self._keep(engine.end())
            return
        self._restarted_s, self._state = now, BackendState.RESTARTING
        self._fail([stream for stream in self._streams.values() if stream.has_begun])
        self._keep(self._restart(engine))

    async def _restart(self, dead: RemoteEngine) -> None:
        """Start another process, and give it the requests of which no token had come."""
        await dead.end()
        try:
            await self._load()
        except (PlayheadError, OSError):  # or there is no process, or no descriptor, to be had
            self._state = BackendState.DEAD
            self._fail(self._streams.values())
            return
        self._state = BackendState.READY
        self.num_restarts += 1
        assert self._engine is not None, "it was loaded"
        for stream in self._streams.values():
            for sample in stream.samples:
                sample.interrupted()
                self._engine.run(sample)

    # Requests.

    def _abort(self, samples: Sequence[Sample]) -> None:
        if self._engine is not None:
            self._engine.abort(samples)
        self._forget([sample.stream for sample in samples])

    def on_ended(self, engine: RemoteEngine, sample: Sample) -> None:
        self._forget([sample.stream])

    def _is_running(self, sample: Sample) -> bool:
        return self._engine is not None and sample.number in self._engine.samples

    # Tasks.

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
