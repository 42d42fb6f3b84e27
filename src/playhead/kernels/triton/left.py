# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, assignment"
"""Parts of attention's output that are left to the product behind it, in steps of one request.

A merge in attention's kernel is a store, a count, a load and a store that everything waits for. The product reads the
output anyway: it reads the parts instead, and weighs them. LEFT parts are always there, so no reader asks how many keys
there were. Where more splits have keys than there may be parts, neighbouring ones merge first.

Output rows are as `split_left` of `kernels/attention.py` sees them. Shapes are those of `decode.py`; L parts that are
left, C inputs of a program of the product: the dims of some heads.
"""

from __future__ import annotations

import triton
import triton.language as tl

from playhead.kernels import attention
from playhead.kernels.triton.arrivals import count_in
from playhead.kernels.triton.decode import as_part, keep_share, merge_parts, store_part
from playhead.kernels.triton.dependent import after_upstream, let_downstream_start

NO_WEIGHT = tl.constexpr(attention.NO_WEIGHT)


@triton.jit
def _leave(
    out_row, head_M, live_M, part, value_ME, log_weight_M,
    H: tl.constexpr, E: tl.constexpr, LEFT: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    dim_E = tl.arange(0, BLOCK_E)
    place_M = head_M * LEFT + part
    tl.store(out_row + place_M[:, None] * E + dim_E[None, :], value_ME, mask=live_M[:, None] & (dim_E < E)[None, :])
    tl.store(out_row + H * LEFT * E + place_M, log_weight_M, mask=live_M)


@triton.jit
def leave_share(
    top_M, sum_M, acc_ME, out_row, parts, log_weights, arrivals, kv_head, request, split, num_live, num_splits,
    H: tl.constexpr, G: tl.constexpr, E: tl.constexpr, LEFT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """What a split has found is a part; or a group of splits is, which the last of them to finish merges."""
    in_group_M = tl.arange(0, BLOCK_M)
    live_M = in_group_M < G
    head_M = kv_head * G + in_group_M
    value_ME, log_weight_M = as_part(top_M, sum_M, acc_ME, live_M)
    group_size = tl.cdiv(num_live, LEFT)
    if group_size == 1:
        _leave(out_row, head_M, live_M, split, value_ME, log_weight_M, H, E, LEFT, BLOCK_E)
    else:
        part_M = (request * H + head_M) * num_splits + split
        store_part(parts, log_weights, part_M, live_M, value_ME, log_weight_M, E, BLOCK_E)
        in_group_H = tl.arange(0, BLOCK_H)
        live_H = in_group_H < G
        head_H = kv_head * G + in_group_H
        group = split // group_size
        leader = group * group_size
        num_members = tl.minimum(num_live - leader, group_size)
        if count_in(arrivals + (request * tl.num_programs(0) + kv_head) * LEFT + group, num_members):
            value_HE, top_H, sum_H = merge_parts(
                parts, log_weights, request * H + head_H, live_H, num_splits, leader, 1, num_members,
                E, BLOCK_X, BLOCK_H, BLOCK_E,
            )  # fmt: skip
            _leave(out_row, head_H, live_H, group, value_HE, top_H + tl.log2(sum_H), H, E, LEFT, BLOCK_E)


@triton.jit
def keep_or_leave_share(
    top_M, sum_M, acc_ME, out_row, parts, log_weights, arrivals, kv_head, request, split, num_live, num_splits,
    group_size,
    H: tl.constexpr, G: tl.constexpr, E: tl.constexpr, LEFT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """What becomes of a split's share, in a program that has all query heads of its kv head."""
    if LEFT > 0:
        leave_share(
            top_M, sum_M, acc_ME, out_row, parts, log_weights, arrivals, kv_head, request, split, num_live, num_splits,
            H, G, E, LEFT, BLOCK_M, BLOCK_E, BLOCK_X, BLOCK_H,
        )  # fmt: skip
    else:
        keep_share(
            top_M, sum_M, acc_ME, out_row, parts, log_weights, arrivals, kv_head, request, split, num_live, num_splits,
            group_size, E, H, G, E, 1, BLOCK_M, BLOCK_E, BLOCK_X, BLOCK_H,
        )  # fmt: skip


@triton.jit
def leave_nothing(
    out_row, kv_head, split, num_live, H: tl.constexpr, G: tl.constexpr, E: tl.constexpr, LEFT: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """A part without keys, if parts are left: zeros, because no weight times what was there before might be NaN."""
    if LEFT > 0:
        num_parts = tl.cdiv(num_live, tl.cdiv(num_live, LEFT))
        if (split >= num_parts) & (split < LEFT):
            in_group_H = tl.arange(0, BLOCK_H)
            nothing_H = tl.full([BLOCK_H], NO_WEIGHT, tl.float32)
            _leave(
                out_row, kv_head * G + in_group_H, in_group_H < G, split, tl.zeros([BLOCK_H, BLOCK_E], tl.float32),
                nothing_H, H, E, LEFT, BLOCK_E,
            )  # fmt: skip


@triton.jit
def merging_row_kernel(
    x, weight, out, N, K,
    E: tl.constexpr, HEADS: tl.constexpr, LEFT: tl.constexpr, BLOCK_N: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One row in parts times BLOCK_N rows of the matrix. Each program_id(1) merges HEADS heads, and its sums go to a
    row of their own.

    No thread needs a number of another one before the merged row, and loads do not depend on each other. Compiled for
    16 parts, some still start when the weights have come. Each warp reads its own numbers of a part ("volatile": past
    the first-level cache), but all warps read all weights, which that cache gives to all but the first.
    """
    let_downstream_start(DEPENDENT)
    C: tl.constexpr = HEADS * E
    first_head = tl.program_id(1) * HEADS
    row_N = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    index_C = tl.arange(0, C)
    place_NC = row_N[:, None].to(tl.int64) * K + first_head * E + index_C[None, :]
    w_NC = tl.load(weight + place_NC, mask=(row_N < N)[:, None], other=0.0)
    # Of one head all threads load the same weight: a number, where a tile would have to be spread over them.
    head = first_head + index_C // E if HEADS > 1 else first_head
    after_upstream(DEPENDENT)
    parts_C, log_weights = (), ()
    for part in tl.static_range(LEFT):
        parts_C += (tl.load(x + (head * LEFT + part) * E + index_C % E, volatile=True),)
    for part in tl.static_range(LEFT):
        log_weights += (tl.load(x + K * LEFT + head * LEFT + part),)
    top = log_weights[0]
    for part in tl.static_range(1, LEFT):
        top = tl.maximum(top, log_weights[part])
    sum_of_weights = tl.exp2(log_weights[0] - top)
    x_C = parts_C[0] * sum_of_weights
    for part in tl.static_range(1, LEFT):
        part_weight = tl.exp2(log_weights[part] - top)
        sum_of_weights += part_weight
        x_C += parts_C[part] * part_weight
    y_N = tl.sum(w_NC.to(tl.float32) * (x_C / sum_of_weights)[None, :], 1)
    tl.store(out + tl.program_id(1) * N + row_N, y_N, mask=row_N < N)
