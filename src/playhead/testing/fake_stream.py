"""A device that lags behind the host, with clocks: copies happen only when somebody waits for them.

The host knows of device time only what it waited for. Writing a stage whose copy it has not seen finish is a
violation, whether or not the bytes happened to be the same.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch


@dataclass(slots=True)  # mutable: an event is recorded again for every copy
class FakeEvent:
    """The device time at which its copy is done; 0 before it was ever recorded."""

    time: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCopy:
    time: int
    dst: torch.Tensor
    src: torch.Tensor
    as_submitted: torch.Tensor


class LaggingPort:
    """A copy port whose device does nothing until it must. Violations are collected, not raised."""

    def __init__(self) -> None:
        self._queue: deque[PendingCopy] = deque()
        self._device_time = 0
        self._host_saw = 0
        self._last_copy_of: dict[int, int] = {}
        self.violations: list[str] = []

    def host_bytes(self, num_bytes: int) -> torch.Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def new_event(self) -> FakeEvent:
        return FakeEvent()

    def copy(self, dst: torch.Tensor, src: torch.Tensor, event: FakeEvent) -> None:
        earlier = self._last_copy_of.get(src.data_ptr(), 0)
        if earlier > self._host_saw:
            self.violations.append(
                f"a stage was written again before its copy {earlier} was seen done (host saw {self._host_saw})"
            )
        event.time = self._device_time + len(self._queue) + 1
        self._last_copy_of[src.data_ptr()] = event.time
        self._queue.append(PendingCopy(time=event.time, dst=dst, src=src, as_submitted=src.clone()))

    def wait(self, event: FakeEvent) -> None:
        self.run_until(event.time)
        self._host_saw = max(self._host_saw, event.time)

    def run_until(self, time: int) -> None:
        """Let the device catch up to this time."""
        while self._queue and self._queue[0].time <= time:
            pending = self._queue.popleft()
            if not torch.equal(pending.src, pending.as_submitted):
                self.violations.append(f"copy {pending.time} read bytes that were not the ones submitted")
            pending.dst.copy_(pending.src)
            self._device_time = pending.time

    def drain(self) -> None:
        """Let the device finish everything. The host has not seen it."""
        self.run_until(self._device_time + len(self._queue))
