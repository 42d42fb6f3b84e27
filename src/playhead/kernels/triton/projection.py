# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Launches of `projection.py`: its kernels for steps of few rows, the BLAS library for others. `ordered_projection.py`
makes the same products in another way.

Shapes: T tokens, I inputs, O outputs, M hidden, S parts of a product, J = 2 * outputs of a gated map.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from playhead.kernels.attention import head_dim_of
from playhead.kernels.elementwise import UNCLAMPED
from playhead.kernels.sizes import ceil_div, next_power_of_2
from playhead.kernels.splits import NUM_SMS, merging_share
from playhead.kernels.triton.activation import launch_gated_activation_into
from playhead.kernels.triton.dependent import dependent
from playhead.kernels.triton.left import merging_row_kernel
from playhead.kernels.triton.norm import launch_add
from playhead.kernels.triton.projection_kernels import fitted_kernel, held_kernel, row_kernel, streamed_kernel
from playhead.kernels.triton.projection_tiles import (
    RING_INPUTS,
    RING_ROWS,
    FittedTiles,
    HeldTiles,
    RingTiles,
    RowTiles,
    StreamedTiles,
    Tiles,
    gated_tiles,
    most_rows,
    split_tiles,
    tiles_for,
)
from playhead.kernels.triton.ring import ring_kernel

MOST_NORMS = 1056  # programs that norm the same row


def launch_project(
    out_TO: Tensor, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, scale: float, adds: bool
) -> None:
    tiles = tiles_for(x_TI, weight_OI)
    if tiles is None:
        _multiply(out_TO, x_TI, weight_OI, bias_O, scale, adds)
    else:
        launch_tiles(tiles, out_TO, x_TI, weight_OI, bias_O, scale=scale, adds=adds)


def launch_project_gated(*call: Any) -> Tensor:
    return gate(_usual_way(), *call)


def launch_project_normed(*call: Any) -> Tensor:
    *rest, num_left = call
    return project_normed(_usual_way(), *rest, num_left=num_left)


class Way(NamedTuple):
    """How products are made: `tiles` cuts one of few rows, `gated` one that is gated, and `parts` one that its reader
    adds up. Where they give None `multiply` makes it, with the arguments of `launch_project`.
    """

    tiles: Callable[[Tensor, Tensor], Tiles | None]
    gated: Callable[[Tensor, Tensor, Tensor | None], Tiles | None]
    parts: Callable[[Tensor, Tensor], HeldTiles | StreamedTiles | None]
    multiply: Callable[[Tensor, Tensor, Tensor, Tensor | None, float, bool], None]
    in_order: bool = False


def _usual_way() -> Way:
    return Way(tiles_for, gated_tiles, split_tiles, launch_project)


def gate(way: Way, x_TI: Tensor, weight_JI: Tensor, bias_J: Tensor | None, activation: str) -> Tensor:
    out_TI = torch.empty((x_TI.shape[0], weight_JI.shape[0] // 2), dtype=x_TI.dtype, device=x_TI.device)
    tiles = way.gated(x_TI, weight_JI, bias_J)
    _project_or_gate(way, tiles, out_TI, x_TI, weight_JI, bias_J, activation)
    return out_TI


def project_normed(
    way: Way, out_TO: Tensor, x_TI: Tensor, first_MI: Tensor | None, first_bias_M: Tensor | None, scale: float,
    residual_TM: Tensor, *rest: Any, num_left: int = 0,
) -> Tensor:  # fmt: skip
    norm_M, x_norm_M, eps, unit_offset, centred, weight_OM, bias_O, activation = rest
    if first_MI is None:
        x_TM = x_TI
    elif num_left:
        assert (first_bias_M, scale) == (None, 1.0), "no other product merges parts"
        x_TM = merge_and_multiply(x_TI, first_MI, num_left)
    else:
        x_TM = _block_output(way, x_TI, first_MI, first_bias_M, scale)
    total_TM, h_TM = (torch.empty(residual_TM.shape, dtype=residual_TM.dtype, device=x_TI.device) for _ in range(2))
    norm = (residual_TM, norm_M, x_norm_M, eps, unit_offset, centred)
    if weight_OM is None:
        launch_add(total_TM, out_TO, x_TM, *norm, in_order=way.in_order, by_rows=not way.in_order)
        return total_TM
    tiles = way.tiles(h_TM, weight_OM) if activation is None else way.gated(h_TM, weight_OM, bias_O)
    # Every program norms the row itself, which is cheaper than a kernel for it while they all run at the same time. A
    # row that is cut in two, or comes in parts, would be summed more often: a kernel for it is as fast.
    is_whole = x_TM.dim() == 2
    if isinstance(tiles, RowTiles) and not tiles.rest and is_whole and len(weight_OM) <= MOST_NORMS * tiles.block_n:
        launch_tiles(tiles, out_TO, x_TM, weight_OM, bias_O, activation=activation, total_TI=total_TM, norm=norm)
    else:
        launch_add(total_TM, h_TM, x_TM, *norm, in_order=way.in_order, by_rows=not way.in_order)
        _project_or_gate(way, tiles, out_TO, h_TM, weight_OM, bias_O, activation)
    return total_TM


def _block_output(way: Way, x_TI: Tensor, weight_MI: Tensor, bias_M: Tensor | None, scale: float) -> Tensor:
    """A block's last product, or its parts [S, T, M] in float32: the norm behind it adds them up at no cost."""
    num_rows, num_outputs = x_TI.shape[0], weight_MI.shape[0]
    tiles = way.parts(x_TI, weight_MI) if bias_M is None and scale == 1.0 else None
    if tiles is None or tiles.num_splits == 1:
        out_TM = torch.empty((num_rows, num_outputs), dtype=x_TI.dtype, device=x_TI.device)
        way.multiply(out_TM, x_TI, weight_MI, bias_M, scale, False)
        return out_TM
    parts_STM = torch.empty((tiles.num_splits, num_rows, num_outputs), dtype=torch.float32, device=x_TI.device)
    launch_tiles(tiles, parts_STM, x_TI, weight_MI, None, in_order=way.in_order)
    return parts_STM


def merge_and_multiply(left_1Z: Tensor, weight_MI: Tensor, num_left: int) -> Tensor:
    """The product with attention's output, which comes in parts: as its own parts [S, 1, M], by groups of heads."""
    num_outputs, num_inputs = weight_MI.shape
    head_dim = head_dim_of(left_1Z, num_left, num_inputs)
    share = merging_share(head_dim)
    num_shares = num_inputs // share
    # A program for each multiprocessor, or a few more. Of four and eight warps, one for each 64 inputs was faster.
    block_n = max(next_power_of_2(num_outputs * num_shares // (NUM_SMS + NUM_SMS // 4)), 8)
    parts_S1M = torch.empty((num_shares, 1, num_outputs), dtype=torch.float32, device=left_1Z.device)
    merging_row_kernel[ceil_div(num_outputs, block_n), num_shares](
        left_1Z, weight_MI, parts_S1M, num_outputs, num_inputs,
        E=head_dim, HEADS=share // head_dim, LEFT=num_left, BLOCK_N=block_n, num_warps=share // 64,
        **dependent(left_1Z),
    )  # fmt: skip
    return parts_S1M


def _project_or_gate(
    way: Way, tiles: Tiles | None, out_TO: Tensor, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None,
    activation: str | None,
) -> None:  # fmt: skip
    if tiles is not None:
        launch_tiles(tiles, out_TO, x_TI, weight_OI, bias_O, activation=activation, in_order=way.in_order)
    elif activation is None:
        way.multiply(out_TO, x_TI, weight_OI, bias_O, 1.0, False)
    else:
        gate_up_TJ = torch.empty((x_TI.shape[0], weight_OI.shape[0]), dtype=x_TI.dtype, device=x_TI.device)
        way.multiply(gate_up_TJ, x_TI, weight_OI, bias_O, 1.0, False)
        launch_gated_activation_into(out_TO, gate_up_TJ, activation, *UNCLAMPED, in_order=way.in_order)


def launch_tiles(
    tiles: Tiles, out_TO: Tensor, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None,
    *, scale: float = 1.0, adds: bool = False, activation: str | None = None, in_order: bool = False,
    total_TI: Tensor | None = None, norm: tuple[Any, ...] = (None, None, None, 0.0, False, False),
) -> None:  # fmt: skip
    """The product cut as `tiles` say; gated, with an activation; of a normed sum, with memory for that (one row).

    Tiles with splits write `out_STO`, a matrix for each: neither bias nor scale is a part's. With `in_order`, streamed
    tiles round a gate and its up as a step that stores them does, and gate them by the same instructions.
    """
    most = most_rows(tiles)
    assert most is None or len(x_TI) <= most, f"found {len(x_TI)} rows; wanted at most {most}, which a program takes"
    if isinstance(tiles, RingTiles | FittedTiles):
        assert activation is not None, f"{type(tiles).__name__}: they gate, and no more"
        others = (bias_O, scale, adds, total_TI, in_order)
        assert others == (None, 1.0, False, None, False), f"{type(tiles).__name__}: they gate, and no more"
        if isinstance(tiles, RingTiles):
            launch_ring(tiles, out_TO, x_TI, weight_OI, activation)
        else:
            launch_fitted(tiles, out_TO, x_TI, weight_OI, activation)
        return
    num_rows, num_outputs = out_TO.shape[-2:]
    num_inputs = x_TI.shape[1]
    num_tiles = ceil_div(num_outputs * (1 if activation is None else 2), tiles.block_n)
    what = {"ACTIVATION": activation, "HAS_BIAS": bias_O is not None, "ADDS": adds, "STARTS_EARLY": tiles.starts_early}
    assert not in_order or isinstance(tiles, StreamedTiles), "other kernels add up in another order"
    if isinstance(tiles, RowTiles):
        residual_TI, norm_I, x_norm_I, eps, unit_offset, centred = norm
        row_kernel[(num_tiles,)](
            x_TI, weight_OI, bias_O, out_TO, scale, residual_TI, total_TI, norm_I, x_norm_I, eps,
            num_outputs, num_inputs,
            NORM=norm_I is not None, NORM_X=x_norm_I is not None, UNIT_OFFSET=unit_offset, CENTRED=centred,
            BLOCK_N=tiles.block_n, BLOCK_K=tiles.block_k, REST=tiles.rest, num_warps=tiles.num_warps,
            **what, **dependent(x_TI),
        )  # fmt: skip
        return
    assert total_TI is None, "several rows are summed and normed by a kernel of their own"
    num_parts = 1 if out_TO.dim() == 2 else len(out_TO)
    assert num_parts == tiles.num_splits, f"found room for {num_parts} parts; wanted it for {tiles.num_splits}"
    strides = (x_TI.stride(0), out_TO.stride(-2), out_TO.stride(0) if tiles.num_splits > 1 else 0)
    call = (x_TI, weight_OI, bias_O, out_TO, scale, *strides, num_rows, num_outputs, num_inputs)
    cut = {"BLOCK_R": tiles.block_r, "BLOCK_N": tiles.block_n, "BLOCK_K": tiles.block_k}
    if isinstance(tiles, HeldTiles):
        held_kernel[(num_tiles, tiles.num_splits)](
            *call, **cut, REST=tiles.rest, PARTS=tiles.parts, num_warps=tiles.parts, **what, **dependent(x_TI)
        )
        return
    steps = ceil_div(tiles.share or ceil_div(num_inputs, tiles.num_splits), tiles.block_k)
    in_last_share = num_inputs - (tiles.num_splits - 1) * steps * tiles.block_k
    is_even = num_inputs % tiles.block_k == tiles.held % tiles.block_k == 0 and in_last_share >= tiles.held
    streamed_kernel[(num_tiles, tiles.num_splits, ceil_div(num_rows, tiles.block_r))](
        *call, steps, **cut, STAGES=tiles.num_stages, HELD=tiles.held, EVEN=is_even, ROUNDS=in_order,
        num_warps=tiles.num_warps, enable_fp_fusion=not in_order, **what, **dependent(x_TI),
    )  # fmt: skip


def launch_ring(tiles: RingTiles, out_TI: Tensor, x_TM: Tensor, weight_JM: Tensor, activation: str) -> None:
    (num_rows, num_outputs), num_inputs = out_TI.shape, x_TM.shape[1]
    assert num_inputs >= (tiles.places + tiles.holds) * RING_INPUTS, "a ring asks for no more blocks than there are"
    ring_kernel[(2 * num_outputs // RING_ROWS,)](
        x_TM, weight_JM, out_TI, x_TM.stride(0), out_TI.stride(0), num_rows, num_outputs, num_inputs,
        R=tiles.block_r, N=RING_ROWS, K=RING_INPUTS, PLACES=tiles.places, ROW_PLACES=tiles.row_places,
        ASKED=tiles.asked, HOLDS=tiles.holds, ACTIVATION=activation,
        num_warps=RING_ROWS // 16, **dependent(x_TM),
    )  # fmt: skip


def launch_fitted(tiles: FittedTiles, out_TI: Tensor, x_TM: Tensor, weight_JM: Tensor, activation: str) -> None:
    (num_rows, num_outputs), num_inputs = out_TI.shape, x_TM.shape[1]
    assert num_inputs % tiles.block_k == 0, f"found {num_inputs} inputs; wanted whole blocks of {tiles.block_k}"
    fitted_kernel[(ceil_div(2 * num_outputs, tiles.block_n + tiles.rest),)](
        x_TM, weight_JM, out_TI, x_TM.stride(0), out_TI.stride(0), num_rows, num_outputs, num_inputs,
        BLOCK_R=tiles.block_r, BLOCK_N=tiles.block_n, REST=tiles.rest, BLOCK_K=tiles.block_k, STAGES=tiles.num_stages,
        ACTIVATION=activation, num_warps=tiles.num_warps, **dependent(x_TM),
    )  # fmt: skip


def _multiply(out_TO: Tensor, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, scale: float, adds: bool) -> None:
    """The same by the BLAS library."""
    if adds:
        out_TO.addmm_(x_TI, weight_OI.t(), alpha=scale)
        if bias_O is not None:
            out_TO.add_(bias_O, alpha=scale)
    elif bias_O is not None:
        torch.addmm(bias_O, x_TI, weight_OI.t(), beta=scale, alpha=scale, out=out_TO)
    elif scale != 1.0:
        torch.addmm(out_TO, x_TI, weight_OI.t(), beta=0, alpha=scale, out=out_TO)
    else:
        torch.mm(x_TI, weight_OI.t(), out=out_TO)
