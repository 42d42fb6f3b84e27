# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""What decode and extend kernels share: finding keys in pages, scoring them, and the running softmax.

Scores are kept in base 2 (multiplied by log2 e once) because the hardware has exp2 and no exp.

Shapes: M query rows, J keys of a block, D head dim of q and k, E head dim of v.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)

# The running maximum of a row that has seen no key. Finite, because -inf - -inf is NaN; far below any score, so that
# the first real key wipes out whatever weight it gave.
NO_SCORE = tl.constexpr(-1.0e30)


@triton.jit
def capped(x, cap):
    """cap * tanh(x / cap), by the exponential that cannot overflow."""
    e = tl.exp2(tl.abs(x / cap) * (-2.0 * LOG2_E))
    y = cap * (1.0 - e) / (1.0 + e)
    return tl.where(x < 0.0, -y, y)


@triton.jit
def key_pages(table_row, key_J, live_J, PAGE_SIZE: tl.constexpr):
    """Pages, of the layer's group, of keys by their position. Where not live, the sink's."""
    # Unsigned: a signed division by a power of two is no shift.
    return tl.load(table_row + key_J.to(tl.uint32) // PAGE_SIZE, mask=live_J, other=0)


@triton.jit
def row_places(page_J, key_J, page_stride, slot_stride, PAGE_SIZE: tl.constexpr):
    """Where the rows of keys begin in a cache."""
    # 64 bits: pages of a layer lie apart by the pages of all others, and that times the page number is over 2^31.
    return page_J.to(tl.int64) * page_stride + (key_J.to(tl.uint32) % PAGE_SIZE).to(tl.int32) * slot_stride


@triton.jit
def load_rows(cache, place_J, live_J, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Cache rows [J, BLOCK]. Rows that are not live, and columns past the width, are zero and are not read.

    Zero matters: such a row gets weight 0, and 0 times the NaN it may hold would be NaN.
    """
    dim = tl.arange(0, BLOCK)
    mask = live_J[:, None] if WIDTH == BLOCK else live_J[:, None] & (dim < WIDTH)[None, :]
    return tl.load(cache + place_J[:, None] + dim[None, :], mask=mask, other=0.0)


@triton.jit
def scaled_scores(score, scale, softcap, HAS_SOFTCAP: tl.constexpr):
    """Products of queries and keys as scores in base 2."""
    return capped(score * scale, softcap) * LOG2_E if HAS_SOFTCAP else score * (scale * LOG2_E)


@triton.jit
def attend_block(
    q_MD, k_JD, v_JE, seen_MJ, top_M, sum_M, acc_ME, scale, softcap, HAS_SOFTCAP: tl.constexpr, MASKED: tl.constexpr
):
    """One block of keys into the running softmax: the maximum, the sum of weights, the weighted values.

    `input_precision` only concerns float32, which tests use; bf16 goes to the tensor cores either way.
    """
    score_MJ = tl.dot(q_MD, tl.trans(k_JD), input_precision="ieee")
    factor = 1.0
    if HAS_SOFTCAP:
        score_MJ = scaled_scores(score_MJ, scale, softcap, HAS_SOFTCAP)
    else:  # scaled where the maximum is taken off, by one instruction for both
        factor = scale * LOG2_E
    if MASKED:
        score_MJ = tl.where(seen_MJ, score_MJ, float("-inf"))
    new_top_M = tl.maximum(top_M, tl.max(score_MJ, 1) * factor)
    weight_MJ = tl.exp2(score_MJ * factor - new_top_M[:, None])
    fade_M = tl.exp2(top_M - new_top_M)
    sum_M = sum_M * fade_M + tl.sum(weight_MJ, 1)
    acc_ME = tl.dot(weight_MJ.to(v_JE.dtype), v_JE, acc_ME * fade_M[:, None], input_precision="ieee")
    return new_top_M, sum_M, acc_ME
