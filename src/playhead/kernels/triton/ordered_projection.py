"""Launches of `ordered.py` around its matmul: products of few rows by `streamed_kernel`, in the order of the matmul.

Both kernels add up inputs in ascending order, 16 at a time, and cut long rows into the same chunks: whichever takes a
row gives it the same bits. So in steps of few rows one kernel may make a product and what follows it, if it rounds
where the kernels of other steps store.

Shapes: T tokens, I inputs, O outputs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from playhead.kernels.triton.ordered_matmul import chunk_of, launch_matmul_in_order
from playhead.kernels.triton.projection import Way, gate, project_normed
from playhead.kernels.triton.projection_tiles import (
    FEW_ROWS,
    MANY_OUTPUTS,
    MANY_ROWS,
    StreamedTiles,
    is_ours,
    rows_of_tile,
    tiles_for,
)


def launch_gate_in_order(*call: Any) -> Tensor:
    return gate(IN_ORDER, *call)


def launch_project_normed_in_order(*call: Any) -> Tensor:
    return project_normed(IN_ORDER, *call)


def tiles_in_order(x_TI: Tensor, weight_OI: Tensor) -> StreamedTiles | None:
    """How a product that one program sums up is cut; None where `matmul_in_order` has the faster kernel.

    No weights are held: the inputs of held weights are multiplied last, which is another order.
    """
    (num_outputs, num_inputs), num_rows = weight_OI.shape, x_TI.shape[0]
    if not is_ours(x_TI, weight_OI) or chunk_of(num_outputs, num_inputs) < num_inputs:
        return None
    if num_rows <= FEW_ROWS and num_outputs < MANY_OUTPUTS:
        return StreamedTiles(block_r=FEW_ROWS, block_n=16, block_k=128, num_stages=5, starts_early=True)
    tiles = tiles_for(x_TI, weight_OI)
    if not isinstance(tiles, StreamedTiles):
        return StreamedTiles(block_r=FEW_ROWS, block_n=64, block_k=128, num_stages=4) if num_rows == 1 else None
    if not tiles.held:
        return tiles
    return replace(tiles, held=0, block_r=rows_of_tile(num_rows), num_stages=tiles.num_stages + 1)


def tiles_of_chunks(x_TI: Tensor, weight_OI: Tensor) -> StreamedTiles | None:
    """How a product of long rows is cut into its chunks, which the reader adds up."""
    (num_outputs, num_inputs), num_rows = weight_OI.shape, x_TI.shape[0]
    chunk = chunk_of(num_outputs, num_inputs)
    if not is_ours(x_TI, weight_OI) or chunk >= num_inputs:
        return None
    num_chunks = -(-num_inputs // chunk)
    if num_rows > MANY_ROWS:
        cut = StreamedTiles(block_r=256, block_n=64, block_k=64, num_stages=4, num_warps=8)
    else:
        cut = StreamedTiles(block_r=rows_of_tile(num_rows), block_n=64, block_k=128, num_stages=4)
    return replace(cut, num_splits=num_chunks, share=chunk, starts_early=True)


def _multiply(out_TO: Tensor, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, scale: float, adds: bool) -> None:
    launch_matmul_in_order(x_TI, weight_OI, bias_O, out_TO, scale, adds)


def _gated_in_order(x_TI: Tensor, weight_JI: Tensor, _: Tensor | None) -> StreamedTiles | None:
    return tiles_in_order(x_TI, weight_JI)


IN_ORDER = Way(tiles_in_order, _gated_in_order, tiles_of_chunks, _multiply, in_order=True)
