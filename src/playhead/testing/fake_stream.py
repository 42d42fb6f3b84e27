"""A device that lags behind the host, with clocks: copies happen only when somebody waits for them.

The host knows of device time only what it waited for. Writing a stage whose copy it has not seen finish is a
violation, whether or not the bytes happened to be the same.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCopy:
    time: int
    dst: torch.Tensor
    src: torch.Tensor
    as_submitted: torch.Tensor


@dataclass(slots=True, kw_only=True)  # mutable: the time of the last copy moves on
class LaggingChannel:
    """One host buffer's way to the lagging device, with the device time at which its last copy is done."""

    port: LaggingPort
    dst: torch.Tensor
    src: torch.Tensor
    last_copy: int = 0

    def send(self) -> None:
        self.last_copy = self.port.enqueue(self)

    def wait(self) -> None:
        self.port.wait_until(self.last_copy)


class LaggingPort:
    """A copy port whose device does nothing until it must. Violations are collected, not raised."""

    def __init__(self) -> None:
        self._queue: deque[PendingCopy] = deque()
        self._device_time = 0
        self._host_saw = 0
        self.violations: list[str] = []

    def host_bytes(self, num_bytes: int) -> torch.Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def channel(self, dst: torch.Tensor, src: torch.Tensor) -> LaggingChannel:
        return LaggingChannel(port=self, dst=dst, src=src)

    def enqueue(self, channel: LaggingChannel) -> int:
        """Put a copy at the end of the device's queue and give the time it will be done."""
        if channel.last_copy > self._host_saw:
            self.violations.append(
                f"a stage was written again before its copy {channel.last_copy} was seen done "
                f"(host saw {self._host_saw})"
            )
        time = self._device_time + len(self._queue) + 1
        self._queue.append(PendingCopy(time=time, dst=channel.dst, src=channel.src, as_submitted=channel.src.clone()))
        return time

    def wait_until(self, time: int) -> None:
        self.run_until(time)
        self._host_saw = max(self._host_saw, time)

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
