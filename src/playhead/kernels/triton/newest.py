# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""What a decode program does about the newest token itself: queries and key are normed and rotated in registers.

A program has the G query heads of one kv head. The tile of its queries has a row more, for the kv head's new key: what
norms and rotates queries does the same to it. So nothing between the projection and attention goes through memory, and
the new key and value are stored for later steps alone.

Shapes: M rows of the tile (G queries, then the key, padded), D head dim of q and k, E head dim of v, F rotated pairs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from playhead.kernels.triton.scores import scaled_scores


@triton.jit
def turning_of(
    q_weight, k_weight, angles, position, D: tl.constexpr, F: tl.constexpr, STEP: tl.constexpr,
    HAS_NORM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """What can be loaded before the projection has ended: the norms' weights, and cosine and signed sine of each dim.

    `partner_D` is the dim that a dim is rotated with; its weights come with it. A dim that is not rotated is its own.
    """
    dim_D = tl.arange(0, BLOCK_D)
    is_turned_D = dim_D < 2 * F
    if STEP == 1:
        is_first_D, pair_D = dim_D < F, tl.where(dim_D < F, dim_D, dim_D - F)
        partner_D = tl.where(is_turned_D, tl.where(is_first_D, dim_D + F, dim_D - F), dim_D)
    else:
        is_first_D, pair_D = dim_D % 2 == 0, dim_D // 2
        partner_D = tl.where(is_turned_D, dim_D ^ 1, dim_D)
    cos_D = tl.full([BLOCK_D], 1.0, tl.float32)
    sin_D = tl.zeros([BLOCK_D], tl.float32)
    if F > 0:
        row = angles + position.to(tl.int64) * (2 * F)
        cos_D = tl.load(row + pair_D, mask=is_turned_D, other=1.0).to(tl.float32)
        sin_D = tl.load(row + F + pair_D, mask=is_turned_D, other=0.0).to(tl.float32)
        sin_D = tl.where(is_first_D, -sin_D, sin_D)
    q_own_D, k_own_D, q_other_D, k_other_D = cos_D, cos_D, cos_D, cos_D  # nobody looks at these
    if HAS_NORM:
        live_D = dim_D < D
        q_own_D = tl.load(q_weight + dim_D, mask=live_D, other=0.0).to(tl.float32)
        k_own_D = tl.load(k_weight + dim_D, mask=live_D, other=0.0).to(tl.float32)
        if F > 0:
            q_other_D = tl.load(q_weight + partner_D, mask=live_D, other=0.0).to(tl.float32)
            k_other_D = tl.load(k_weight + partner_D, mask=live_D, other=0.0).to(tl.float32)
    return partner_D, cos_D, sin_D, q_own_D, q_other_D, k_own_D, k_other_D


@triton.jit
def turned_heads(
    qkv_row, kv_head, partner_D, cos_D, sin_D, q_own_D, q_other_D, k_own_D, k_other_D, eps,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, F: tl.constexpr,
    HAS_NORM: tl.constexpr, UNIT_OFFSET: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Queries and key of one kv head as attention wants them: normed, then rotated, rounded once."""
    row_M, dim_D = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    is_key_M1 = (row_M == G)[:, None]
    head_M = tl.where(row_M == G, H + kv_head, kv_head * G + row_M)  # the heads of k follow those of q
    live_MD = (row_M <= G)[:, None] & (dim_D < D)[None, :]
    place_M1 = qkv_row + (head_M * D)[:, None]
    own_MD = tl.load(place_M1 + dim_D[None, :], mask=live_MD, other=0.0)
    to = own_MD.dtype
    own_MD = own_MD.to(tl.float32)
    other_MD = own_MD
    if F > 0:
        other_MD = tl.load(place_M1 + partner_D[None, :], mask=live_MD, other=0.0).to(tl.float32)
    if HAS_NORM:
        own_weight_MD = tl.where(is_key_M1, k_own_D[None, :], q_own_D[None, :])
        other_weight_MD = tl.where(is_key_M1, k_other_D[None, :], q_other_D[None, :])
        if UNIT_OFFSET:
            own_weight_MD += 1.0
            other_weight_MD += 1.0
        inverse_M1 = tl.rsqrt(tl.sum(own_MD * own_MD, 1) / D + eps)[:, None]
        own_MD *= inverse_M1 * own_weight_MD
        other_MD *= inverse_M1 * other_weight_MD
    if F > 0:
        own_MD = own_MD * cos_D[None, :] + other_MD * sin_D[None, :]
    return own_MD.to(to)


@triton.jit
def newest_value(v_row, is_wanted, E: tl.constexpr, BLOCK_E: tl.constexpr):
    """The new value. "volatile" keeps the load in front of those of the heads: their latencies are one."""
    dim_E = tl.arange(0, BLOCK_E)
    return tl.load(v_row + dim_E, mask=(dim_E < E) & is_wanted, other=0.0, volatile=True)


@triton.jit
def keep_newest(
    qk_MD, v_E, k_cache, v_cache, loc, top_M, sum_M, acc_ME, scale, softcap, k_page, k_slot, v_page, v_slot,
    G: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PAGE_SIZE: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """The new key and value into the running softmax, and to their location, which later steps read."""
    dim_D, dim_E = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E)
    is_key_M1 = (tl.arange(0, BLOCK_M) == G)[:, None]
    writes = loc > 0  # neither 0 nor -1, which are the sink
    page, slot = (loc // PAGE_SIZE).to(tl.int64), (loc % PAGE_SIZE).to(tl.int64)
    k_place_MD = k_cache + page * k_page + slot * k_slot + dim_D[None, :] + tl.zeros([BLOCK_M, 1], tl.int32)
    tl.store(k_place_MD, qk_MD.to(k_cache.dtype.element_ty), mask=is_key_M1 & (dim_D < D)[None, :] & writes)
    v_place_E = v_cache + page * v_page + slot * v_slot + dim_E
    tl.store(v_place_E, v_E.to(v_cache.dtype.element_ty), mask=(dim_E < E) & writes)
    # Of all products of queries and key with each other, the column of the key.
    score_MM = tl.dot(qk_MD, tl.trans(qk_MD), input_precision="ieee")
    is_key_1M = (tl.arange(0, BLOCK_M) == G)[None, :]
    score_M = scaled_scores(tl.sum(tl.where(is_key_1M, score_MM, 0.0), 1), scale, softcap, HAS_SOFTCAP)
    new_top_M = tl.maximum(top_M, score_M)
    fade_M, weight_M = tl.exp2(top_M - new_top_M), tl.exp2(score_M - new_top_M)
    acc_ME = acc_ME * fade_M[:, None] + weight_M[:, None] * v_E.to(tl.float32)[None, :]
    return new_top_M, sum_M * fade_M + weight_M, acc_ME
