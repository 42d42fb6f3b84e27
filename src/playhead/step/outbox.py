"""Where decode steps leave their tokens for the host, in memory that both can see.

A copy behind a step's graph would stand between it and the next step's: 8 us. So the graph itself writes the tokens
(`kernels/tokens.py`, `advance`). The host cannot tell it where, because a batch that goes on is replayed with no word
from the host. There are several boxes, and a step leaves the next one's number as an input of the next step. The host
counts along: `Worker` knows which box each step writes, and reads it before the device comes around to it again. Box 0
is the sink: captures, which run between other steps, write there.

Shapes: X boxes, R rows of running requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from playhead.kv.tables import Int32Array

FIRST_BOX = 1
NUM_BOXES = 4
"""More than steps in flight: the box of a step that was not read yet is nobody else's."""


def box_after(box: int) -> int:
    """Where the step after the one that writes this box leaves its tokens, as `advance` counts."""
    return box % NUM_BOXES + 1


def boxes_from(box: int) -> list[int]:
    """All boxes in their order, this one first."""
    return [(box + i - FIRST_BOX) % NUM_BOXES + FIRST_BOX for i in range(NUM_BOXES)]


class Outbox:
    """The boxes, as the device writes them (`boxes_XR`) and as the host reads them."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self.boxes_XR, self._read_XR = seen_by_both((1 + NUM_BOXES, max_rows), device)

    def box(self, number: int, num_rows: int) -> Box:
        return Box(self._read_XR[number, :num_rows])


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """One step's tokens, once the step has ended."""

    tokens_N: Int32Array

    def read(self) -> list[int]:
        tokens: list[int] = self.tokens_N.tolist()
        return tokens


def seen_by_both(shape: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, Int32Array]:
    """Memory of the host as a tensor of the device, and as an array, which owns it.

    Pinned memory has the same address on both sides, so a kernel's stores to the tensor go to the host.
    """
    if device.type != "cuda":
        memory = torch.zeros(shape, dtype=torch.int32)
        return memory, memory.numpy()
    pinned = torch.zeros(shape, dtype=torch.int32, pin_memory=True)
    storage = torch._C._construct_storage_from_data_pointer(pinned.data_ptr(), device, pinned.nbytes)
    seen = torch.empty(0, dtype=torch.int32, device=device).set_(storage, 0, shape, pinned.stride())
    return seen, pinned.numpy()
