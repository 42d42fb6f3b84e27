"""An engine in the server's own process: steps run in a thread, beside the event loop.

On a CPU this is the default: a step takes many times as long as the Python work of the HTTP side.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

from playhead.engine.async_engine import AsyncEngine
from playhead.engine.build import build_engine
from playhead.engine.config import EMBEDDED, EngineConfig
from playhead.engine.engine import Engine
from playhead.engine.front import CheckedPrompt, PromptReader, RequestOptions
from playhead.engine.serving import TicketStream, WhenFull
from playhead.engine.snapshot import EngineSnapshot, take_snapshot
from playhead.errors import EngineStopped, PlayheadError
from playhead.outputs import RequestOutput
from playhead.serve.backend import BackendScrape, BackendState, ModelFacts
from playhead.serve.facts import facts_of
from playhead.serve.limits import CHECK_S, SNAPSHOT_S, Clock, Lifetimes, Pulse, ServeLimits


def cpu_s_of(thread: threading.Thread | None) -> float:
    """Seconds of a processor that a thread of this process has used, as Linux counts them; 0 where nobody counts."""
    if thread is None:
        return 0.0
    try:
        line = Path(f"/proc/self/task/{thread.native_id}/stat").read_bytes()
    except OSError:  # it has ended, or this is not Linux
        return 0.0
    fields = line.rpartition(b")")[2].split()  # the name before may have anything in it
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class LocalStream:
    """One request's outputs, and its end."""

    def __init__(self, stream: TicketStream) -> None:
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self._stream

    @property
    def request_id(self) -> str:
        return self._stream.ticket.request_id

    @property
    def has_begun(self) -> bool:
        return self._stream.ticket.has_begun

    @property
    def is_over(self) -> bool:
        return self._stream.is_over or self._stream.ticket.is_done

    def give_up(self, error: PlayheadError) -> None:
        self._stream.give_up(error)

    def close(self) -> None:
        """Abort the request unless it has ended."""
        self._stream.close()


class LocalBackend:
    """A `Backend` over an `AsyncEngine`. `name` is what clients call the model; the model's own name if left out."""

    def __init__(
        self,
        model: str = EMBEDDED,
        config: EngineConfig | None = None,
        limits: ServeLimits | None = None,
        *,
        name: str | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._model, self._config, self._limits, self._name = model, config, limits or ServeLimits(), name
        self._lifetimes, self._pulse = Lifetimes(self._limits, clock), Pulse(self._limits, clock)
        self._engine: AsyncEngine | None = None
        self._facts: ModelFacts | None = None
        self._last_snapshot: EngineSnapshot | None = None
        self._timer: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def engine(self) -> Engine:
        """The engine underneath, once `start` has returned."""
        return self._served.engine

    @property
    def state(self) -> BackendState:
        if self._is_closed:
            return BackendState.DEAD
        if self._engine is None:
            return BackendState.STARTING
        if not self._engine.is_running:
            return BackendState.DEAD
        return BackendState.WEDGED if self._pulse.is_stuck else BackendState.READY

    @property
    def facts(self) -> ModelFacts:
        if self._facts is None:
            raise EngineStopped("engine")
        return self._facts

    @property
    def reader(self) -> PromptReader:
        return self.engine.reader

    @property
    def max_sequences(self) -> int:
        return self._limits.max_requests(self.facts.max_running)

    @property
    def retry_after_s(self) -> int:
        return self._lifetimes.retry_after_s

    @property
    def num_restarts(self) -> int:
        """None: an engine in this process dies with it."""
        return 0

    async def start(self) -> None:
        """Load the model, beside the event loop, and start the thread that runs its steps."""
        engine = await asyncio.to_thread(build_engine, self._model, self._config)
        max_running = engine.worker.config.limits.max_running
        max_queued = self._limits.max_requests(max_running) - max_running
        served = AsyncEngine.of(engine, max_queued_requests=max_queued, when_full=WhenFull.REFUSE)
        self._last_snapshot, self._facts = take_snapshot(engine), facts_of(engine, self._name)
        await served.start()
        self._engine = served
        self._timer = asyncio.create_task(self._keep_checking())

    def submit(self, request_id: str, checked: CheckedPrompt, options: RequestOptions) -> LocalStream:
        """Queue a request, or `QueueFull` or `EngineStopped`."""
        if self._engine is None or self._is_closed:
            raise EngineStopped(f"request {request_id!r}")
        stream = LocalStream(self._engine.submit(request_id, checked, options))
        self._lifetimes.add(stream)
        self._pulse.saw(self.engine.stats.num_steps, has_work=True)
        return stream

    def check_room(self) -> None:
        if self._engine is not None:
            self._engine.check_room()

    async def snapshot(self, *, after_step: int = 0) -> EngineSnapshot:
        """The engine between two steps."""
        asked = asyncio.ensure_future(self._served.between_steps(lambda engine: take_snapshot(engine, after_step)))
        await asyncio.wait({asked}, timeout=SNAPSHOT_S)
        if asked.done():
            self._last_snapshot = asked.result()
        else:
            asked.add_done_callback(lambda late: late.cancelled() or late.exception())  # nobody waits for it
        assert self._last_snapshot is not None, "start has made the first"
        return self._last_snapshot

    async def scrape(self) -> BackendScrape:
        return BackendScrape(snapshots={"": await self.snapshot()})

    def check(self) -> None:
        """End requests that are past a limit, and look whether the engine gets on. A timer does this."""
        self._lifetimes.check()
        served = self._served
        self._pulse.saw(served.stats.num_steps, has_work=served.has_requests)
        worker = served.engine.worker
        if worker.device.type == "cpu":
            self._pulse.used(cpu_s_of(served.engine.use.served_by))
        if worker.is_capturing:
            self._pulse.beat()

    async def close(self) -> None:
        """Stop after the step under way, and give all memory back. A second call does nothing."""
        served, self._engine, self._is_closed = self._engine, None, True
        if self._timer is not None:
            self._timer.cancel()
        if served is not None:
            engine = served.engine
            await served.close()
            served.shutdown()
            engine.close()

    @property
    def _served(self) -> AsyncEngine:
        if self._engine is None:
            raise EngineStopped("engine")
        return self._engine

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            self.check()
