"""An engine whose graphs do nothing: everything that the host does for a step, and none of the device's work.

Requests, plans, pages, tables, fills, the choice of a graph, reading tokens and giving them out are the engine's own.
A replay of decode leaves no tokens for the host, which reads zeros. Steps over tokens sample after their replay, as
they always do; the model is so small that this is mostly the time of torch's calls.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from playhead.engine.config import EngineConfig
from playhead.engine.engine import Engine
from playhead.engine.launched import LaunchedStep
from playhead.graph.backends.base import OpenRecording, Recording
from playhead.graph.backends.tape import TapeBackend
from playhead.graph.oplog import OpLog
from playhead.graph.outputs import Outputs
from playhead.graph.runner import GraphRunner
from playhead.kv.plan import KVLimits
from playhead.kv.tables import FULL
from playhead.models.text.ids_only import IdsOnlyTokenizer
from playhead.sampling_params import SamplingKind
from playhead.schedule.step_plan import StepPlan
from playhead.step.worker import Worker
from playhead.testing.tiny_worker import TINY_GEMMA3, tiny_worker
from playhead.types import Mode

PAGE_SIZE = 16
CHUNK_TOKENS = 8192
KV_BYTES = 1 << 28


@dataclass(slots=True, kw_only=True)  # mutable: replays are noted
class Clock:
    """When a graph was first replayed since the last `clear`, and when a step was last read, in CPU seconds."""

    first_replay_s: float = 0.0
    read_s: float = 0.0

    def clear(self) -> None:
        self.first_replay_s = self.read_s = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRecording:
    """What was recorded, and no work."""

    log: OpLog
    num_nodes: int
    num_bytes: int
    recorded: Recording
    """Kept for the memory of its outputs."""
    clock: Clock

    def replay(self) -> None:
        self.clock.first_replay_s = self.clock.first_replay_s or time.thread_time()


class IdleOpen:
    """A recording under way whose replays will do nothing."""

    def __init__(self, opened: OpenRecording, clock: Clock) -> None:
        self._opened, self._clock = opened, clock

    def close(self) -> IdleRecording:
        done = self._opened.close()
        return IdleRecording(
            log=done.log, num_nodes=done.num_nodes, num_bytes=done.num_bytes, recorded=done, clock=self._clock
        )

    def abandon(self) -> None:
        self._opened.abandon()


class IdleBackend:
    """Captures as the tape does, and replays nothing."""

    name = "idle"

    def __init__(self) -> None:
        self._tape, self.clock = TapeBackend(), Clock()

    def warm_up(self, work: Callable[[], Outputs]) -> None:
        self._tape.warm_up(work)

    def open(self, after: Recording | None = None) -> IdleOpen:
        opened = self._tape.open(after.recorded if isinstance(after, IdleRecording) else after)
        return IdleOpen(opened, self.clock)


def idle_worker(*, max_running: int, max_context: int, window: int, prefix_caching: bool) -> Worker:
    """A worker of a tiny hybrid model that captures whole graphs, as on a GPU, and does not run them."""
    worker = tiny_worker(
        Mode.FULL,
        model={**TINY_GEMMA3, "sliding_window": window},
        page_size=PAGE_SIZE,
        limits=KVLimits(
            max_context_tokens=max_context, max_running=max_running, chunk_tokens=CHUNK_TOKENS, num_steps_in_flight=2
        ),
        kv_memory_bytes=KV_BYTES,
        prefix_caching=prefix_caching,
        strict_ledger=False,
    )
    backend, make_decoder = IdleBackend(), worker.make_decoder

    def make_idle(kind: SamplingKind) -> GraphRunner:
        runner = make_decoder(kind)
        runner.backend = backend
        return runner

    worker.make_decoder, worker.prefill.backend = make_idle, backend
    return worker


@dataclass(slots=True, kw_only=True)  # mutable: parts are added up
class StepCost:
    """CPU microseconds of one call of `Engine.step`, by part. The rest is what stands between the parts."""

    plan: float = 0.0
    launch: float = 0.0
    commit: float = 0.0
    total: float = 0.0


@dataclass(slots=True, kw_only=True)  # mutable: steps are added
class Meter:
    """The cost of each step, the plan that it launched, and the full pages in use when it was planned."""

    costs: list[StepCost] = field(default_factory=list)
    plans: list[StepPlan | None] = field(default_factory=list)
    num_pages: list[int] = field(default_factory=list)

    def clear(self) -> None:
        """Forget all steps."""
        for noted in (self.costs, self.plans, self.num_pages):
            noted.clear()


DECODE_S = 1.5e-3
TOKEN_S = 1.2e-6


@dataclass(slots=True, kw_only=True)  # mutable: time passes
class ImaginedDevice:
    """When a device would be at work, had it run these steps: 1.5 ms for one of decode, 1.2 us for a prompt's token.

    The host's time is its CPU time, and the time in which it would have waited for the device.
    """

    idle_s: float = 0.0
    """How long it would have stood still between steps."""
    _free_s: float = 0.0
    _waited_s: float = 0.0
    _ends: deque[float] = field(default_factory=deque)

    def launch(self, planned: StepPlan) -> None:
        """A step has been launched."""
        now_s = time.thread_time() + self._waited_s
        if self._free_s:
            self.idle_s += max(0.0, now_s - self._free_s)
        taken_s = DECODE_S if planned.is_decode else max(DECODE_S, TOKEN_S * planned.num_tokens)
        self._free_s = max(now_s, self._free_s) + taken_s
        self._ends.append(self._free_s)

    def wait(self) -> None:
        """The host reads the oldest step."""
        self._waited_s += max(0.0, self._ends.popleft() - time.thread_time() - self._waited_s)


class MeteredEngine(Engine):
    """An engine over an idle worker that notes what its steps cost. Reading a step counts as its commit."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker, IdsOnlyTokenizer(), config=EngineConfig())
        backend = worker.prefill.backend
        assert isinstance(backend, IdleBackend), "an idle worker"
        self.meter, self.clock, self.device = Meter(), backend.clock, ImaginedDevice()

    def advance(self) -> None:
        self.meter.costs.append(StepCost())
        self.meter.plans.append(None)
        self.meter.num_pages.append(0)
        started_s = time.thread_time()
        super().advance()
        self.meter.costs[-1].total = microseconds_since(started_s)

    def _plan(self) -> StepPlan:
        started_s = time.thread_time()
        planned = super()._plan()
        self.meter.costs[-1].plan += microseconds_since(started_s)
        self.meter.plans[-1] = planned
        self.meter.num_pages[-1] = self.worker.kv.allocator.groups[FULL].num_taken
        return planned

    def _launch(self, planned: StepPlan, started_s: float) -> LaunchedStep:
        began_s = time.thread_time()
        launched = super()._launch(planned, started_s)
        self.meter.costs[-1].launch += microseconds_since(began_s)
        self.device.launch(planned)
        return launched

    def _read(self, step: LaunchedStep) -> None:
        self.device.wait()
        started_s = self.clock.read_s = time.thread_time()
        super()._read(step)
        self.meter.costs[-1].commit += microseconds_since(started_s)


def microseconds_since(started_s: float) -> float:
    return 1e6 * (time.thread_time() - started_s)
