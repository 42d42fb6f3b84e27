# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernel of `rope.py`: a program takes the query heads of a token (a block of them), or its keys and values.

A head is held in three pieces: `a` and `b`, the two halves of the rotated pairs, and `rest`, the dims that pass
through. Without rotation everything is `rest`; with full rotation there is none.

Everything but the projection is loaded before the wait for it. In steps of few tokens what heads are multiplied with is
loaded as tiles of their shape, as in `newest.py`: no warp needs what another one has, unless heads are normed together
(`tests/unit/kernels/test_compile.py` reads it from the compiled kernel). Many tokens would load eight times as much so.

Shapes: H heads of a program, K kv heads, D head dim of q and k, E head dim of v, F rotated pairs (2F <= D), R dims that
pass through.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from playhead.kernels.sizes import ceil_div, next_power_of_2
from playhead.kernels.triton.dependent import after_upstream, dependent, let_downstream_start

MAX_TILE = 4096  # elements of one program's tile
ELEMENTS_PER_WARP = 512  # 16 for each thread: two loads of eight bf16 numbers
FEW_TOKENS = 256  # whose programs mostly wait; those of more tokens mostly load


@triton.jit
def _load_pieces(row_H1, mask_HF, mask_HR, D: tl.constexpr, F: tl.constexpr, STEP: tl.constexpr, IS_NEW: tl.constexpr):
    """`a`, `b` and `rest` of heads, or of the norm's weights for them. Nobody looks at pieces that heads do not have.

    With IS_NEW they are "volatile", which keeps all of these loads in front of the first sum.
    """
    pair_1F, dim_1R = tl.arange(0, mask_HF.shape[1])[None, :], 2 * F + tl.arange(0, mask_HR.shape[1])[None, :]
    none_H1 = tl.zeros(row_H1.shape, tl.float32)
    a_HF, b_HF, rest_HR = none_H1, none_H1, none_H1
    if F > 0:
        place_HF = row_H1 + pair_1F * STEP
        a_HF = tl.load(place_HF, mask=mask_HF, other=0.0, volatile=IS_NEW)
        b_HF = tl.load(place_HF + (F if STEP == 1 else 1), mask=mask_HF, other=0.0, volatile=IS_NEW)
    if D > 2 * F:
        rest_HR = tl.load(row_H1 + dim_1R, mask=mask_HR, other=0.0, volatile=IS_NEW)
    return a_HF, b_HF, rest_HR


@triton.jit
def _load_angles(angles, position, zero_H1, mask_HF, F: tl.constexpr):
    """Cosine and sine of each pair, for every head, or once for all."""
    cos_HF, sin_HF = 0.0, 0.0  # nobody looks at these
    if F > 0:
        place_HF = angles + position.to(tl.int64) * (2 * F) + zero_H1 + tl.arange(0, mask_HF.shape[1])[None, :]
        cos_HF = tl.load(place_HF, mask=mask_HF, other=1.0)
        sin_HF = tl.load(place_HF + F, mask=mask_HF, other=0.0)
    return cos_HF, sin_HF


@triton.jit
def _normed(
    pieces, weights, eps, num_heads, D: tl.constexpr, F: tl.constexpr, TOGETHER: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
):  # fmt: skip
    """The pieces of heads, each head divided by its own size, or by that of all heads together."""
    a_HF, b_HF, rest_HR = pieces
    BLOCK_H: tl.constexpr = (a_HF if F > 0 else rest_HR).shape[0]
    offset: tl.constexpr = 1.0 if UNIT_OFFSET else 0.0
    squares_H = tl.zeros([BLOCK_H], tl.float32)
    if F > 0:
        squares_H += tl.sum(a_HF * a_HF + b_HF * b_HF, 1)
    if D > 2 * F:
        squares_H += tl.sum(rest_HR * rest_HR, 1)
    if TOGETHER:
        squares_H = tl.zeros_like(squares_H) + tl.sum(squares_H) / num_heads
    inverse_H1 = tl.rsqrt(squares_H / D + eps)[:, None]
    if F > 0:
        a_HF *= inverse_H1 * (weights[0].to(tl.float32) + offset)
        b_HF *= inverse_H1 * (weights[1].to(tl.float32) + offset)
    if D > 2 * F:
        rest_HR *= inverse_H1 * (weights[2].to(tl.float32) + offset)
    return a_HF, b_HF, rest_HR


@triton.jit
def _store_pieces(row_H1, pieces, mask_HF, mask_HR, D: tl.constexpr, F: tl.constexpr, STEP: tl.constexpr):
    to = row_H1.dtype.element_ty
    if F > 0:
        place_HF = row_H1 + tl.arange(0, mask_HF.shape[1])[None, :] * STEP
        tl.store(place_HF, pieces[0].to(to), mask=mask_HF)
        tl.store(place_HF + (F if STEP == 1 else 1), pieces[1].to(to), mask=mask_HF)
    if D > 2 * F:
        dim_1R = 2 * F + tl.arange(0, mask_HR.shape[1])[None, :]
        tl.store(row_H1 + dim_1R, pieces[2].to(to), mask=mask_HR)


@triton.jit
def qk_rope_write_kernel(
    q, k, v, q_weight, k_weight, angles, positions, k_cache, v_cache, locs, eps,
    q_token, q_head, k_token, k_head, v_token, v_head, k_page, k_slot, k_cache_head, v_page, v_slot, v_cache_head,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, E: tl.constexpr, F: tl.constexpr, STEP: tl.constexpr,
    PAGE_SIZE: tl.constexpr, NUM_Q_BLOCKS: tl.constexpr,
    HAS_NORM: tl.constexpr, TOGETHER: tl.constexpr, UNIT_OFFSET: tl.constexpr, SPREADS: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_R: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """With SPREADS every head has angles and weights of its own."""
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    is_key = part == NUM_Q_BLOCKS  # a mask, not a branch: everything is loaded at once
    position, loc = tl.load(positions + token), tl.maximum(tl.load(locs + token), 0)  # -1 is the sink, as 0 is
    head_H1 = tl.where(is_key, 0, part * BLOCK_H) + tl.arange(0, BLOCK_H)[:, None]
    num_heads = tl.where(is_key, K, H)
    live_H1 = head_H1 < num_heads
    live_1F, live_1R = (tl.arange(0, BLOCK_F) < F)[None, :], (2 * F + tl.arange(0, BLOCK_R) < D)[None, :]
    mask_HF, mask_HR = live_H1 & live_1F, live_H1 & live_1R
    zero_H1, shared_HF, shared_HR = tl.zeros([1, 1], tl.int32), live_1F, live_1R
    if SPREADS:
        zero_H1, shared_HF, shared_HR = tl.zeros([BLOCK_H, 1], tl.int32), mask_HF, mask_HR
    cos_HF, sin_HF = _load_angles(angles, position, zero_H1, shared_HF, F)
    weights = (0.0, 0.0, 0.0)  # nobody looks at these
    if HAS_NORM:
        weight = k_weight if is_key else q_weight
        if TOGETHER:
            weights = _load_pieces(weight + head_H1 * D, mask_HF, mask_HR, D, F, STEP, False)
        else:
            weights = _load_pieces(weight + zero_H1, shared_HF, shared_HR, D, F, STEP, False)
    after_upstream(DEPENDENT)
    # Not before: attention reads tables before it waits, and kernels in front of this one have written them. Also, its
    # programs would start while the projection has most multiprocessors, pile up on those that are free, and stay.
    let_downstream_start(DEPENDENT)
    dim_1E = tl.arange(0, BLOCK_E)[None, :]
    mask_HE = live_H1 & (dim_1E < E) & is_key
    v_HE = tl.load(v + token * v_token + head_H1 * v_head + dim_1E, mask=mask_HE, other=0.0, volatile=SPREADS)
    row_H1 = k + token * k_token + head_H1 * k_head if is_key else q + token * q_token + head_H1 * q_head
    found = _load_pieces(row_H1, mask_HF, mask_HR, D, F, STEP, SPREADS)
    a_HF, b_HF, rest_HR = found[0].to(tl.float32), found[1].to(tl.float32), found[2].to(tl.float32)
    if HAS_NORM:
        a_HF, b_HF, rest_HR = _normed((a_HF, b_HF, rest_HR), weights, eps, num_heads, D, F, TOGETHER, UNIT_OFFSET)
    turned = a_HF * cos_HF - b_HF * sin_HF, b_HF * cos_HF + a_HF * sin_HF, rest_HR
    is_query, writes = part < NUM_Q_BLOCKS, is_key & (loc > 0)
    q_H1 = q + token * q_token + head_H1 * q_head
    _store_pieces(q_H1, turned, mask_HF & is_query, mask_HR & is_query, D, F, STEP)
    page, slot = (loc // PAGE_SIZE).to(tl.int64), (loc % PAGE_SIZE).to(tl.int64)
    k_H1 = k_cache + page * k_page + slot * k_slot + head_H1 * k_cache_head
    _store_pieces(k_H1, turned, mask_HF & writes, mask_HR & writes, D, F, STEP)
    v_place_HE = v_cache + page * v_page + slot * v_slot + head_H1 * v_cache_head + dim_1E
    tl.store(v_place_HE, v_HE.to(v_cache.dtype.element_ty), mask=mask_HE & writes)


def launch_qk_rope_write(*call: Any) -> None:
    *tensors, eps, unit_offset, interleaved = call
    q_THD, k_TKD, v_TKE, q_weight_W, _, table_PR, _, k_cache_NSKD, v_cache_NSKE, _ = tensors
    num_tokens, num_heads, head_dim = q_THD.shape
    num_kv_heads, v_head_dim = v_TKE.shape[1:]
    num_pairs = 0 if table_PR is None else table_PR.shape[1] // 2
    has_norm = q_weight_W is not None
    together = q_weight_W is not None and q_weight_W.numel() != head_dim
    block_dim = next_power_of_2(head_dim)
    block_heads = next_power_of_2(num_heads)
    if not together:
        block_heads = min(block_heads, max(MAX_TILE // block_dim, 1))
    block_heads = max(block_heads, next_power_of_2(num_kv_heads))
    # With neither norm nor rotation the queries stay as they are, and only the writing programs run.
    num_q_blocks = ceil_div(num_heads, block_heads) if has_norm or num_pairs else 0
    qk_rope_write_kernel[(num_tokens, num_q_blocks + 1)](
        *tensors, eps, *q_THD.stride()[:2], *k_TKD.stride()[:2], *v_TKE.stride()[:2],
        *k_cache_NSKD.stride()[:3], *v_cache_NSKE.stride()[:3],
        H=num_heads, K=num_kv_heads, D=head_dim, E=v_head_dim, F=num_pairs, STEP=2 if interleaved else 1,
        PAGE_SIZE=k_cache_NSKD.shape[1], NUM_Q_BLOCKS=num_q_blocks,
        HAS_NORM=has_norm, TOGETHER=together, UNIT_OFFSET=unit_offset, SPREADS=num_tokens <= FEW_TOKENS,
        BLOCK_H=block_heads, BLOCK_E=next_power_of_2(v_head_dim),
        BLOCK_F=next_power_of_2(max(num_pairs, 1)),
        BLOCK_R=next_power_of_2(max(head_dim - 2 * num_pairs, 1)),
        num_warps=min(max(block_heads * block_dim // ELEMENTS_PER_WARP, 1), 16), **dependent(q_THD),
    )  # fmt: skip
