"""Input buffers that several registries share, because only one of them runs at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(slots=True)  # mutable: `filled_by` is the one thing that changes
class SharedBuffer:
    """One allocation and who wrote it last.

    A registry that remembers which rows it left dirty may only trust that memory while it was the last to fill:
    another registry's rows may stand in what it believes to be padding.
    """

    flat: torch.Tensor
    filled_by: object | None = None


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
