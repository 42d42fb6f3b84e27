# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Bugs of the ring through which gate-up's weights come, and what notices them without a GPU."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import async_copy, fence_async_shared

from playhead.kernels.projection import project_gated
from playhead.kernels.triton import projection, ring
from playhead.kernels.triton.projection_tiles import RING_INPUTS, RING_ROWS, RingTiles
from playhead.testing.gluon_interpreter import Interpreted, SharedMemoryError
from playhead.testing.mutant import Checker, Mutant, swapped

TILES = RingTiles(block_r=8, places=4, row_places=3, asked=32, holds=True)
NUM_BLOCKS = 10  # the ring goes round twice


@gluon.jit
def _await_on_its_way(ROW_PLACES):
    async_copy.wait_group(ROW_PLACES - 1)
    fence_async_shared()
    tl.debug_barrier()


@gluon.jit
def _await_still_read(ROW_PLACES):
    async_copy.wait_group(ROW_PLACES - 2)
    fence_async_shared()


@gluon.jit
def _await_without_a_fence(ROW_PLACES):
    async_copy.wait_group(ROW_PLACES - 2)
    tl.debug_barrier()


def _awaiting(name: str, await_block: Any, *, source: str) -> Mutant:
    """The ring with another way to wait for a block."""
    hunters = ("a ring of blocks",)
    return Mutant(name=name, source=source, apply=lambda: swapped(ring, "_await_block", await_block), killed_by=hunters)


def ring_of_blocks() -> list[str]:
    """The ring's kernel, interpreted, gives the product, and reads and writes each place in its turn."""
    numbers = torch.Generator().manual_seed(0)
    num_inputs = NUM_BLOCKS * RING_INPUTS
    x_TM = torch.randn(5, num_inputs, generator=numbers)
    weight_JM = 0.05 * torch.randn(2 * RING_ROWS, num_inputs, generator=numbers)
    out_TI = torch.full((5, RING_ROWS), float("nan"))
    with patch.object(projection, "ring_kernel", Interpreted(kernel=ring.ring_kernel)):
        projection.launch_ring(TILES, out_TI, x_TM, weight_JM, "silu")
    wanted_TI = project_gated.reference(x_TM, weight_JM, None, "silu")
    return [] if torch.allclose(out_TI, wanted_TI, atol=1e-4) else ["the product is another one"]


RING_MUTANTS: tuple[Mutant, ...] = (
    _awaiting(
        "a block of the ring that is on its way",
        _await_on_its_way,
        source="copies land in the order of their groups, and one group too few was waited for",
    ),
    _awaiting(
        "a block of the ring that is still read",
        _await_still_read,
        source="warps finish a product at different times: nothing held the first one back",
    ),
    _awaiting(
        "a block of the ring without a fence",
        _await_without_a_fence,
        source="matrix instructions read shared memory by another way than copies write it",
    ),
)
RING_CHECKERS = (Checker(name="a ring of blocks", run=ring_of_blocks, raises=(SharedMemoryError,)),)
