"""A backend of several engines: each request goes to one of them, and on to another if that one dies. No torch.

    submit -> router (longest known prefix, then load) -> an engine's socket -> one frame per step back
    an engine is lost -> prompt and output so far -> another engine; the client sees a pause

The HTTP side has every token that it has shown, and an engine takes up a sequence from any token on. So nothing that
was accepted is lost with an engine, and no token differs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from playhead.engine.front import CheckedPrompt, RequestOptions
from playhead.engine.seeds import seed_of
from playhead.engine.snapshot import EngineSnapshot
from playhead.errors import EnginesLost, EngineStopped
from playhead.logs import event
from playhead.scale.fleet import Fleet, FleetConfig
from playhead.scale.launch import Launcher
from playhead.scale.router import Loads, Router, page_keys
from playhead.serve import wire
from playhead.serve.backend import BackendScrape, BackendState
from playhead.serve.limits import Clock, ServeLimits
from playhead.serve.remote_engine import RemoteEngine
from playhead.serve.remote_front import RemoteFront
from playhead.serve.remote_reader import RemoteReader
from playhead.serve.remote_stream import RemoteStream, Sample

LOG = logging.getLogger(__name__)


class ReplicatedBackend(RemoteFront):
    """A `Backend` over a fleet of engines. `begin` says what each of them loads."""

    def __init__(
        self,
        launcher: Launcher,
        begin: wire.Begin,
        limits: ServeLimits,
        config: FleetConfig,
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(limits, clock)
        self._begin, self._max_retries = begin, config.max_retries
        self._engine_config = wire.config_of(begin.config)
        self.fleet = Fleet(launcher, begin, limits, config, clock)
        self.router, self._loads = Router(), Loads()
        self._ready: wire.Ready | None = None
        self._engine_of: dict[int, RemoteEngine] = {}
        self._homeless: dict[int, Sample] = {}  # sequences that no engine can take now
        self._losses: Counter[int] = Counter()  # engines that were lost while they had a sequence
        self.num_moved = 0
        self._is_closed = False
        self._timer: asyncio.Task[None] | None = None

    @property
    def state(self) -> BackendState:
        if self._is_closed or self.fleet.is_hopeless:
            return BackendState.DEAD
        if self._model is None:
            return BackendState.STARTING
        engines = self.fleet.engines.values()
        if not engines:
            return BackendState.RESTARTING
        return BackendState.WEDGED if all(engine.is_stuck for engine in engines) else BackendState.READY

    @property
    def num_restarts(self) -> int:
        """Engines that were started after the first ones."""
        return self.fleet.counts.num_started_later

    async def start(self) -> None:
        """Start the engines and wait until all have loaded the model."""
        self._timer = asyncio.create_task(self._keep_checking())  # an engine may be lost while it loads
        try:
            self._model = await RemoteReader.beside(self._load(), self._begin.model, self._engine_config)
        except BaseException:
            await self.close()
            raise

    async def _load(self) -> wire.Ready:
        await self.fleet.start(self)
        assert self._ready is not None, "an engine has joined"
        return self._ready

    def submit(self, request_id: str, checked: CheckedPrompt, options: RequestOptions) -> RemoteStream:
        """Queue a request, or `QueueFull` or `EngineStopped`. While no engine is there, it waits for one."""
        if self.state in (BackendState.DEAD, BackendState.STARTING):
            raise EngineStopped(f"request {request_id!r}")
        stream = self._queue(request_id, checked, options)
        for sample in stream.samples:
            # Every engine that takes the sequence up must draw with the same seed.
            if sample.request.params.seed is None:
                seed = seed_of(self._engine_config.seed, sample.number)
                sample.request.params = replace(sample.request.params, seed=seed)
        self._place(stream.samples)
        return stream

    @property
    def num_sequences(self) -> int:
        return len(self._engine_of) + len(self._homeless)

    @property
    def num_engines(self) -> int:
        return max(1, len(self.fleet.engines))

    @property
    def most_engines(self) -> int:
        return self.fleet.config.most_replicas

    async def snapshot(self, *, after_step: int = 0) -> EngineSnapshot:
        """The engine that has served longest: steps and pages of several cannot be shown as one's."""
        engine = next(iter(self.fleet.engines.values()), None)
        if engine is None:
            raise EngineStopped("engine")
        return await engine.snapshot(after_step)

    async def scrape(self) -> BackendScrape:
        """All engines that serve or drain, asked at once."""
        fleet = self.fleet
        engines = [*fleet.engines.values(), *fleet.draining.values()]
        found = await asyncio.gather(*(engine.snapshot() for engine in engines))
        return BackendScrape(
            snapshots={engine.name: snapshot for engine, snapshot in zip(engines, found, strict=True)},
            replicas={"serving": len(fleet.engines), "starting": fleet.num_starting, "draining": len(fleet.draining)},
            routed={str(reason): count for reason, count in self.router.num_chosen.items()},
            num_moved=self.num_moved,
        )

    def check(self) -> None:
        self._lifetimes.check()
        self.fleet.check()
        if self.fleet.is_hopeless:
            self._fail([sample.stream for sample in self._homeless.values()])

    async def close(self) -> None:
        """End all engines. A second call does nothing."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._fail(self._streams.values())
        await self.fleet.close()
        if self._model is not None:
            self._model.reader.close()

    # Where sequences run.

    def _place(self, samples: Sequence[Sample]) -> None:
        """Give the samples of one request to one engine: they share their prompt."""
        if not self.fleet.engines:
            self._homeless.update({sample.number: sample for sample in samples})
            return
        keys = self._keys(samples[0])
        name = self.router.choose(keys, self._loads).replica
        self.router.observe(keys, name)
        self._loads.add(name, len(samples))
        engine = self.fleet.engines[name]
        for sample in samples:
            self._engine_of[sample.number] = engine
            engine.run(sample)

    def _keys(self, sample: Sample) -> list[bytes]:
        """What the router knows a sequence by: its pages so far."""
        assert self._ready is not None, "an engine has joined"
        request, page_tokens = sample.request, self._ready.snapshot.groups[0].page_size
        return page_keys([*request.prompt, *sample.tokens], request.salt, page_tokens=page_tokens)

    def on_joined(self, engine: RemoteEngine, ready: wire.Ready) -> None:
        if self._ready is None:
            self._ready = ready
        self._loads.add(engine.name, 0)
        self.router.add(engine.name)
        waiting, self._homeless = self._homeless, {}
        for sample in waiting.values():
            self._place([sample])

    def on_leaving(self, engine: RemoteEngine) -> None:
        self.router.forget(engine.name)

    def on_gone(self, engine: RemoteEngine, *, was_lost: bool) -> None:
        """Send what the engine had to others. A sequence that lost too many engines may be what kills them: it ends.

        No engine was lost by being told to end, so a sequence may leave any number of those.
        """
        self._loads.remove(engine.name)
        left, engine.samples = list(engine.samples.values()), {}
        for sample in left:
            del self._engine_of[sample.number]
        for sample in left:
            if sample.stream.is_over:
                continue  # another of its samples has lost too many
            sample.interrupted()
            self._losses[sample.number] += was_lost
            if self._losses[sample.number] > self._max_retries:
                sample.stream.give_up(given_up(sample.stream.request_id, self._losses[sample.number]))
                continue
            self.num_moved += 1
            self._place([sample])
        if left:
            event(LOG, logging.WARNING, "requests moved", replica=engine.name, sequences=len(left))

    def on_ended(self, engine: RemoteEngine, sample: Sample) -> None:
        """Prompt and answer are in that engine's cache now: the next turn of a conversation begins with both."""
        self.router.observe(self._keys(sample), engine.name)
        self._free([sample])

    # Requests.

    def _abort(self, samples: Sequence[Sample]) -> None:
        for engine in {self._engine_of[one.number] for one in samples if one.number in self._engine_of}:
            engine.abort(samples)
        self._free(samples)

    def _free(self, samples: Iterable[Sample]) -> None:
        """These run no more. The ids of requests of which nothing runs are free."""
        for sample in samples:
            engine = self._engine_of.pop(sample.number, None)
            if engine is not None:
                self._loads.add(engine.name, -1)
            self._homeless.pop(sample.number, None)
            self._losses.pop(sample.number, None)
        self._forget({sample.stream for sample in samples})

    def _is_running(self, sample: Sample) -> bool:
        return sample.number in self._engine_of or sample.number in self._homeless


def given_up(request_id: str, num_lost: int) -> EngineStopped:
    """What a request ends with that has lost so many engines. One engine may be lost for any reason."""
    return EnginesLost(request_id, num_lost) if num_lost > 1 else EngineStopped(f"request {request_id!r}")
