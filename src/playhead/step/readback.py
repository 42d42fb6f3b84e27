"""How a step's results come back from the device, and how long the step took there."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

import torch

from playhead.step.cuda_readback import CudaStopwatch
from playhead.step.sampling import SampledTokens


class Readback(Protocol):
    """Results on their way to the host. The device's memory may be overwritten by the next launch at once."""

    def wait(self) -> SampledTokens:
        """The results, as soon as they have arrived."""

    def device_us(self) -> float:
        """The time the step took on its device. Call `wait` first."""


class Stopwatch(Protocol):
    """Started before a step's work is launched."""

    def read_back(self, results: SampledTokens) -> Readback: ...


class HostStopwatch:
    """A launch on a CPU returns when the step is done."""

    def __init__(self) -> None:
        self._started_s = time.perf_counter()

    def read_back(self, results: SampledTokens) -> HostReadback:
        copies = SampledTokens(*(tensor.clone() for tensor in results))
        return HostReadback(copies, 1e6 * (time.perf_counter() - self._started_s))


@dataclass(frozen=True, slots=True, eq=False)
class HostReadback:
    """Results that need no waiting for."""

    results: SampledTokens
    elapsed_us: float

    def wait(self) -> SampledTokens:
        return self.results

    def device_us(self) -> float:
        return self.elapsed_us


def start_stopwatch(device: torch.device) -> Stopwatch:
    return CudaStopwatch() if device.type == "cuda" else HostStopwatch()
