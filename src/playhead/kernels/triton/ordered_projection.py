"""Launches of `ordered.py` around its matmul: products of few rows by `streamed_kernel`, in the order of the matmul.

Both kernels add up inputs in ascending order, 16 at a time, and cut long rows into the same chunks: whichever takes a
row gives it the same bits. So what follows a product may be one kernel with it in steps of few rows and not in others,
if it rounds where the others store.

Shapes: T tokens, I inputs, O outputs, M hidden, S chunks of a product, J = 2 * outputs of a gated map.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from playhead.kernels.elementwise import UNCLAMPED
from playhead.kernels.triton.activation import launch_gated_activation_into
from playhead.kernels.triton.norm import launch_add
from playhead.kernels.triton.ordered_matmul import chunk_of, launch_matmul_in_order
from playhead.kernels.triton.projection import launch_tiles
from playhead.kernels.triton.projection_tiles import (
    FEW_ROWS,
    MANY_OUTPUTS,
    MANY_ROWS,
    StreamedTiles,
    is_ours,
    rows_of_tile,
    tiles_for,
)


def launch_gate_in_order(x_TI: Tensor, weight_JI: Tensor, bias_J: Tensor | None, activation: str) -> Tensor:
    out_TI = torch.empty((x_TI.shape[0], weight_JI.shape[0] // 2), dtype=x_TI.dtype, device=x_TI.device)
    _project_or_gate(out_TI, x_TI, weight_JI, bias_J, activation)
    return out_TI


def launch_project_normed_in_order(
    out_TO: Tensor, x_TI: Tensor, first_MI: Tensor | None, first_bias_M: Tensor | None, scale: float,
    residual_TM: Tensor, *rest: Any,
) -> Tensor:  # fmt: skip
    *norm, weight_OM, bias_O, activation = rest
    x_TM = x_TI if first_MI is None else _block_output(x_TI, first_MI, first_bias_M, scale)
    total_TM, h_TM = (torch.empty(residual_TM.shape, dtype=x_TI.dtype, device=x_TI.device) for _ in range(2))
    launch_add(total_TM, h_TM, x_TM, residual_TM, *norm, in_order=True)
    _project_or_gate(out_TO, h_TM, weight_OM, bias_O, activation)
    return total_TM


def _block_output(x_TI: Tensor, weight_MI: Tensor, bias_M: Tensor | None, scale: float) -> Tensor:
    """A block's last product, or the sums of its chunks [S, T, M] in float32, which the norm behind it adds up."""
    num_rows, num_outputs = x_TI.shape[0], weight_MI.shape[0]
    tiles = tiles_of_chunks(x_TI, weight_MI) if bias_M is None and scale == 1.0 else None
    if tiles is None:
        out_TM = torch.empty((num_rows, num_outputs), dtype=x_TI.dtype, device=x_TI.device)
        launch_matmul_in_order(x_TI, weight_MI, bias_M, out_TM, scale, False)
        return out_TM
    sums_STM = torch.empty((tiles.num_splits, num_rows, num_outputs), dtype=torch.float32, device=x_TI.device)
    launch_tiles(tiles, sums_STM, x_TI, weight_MI, None, in_order=True)
    return sums_STM


def _project_or_gate(
    out_TO: Tensor, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, activation: str | None
) -> None:
    tiles = tiles_in_order(x_TI, weight_OI)
    if tiles is not None:
        launch_tiles(tiles, out_TO, x_TI, weight_OI, bias_O, activation=activation, in_order=True)
    elif activation is None:
        launch_matmul_in_order(x_TI, weight_OI, bias_O, out_TO, 1.0, False)
    else:
        gate_up_TJ = torch.empty((x_TI.shape[0], weight_OI.shape[0]), dtype=x_TI.dtype, device=x_TI.device)
        launch_matmul_in_order(x_TI, weight_OI, bias_O, gate_up_TJ, 1.0, False)
        launch_gated_activation_into(out_TO, gate_up_TJ, activation, *UNCLAMPED, in_order=True)


def tiles_in_order(x_TI: Tensor, weight_OI: Tensor) -> StreamedTiles | None:
    """How a product that one program sums up is cut; None where `matmul_in_order` has the faster kernel.

    Nothing is held: what is held is multiplied last.
    """
    (num_outputs, num_inputs), num_rows = weight_OI.shape, x_TI.shape[0]
    if not is_ours(x_TI, weight_OI) or chunk_of(num_outputs, num_inputs) < num_inputs:
        return None
    if num_rows <= FEW_ROWS and num_outputs < MANY_OUTPUTS:
        return StreamedTiles(block_r=FEW_ROWS, block_n=16, block_k=128, num_stages=5, starts_early=True)
    tiles = tiles_for(x_TI, weight_OI)
    if not isinstance(tiles, StreamedTiles):
        return StreamedTiles(block_r=FEW_ROWS, block_n=64, block_k=128, num_stages=4) if num_rows == 1 else None
    return replace(tiles, held=0, num_stages=tiles.num_stages + 1) if tiles.held else tiles


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
