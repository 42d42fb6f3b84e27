# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernels of `projection.py`, for steps of few rows: each weight is read once, at the memory's pace.

A program takes some outputs and sums over all inputs itself, in an order that the matrix's shape alone fixes: there is
no second kernel that adds parts, and a row's result does not depend on the rows beside it. One row is multiplied
elementwise (`row_kernel`): its program holds all its weights in registers, so they are on their way before the program
waits for the row. Several rows are multiplied by tensor cores (`rows_kernel`), whose smallest tile they fill up.

Shapes: T tokens, I inputs, O outputs, J = 2 * outputs of a gated map; of a program N outputs, K inputs of a block,
P blocks side by side, R rows (padded).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from playhead.kernels.elementwise import UNCLAMPED, gated_activation
from playhead.kernels.triton.activation import gated, launch_gated_activation_into
from playhead.kernels.triton.dependent import after_upstream, dependent, let_downstream_start
from playhead.kernels.triton.norm import launch_add, load_factor, scaled_row
from playhead.kernels.triton.projection_tiles import RowsTiles, RowTiles, tiles_for

MOST_NORMS = 1056  # programs that norm the same row


@triton.jit
def _matrix_rows(N, BLOCK_N: tl.constexpr, IS_GATED: tl.constexpr):
    """Which rows of the matrix a program multiplies by, and which are there.

    A gated map has the gates of its N outputs and then their ups: a program takes a gate, its up, the next gate, ...
    """
    row_N = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    if IS_GATED:
        output_N = row_N // 2
        return output_N + row_N % 2 * N, output_N < N
    return row_N, row_N < N


@triton.jit
def _with_bias(y, bias, row, live, HAS_BIAS: tl.constexpr):
    if HAS_BIAS:
        y += tl.load(bias + row, mask=live, other=0.0).to(tl.float32)
    return y


@triton.jit
def _store(y, out, place, live, scale, ADDS: tl.constexpr):
    """scale * y, added to what is at `place` if the map adds."""
    y *= scale
    if ADDS:
        y += tl.load(out + place, mask=live, other=0.0).to(tl.float32)
    tl.store(out + place, y.to(out.dtype.element_ty), mask=live)


@triton.jit
def _normed_sum(
    x_K, residual, total, norm_K, x_norm_K, k_K, live_K, eps, K, writes, NORM_X: tl.constexpr, CENTRED: tl.constexpr
):
    """norm(residual + norm(x)): every program computes the whole row, one of them stores the sum."""
    residual_K = tl.load(residual + k_K, mask=live_K, other=0.0).to(tl.float32)
    if NORM_X:
        x_K = scaled_row(x_K, x_norm_K, live_K, eps, K, CENTRED)
    total_K = (residual_K + x_K).to(total.dtype.element_ty)
    tl.store(total + k_K, total_K, mask=live_K & writes)
    return scaled_row(total_K.to(tl.float32), norm_K, live_K, eps, K, CENTRED)


@triton.jit
def row_kernel(
    x, weight, bias, out, scale, residual, total, norm, x_norm, eps, N, K,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr, ADDS: tl.constexpr,
    NORM: tl.constexpr, NORM_X: tl.constexpr, UNIT_OFFSET: tl.constexpr, CENTRED: tl.constexpr,
    STARTS_NEXT: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One row times BLOCK_N rows of the matrix. With NORM the row is a sum that is normed."""
    IS_GATED: tl.constexpr = ACTIVATION is not None
    row_N, live_N = _matrix_rows(N, BLOCK_N, IS_GATED)
    k_K = tl.arange(0, BLOCK_K)
    live_K = k_K < K
    place_NK = row_N[:, None].to(tl.int64) * K + k_K[None, :]
    w_NK = tl.load(weight + place_NK, mask=live_N[:, None] & live_K[None, :], other=0.0)
    norm_K = k_K
    x_norm_K = k_K
    if NORM:
        norm_K = load_factor(norm, k_K, live_K, UNIT_OFFSET)
    if NORM_X:
        x_norm_K = load_factor(x_norm, k_K, live_K, UNIT_OFFSET)
    if STARTS_NEXT:
        let_downstream_start(DEPENDENT)
    after_upstream(DEPENDENT)
    x_K = tl.load(x + k_K, mask=live_K, other=0.0).to(tl.float32)
    if NORM:
        writes = tl.program_id(0) == 0
        x_K = _normed_sum(x_K, residual, total, norm_K, x_norm_K, k_K, live_K, eps, K, writes, NORM_X, CENTRED)
    y_N = _with_bias(tl.sum(w_NK.to(tl.float32) * x_K[None, :], 1), bias, row_N, live_N, HAS_BIAS)
    if IS_GATED:
        gate, up = tl.split(tl.reshape(y_N, [BLOCK_N // 2, 2]))
        col = tl.program_id(0) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        _store(gated(gate, up, 1.0, 0.0, ACTIVATION), out, col, col < N, scale, ADDS)
    else:
        _store(y_N, out, row_N, live_N, scale, ADDS)


@triton.jit(do_not_specialize=["num_rows"])  # one binary for every number of rows
def rows_kernel(
    x, weight, bias, out, scale, x_row, out_row, num_rows, N, K,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
    ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr, ADDS: tl.constexpr,
    STARTS_NEXT: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """All rows times BLOCK_N rows of the matrix. Each of PARTS warps sums a share of the inputs; the shares add up."""
    if STARTS_NEXT:
        let_downstream_start(DEPENDENT)
    IS_GATED: tl.constexpr = ACTIVATION is not None
    row_N, live_N = _matrix_rows(N, BLOCK_N, IS_GATED)
    token_R = tl.arange(0, BLOCK_R)
    live_R = token_R < num_rows
    k_PK = tl.arange(0, PARTS)[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    w_PNK = weight + row_N[None, :, None].to(tl.int64) * K + k_PK[:, None, :]
    x_PKR = x + token_R[None, None, :] * x_row + k_PK[:, :, None]
    acc_PNR = tl.zeros([PARTS, BLOCK_N, BLOCK_R], tl.float32)
    after_upstream(DEPENDENT)
    for start in tl.range(0, K, BLOCK_K * PARTS, num_stages=STAGES):
        live_PK = k_PK + start < K
        weights_PNK = tl.load(w_PNK + start, mask=live_PK[:, None, :] & live_N[None, :, None], other=0.0)
        values_PKR = tl.load(x_PKR + start, mask=live_PK[:, :, None] & live_R[None, None, :], other=0.0)
        acc_PNR = tl.dot(weights_PNK, values_PKR, acc_PNR)
    y_NR = _with_bias(tl.sum(acc_PNR, 0), bias, row_N[:, None], live_N[:, None], HAS_BIAS)
    place_1R = token_R[None, :] * out_row
    if IS_GATED:
        gate, up = tl.split(tl.permute(tl.reshape(y_NR, [BLOCK_N // 2, 2, BLOCK_R]), 0, 2, 1))
        col = (tl.program_id(0) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2))[:, None]
        y = gated(gate, up, 1.0, 0.0, ACTIVATION)
        _store(y, out, place_1R + col, (col < N) & live_R[None, :], scale, ADDS)
    else:
        _store(y_NR, out, place_1R + row_N[:, None], live_N[:, None] & live_R[None, :], scale, ADDS)


def launch_project(
    out_TO: Tensor, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, scale: float, adds: bool
) -> None:
    tiles = tiles_for(x_TI, weight_OI)
    if tiles is None:
        _multiply(out_TO, x_TI, weight_OI, bias_O, scale, adds)
    else:
        launch_tiles(tiles, out_TO, x_TI, weight_OI, bias_O, scale=scale, adds=adds)


def launch_project_gated(x_TI: Tensor, weight_JI: Tensor, bias_J: Tensor | None, activation: str) -> Tensor:
    tiles = tiles_for(x_TI, weight_JI)
    if tiles is None:
        gate_up_TJ = torch.empty((x_TI.shape[0], weight_JI.shape[0]), dtype=x_TI.dtype, device=x_TI.device)
        launch_project(gate_up_TJ, x_TI, weight_JI, bias_J, 1.0, False)
        return gated_activation(gate_up_TJ, activation, *UNCLAMPED)
    out_TI = torch.empty((x_TI.shape[0], weight_JI.shape[0] // 2), dtype=x_TI.dtype, device=x_TI.device)
    launch_tiles(tiles, out_TI, x_TI, weight_JI, bias_J, activation=activation)
    return out_TI


def launch_project_normed(
    out_TO: Tensor, x_TI: Tensor, residual_TI: Tensor, norm_I: Tensor, x_norm_I: Tensor | None,
    eps: float, unit_offset: bool, centred: bool, weight_OI: Tensor, bias_O: Tensor | None, activation: str | None,
) -> Tensor:  # fmt: skip
    total_TI = torch.empty(x_TI.shape, dtype=residual_TI.dtype, device=x_TI.device)
    tiles = tiles_for(x_TI, weight_OI)
    norm = (residual_TI, norm_I, x_norm_I, eps, unit_offset, centred)
    # Every program norms the row itself. That is cheaper than a kernel for it while they all run at the same time.
    if isinstance(tiles, RowTiles) and weight_OI.shape[0] <= MOST_NORMS * tiles.block_n:
        launch_tiles(tiles, out_TO, x_TI, weight_OI, bias_O, activation=activation, total_TI=total_TI, norm=norm)
        return total_TI
    h_TI = torch.empty(x_TI.shape, dtype=x_TI.dtype, device=x_TI.device)
    launch_add(total_TI, h_TI, x_TI, *norm)
    if tiles is not None:
        launch_tiles(tiles, out_TO, h_TI, weight_OI, bias_O, activation=activation)
    elif activation is None:
        _multiply(out_TO, h_TI, weight_OI, bias_O, 1.0, False)
    else:
        gate_up_TJ = torch.empty((x_TI.shape[0], weight_OI.shape[0]), dtype=x_TI.dtype, device=x_TI.device)
        _multiply(gate_up_TJ, h_TI, weight_OI, bias_O, 1.0, False)
        launch_gated_activation_into(out_TO, gate_up_TJ, activation, *UNCLAMPED)
    return total_TI


def launch_tiles(
    tiles: RowTiles | RowsTiles, out_TO: Tensor, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None,
    *, scale: float = 1.0, adds: bool = False, activation: str | None = None,
    total_TI: Tensor | None = None, norm: tuple[Any, ...] = (None, None, None, 0.0, False, False),
) -> None:  # fmt: skip
    """The product cut as `tiles` say; gated, with an activation; of a normed sum, with memory for that (one row)."""
    num_rows, num_outputs = out_TO.shape
    grid = (triton.cdiv(num_outputs * (1 if activation is None else 2), tiles.block_n),)
    what = {"ACTIVATION": activation, "HAS_BIAS": bias_O is not None, "ADDS": adds, "STARTS_NEXT": tiles.starts_next}
    if isinstance(tiles, RowTiles):
        residual_TI, norm_I, x_norm_I, eps, unit_offset, centred = norm
        row_kernel[grid](
            x_TI, weight_OI, bias_O, out_TO, scale, residual_TI, total_TI, norm_I, x_norm_I, eps,
            num_outputs, x_TI.shape[1],
            NORM=norm_I is not None, NORM_X=x_norm_I is not None, UNIT_OFFSET=unit_offset, CENTRED=centred,
            BLOCK_N=tiles.block_n, BLOCK_K=tiles.block_k, num_warps=tiles.num_warps, **what, **dependent(x_TI),
        )  # fmt: skip
        return
    assert total_TI is None, "several rows are summed and normed by a kernel of their own"
    rows_kernel[grid](
        x_TI, weight_OI, bias_O, out_TO, scale, x_TI.stride(0), out_TO.stride(0), num_rows, num_outputs, x_TI.shape[1],
        BLOCK_R=tiles.block_r, BLOCK_N=tiles.block_n, BLOCK_K=tiles.block_k, PARTS=tiles.parts,
        STAGES=tiles.num_stages, num_warps=tiles.num_warps, **what, **dependent(x_TI),
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
