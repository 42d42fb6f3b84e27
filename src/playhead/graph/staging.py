"""Host values on their way to the device: one pinned arena, one copy per fill.

The host writes a stage while the copy of an earlier one may still run. A stage is written again only after its own
copy has finished; `CopyPort.wait` is where that is enforced, and the fakes in `playhead.testing` prove it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from playhead.errors import GraphError

try:
    from cuda.bindings import runtime
except ImportError:
    runtime = None

ALIGNMENT_BYTES = 128  # one slot per cache line pair: vector loads of any slot stay aligned


class CopyPort(Protocol):
    """How bytes get from a host buffer to a device buffer, and how to know that they have left the host."""

    def host_bytes(self, num_bytes: int) -> torch.Tensor: ...

    def new_event(self) -> Any: ...

    def copy(self, dst: torch.Tensor, src: torch.Tensor, event: Any) -> None:
        """Start the copy in stream order; `event` is done when `src` may be written again."""

    def wait(self, event: Any) -> None:
        """Block the host until `event` is done."""


class HostPort:
    """Host to host: the copy is done when it returns."""

    def host_bytes(self, num_bytes: int) -> torch.Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def new_event(self) -> None:
        return None

    def copy(self, dst: torch.Tensor, src: torch.Tensor, event: None) -> None:
        dst.copy_(src)

    def wait(self, event: None) -> None:
        return None


class CudaPort:
    """Pinned host memory to a CUDA device, on the current stream.

    Copy and event go straight to the runtime: through torch they cost twice as much host time, every step. Without
    `cuda-bindings` (CUDA builds of torch bring it) torch does both.
    """

    def __init__(self, device: torch.device) -> None:
        self._device_index = device.index if device.index is not None else torch.cuda.current_device()

    def host_bytes(self, num_bytes: int) -> torch.Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8).pin_memory()

    def new_event(self) -> torch.cuda.Event:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()  # an event has no handle before its first record
        return event

    def copy(self, dst: torch.Tensor, src: torch.Tensor, event: torch.cuda.Event) -> None:
        if runtime is None:
            dst.copy_(src, non_blocking=True)
            event.record(torch.cuda.current_stream(self._device_index))
            return
        stream = torch._C._cuda_getCurrentRawStream(self._device_index)
        kind = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        (copied,) = runtime.cudaMemcpyAsync(dst.data_ptr(), src.data_ptr(), src.nbytes, kind, stream)
        (recorded,) = runtime.cudaEventRecord(event.cuda_event, stream)
        if copied or recorded:
            raise GraphError(f"staging copy of {src.nbytes} bytes: CUDA said {copied!r}, {recorded!r}; wanted success.")

    def wait(self, event: torch.cuda.Event) -> None:
        event.synchronize()


def port_for(device: torch.device) -> CopyPort:
    """The port that reaches `device` from the host."""
    return CudaPort(device) if device.type == "cuda" else HostPort()


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedField:
    """One slot's place in the arena."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pad_value: float
    offset_bytes: int
    num_bytes: int


@dataclass(slots=True, kw_only=True)  # mutable: the marks follow what was written
class Stage:
    """One host copy of the arena. `dirty` counts, per axis, the leading rows that may hold values of an old fill."""

    host: torch.Tensor
    fields: list[np.ndarray[Any, Any]]
    event: Any
    in_flight: bool = False
    dirty: dict[str, int] = field(default_factory=lambda: {"bs": 0, "tokens": 0})


def lay_out(specs: Sequence[tuple[tuple[int, ...], torch.dtype, float]]) -> tuple[tuple[StagedField, ...], int]:
    """Fields one after another, each aligned, and the arena's size in bytes.

    Two fields of 3 and 5 int32 (12 and 20 bytes) start at 0 and 128 and end at 256.
    """
    fields, offset = [], 0
    for shape, dtype, pad_value in specs:
        num_bytes = torch.empty(shape, dtype=dtype, device="meta").nbytes
        fields.append(
            StagedField(shape=shape, dtype=dtype, pad_value=pad_value, offset_bytes=offset, num_bytes=num_bytes)
        )
        offset += -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return tuple(fields), offset


def field_view(arena: torch.Tensor, place: StagedField) -> torch.Tensor:
    """The field as a tensor inside the arena's bytes."""
    raw = arena[place.offset_bytes : place.offset_bytes + place.num_bytes]
    return raw.view(place.dtype).view(place.shape)


class StagingRing:
    """Stages in turn: `acquire` gives one that no copy reads any more, `submit` sends it."""

    def __init__(
        self, fields: Sequence[StagedField], device_arena: torch.Tensor, port: CopyPort, num_stages: int
    ) -> None:
        self._device_arena, self._port, self._next = device_arena, port, 0
        self._stages = [self._new_stage(fields) for _ in range(num_stages)]

    def _new_stage(self, fields: Sequence[StagedField]) -> Stage:
        host = self._port.host_bytes(self._device_arena.numel())
        views = [field_view(host, place).numpy() for place in fields]
        for view, place in zip(views, fields, strict=True):
            view[...] = place.pad_value
        return Stage(host=host, fields=views, event=self._port.new_event())

    @property
    def stages(self) -> Sequence[Stage]:
        return self._stages

    def acquire(self) -> Stage:
        """The next stage, safe to write: its last copy has left the host."""
        stage = self._stages[self._next]
        self._next = (self._next + 1) % len(self._stages)
        if stage.in_flight:
            self._port.wait(stage.event)
            stage.in_flight = False
        return stage

    def submit(self, stage: Stage) -> None:
        """Send the whole arena, tails included, in one copy."""
        self._port.copy(self._device_arena, stage.host, stage.event)
        stage.in_flight = True
