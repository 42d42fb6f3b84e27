# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""What a decode program does about the newest token itself: queries and key are normed and rotated in registers.

A program has the G query heads of one kv head, and its new key. Nothing between the projection and attention goes
through memory; the new key and value are stored for later steps alone.

Everything that heads are multiplied with is loaded as a tile of their shape, and the key stands in every row of a tile
of its own. So each thread has all numbers that it needs: vectors would be spread over all threads, and each of them
would go through shared memory, behind two barriers.

Shapes: G query heads (padded), D head dim of q and k, E head dim of v, F rotated pairs, M rows of a matrix instruction.
"""

from __future__ import annotations

import triton
import triton.language as tl

from playhead.kernels.triton.scores import scaled_scores


@triton.jit
def partner_of(dim_D, F: tl.constexpr, STEP: tl.constexpr):
    """The dim that a dim is rotated with. A dim that is not rotated is its own."""
    if STEP == 1:
        return tl.where(dim_D < 2 * F, tl.where(dim_D < F, dim_D + F, dim_D - F), dim_D)
    return tl.where(dim_D < 2 * F, dim_D ^ 1, dim_D)


@triton.jit
def load_angles(angles, position, F: tl.constexpr, STEP: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr):
    """Cosine and sine of each dim, for every head."""
    dim_GD = tl.arange(0, BLOCK_D)[None, :] + tl.zeros([BLOCK_G, 1], tl.int32)
    cos_GD, sin_GD = dim_GD, dim_GD  # nobody looks at these
    if F > 0:
        pair_GD = tl.where(dim_GD < F, dim_GD, dim_GD - F) if STEP == 1 else dim_GD // 2
        place_GD, turned_GD = angles + position.to(tl.int64) * (2 * F) + pair_GD, dim_GD < 2 * F
        cos_GD = tl.load(place_GD, mask=turned_GD, other=1.0)
        sin_GD = tl.load(place_GD + F, mask=turned_GD, other=0.0)
    return cos_GD, sin_GD


@triton.jit
def load_pairs(
    place_G1, live_G1, D: tl.constexpr, F: tl.constexpr, STEP: tl.constexpr, BLOCK_D: tl.constexpr, IS_NEW: tl.constexpr
):
    """Heads, or the norm's weights for them, and the same with each dim's partner in its place.

    What is new comes with "volatile", which keeps the order of loads. A compiler would start those that are used late
    when the first have come, and their latencies would add up.
    """
    dim_D = tl.arange(0, BLOCK_D)
    mask_GD = live_G1 & (dim_D < D)[None, :]
    own_GD = tl.load(place_G1 + dim_D[None, :], mask=mask_GD, other=0.0, volatile=IS_NEW)
    if F == 0:
        return own_GD, own_GD
    place_GD = place_G1 + partner_of(dim_D, F, STEP)[None, :]
    return own_GD, tl.load(place_GD, mask=mask_GD, other=0.0, volatile=IS_NEW)


@triton.jit
def load_turning(
    q_weight, k_weight, angles, position, G: tl.constexpr, D: tl.constexpr, F: tl.constexpr, STEP: tl.constexpr,
    HAS_NORM: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """What can be loaded before the projection has ended: angles, and the norms' weights of queries and of the key."""
    zero_G1, is_head_G1 = tl.zeros([BLOCK_G, 1], tl.int32), (tl.arange(0, BLOCK_G) < G)[:, None]
    angles_GD = load_angles(angles, position, F, STEP, BLOCK_G, BLOCK_D)
    q_weights_GD, k_weights_GD = angles_GD, angles_GD  # nobody looks at these
    if HAS_NORM:
        q_weights_GD = load_pairs(q_weight + zero_G1, is_head_G1, D, F, STEP, BLOCK_D, False)
        k_weights_GD = load_pairs(k_weight + zero_G1, True, D, F, STEP, BLOCK_D, False)
    return angles_GD, q_weights_GD, k_weights_GD


@triton.jit
def turned(
    pair_GD, weights_GD, angles_GD, eps, D: tl.constexpr, F: tl.constexpr, STEP: tl.constexpr,
    HAS_NORM: tl.constexpr, UNIT_OFFSET: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Heads as attention wants them: normed, then rotated, rounded once."""
    to = pair_GD[0].dtype
    own_GD, other_GD = pair_GD[0].to(tl.float32), pair_GD[1].to(tl.float32)
    if HAS_NORM:
        own_weight_GD, other_weight_GD = weights_GD[0].to(tl.float32), weights_GD[1].to(tl.float32)
        if UNIT_OFFSET:
            own_weight_GD += 1.0
            other_weight_GD += 1.0
        inverse_G1 = tl.rsqrt(tl.sum(own_GD * own_GD, 1) / D + eps)[:, None]
        own_GD *= inverse_G1 * own_weight_GD
        other_GD *= inverse_G1 * other_weight_GD
    if F > 0:
        dim_D = tl.arange(0, BLOCK_D)
        is_first_D = dim_D < F if STEP == 1 else dim_D % 2 == 0
        turned_GD = other_GD * angles_GD[1].to(tl.float32)
        own_GD = own_GD * angles_GD[0].to(tl.float32) + tl.where(is_first_D[None, :], -turned_GD, turned_GD)
    return own_GD.to(to)


@triton.jit
def newest_heads(
    qkv_row, kv_head, turning, eps, H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    F: tl.constexpr, STEP: tl.constexpr, HAS_NORM: tl.constexpr, UNIT_OFFSET: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Queries, the new key in every row, and the new value, from one token's packed projection."""
    in_group_G1, dim_E = tl.arange(0, BLOCK_G)[:, None], tl.arange(0, BLOCK_E)
    value_row = qkv_row + (H + H // G) * D + kv_head * E
    value_E = tl.load(value_row + dim_E, mask=dim_E < E, other=0.0, volatile=True)
    k_pair_GD = load_pairs(qkv_row + (H + kv_head) * D + 0 * in_group_G1, True, D, F, STEP, BLOCK_D, True)
    q_row_G1 = qkv_row + (kv_head * G + in_group_G1) * D
    q_pair_GD = load_pairs(q_row_G1, in_group_G1 < G, D, F, STEP, BLOCK_D, True)
    angles_GD, q_weights_GD, k_weights_GD = turning
    q_GD = turned(q_pair_GD, q_weights_GD, angles_GD, eps, D, F, STEP, HAS_NORM, UNIT_OFFSET, BLOCK_D)
    k_GD = turned(k_pair_GD, k_weights_GD, angles_GD, eps, D, F, STEP, HAS_NORM, UNIT_OFFSET, BLOCK_D)
    return q_GD, k_GD, value_E


@triton.jit
def repeated(x_GD, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """The tile again and again, until it has as many rows as a matrix instruction."""
    times_GD = tl.broadcast_to(x_GD[None, :, :], [BLOCK_M // x_GD.shape[0], x_GD.shape[0], BLOCK_D])
    return tl.reshape(times_GD, [BLOCK_M, BLOCK_D])


@triton.jit
def add_newest(q_GD, k_GD, value_E, top_M, sum_M, acc_ME, scale, softcap, HAS_SOFTCAP: tl.constexpr):
    """The new key and value into the running softmax."""
    BLOCK_G: tl.constexpr = q_GD.shape[0]
    BLOCK_M: tl.constexpr = top_M.shape[0]
    score_G = scaled_scores(tl.sum(q_GD.to(tl.float32) * k_GD.to(tl.float32), 1), scale, softcap, HAS_SOFTCAP)
    score_M = tl.reshape(tl.broadcast_to(score_G[None, :], [BLOCK_M // BLOCK_G, BLOCK_G]), [BLOCK_M])
    new_top_M = tl.maximum(top_M, score_M)
    fade_M, weight_M = tl.exp2(top_M - new_top_M), tl.exp2(score_M - new_top_M)
    acc_ME = acc_ME * fade_M[:, None] + weight_M[:, None] * value_E.to(tl.float32)[None, :]
    return new_top_M, sum_M * fade_M + weight_M, acc_ME


@triton.jit
def store_newest(
    k_GD, value_E, k_cache, v_cache, loc, k_page, k_slot, v_page, v_slot,
    D: tl.constexpr, E: tl.constexpr, PAGE_SIZE: tl.constexpr,
):  # fmt: skip
    """The new key and value to their location, which later steps read."""
    row_G1, dim_1D = tl.arange(0, k_GD.shape[0])[:, None], tl.arange(0, k_GD.shape[1])[None, :]
    dim_E = tl.arange(0, value_E.shape[0])
    writes = loc > 0  # neither 0 nor -1, which are the sink
    page, slot = (loc // PAGE_SIZE).to(tl.int64), (loc % PAGE_SIZE).to(tl.int64)
    k_place_GD = k_cache + page * k_page + slot * k_slot + dim_1D + 0 * row_G1
    tl.store(k_place_GD, k_GD.to(k_cache.dtype.element_ty), mask=(row_G1 == 0) & (dim_1D < D) & writes)
    v_place_E = v_cache + page * v_page + slot * v_slot + dim_E
    tl.store(v_place_E, value_E.to(v_cache.dtype.element_ty), mask=(dim_E < E) & writes)
