"""A clock for watchers: it stands while the watcher itself could not run. No torch."""

from __future__ import annotations

import time
from collections.abc import Callable


class AwakeClock:
    """Counts the seconds in which the caller of `tick` could run: each tick counts at most `most_s`.

    A machine that stalls, or is suspended, stops all its processes. That time must not count as their silence.

    >>> moments = iter([0.0, 0.5, 60.0])
    >>> clock = AwakeClock(0.5, lambda: next(moments))
    >>> clock.tick(), clock.tick()
    (0.5, 1.0)
    """

    def __init__(self, most_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_s, self._clock = most_s, clock
        self._ticked_s = clock()
        self.now_s = 0.0

    def tick(self) -> float:
        """To be called again and again: between two calls no more than `most_s` goes by."""
        now_s = self._clock()
        self.now_s += min(now_s - self._ticked_s, self._most_s)
        self._ticked_s = now_s
        return self.now_s
