"""Which products take the kernels of `projection.py`, and how their programs are cut: rules from measurements.

`python -m bench.projections` measures every rule's choice against its neighbours and the BLAS library.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

MOST_ROWS = 16  # of a step that reads weights for so little arithmetic that the memory sets its pace
MOST_OUTPUTS = 65_536  # the BLAS library is at the memory's pace for a head
MOST_INPUTS = 16_384  # a program of `row_kernel` holds all inputs of two outputs in registers
LARGE_BYTES = 13 << 20
DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTiles:
    """A program of `row_kernel`: `block_n` rows of the matrix, all their inputs at once.

    With `starts_next` programs of the next kernel may load their weights while this kernel runs.
    """

    block_n: int
    block_k: int
    num_warps: int
    starts_next: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsTiles:
    """A program of `rows_kernel`: `block_r` rows, `block_n` rows of the matrix, `parts` blocks of `block_k` inputs at a
    time, `num_stages` of them in flight.
    """

    block_r: int
    block_n: int
    block_k: int
    parts: int
    num_stages: int
    starts_next: bool = False

    @property
    def num_warps(self) -> int:
        return self.parts


def tiles_for(x_TI: torch.Tensor, weight_OI: torch.Tensor) -> RowTiles | RowsTiles | None:
    """How the product is cut; None where the BLAS library is as fast, or the only one that can."""
    (num_outputs, num_inputs), num_rows = weight_OI.shape, x_TI.shape[0]
    fits = num_rows <= MOST_ROWS and num_outputs <= MOST_OUTPUTS and num_inputs <= MOST_INPUTS
    # Loads of 16 bytes need rows that start at multiples of 16 bytes.
    is_aligned = num_inputs % 16 == 0 and weight_OI.is_contiguous() and x_TI.stride(1) == 1
    if not fits or not is_aligned or x_TI.dtype not in DTYPES or x_TI.dtype is not weight_OI.dtype:
        return None
    if num_rows > 8 and num_outputs > 2048 and num_inputs > 8192:  # 19.9 us against 18.1 (Gemma-3-4B's down)
        return None
    return row_tiles(num_outputs, num_inputs) if num_rows == 1 else rows_tiles(num_rows, num_outputs)


def row_tiles(num_outputs: int, num_inputs: int) -> RowTiles:
    """32 weights for each thread, more where two rows of the matrix have more: enough in flight to hide the latency."""
    block_k = max(1 << (num_inputs - 1).bit_length(), 1024)
    num_warps = 8 if block_k <= 2048 else 16
    # A large matrix keeps the memory busy by itself, and programs of the next kernel would take room from its own.
    starts_next = num_outputs * num_inputs * 2 <= LARGE_BYTES
    block_n = max(32 * 32 * num_warps // block_k, 2)
    return RowTiles(block_n=block_n, block_k=block_k, num_warps=num_warps, starts_next=starts_next)


def rows_tiles(num_rows: int, num_outputs: int) -> RowsTiles:
    """Of few outputs a program takes 16, and its warps share the inputs: that makes enough programs, and enough loads
    in flight. Many outputs make enough programs of one warp.
    """
    block_r = 8 if num_rows <= 8 else 16
    if num_outputs <= 2048:
        return RowsTiles(block_r=block_r, block_n=16, block_k=128, parts=4, num_stages=6)
    if num_outputs <= 4096:
        return RowsTiles(block_r=block_r, block_n=32, block_k=128, parts=2, num_stages=6)
    return RowsTiles(block_r=block_r, block_n=16, block_k=128, parts=1, num_stages=6)
