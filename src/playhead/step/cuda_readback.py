"""How a step's results come back from a CUDA device, and how long the step took there."""

from __future__ import annotations

import time

import torch

from playhead.step.sampling import SampledTokens


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
