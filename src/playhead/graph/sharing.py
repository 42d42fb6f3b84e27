"""Input buffers that several registries share, because only one of them runs at a time.

Only slots whose values are on the device already share: a registry's staged slots are one arena, which one copy fills.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(slots=True)  # mutable: it follows the fills
class SharedBuffer:
    """One allocation, who wrote it last, and how often it was written.

    A registry that remembers which rows it left dirty may only trust that memory while it was the last to fill:
    another registry's rows may stand in what it believes to be padding. A graph that goes on without a fill may only
    do so while the buffer was not written since: `num_writes` tells.
    """

    flat: torch.Tensor
    filled_by: object | None = None
    num_writes: int = 0

    def mark_written(self, by: object | None) -> None:
        self.filled_by = by
        self.num_writes += 1


class InputBufferPool:
    """Buffers equal in (name, numel, dtype, device) are one piece of memory, in whatever order they are asked for."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, int, torch.dtype, torch.device], SharedBuffer] = {}

    def share_input_buffer(
        self, name: str, shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device
    ) -> tuple[torch.Tensor, SharedBuffer]:
        """The shared tensor in the shape asked for, and the record of who filled it."""
        key = (name, math.prod(shape), dtype, device)
        shared = self._buffers.get(key)
        if shared is None:
            shared = SharedBuffer(torch.zeros(key[1], dtype=dtype, device=device))
            self._buffers[key] = shared
        return shared.flat.view(shape), shared

    def __len__(self) -> int:
        return len(self._buffers)
