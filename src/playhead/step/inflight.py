"""A launched step, until its tokens have been read."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

import torch

from playhead.graph.shapes import Decision
from playhead.step.sampling import SampledTokens
from playhead.types import Step


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


class CudaStopwatch:
    """Events in stream order."""

    def __init__(self) -> None:
        self._started = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._started.record()

    def read_back(self, results: SampledTokens) -> CudaReadback:
        return CudaReadback(results, self._started)


class CudaReadback:
    """Through pinned memory, in stream order; an event tells the host, which waits for nothing else."""

    def __init__(self, results: SampledTokens, started: torch.cuda.Event) -> None:
        self._results = SampledTokens(*(copied_to_pinned(tensor) for tensor in results))
        self._started = started
        self._done = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._done.record()

    def wait(self) -> SampledTokens:
        # Asked, not waited for: waking a sleeping thread takes longer than a short step.
        while not self._done.query():  # type: ignore[no-untyped-call]
            time.sleep(0)  # other threads of a server run meanwhile
        return self._results

    def device_us(self) -> float:
        elapsed_ms: float = self._started.elapsed_time(self._done)
        return 1e3 * elapsed_ms


def copied_to_pinned(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in pinned memory, made after all work that was launched before."""
    if not tensor.numel():
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


def start_stopwatch(device: torch.device) -> Stopwatch:
    return CudaStopwatch() if device.type == "cuda" else HostStopwatch()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InFlight:
    """One launched step. Its pages are not reused before it is collected."""

    step: Step
    decision: Decision
    readback: Readback
    logits_NV: torch.Tensor
    """On the device, until the next launch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Collected:
    """The tokens of a step on the host, one row per chunk, and how long the device took."""

    sampled: SampledTokens
    device_us: float
