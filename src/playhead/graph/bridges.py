"""Bridges: the buffers in which a break's inputs and outputs lie, shared by all sizes and all calls of the break."""

from __future__ import annotations

import math
from typing import Any

import torch

from playhead.errors import CaptureError
from playhead.graph.breaks import BreakOp, Direction, InlineScope, Tensors, TensorSpec
from playhead.graph.oplog import user_line


class WarmUpScope(InlineScope):
    """Breaks run in place, and their bridges are made: the capture that follows finds them."""

    def __init__(self, live: Any, bridges: BridgePool) -> None:
        super().__init__(live)
        self._bridges = bridges

    def call(self, op: BreakOp, *inputs: torch.Tensor, site: int) -> Tensors:
        outputs = super().call(op, *inputs, site=site)
        directions: tuple[tuple[Direction, Tensors], ...] = (("in", inputs), ("out", outputs))
        for direction, tensors in directions:
            for i, tensor in enumerate(tensors):
                self._bridges.view(op, direction, i, TensorSpec.like(tensor))
        return outputs


class BridgePool:
    """The buffers of all breaks, one per (break, direction, position, row shape, dtype), each `max_rows` long.

    Breaks of one forward follow one another, so all sites share them. A callable that needs a break's output after the
    next call of the same break must copy it; a capture refuses one that does not (`leases.py`).
    """

    def __init__(self, *, max_rows: int, device: torch.device | str) -> None:
        self._max_rows, self._device = max_rows, torch.device(device)
        self._buffers: dict[tuple[str, str, int, tuple[int, ...], torch.dtype], torch.Tensor] = {}

    def view(self, op: BreakOp, direction: Direction, position: int, spec: TensorSpec) -> torch.Tensor:
        """The first rows of the buffer, as many as `spec` has. The address is the same for every size.

        The first call allocates, so it must come from a warm-up: inside a capture the memory would be the graph's.
        """
        num_rows, row_shape = spec.shape[0], spec.shape[1:]
        if num_rows > self._max_rows:
            raise CaptureError(
                op.name,
                user_line(),
                f"{num_rows} rows cross a break with bridges of {self._max_rows}",
                "Breaks carry one row per token; size the bridges for the largest bucket.",
            )
        key = (op.name, direction, position, row_shape, spec.dtype)
        if key not in self._buffers:
            shape = (self._max_rows, *row_shape)
            self._buffers[key] = torch.zeros(shape, dtype=spec.dtype, device=self._device)
        return self._buffers[key][:num_rows]

    @property
    def buffers(self) -> Tensors:
        return tuple(self._buffers.values())

    @property
    def num_bytes(self) -> int:
        return sum(math.prod(buffer.shape) * buffer.element_size() for buffer in self.buffers)
