"""How many requests a server takes, how long one may take, and how long an engine may be silent. No torch.

Both backends keep their open streams here. A timer calls `check`; a test calls it with a clock of its own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from playhead.errors import PlayheadError, RequestTimedOut
from playhead.schedule.scheduler import WAITING_PER_RUNNING

CHECK_S = 0.5  # between two checks
SNAPSHOT_S = 1.0  # an engine that captures or is stuck is shown as it was
MAX_RETRY_S = 60
REMEMBERED_CHECKS = 40  # 20 s of ended requests say how fast places become free
# A model that is slow on its device is given three of its longest steps before it counts as stuck. A longest step is
# forgotten within some dozens of steps. A pause of more than a minute was no step: something had stopped the engine.
LONGEST_STEPS = 3.0
FORGETTING = 0.95
MAX_STEP_S = 60.0
COMPUTING_S = 300.0
"""How long a step on a CPU may take of an engine that is seen to compute. What lasts longer is a loop without end."""
COMPUTING_CPU_S = 0.02
"""Of a processor, in the half second between two looks: less is the noise of an engine that waits."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeLimits:
    """What a server allows: settings of `ServeConfig`, which checks them, and one limit that is no setting.

    A request over a time limit ends with `RequestTimedOut`.
    """

    max_queued_requests: int | None = None
    """Sequences that may wait to run; four times those that run if left out."""
    queue_timeout: float = 60.0
    """Seconds until a request's first token."""
    request_timeout: float = 600.0
    """Seconds from a request's first token to its last."""
    wedged_after_s: float = 4.0
    """Seconds without a step until an engine with work counts as stuck."""

    def max_requests(self, max_running: int) -> int:
        """How many sequences may be there, running and waiting: 5 x 16 with room for 16 that run."""
        queued = WAITING_PER_RUNNING * max_running if self.max_queued_requests is None else self.max_queued_requests
        return max_running + queued


class OpenStream(Protocol):
    """A stream of either backend, as its limits are kept."""

    @property
    def request_id(self) -> str: ...

    @property
    def has_begun(self) -> bool:
        """Whether the engine has made its first token."""

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs any more."""

    def give_up(self, error: PlayheadError) -> None:
        """End it with this error."""


@dataclass(slots=True, kw_only=True)  # mutable: it begins
class Lifetime:
    """When a stream was opened, and when it was first seen to have begun."""

    opened_s: float
    begun_s: float | None = None


class Lifetimes:
    """The open streams of a backend."""

    def __init__(self, limits: ServeLimits, clock: Clock) -> None:
        self._limits, self._clock = limits, clock
        self._open: dict[OpenStream, Lifetime] = {}
        self._ended: deque[tuple[float, int]] = deque([(clock(), 0)], maxlen=REMEMBERED_CHECKS)

    def add(self, stream: OpenStream) -> None:
        """A stream that was opened now."""
        self._open[stream] = Lifetime(opened_s=self._clock())

    def check(self) -> None:
        """Forget the streams that are over, and end those that are past a limit."""
        now, num_before = self._clock(), len(self._open)
        self._open = {stream: life for stream, life in self._open.items() if not stream.is_over}
        self._ended.append((now, num_before - len(self._open)))
        for stream, life in self._open.items():
            if life.begun_s is None and stream.has_begun:
                life.begun_s = now
            if life.begun_s is None and now - life.opened_s > self._limits.queue_timeout:
                stream.give_up(RequestTimedOut(stream.request_id, "waited", self._limits.queue_timeout))
            elif life.begun_s is not None and now - life.begun_s > self._limits.request_timeout:
                stream.give_up(RequestTimedOut(stream.request_id, "ran", self._limits.request_timeout))

    @property
    def retry_after_s(self) -> int:
        """Seconds until a place is likely to be free: 10 requests that ended in the last 20 s make it 2."""
        seconds = self._clock() - self._ended[0][0]
        num_ended = sum(count for _, count in self._ended)
        wanted = math.ceil(seconds / num_ended) if num_ended else MAX_RETRY_S // 10
        return min(max(wanted, 1), MAX_RETRY_S)


class Pulse:
    """Whether an engine that has work gets on. A step is a beat, and so is a graph that is being captured.

    A step that lasts is not stuck while it uses a processor: a prompt may be long, and a machine busy with other work.
    That holds on a CPU. A GPU's driver may use a processor to wait.
    """

    def __init__(self, limits: ServeLimits, clock: Clock) -> None:
        self._limit_s, self._clock = limits.wedged_after_s, clock
        self._last_s, self._num_steps, self._longest_s = clock(), 0, 0.0
        self._was_busy = False
        self._cpu_s, self._steps_then, self._computed_s = 0.0, 0, -math.inf

    def beat(self) -> None:
        """The engine was seen to get on."""
        self._last_s = self._clock()

    def saw(self, num_steps: int, *, has_work: bool) -> None:
        """So many steps are done. An engine without work cannot be stuck."""
        now = self._clock()
        if num_steps != self._num_steps and has_work and self._was_busy:
            pause_s = now - self._last_s
            self._longest_s = max(FORGETTING * self._longest_s, pause_s if pause_s <= MAX_STEP_S else 0.0)
        if num_steps != self._num_steps or not (has_work and self._was_busy):
            self._last_s = now
        self._num_steps, self._was_busy = num_steps, has_work

    def used(self, cpu_s: float) -> None:
        """So many seconds of a processor the engine has used since its start. To be called every half second."""
        if self._num_steps == self._steps_then and cpu_s - self._cpu_s >= COMPUTING_CPU_S:
            self._computed_s = self._clock()
        self._cpu_s, self._steps_then = cpu_s, self._num_steps

    @property
    def is_stuck(self) -> bool:
        """Whether there was work and no beat for too long."""
        now = self._clock()
        limit_s = max(self._limit_s, LONGEST_STEPS * self._longest_s)
        if now - self._computed_s <= self._limit_s:
            limit_s = max(limit_s, COMPUTING_S)
        return self._was_busy and now - self._last_s > limit_s
