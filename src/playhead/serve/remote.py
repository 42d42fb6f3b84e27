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
from playhead.engine.front import CheckedPrompt, PromptReader, RequestOptions
from playhead.engine.snapshot import EngineSnapshot
from playhead.errors import EngineStopped, PlayheadError, QueueFull, RequestError
from playhead.logs import event
from playhead.serve import wire
from playhead.serve.backend import BackendScrape, BackendState, ModelFacts
from playhead.serve.engine_child import EngineChild, start_child
from playhead.serve.limits import CHECK_S, Clock, Lifetimes, ServeLimits
from playhead.serve.remote_engine import RemoteEngine
from playhead.serve.remote_reader import RemoteReader
from playhead.serve.remote_stream import RemoteStream, Sample

LOG = logging.getLogger(__name__)
HEALTHY_S = 600.0


class RemoteBackend:
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
        self._config, self._limits, self._clock = config or EngineConfig(), limits or ServeLimits(), clock
        self._begin = wire.Begin(model, wire.config_fields(self._config), name)
        self._lifetimes = Lifetimes(self._limits, clock)
        self._state = BackendState.STARTING
        self._child: EngineChild | None = None
        self._engine: RemoteEngine | None = None
        self._model: RemoteReader | None = None
        self._streams: dict[str, RemoteStream] = {}
        self._next_number = 1
        self._restarted_s: float | None = None
        self.num_restarts = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def state(self) -> BackendState:
        is_stuck = self._state is BackendState.READY and self._engine is not None and self._engine.is_stuck
        return BackendState.WEDGED if is_stuck else self._state

    @property
    def facts(self) -> ModelFacts:
        assert self._model is not None, "facts are known once start has returned"
        return self._model.facts

    @property
    def reader(self) -> PromptReader:
        assert self._model is not None, "the reader is known once start has returned"
        return self._model.reader

    @property
    def retry_after_s(self) -> int:
        return self._lifetimes.retry_after_s

    @property
    def pid(self) -> int | None:
        """The engine's process. None while there is none."""
        return None if self._engine is None else self._engine.pid

    def adopt(self, child: EngineChild) -> None:
        """Load the model in this process, which was started already."""
        self._child = child

    async def start(self) -> None:
        """Start the process and wait until its model is loaded. What the model's files are refused for is raised."""
        early = RemoteReader.early(self._begin.model, self._config)
        try:
            ready = await self._load()
        except BaseException:
            await self.close()
            raise
        self._model = await RemoteReader.of(ready, self._config, early)
        self._state = BackendState.READY
        self._keep(self._keep_checking())

    def submit(self, request_id: str, checked: CheckedPrompt, options: RequestOptions) -> RemoteStream:
        """Queue a request, or `QueueFull` or `EngineStopped`."""
        where = f"request {request_id!r}"
        if self._state is not BackendState.READY or self._engine is None:
            raise EngineStopped(where)
        if request_id in self._streams:
            raise RequestError(where, "an id in use", "a new id", "Wait for the other to end.")
        self._check_room(where, checked.params.n)
        stream = RemoteStream(request_id, checked, options, abort=self._abort)
        stream.add_samples(self._next_number, self.reader)
        self._next_number += len(stream.samples)
        self._streams[request_id] = stream
        self._lifetimes.add(stream)
        for sample in stream.samples:
            self._engine.run(sample)
        return stream

    def check_room(self) -> None:
        self._check_room("request", 1)

    def _check_room(self, where: str, num_more: int) -> None:
        num_there, most = self._num_samples, self._limits.max_requests(self.facts.max_running)
        if num_there and num_there + num_more > most:
            raise QueueFull.of(where, num_there, num_more, most)

    @property
    def _num_samples(self) -> int:
        return 0 if self._engine is None else len(self._engine.samples)

    async def snapshot(self, *, after_step: int = 0) -> EngineSnapshot:
        """The engine between two steps."""
        if self._engine is None:
            raise EngineStopped("engine")
        return await self._engine.snapshot(after_step)

    async def scrape(self) -> BackendScrape:
        return BackendScrape(snapshots={"": await self.snapshot()})

    def check(self) -> None:
        """End requests that are past a limit, and look whether the engine gets on. A timer does this."""
        self._lifetimes.check()
        if self._engine is not None:
            self._engine.check()

    async def close(self) -> None:
        """End the process. A second call does nothing."""
        self._state = BackendState.DEAD
        for task in self._tasks:
            task.cancel()
        self._fail_streams(list(self._streams.values()))
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
            self._fail_streams(list(self._streams.values()))
            self._keep(engine.end())
            return
        self._restarted_s, self._state = now, BackendState.RESTARTING
        self._fail_streams([stream for stream in self._streams.values() if stream.has_begun])
        self._keep(self._restart(engine))

    async def _restart(self, dead: RemoteEngine) -> None:
        """Start another process, and give it the requests of which no token had come."""
        await dead.end()
        try:
            await self._load()
        except PlayheadError:
            self._state = BackendState.DEAD
            self._fail_streams(list(self._streams.values()))
            return
        self._state = BackendState.READY
        self.num_restarts += 1
        assert self._engine is not None, "it was loaded"
        for stream in self._streams.values():
            for sample in stream.samples:
                self._engine.run(sample)

    def _fail_streams(self, streams: Sequence[RemoteStream]) -> None:
        for stream in streams:
            stream.give_up(EngineStopped(f"request {stream.request_id!r}"))

    # Requests.

    def _abort(self, samples: Sequence[Sample]) -> None:
        """Nobody wants these sequences any more."""
        if self._engine is not None:
            self._engine.abort(samples)
        self._forget([sample.stream for sample in samples])

    def on_ended(self, engine: RemoteEngine, sample: Sample) -> None:
        self._forget([sample.stream])

    def _forget(self, streams: Sequence[RemoteStream]) -> None:
        """Free the ids of requests of which nothing runs any more."""
        for stream in streams:
            running = () if self._engine is None else self._engine.samples
            is_running = any(sample.number in running for sample in stream.samples)
            if not is_running and self._streams.get(stream.request_id) is stream:
                del self._streams[stream.request_id]

    # Tasks.

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            self.check()
