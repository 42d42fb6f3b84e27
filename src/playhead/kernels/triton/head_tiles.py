"""Which heads take the kernel of `head.py`, and how its programs are cut.

They are what was fastest of three to five on an H200 (`docs/log/2026-11-17-speed-head.md`). Above 128 rows the BLAS
library is faster, even with the choice behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from playhead.kernels.triton.projection_tiles import DTYPES, rows_of_tile

FEWEST_IDS = 65_536  # of a vocabulary: smaller heads are like other projections
MOST_ROWS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTiles:
    """A program of `head_kernel`: `block_r` rows, `block_n` ids at a time, `block_k` inputs at a time, `num_stages` of
    them in flight. With `programs_per_sm` a program takes tile after tile, else there is one for each.

    The scores of a tile are [rows, ids] with `rows_first`, as tensor cores want it from 64 rows on. Noise is looked at
    in `num_parts` of a tile's ids, so that a thread has registers for it.
    """

    block_r: int
    block_n: int
    block_k: int
    num_stages: int
    num_warps: int = 4
    programs_per_sm: int = 0
    rows_first: bool = False
    num_parts: int = 1


def head_tiles(x_NM: torch.Tensor, weight_VM: torch.Tensor) -> HeadTiles | None:
    """How the head is cut; None where the BLAS library multiplies, and the choice is a kernel of its own."""
    num_rows, (num_ids, num_inputs) = x_NM.shape[0], weight_VM.shape
    is_aligned = num_inputs % 64 == 0 and weight_VM.is_contiguous() and x_NM.is_contiguous()
    is_ours = x_NM.dtype in DTYPES and x_NM.dtype is weight_VM.dtype and is_aligned
    if not is_ours or num_ids < FEWEST_IDS or num_rows > MOST_ROWS:
        return None
    return tiles_of(num_rows)


def tiles_of(num_rows: int) -> HeadTiles:
    """From 64 rows on, 256 ids at a time: with 128 the rows would be read as often as the weights."""
    block_r = max(rows_of_tile(num_rows), 16)
    if num_rows <= 32:
        return HeadTiles(block_r=block_r, block_n=128, block_k=64, num_stages=5, programs_per_sm=2)
    return HeadTiles(
        block_r=block_r, block_n=256, block_k=64, num_stages=4, num_warps=block_r // 16, programs_per_sm=1,
        rows_first=True, num_parts=4,
    )  # fmt: skip
