"""How many replicas there should be, from how much they have to do. Pure: a simulator runs it on virtual time.

    policy = Autoscaler(ScaleLimits(min_replicas=1, max_replicas=8, target_load=16))
    wanted = policy.wanted(now_s, num_sequences=70, num_replicas=2)

More replicas come at once, because requests wait. Fewer come only after the load has been low for a while, and then as
many as its highest moment in that time needed, because a replica takes long to start and takes its cached prefixes with
it when it goes. Between the two bounds nothing changes, so that the number does not swing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from playhead.errors import ConfigError

LOW = 0.6  # of the target: below, a replica less would still be at most at its target


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleLimits:
    """`target_load` sequences per replica are right. `up_after_s` and `down_after_s` are how long the load must be off
    before the number changes."""

    min_replicas: int
    max_replicas: int
    target_load: float
    up_after_s: float = 2.0
    down_after_s: float = 60.0

    def __post_init__(self) -> None:
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise ConfigError(
                f"autoscale: found {self.min_replicas}:{self.max_replicas}; wanted min:max with 1 <= min <= max."
            )


class Autoscaler:
    """Decides step by step. Mutable: it remembers since when the load has been too high or too low."""

    def __init__(self, limits: ScaleLimits) -> None:
        self.limits = limits
        self._high_since_s: float | None = None
        self._low_since_s: float | None = None
        self._most_needed = 0

    def wanted(self, now_s: float, *, num_sequences: int, num_replicas: int) -> int:
        """How many replicas there should be now. `num_replicas` are there or on their way."""
        limits = self.limits
        needed = math.ceil(num_sequences / limits.target_load)
        self._high_since_s = since(self._high_since_s, now_s, needed > num_replicas)
        is_low = num_sequences < LOW * limits.target_load * num_replicas and needed < num_replicas
        self._low_since_s = since(self._low_since_s, now_s, is_low)
        self._most_needed = max(self._most_needed, needed) if is_low else 0
        wanted = num_replicas
        if self._high_since_s is not None and now_s - self._high_since_s >= limits.up_after_s:
            wanted = needed
        elif self._low_since_s is not None and now_s - self._low_since_s >= limits.down_after_s:
            wanted = self._most_needed
            self._low_since_s, self._most_needed = now_s, 0
        return min(max(wanted, limits.min_replicas), limits.max_replicas)


def since(before_s: float | None, now_s: float, is_so: bool) -> float | None:
    """Since when something has been so; None while it is not."""
    if not is_so:
        return None
    return now_s if before_s is None else before_s
