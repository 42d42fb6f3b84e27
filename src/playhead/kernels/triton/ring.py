# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""A gated product of few rows whose weights come through a ring of blocks in shared memory.

Gate-up stands behind attention, which leaves the memory nearly idle. So a program asks for as many of its weights as
it has room for before it waits for the rows, but gently: two copies are on their way at a time. Attention reads its
keys from the same memory, and would stand behind all that was asked for at once.

Triton keeps weights in flight over a wait in registers alone. In Gluon, its lower layer, a kernel says what is in
shared memory, what is on its way to it, and when it waits for that: the ring is full when the rows come, and one block
more is in registers. Gluon's compiler adds barriers and fences of its own; the kernel does not rely on them.

A place is free when all warps have multiplied by its block: the barrier of the next block says so. Then the block
PLACES later is asked for. Rows come in blocks of the same inputs, through a ring of their own.

Shapes: of a program N rows of the matrix, of which A are asked for at a time, and O = N / 2 outputs; K inputs of a
block, R rows (padded).
"""

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, fence_async_shared, warpgroup_mma

from playhead.kernels.triton.activation import gated
from playhead.kernels.triton.dependent import after_upstream, let_downstream_start


@gluon.jit
def _starts_of_rows(weight, num_outputs, num_inputs, ROWS: gl.constexpr, N: gl.constexpr, LAYOUT: gl.constexpr):
    """Where a program's first ROWS rows start. Eight gates, their eight ups, the next eight gates, ...

    A thread of a matrix instruction has the sums of two rows that are eight apart: a gate and its up.
    """
    row_N = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    output_N = gl.program_id(0) * (N // 2) + row_N // 16 * 8 + row_N % 8
    matrix_row_N = output_N + row_N % 16 // 8 * num_outputs
    return weight + (matrix_row_N.to(gl.int64) * num_inputs)[:, None]


@gluon.jit
def _await_block(ROW_PLACES: gl.constexpr):
    """Returns when all warps see the next block's weights and rows, and none multiplies by the block before.

    Block b needs the groups of copies 0 to b + 1, counted from the first block of rows. When it is awaited, ROW_PLACES
    + b groups are asked for.
    """
    async_copy.wait_group(ROW_PLACES - 2)
    fence_async_shared()
    tl.debug_barrier()


@gluon.jit
def _multiply(sum_NR, weights, rows, block, PLACES: gl.constexpr, ROW_PLACES: gl.constexpr):
    return warpgroup_mma(weights.index(block % PLACES), rows.index(block % ROW_PLACES).permute((1, 0)), sum_NR)


@gluon.jit(do_not_specialize=["num_rows"])  # one binary for every number of rows
def ring_kernel(
    x, weight, out, x_row, out_row, num_rows, num_outputs, num_inputs,
    R: gl.constexpr, N: gl.constexpr, K: gl.constexpr, PLACES: gl.constexpr, ROW_PLACES: gl.constexpr,
    ASKED: gl.constexpr, HOLDS: gl.constexpr, ACTIVATION: gl.constexpr, DEPENDENT: gl.constexpr,
):  # fmt: skip
    """All rows times N rows of the matrix. Weights are asked for ASKED rows of a block at a time before the wait; with
    HOLDS the block behind the ring's is loaded into registers, and goes to the first place that is free.
    """
    gl.static_assert(ROW_PLACES >= 2, "the newest copies are left on their way")
    gl.static_assert(ROW_PLACES <= PLACES, "a block's rows are asked for no earlier than its weights")
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // K, K // 8], [N // 16, 1], [1, 0])
    k_K = gl.arange(0, K, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    w_NK = _starts_of_rows(weight, num_outputs, num_inputs, N, N, LAYOUT) + k_K
    asked_AK = _starts_of_rows(weight, num_outputs, num_inputs, ASKED, N, LAYOUT) + k_K
    weights = gl.allocate_shared_memory(weight.dtype.element_ty, [PLACES, N, K], gl.NVMMASharedLayout(128, 16, rank=2))
    rows = gl.allocate_shared_memory(weight.dtype.element_ty, [ROW_PLACES, R, K], gl.NVMMASharedLayout(128, 16, rank=2))
    for block in gl.static_range(PLACES):
        for first in gl.static_range(0, N, ASKED):
            place = weights.index(block).slice(first, ASKED, 0)
            async_copy.async_copy_global_to_shared(place, asked_AK + first // 2 * num_inputs + block * K)
            async_copy.commit_group()
            async_copy.wait_group(1)
    if HOLDS:
        held_NK = gl.load(w_NK + PLACES * K)
    after_upstream(DEPENDENT)
    token_R = gl.arange(0, R, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    x_RK, live_R = x + token_R * x_row + k_K, token_R < num_rows
    for block in gl.static_range(ROW_PLACES):
        async_copy.async_copy_global_to_shared(rows.index(block), x_RK + block * K, mask=live_R)
        async_copy.commit_group()
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [N // 16, 1], [16, R, 16])
    sum_NR = gl.zeros([N, R], gl.float32, layout=SUMS)
    num_blocks = num_inputs // K
    NUM_PEELED: gl.constexpr = 2 if HOLDS else 1
    for block in gl.static_range(NUM_PEELED):
        _await_block(ROW_PLACES)
        if block == 1:
            weights.index(0).store(held_NK)
            async_copy.async_copy_global_to_shared(rows.index(0), x_RK + ROW_PLACES * K, mask=live_R)
        async_copy.commit_group()
        sum_NR = _multiply(sum_NR, weights, rows, block, PLACES, ROW_PLACES)
    for block in range(NUM_PEELED, num_blocks):
        _await_block(ROW_PLACES)
        done = block - 1
        if done + PLACES < num_blocks:
            async_copy.async_copy_global_to_shared(weights.index(done % PLACES), w_NK + (done + PLACES) * K)
        if done + ROW_PLACES < num_blocks:
            more_RK = x_RK + (done + ROW_PLACES) * K
            async_copy.async_copy_global_to_shared(rows.index(done % ROW_PLACES), more_RK, mask=live_R)
        async_copy.commit_group()
        sum_NR = _multiply(sum_NR, weights, rows, block, PLACES, ROW_PLACES)
    let_downstream_start(DEPENDENT)
    gate, up = gl.split(gl.permute(gl.reshape(sum_NR, [N // 16, 2, 8, R]), [0, 2, 3, 1]))
    y_OR = gl.reshape(gated(gate, up, 1.0, 0.0, ACTIVATION), [N // 2, R])
    STORED: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [N // 64, 4], [0, 1])
    y_OR = gl.convert_layout(y_OR.to(out.dtype.element_ty), STORED)
    col_O = gl.program_id(0) * (N // 2) + gl.arange(0, N // 2, layout=gl.SliceLayout(1, STORED))[:, None]
    row_R = gl.arange(0, R, layout=gl.SliceLayout(0, STORED))[None, :]
    gl.store(out + row_R * out_row + col_O, y_OR, mask=row_R < num_rows)
