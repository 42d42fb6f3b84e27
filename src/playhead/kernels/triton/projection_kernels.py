# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Kernels that multiply few rows by a matrix: each weight is read once, at the memory's pace.

A program takes some outputs and sums over all inputs itself, or over a share of them that the matrix's shape and the
step's bucket fix: a row's result does not depend on the rows beside it, and no kernel waits for another's parts.

`row_kernel` multiplies one row elementwise. `held_kernel` multiplies several by tensor cores. Both have all weights of
a program on their way before they wait for the rows. `streamed_kernel` is for matrices of which a program cannot hold
its share: blocks of inputs pass through it, some in flight while others are multiplied. It may hold the first of them.
`fitted_kernel` does the same for a gated map, by programs of a size that makes one wave of them.

With STARTS_EARLY a kernel lets the next one start before it has waited itself; else when its products are summed, so
that programs of the next kernel take no room from its own, and yet load what they can while it stores.

Shapes: of a program N outputs, K inputs of a block, P blocks side by side (a warp's each), R rows (padded).
"""

from __future__ import annotations

import triton
import triton.language as tl

from playhead.kernels.triton.activation import gated
from playhead.kernels.triton.dependent import after_upstream, let_downstream_start
from playhead.kernels.triton.norm import load_factor, scaled_row


@triton.jit
def _gated_rows(row_N, N):
    """A gated map has the gates of its N outputs and then their ups: a program takes a gate, its up, the next gate."""
    output_N = row_N // 2
    return output_N + row_N % 2 * N, output_N < N


@triton.jit
def _matrix_rows(N, BLOCK_N: tl.constexpr, IS_GATED: tl.constexpr):
    """Which rows of the matrix a program multiplies by, and which are there."""
    row_N = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    if IS_GATED:
        return _gated_rows(row_N, N)
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
def _store_rows(
    y_NR, bias, out, scale, token_R, out_row, row_N, live_N, live_R, N,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr, ADDS: tl.constexpr,
    ROUNDS: tl.constexpr,
):  # fmt: skip
    """The products of several rows, with their bias and gated with an activation; with ROUNDS, as if stored before."""
    y_NR = _with_bias(y_NR, bias, row_N[:, None], live_N[:, None], HAS_BIAS)
    place_1R = token_R[None, :] * out_row
    if ACTIVATION is not None:
        if ROUNDS:
            y_NR = y_NR.to(out.dtype.element_ty).to(tl.float32)
        gate, up = tl.split(tl.permute(tl.reshape(y_NR, [BLOCK_N // 2, 2, BLOCK_R]), 0, 2, 1))
        col = (tl.program_id(0) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2))[:, None]
        y = gated(gate, up, 1.0, 0.0, ACTIVATION)
        _store(y, out, place_1R + col, (col < N) & live_R[None, :], scale, ADDS)
    else:
        _store(y_NR, out, place_1R + row_N[:, None], live_N[:, None] & live_R[None, :], scale, ADDS)


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
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, REST: tl.constexpr,
    ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr, ADDS: tl.constexpr,
    NORM: tl.constexpr, NORM_X: tl.constexpr, UNIT_OFFSET: tl.constexpr, CENTRED: tl.constexpr,
    STARTS_EARLY: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One row times BLOCK_N rows of the matrix, which have BLOCK_K inputs and REST more.

    With NORM the row is a sum that is normed, and has no rest.
    """
    IS_GATED: tl.constexpr = ACTIVATION is not None
    row_N, live_N = _matrix_rows(N, BLOCK_N, IS_GATED)
    place_N1 = row_N[:, None].to(tl.int64) * K
    k_K = tl.arange(0, BLOCK_K)
    live_K = k_K < K
    w_NK = tl.load(weight + place_N1 + k_K[None, :], mask=live_N[:, None] & live_K[None, :], other=0.0)
    if REST > 0:
        k_J = BLOCK_K + tl.arange(0, REST)
        live_J = k_J < K
        w_NJ = tl.load(weight + place_N1 + k_J[None, :], mask=live_N[:, None] & live_J[None, :], other=0.0)
    norm_K = k_K
    x_norm_K = k_K
    if NORM:
        norm_K = load_factor(norm, k_K, live_K, UNIT_OFFSET)
    if NORM_X:
        x_norm_K = load_factor(x_norm, k_K, live_K, UNIT_OFFSET)
    if STARTS_EARLY:
        let_downstream_start(DEPENDENT)
    after_upstream(DEPENDENT)
    x_K = tl.load(x + k_K, mask=live_K, other=0.0).to(tl.float32)
    if NORM:
        writes = tl.program_id(0) == 0
        x_K = _normed_sum(x_K, residual, total, norm_K, x_norm_K, k_K, live_K, eps, K, writes, NORM_X, CENTRED)
    y_N = tl.sum(w_NK.to(tl.float32) * x_K[None, :], 1)
    if REST > 0:
        x_J = tl.load(x + k_J, mask=live_J, other=0.0).to(tl.float32)
        y_N += tl.sum(w_NJ.to(tl.float32) * x_J[None, :], 1)
    if not STARTS_EARLY:
        let_downstream_start(DEPENDENT)
    y_N = _with_bias(y_N, bias, row_N, live_N, HAS_BIAS)
    if IS_GATED:
        gate, up = tl.split(tl.reshape(y_N, [BLOCK_N // 2, 2]))
        col = tl.program_id(0) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        _store(gated(gate, up, 1.0, 0.0, ACTIVATION), out, col, col < N, scale, ADDS)
    else:
        _store(y_N, out, row_N, live_N, scale, ADDS)


@triton.jit(do_not_specialize=["num_rows"])  # one binary for every number of rows
def held_kernel(
    x, weight, bias, out, scale, x_row, out_row, part, num_rows, N, K,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, REST: tl.constexpr, PARTS: tl.constexpr,
    ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr, ADDS: tl.constexpr,
    STARTS_EARLY: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """All rows times BLOCK_N rows of the matrix. Each of PARTS warps has BLOCK_K inputs and REST more behind those of
    all; the warps' sums add up. A matrix that has still more inputs is cut: program_id(1) has its share, and its sums
    go to a matrix of their own, `part` numbers further.
    """
    if STARTS_EARLY:
        let_downstream_start(DEPENDENT)
    row_N, live_N = _matrix_rows(N, BLOCK_N, ACTIVATION is not None)
    place_1N1 = row_N[None, :, None].to(tl.int64) * K
    k_PK = tl.arange(0, PARTS)[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    k_PK += tl.program_id(1) * (PARTS * BLOCK_K)
    live_PK = k_PK < K
    mask_PNK = live_N[None, :, None] & live_PK[:, None, :]
    w_PNK = tl.load(weight + place_1N1 + k_PK[:, None, :], mask=mask_PNK, other=0.0)
    if REST > 0:
        k_PJ = PARTS * BLOCK_K + tl.arange(0, PARTS)[:, None] * REST + tl.arange(0, REST)[None, :]
        live_PJ = k_PJ < K
        mask_PNJ = live_N[None, :, None] & live_PJ[:, None, :]
        w_PNJ = tl.load(weight + place_1N1 + k_PJ[:, None, :], mask=mask_PNJ, other=0.0)
    after_upstream(DEPENDENT)
    token_R = tl.arange(0, BLOCK_R)
    live_R = token_R < num_rows
    x_11R = x + token_R[None, None, :] * x_row
    x_PKR = tl.load(x_11R + k_PK[:, :, None], mask=live_PK[:, :, None] & live_R[None, None, :], other=0.0)
    sum_PNR = tl.dot(w_PNK, x_PKR, tl.zeros([PARTS, BLOCK_N, BLOCK_R], tl.float32), input_precision="ieee")
    if REST > 0:
        x_PJR = tl.load(x_11R + k_PJ[:, :, None], mask=live_PJ[:, :, None] & live_R[None, None, :], other=0.0)
        sum_PNR = tl.dot(w_PNJ, x_PJR, sum_PNR, input_precision="ieee")
    sum_NR = tl.sum(sum_PNR, 0)
    if not STARTS_EARLY:
        let_downstream_start(DEPENDENT)
    _store_rows(
        sum_NR, bias, out + tl.program_id(1) * part, scale, token_R, out_row, row_N, live_N, live_R, N,
        BLOCK_N, BLOCK_R, ACTIVATION, HAS_BIAS, ADDS, False,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows", "steps"])
def streamed_kernel(
    x, weight, bias, out, scale, x_row, out_row, part, num_rows, N, K, steps,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    HELD: tl.constexpr, EVEN: tl.constexpr, ROUNDS: tl.constexpr,
    ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr, ADDS: tl.constexpr,
    STARTS_EARLY: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """BLOCK_R rows times BLOCK_N rows of the matrix. Each program_id(1) has a share of `steps` blocks of inputs, and
    its sums go to a matrix of their own, `part` numbers further. The weights of a share's first HELD inputs are loaded
    before the wait and multiplied last, when the others have come. With EVEN every share has HELD, and whole blocks.
    """
    if STARTS_EARLY:
        let_downstream_start(DEPENDENT)
    row_N, live_N = _matrix_rows(N, BLOCK_N, ACTIVATION is not None)
    token_R = tl.program_id(2) * BLOCK_R + tl.arange(0, BLOCK_R)
    live_R = token_R < num_rows
    k_K = tl.arange(0, BLOCK_K)
    w_N1 = weight + row_N[:, None].to(tl.int64) * K
    x_1R = x + token_R[None, :] * x_row
    w_NK, x_KR = w_N1 + k_K[None, :], x_1R + k_K[:, None]
    first = tl.program_id(1) * steps * BLOCK_K
    last = tl.minimum(first + steps * BLOCK_K, K)
    sum_NR = tl.zeros([BLOCK_N, BLOCK_R], tl.float32)
    if HELD > 0:
        k_H = first + tl.arange(0, HELD)
        mask_NH, mask_HR = live_N[:, None], live_R[None, :]
        if not EVEN:
            mask_NH, mask_HR = mask_NH & (k_H < last)[None, :], mask_HR & (k_H < last)[:, None]
        held_NH = tl.load(w_N1 + k_H[None, :], mask=mask_NH, other=0.0)
    after_upstream(DEPENDENT)
    if HELD > 0:
        x_HR = tl.load(x_1R + k_H[:, None], mask=mask_HR, other=0.0)
    for start in tl.range(first + HELD, last, BLOCK_K, num_stages=STAGES):
        mask_NK, mask_KR = live_N[:, None], live_R[None, :]
        if not EVEN:
            live_K = k_K + start < last
            mask_NK, mask_KR = mask_NK & live_K[None, :], mask_KR & live_K[:, None]
        weights_NK = tl.load(w_NK + start, mask=mask_NK, other=0.0)
        values_KR = tl.load(x_KR + start, mask=mask_KR, other=0.0)
        sum_NR = tl.dot(weights_NK, values_KR, sum_NR, input_precision="ieee")
    if HELD > 0:
        sum_NR = tl.dot(held_NH, x_HR, sum_NR, input_precision="ieee")
    if not STARTS_EARLY:
        let_downstream_start(DEPENDENT)
    _store_rows(
        sum_NR, bias, out + tl.program_id(1) * part, scale, token_R, out_row, row_N, live_N, live_R, N,
        BLOCK_N, BLOCK_R, ACTIVATION, HAS_BIAS, ADDS, ROUNDS,
    )  # fmt: skip


@triton.jit
def _store_gated(
    sum_RN, out, out_row, token_R1, live_R1, first, N,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    gate, up = tl.split(tl.reshape(sum_RN, [BLOCK_R, BLOCK_N // 2, 2]))
    col_1N = (first // 2 + tl.arange(0, BLOCK_N // 2))[None, :]
    y = gated(gate, up, 1.0, 0.0, ACTIVATION)
    tl.store(out + token_R1 * out_row + col_1N, y.to(out.dtype.element_ty), mask=live_R1 & (col_1N < N))


@triton.jit(do_not_specialize=["num_rows"])
def fitted_kernel(
    x, weight, out, x_row, out_row, num_rows, N, K,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, REST: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    ACTIVATION: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """All rows times BLOCK_N rows of the matrix and REST more, gates and ups, whose inputs fill whole blocks."""
    first = tl.program_id(0) * (BLOCK_N + REST)
    row_N, live_N = _gated_rows(first + tl.arange(0, BLOCK_N), N)
    row_M, live_M = _gated_rows(first + BLOCK_N + tl.arange(0, REST), N)
    k_K = tl.arange(0, BLOCK_K)
    token_R1 = tl.arange(0, BLOCK_R)[:, None]
    live_R1 = token_R1 < num_rows
    x_RK = x + token_R1 * x_row + k_K[None, :]
    w_KN = weight + row_N[None, :].to(tl.int64) * K + k_K[:, None]
    w_KM = weight + row_M[None, :].to(tl.int64) * K + k_K[:, None]
    sum_RN = tl.zeros([BLOCK_R, BLOCK_N], tl.float32)
    sum_RM = tl.zeros([BLOCK_R, REST], tl.float32)
    after_upstream(DEPENDENT)
    for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        rows_RK = tl.load(x_RK + start, mask=live_R1, other=0.0)
        weights_KN = tl.load(w_KN + start, mask=live_N[None, :], other=0.0)
        weights_KM = tl.load(w_KM + start, mask=live_M[None, :], other=0.0)
        sum_RN = tl.dot(rows_RK, weights_KN, sum_RN, input_precision="ieee")
        sum_RM = tl.dot(rows_RK, weights_KM, sum_RM, input_precision="ieee")
    let_downstream_start(DEPENDENT)
    _store_gated(sum_RN, out, out_row, token_R1, live_R1, first, N, BLOCK_R, BLOCK_N, ACTIVATION)
    _store_gated(sum_RM, out, out_row, token_R1, live_R1, first + BLOCK_N, N, BLOCK_R, REST, ACTIVATION)
