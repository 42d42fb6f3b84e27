"""How a step's results come back from a CUDA device, and how long the step took there."""

from __future__ import annotations

import time

import torch

from playhead.errors import GraphError
from playhead.step.outbox import Box
from playhead.step.sampling import ReadTokens, SampledTokens

try:
    from cuda.bindings import runtime
except ImportError:
    runtime = None


class TimingEvent:
    """An event that is recorded again and again.

    Straight through the runtime: torch looks up the current stream as a Python object first, which takes longer than
    everything else that is done to read a step. Without `cuda-bindings` torch does it.
    """

    def __init__(self, device: torch.device) -> None:
        self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.event.record(torch.cuda.current_stream(device))  # it has no handle before
        self.handle = self.event.cuda_event

    def record(self, stream: int) -> None:
        if runtime is None:
            self.event.record()
        else:
            check("timing of a step", *runtime.cudaEventRecord(self.handle, stream))


class Lane:
    """Two events and pinned memory for a step's tokens, which later steps use again."""

    def __init__(self, device: torch.device, max_rows: int) -> None:
        self.started, self.done = TimingEvent(device), TimingEvent(device)
        self.tokens_N = torch.empty(max_rows, dtype=torch.int64, pin_memory=True)
        self.read_N = self.tokens_N.numpy()
        self._address = self.tokens_N.data_ptr()
        self._device_index = torch.cuda.current_device() if device.index is None else device.index

    def start(self) -> None:
        """The step's work begins here, on the current stream."""
        self.started.record(torch._C._cuda_getCurrentRawStream(self._device_index))

    def end(self, tokens_N: torch.Tensor | None) -> None:
        """The step's work ends here; before, copy its tokens to the host, if they go through this lane."""
        stream = torch._C._cuda_getCurrentRawStream(self._device_index)
        if tokens_N is not None and runtime is None:
            self.tokens_N[: len(tokens_N)].copy_(tokens_N, non_blocking=True)
        elif tokens_N is not None:
            # A view and a copy of torch's take three times as long.
            kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
            found = runtime.cudaMemcpyAsync(self._address, tokens_N.data_ptr(), tokens_N.nbytes, kind, stream)
            check("tokens of a step", *found)
        self.done.record(stream)


def check(what: str, found: object) -> None:
    """Refuse what the runtime says if it is not success."""
    if found:
        raise GraphError(
            f"{what}: found {found!r}; wanted success. An earlier kernel may have failed: run with "
            "CUDA_LAUNCH_BLOCKING=1."
        )


class CudaStopwatches:
    """Stopwatches of steps in stream order. A lane is free again when its step was read."""

    def __init__(self, device: torch.device, max_rows: int) -> None:
        self._device, self._max_rows = device, max_rows
        self.free: list[Lane] = []
        self.newest: Lane | None = None
        """That of the step that was started last."""

    def start(self) -> CudaStopwatch:
        lane = self.free.pop() if self.free else Lane(self._device, self._max_rows)
        lane.start()
        self.newest = lane
        return CudaStopwatch(lane, self)


class CudaStopwatch:
    """Started before a step's work is launched."""

    def __init__(self, lane: Lane, lanes: CudaStopwatches) -> None:
        self._lane, self._lanes = lane, lanes

    def read_back(self, results: SampledTokens, box: Box | None = None) -> CudaReadback:
        return CudaReadback(results, box, self._lane, self._lanes)


class CudaReadback:
    """Through pinned memory, in stream order; an event tells the host, which waits for nothing else.

    Tokens alone are in their box already, or go through the lane. Results with reports, which a step may have two of,
    have memory of their own.
    """

    def __init__(self, results: SampledTokens, box: Box | None, lane: Lane, lanes: CudaStopwatches) -> None:
        self._box, self._lane, self._lanes = box, lane, lanes
        self._results: ReadTokens | None = None
        self._device_us: float | None = None
        self._sent: tuple[torch.Tensor, ...] = ()
        self._num_tokens = results.tokens_N.shape[0]
        if results.logprobs_NL.numel():
            self._sent = tuple(copied_to_pinned(tensor) for tensor in results)
        has_tokens = bool(self._sent) or box is not None
        lane.end(None if has_tokens else results.tokens_N)

    def wait(self) -> ReadTokens:
        if self._results is None:
            self._wait_for_device()
            if self._sent:
                tokens_N, *parts = self._sent
                self._results = ReadTokens(tokens_N.tolist(), tuple(parts))
            else:  # taken out at once: box and lane are later steps'
                lane_N = self._lane.read_N[: self._num_tokens]
                self._results = ReadTokens(lane_N.tolist() if self._box is None else self._box.read())
        return self._results

    def _wait_for_device(self) -> None:
        """Wait for the step's end in one of two ways. Other threads of a server run meanwhile in both.

        With a later step launched the device has work, and asking now and then costs little; a sleep of no length
        takes 50 us. After the newest step the device has no work until the host goes on, so the driver watches for its
        end.
        """
        done = self._lane.done.event
        if self._lanes.newest is self._lane:
            done.synchronize()
        while not done.query():  # type: ignore[no-untyped-call]
            time.sleep(0)

    def device_us(self) -> float:
        if self._device_us is None:
            self._device_us = 1e3 * self._lane.started.event.elapsed_time(self._lane.done.event)
            self._lanes.free.append(self._lane)
        return self._device_us


def copied_to_pinned(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in pinned memory, made after all work that was launched before."""
    if not tensor.numel():
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
