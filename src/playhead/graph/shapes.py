"""Which captured size a step runs in, decided by look-up, with the reason. No torch."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from playhead.errors import ConfigError
from playhead.types import Mode


class Reason(StrEnum):
    """Why a step runs the way it does."""

    CAPTURED = "a captured size fits"
    CAPTURE_NOW = "a size fits and is captured on first use"
    DISABLED = "graphs are off"
    EMPTY = "the step has no rows"
    TOO_LARGE = "larger than the largest captured size"
    TOO_MUCH_PADDING = "the next captured size pads too much"
    NOT_CAPTURED = "the size that fits was not captured"
    NO_MEMORY = "capturing the size ran out of memory"
    OVER_BUDGET = "capturing the size would exceed the graph memory budget"


def bucket_sizes(largest: int) -> tuple[int, ...]:
    """Sizes to capture up to `largest`: four apart where steps are small, about a tenth apart where they are large.

    bucket_sizes(48) is (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48): nothing pads to over twice its size.
    """
    if largest < 1:
        raise ConfigError(f"bucket_sizes: largest is {largest}; wanted at least 1. Turn graphs off to have none.")
    sizes, size = [1, 2], 4
    while size < largest:
        sizes.append(size)
        size += max(4, (1 << size.bit_length()) // 16)
    return (*(s for s in sizes if s < largest), largest)


def token_sizes(chunk_tokens: int, max_running: int) -> tuple[int, ...]:
    """Sizes to capture of steps over tokens: those of the largest step, and of a full one, which most large ones are.

    Full steps of 8,448 tokens, and 256 requests: (..., 7680, 8192, 8448, 8704).
    """
    return tuple(sorted({*bucket_sizes(chunk_tokens + max_running), chunk_tokens}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How one step runs. Eager steps have the raw size as their bucket."""

    mode: Mode
    bucket: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchLimits:
    """What a dispatcher may spend. `lazy` captures a size when it is first wanted, within `budget_bytes`."""

    max_padding_ratio: float = 2.0
    lazy: bool = False
    budget_bytes: int | None = None


class Dispatcher:
    """Chooses the mode and bucket of each step, and counts the reasons."""

    def __init__(self, mode: Mode, buckets: Sequence[int], limits: DispatchLimits | None = None) -> None:
        if sorted(set(buckets)) != list(buckets) or (buckets and buckets[0] < 1):
            raise ConfigError(f"buckets {list(buckets)}: wanted ascending positive sizes. Sort them and drop doubles.")
        self.mode, self.buckets = mode, tuple(buckets)
        self.limits = limits or DispatchLimits()
        self.reasons: Counter[Reason] = Counter()
        self._captured: dict[int, int] = {}
        self._failed: set[int] = set()

    @property
    def spent_bytes(self) -> int:
        return sum(self._captured.values())

    def mark_captured(self, bucket: int, num_bytes: int) -> None:
        self._captured[bucket] = num_bytes

    def mark_failed(self, bucket: int) -> None:
        """There was no memory for this size: its steps run eagerly from now on, instead of failing one by one."""
        self._failed.add(bucket)

    def decide(self, raw: int) -> Decision:
        """The decision for a step of `raw` rows. With buckets (4, 8): 3 runs in 4, 1 runs eager (4 is over 2x)."""
        decision = self._look_up(raw)
        self.reasons[decision.reason] += 1
        return decision

    def within_budget(self) -> bool:
        """Whether one more graph, as large as the largest so far, stays inside the budget."""
        budget = self.limits.budget_bytes
        return budget is None or self.spent_bytes + max(self._captured.values(), default=0) <= budget

    def _look_up(self, raw: int) -> Decision:
        if self.mode is Mode.EAGER or not self.buckets:
            return Decision(mode=Mode.EAGER, bucket=raw, reason=Reason.DISABLED)
        if raw < 1:
            return Decision(mode=Mode.EAGER, bucket=raw, reason=Reason.EMPTY)
        at = bisect_left(self.buckets, raw)
        if at == len(self.buckets):
            return Decision(mode=Mode.EAGER, bucket=raw, reason=Reason.TOO_LARGE)
        bucket = self.buckets[at]
        if bucket > raw * self.limits.max_padding_ratio:
            return Decision(mode=Mode.EAGER, bucket=raw, reason=Reason.TOO_MUCH_PADDING)
        if bucket in self._captured:
            return Decision(mode=self.mode, bucket=bucket, reason=Reason.CAPTURED)
        if bucket in self._failed:
            return Decision(mode=Mode.EAGER, bucket=raw, reason=Reason.NO_MEMORY)
        if not self.limits.lazy:
            return Decision(mode=Mode.EAGER, bucket=raw, reason=Reason.NOT_CAPTURED)
        if not self.within_budget():
            return Decision(mode=Mode.EAGER, bucket=raw, reason=Reason.OVER_BUDGET)
        return Decision(mode=self.mode, bucket=bucket, reason=Reason.CAPTURE_NOW)
