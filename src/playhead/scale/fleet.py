"""The engines of one model: started, watched, replaced, more and fewer of them. No torch.

    starting -> serving -> draining -> ended
                   |  its process died, or it was silent or stuck for too long
                   +-> lost: its sequences go to others, and another is started in its place

A fleet knows nothing of requests but the sequences that its engines have. `FleetOwner` places those.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Protocol

from playhead.errors import PlayheadError
from playhead.logs import event
from playhead.scale.autoscale import Autoscaler, ScaleLimits
from playhead.scale.launch import Launcher
from playhead.serve import wire
from playhead.serve.contact import SILENT_S
from playhead.serve.limits import Clock, ServeLimits
from playhead.serve.remote_engine import RemoteEngine
from playhead.serve.remote_stream import Sample

LOG = logging.getLogger(__name__)
MAX_DELAY_S = 30.0
MAX_DOUBLINGS = 5  # of a second: a power of two that nobody waits for must not be computed, it may be no number
HOPELESS_AFTER = 4  # failed starts of one starter in a row, without any engine left
BUSY = 0.8  # of the sequences that an engine can run at once: what an autoscaled fleet aims at


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """`num_replicas` at the start; with `autoscale`, (least, most), the number follows the load.

    A sequence whose engine is lost goes to another `max_retries` times. An engine that is to go has `drain_s` to finish
    what it has; the rest goes on elsewhere. One that is stuck for `stuck_s` is replaced; one of which nothing was heard
    for `silent_s` is lost.
    """

    num_replicas: int = 1
    autoscale: tuple[int, int] | None = None
    max_retries: int = 3
    drain_s: float = 30.0
    stuck_s: float = 15.0
    silent_s: float = SILENT_S
    down_after_s: float = 60.0

    @property
    def most_replicas(self) -> int:
        return self.num_replicas if self.autoscale is None else max(self.autoscale)


class FleetOwner(Protocol):
    """Who places sequences. Called on the event loop."""

    def on_joined(self, engine: RemoteEngine, ready: wire.Ready) -> None:
        """An engine serves from now on."""

    def on_leaving(self, engine: RemoteEngine) -> None:
        """An engine takes no new sequences from now on."""

    def on_gone(self, engine: RemoteEngine, *, was_lost: bool) -> None:
        """An engine runs nothing any more. What is left in `samples` must go on elsewhere.

        An engine that `was_lost` may have died of one of them. Another one was told to end.
        """

    def on_ended(self, engine: RemoteEngine, sample: Sample) -> None:
        """A sequence has ended."""

    @property
    def num_sequences(self) -> int:
        """Sequences that run or wait."""


@dataclass(slots=True, kw_only=True)  # mutable: these change with every event
class FleetCounts:
    """What has happened so far."""

    num_lost: int = 0
    num_started_later: int = 0


@dataclass(slots=True, kw_only=True)  # mutable: when it was first seen to be so
class Watch:
    """Since when an engine has been stuck, or draining."""

    since_s: dict[str, float] = field(default_factory=dict)

    def seconds(self, name: str, now_s: float, *, is_so: bool) -> float:
        """How long it has been so; 0 if it is not."""
        if not is_so:
            self.since_s.pop(name, None)
            return 0.0
        return now_s - self.since_s.setdefault(name, now_s)


class Fleet:
    """`engines` serve and `draining` finish what they have, both by name. A name is never used again."""

    def __init__(
        self, launcher: Launcher, begin: wire.Begin, limits: ServeLimits, config: FleetConfig, clock: Clock
    ) -> None:
        self._launcher, self._begin, self._limits, self._clock = launcher, begin, limits, clock
        self.config = config
        self.engines: dict[str, RemoteEngine] = {}
        self.draining: dict[str, RemoteEngine] = {}
        self.counts = FleetCounts()
        self.target = config.num_replicas
        self.is_hopeless = False
        self._owner: FleetOwner | None = None
        self._has_started = False
        self._numbers = itertools.count()
        self._loading: set[RemoteEngine] = set()
        self._starters: set[asyncio.Task[None]] = set()
        self._scaler: Autoscaler | None = None
        self._stuck, self._drained = Watch(), Watch()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def num_starting(self) -> int:
        return len(self._starters)

    async def start(self, owner: FleetOwner) -> None:
        """Start the first engines and wait until all serve. If one cannot start, all end at once with its error."""
        self._owner = owner
        starters = [self._keep_starter(self._start_one()) for _ in range(self.target)]
        try:
            await asyncio.gather(*starters)
        except BaseException:
            await self.close()
            raise
        self._has_started = True

    async def close(self) -> None:
        """End all engines. A second call does nothing."""
        starters, self._starters, self.target = list(self._starters), set(), 0
        for task in starters:
            task.cancel()
        ending = [*self.engines.values(), *self.draining.values(), *self._loading]
        self.engines, self.draining = {}, {}
        await asyncio.gather(*(engine.end() for engine in ending), *starters, *self._tasks, return_exceptions=True)
        await self._launcher.close()

    def check(self) -> None:
        """Look after health, number and drains. A timer does this."""
        now_s = self._clock()
        for engine in (*self.engines.values(), *self.draining.values(), *self._loading):
            engine.check()
        if not self._has_started:
            return  # `start` decides what becomes of an engine that fails
        for engine in list(self.engines.values()):
            if self._stuck.seconds(engine.name, now_s, is_so=engine.is_stuck) > self.config.stuck_s:
                event(LOG, logging.ERROR, "replica stuck", replica=engine.name, requests=len(engine.samples))
                self._let_go(engine, was_lost=True)
        for engine in list(self.draining.values()):
            waited_s = self._drained.seconds(engine.name, now_s, is_so=True)
            if not engine.samples or waited_s > self.config.drain_s:
                self._let_go(engine, was_lost=False)
        if self._scaler is not None:
            there = len(self.engines) + self.num_starting
            self.target = self._scaler.wanted(now_s, num_sequences=self.owner.num_sequences, num_replicas=there)
        self._follow_target()

    def scale_to(self, num_replicas: int) -> None:
        """Have so many engines from now on. More are started; of too many, those with least to do are drained."""
        self.target = num_replicas
        self._follow_target()

    @property
    def owner(self) -> FleetOwner:
        assert self._owner is not None, "it was started"
        return self._owner

    # One engine's way.

    async def _start_one(self) -> None:
        name = f"r{next(self._numbers)}"
        engine = RemoteEngine(self, self._limits, self._clock, name=name, silent_s=self.config.silent_s)
        self._loading.add(engine)
        try:
            launched = await self._launcher.launch()
            begin = wire.Begin(self._begin.model, wire.config_fields(launched.config), self._begin.name)
            ready = await engine.load(launched.host, begin)
        except BaseException:
            await engine.end()
            raise
        finally:
            self._loading.discard(engine)
        self.engines[engine.name] = engine
        self.is_hopeless = False
        self._aim(ready)
        event(LOG, logging.INFO, "replica serves", replica=engine.name, pid=engine.pid)
        self.owner.on_joined(engine, ready)

    def _aim(self, ready: wire.Ready) -> None:
        """The load to aim at is known when an engine has said how much it can run."""
        if self.config.autoscale is None or self._scaler is not None:
            return
        least, most = self.config.autoscale
        self._scaler = Autoscaler(
            ScaleLimits(
                min_replicas=least,
                max_replicas=most,
                target_load=max(1.0, BUSY * ready.facts["max_running"]),
                down_after_s=self.config.down_after_s,
            )
        )

    def _follow_target(self) -> None:
        for _ in range(self.target - len(self.engines) - self.num_starting):
            self._keep_starter(self._keep_starting())
        for _ in range(min(len(self.engines) - self.target, len(self.engines) - 1)):
            # Of several with as little to do, the newest: the others have more in their prefix caches.
            self._drain(min(reversed(self.engines.values()), key=lambda engine: len(engine.samples)))

    def _keep_starter(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """An engine is on its way from now on."""
        starter = asyncio.create_task(work)
        self._starters.add(starter)
        starter.add_done_callback(self._starters.discard)
        return starter

    def _drain(self, engine: RemoteEngine) -> None:
        """Let it finish what it has, and nothing else."""
        event(LOG, logging.INFO, "replica drains", replica=engine.name, requests=len(engine.samples))
        self.draining[engine.name] = self.engines.pop(engine.name)
        self._drained.seconds(engine.name, self._clock(), is_so=True)
        self.owner.on_leaving(engine)

    def _let_go(self, engine: RemoteEngine, *, was_lost: bool) -> None:
        """End an engine. What it has left goes on elsewhere."""
        self._forget(engine, was_lost=was_lost)
        ending = asyncio.create_task(engine.end())
        self._tasks.add(ending)
        ending.add_done_callback(self._tasks.discard)
        self._follow_target()

    def _forget(self, engine: RemoteEngine, *, was_lost: bool) -> None:
        was_serving = self.engines.pop(engine.name, None) is not None
        self.draining.pop(engine.name, None)
        for watch in (self._stuck, self._drained):
            watch.seconds(engine.name, 0.0, is_so=False)
        if was_serving:
            self.owner.on_leaving(engine)
        self.owner.on_gone(engine, was_lost=was_lost)

    def on_lost(self, engine: RemoteEngine) -> None:
        """Its process has died, or is out of reach."""
        event(LOG, logging.ERROR, "replica lost", replica=engine.name, requests=len(engine.samples))
        self.counts.num_lost += 1
        self._let_go(engine, was_lost=True)

    def on_ended(self, engine: RemoteEngine, sample: Sample) -> None:
        self.owner.on_ended(engine, sample)

    async def _keep_starting(self) -> None:
        """Start an engine in place of one that is missing, and try again if that fails.

        Each starter counts its own failures. A place that is broken beside engines that serve says nothing of them.
        """
        num_failed = num_alone = 0  # in a row; and of those, while no engine was left
        while len(self.engines) < self.target:
            try:
                await self._start_one()
            except (PlayheadError, OSError) as error:
                num_failed += 1
                event(LOG, logging.ERROR, "replica did not start", error=type(error).__name__)
            else:
                self.counts.num_started_later += 1
                return
            # An engine that is being ended may still have the GPU that this one needs.
            has_none = not self.engines and not self._tasks
            num_alone = num_alone + 1 if has_none else 0
            if num_alone >= HOPELESS_AFTER:
                self.is_hopeless = True  # until an engine serves
            await asyncio.sleep(delay_s(num_failed))


def delay_s(num_failed: int) -> float:
    """How long to wait after so many failures in a row: 1, 2, 4 ... 30 s."""
    return min(MAX_DELAY_S, 2.0 ** min(num_failed - 1, MAX_DOUBLINGS))
