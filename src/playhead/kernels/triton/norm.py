# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernels of `norm.py`: one program per row, the row in registers.

Shapes: T tokens, D width, S parts of a row, which are its summands.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from playhead.kernels.sizes import next_power_of_2
from playhead.kernels.triton.dependent import after_upstream, dependent, let_downstream_start

# Up to so many rows get twice the threads, and a decode step takes 0.4 to 2% less. 512 rows would take 12% longer so.
SPREAD_ROWS = 128


@triton.jit
def load_factor(weight, col_D, live_D, UNIT_OFFSET: tl.constexpr):
    """What a normalised row is multiplied by."""
    factor_D = tl.load(weight + col_D, mask=live_D, other=0.0).to(tl.float32)
    if UNIT_OFFSET:
        factor_D += 1.0
    return factor_D


@triton.jit
def scaled_row(x_D, factor_D, live_D, eps, WIDTH, CENTRED: tl.constexpr):
    """A float32 row, normalised. Columns past the width must be zero."""
    if CENTRED:
        x_D = tl.where(live_D, x_D - tl.sum(x_D) / WIDTH, 0.0)
    return x_D * tl.rsqrt(tl.sum(x_D * x_D) / WIDTH + eps) * factor_D


@triton.jit
def sum_of_parts(x, x_part, col_D, live_D, PARTS: tl.constexpr):
    """A row that was stored as its summands, in float32. They are added in ascending order."""
    x_D = tl.load(x + col_D, mask=live_D, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        x_D += tl.load(x + part * x_part + col_D, mask=live_D, other=0.0).to(tl.float32)
    return x_D


@triton.jit
def rms_norm_kernel(
    x, weight, out, x_stride, eps,
    WIDTH: tl.constexpr, UNIT_OFFSET: tl.constexpr, CENTRED: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    let_downstream_start(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    col_D = tl.arange(0, BLOCK)
    live_D = col_D < WIDTH
    factor_D = load_factor(weight, col_D, live_D, UNIT_OFFSET)
    after_upstream(DEPENDENT)
    x_D = tl.load(x + row * x_stride + col_D, mask=live_D, other=0.0).to(tl.float32)
    y_D = scaled_row(x_D, factor_D, live_D, eps, WIDTH, CENTRED)
    tl.store(out + row * WIDTH + col_D, y_D.to(out.dtype.element_ty), mask=live_D)


@triton.jit
def add_norm_kernel(
    x, residual, total, weight, x_weight, out, x_part, x_stride, residual_stride, total_stride, eps,
    PARTS: tl.constexpr, ROUNDS: tl.constexpr, WIDTH: tl.constexpr, UNIT_OFFSET: tl.constexpr, CENTRED: tl.constexpr,
    NORM_X: tl.constexpr, NORM_SUM: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """x is given as PARTS summands, and with ROUNDS their sum is rounded. The total goes to `total`, which may be the
    residual itself.
    """
    let_downstream_start(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    col_D = tl.arange(0, BLOCK)
    live_D = col_D < WIDTH
    if NORM_X:
        x_factor_D = load_factor(x_weight, col_D, live_D, UNIT_OFFSET)
    if NORM_SUM:
        factor_D = load_factor(weight, col_D, live_D, UNIT_OFFSET)
    after_upstream(DEPENDENT)
    x_D = sum_of_parts(x + row * x_stride, x_part, col_D, live_D, PARTS)
    if ROUNDS:
        x_D = x_D.to(total.dtype.element_ty).to(tl.float32)
    residual_D = tl.load(residual + row * residual_stride + col_D, mask=live_D, other=0.0).to(tl.float32)
    if NORM_X:
        x_D = scaled_row(x_D, x_factor_D, live_D, eps, WIDTH, CENTRED)
    stored_D = (residual_D + x_D).to(total.dtype.element_ty)
    tl.store(total + row * total_stride + col_D, stored_D, mask=live_D)
    if NORM_SUM:
        y_D = scaled_row(stored_D.to(tl.float32), factor_D, live_D, eps, WIDTH, CENTRED)
        tl.store(out + row * WIDTH + col_D, y_D.to(out.dtype.element_ty), mask=live_D)


def launch_rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float, unit_offset: bool, centred: bool) -> Tensor:
    out_TD = torch.empty(x_TD.shape, dtype=x_TD.dtype, device=x_TD.device)
    rms_norm_kernel[(x_TD.shape[0],)](
        x_TD, weight_D, out_TD, x_TD.stride(0), eps,
        UNIT_OFFSET=unit_offset, CENTRED=centred, **whole_rows(x_TD), **dependent(x_TD),
    )  # fmt: skip
    return out_TD


def launch_add_rms_norm(x_TD: Tensor, residual_TD: Tensor, *rest: Any) -> Tensor:
    out_TD = torch.empty(x_TD.shape, dtype=x_TD.dtype, device=x_TD.device)
    launch_add(residual_TD, out_TD, x_TD, residual_TD, *rest)
    return out_TD


def launch_norm_add(x_TD: Tensor, residual_TD: Tensor, x_weight_D: Tensor, *numbers: Any) -> None:
    launch_add(residual_TD, None, x_TD, residual_TD, None, x_weight_D, *numbers)


def launch_add(
    total_TD: Tensor, out_TD: Tensor | None, *call: Any, in_order: bool = False, by_rows: bool = False
) -> None:
    """`add_rms_norm` of the call, its sum in `total_TD` and, normed, in `out_TD` if that is given.

    x may be given as its summands, `x_STD`. With `in_order` these give the bits that their rounded sum would give. With
    `by_rows` a row's bits may depend on how many rows there are.
    """
    x_TD, residual_TD, weight_D, x_weight_D, eps, unit_offset, centred = call
    num_parts, part_stride = (x_TD.shape[0], x_TD.stride(0)) if x_TD.dim() == 3 else (1, 0)
    strides = (x_TD.stride(-2), residual_TD.stride(0), total_TD.stride(0))
    add_norm_kernel[(residual_TD.shape[0],)](
        x_TD, residual_TD, total_TD, weight_D, x_weight_D, out_TD, part_stride, *strides, eps,
        PARTS=num_parts, ROUNDS=in_order and num_parts > 1, UNIT_OFFSET=unit_offset, CENTRED=centred,
        NORM_X=x_weight_D is not None, NORM_SUM=out_TD is not None, enable_fp_fusion=not in_order,
        **whole_rows(residual_TD, by_rows=by_rows), **dependent(x_TD),
    )  # fmt: skip


def whole_rows(x_TD: Tensor, *, by_rows: bool = False) -> dict[str, int]:
    """The size of a program that holds a row: eight numbers a thread, one 16-byte load of bf16.

    Few rows leave a device idle, so with `by_rows` they get twice as many threads: each has half the work.
    """
    num_rows, width = x_TD.shape
    block = next_power_of_2(width)
    per_thread = 4 if by_rows and num_rows <= SPREAD_ROWS else 8
    return {"WIDTH": width, "BLOCK": block, "num_warps": min(max(block // (32 * per_thread), 1), 16)}
