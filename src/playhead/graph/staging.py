"""Host values on their way to the device: one pinned arena, one copy per fill.

The host writes a stage while the copy of an earlier one may still run. A stage is written again only after its own
copy has finished; `Channel.wait` is where that is enforced, and the fakes in `playhead.testing` prove it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from playhead.graph.pinned import CudaPort

ALIGNMENT_BYTES = 128  # one slot per cache line pair: vector loads of any slot stay aligned


class Channel(Protocol):
    """The way from one host buffer to one device buffer."""

    def send(self) -> None:
        """Start the copy, in stream order."""

    def wait(self) -> None:
        """Block the host until the last copy has read the host buffer."""


class CopyPort(Protocol):
    """Where host buffers come from, and how their bytes get to a device."""

    def host_bytes(self, num_bytes: int) -> torch.Tensor: ...

    def channel(self, dst: torch.Tensor, src: torch.Tensor) -> Channel: ...


class HostChannel:
    """Host to host: the copy is done when it returns. It copies bytes, which starts in half of numpy's time."""

    def __init__(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        self._dst, self._src = dst.numpy().data, src.numpy().data

    def send(self) -> None:
        self._dst[:] = self._src

    def wait(self) -> None:
        return None


class HostPort:
    """For devices whose memory is the host's."""

    def host_bytes(self, num_bytes: int) -> torch.Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def channel(self, dst: torch.Tensor, src: torch.Tensor) -> HostChannel:
        return HostChannel(dst, src)


def port_for(device: torch.device) -> CopyPort:
    """The port that reaches `device` from the host."""
    return CudaPort() if device.type == "cuda" else HostPort()


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
    """One host copy of the arena. The marks count the leading rows that may hold values of an older fill."""

    fields: list[np.ndarray[Any, Any]]
    channel: Channel
    in_flight: bool = False
    dirty_bs: int = 0
    dirty_tokens: int = 0

    def settle(self) -> None:
        """Wait until the last copy has left the host. To be called before the stage is written."""
        if self.in_flight:
            self.channel.wait()
            self.in_flight = False

    def send(self) -> None:
        """Start the copy of the whole arena, tails included."""
        # Marked before: a copy that was started may run although starting it raised.
        self.in_flight = True
        self.channel.send()


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
        self._next = 0
        self.stages: list[Stage] = []
        for _ in range(num_stages):
            host = port.host_bytes(device_arena.numel())
            views = [field_view(host, place).numpy() for place in fields]
            for view, place in zip(views, fields, strict=True):
                view[...] = place.pad_value
            self.stages.append(Stage(fields=views, channel=port.channel(device_arena, host)))

    def acquire(self) -> Stage:
        """The next stage, safe to write: its last copy has left the host."""
        stage = self.stages[self._next]
        self._next = (self._next + 1) % len(self.stages)
        stage.settle()
        return stage

    def submit(self, stage: Stage) -> None:
        """Send the whole arena, tails included, in one copy."""
        stage.send()
