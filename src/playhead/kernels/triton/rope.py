# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernel of `rope.py`: a program takes the query heads of a token (a block of them), or its keys and values.

A head is held in three pieces: `a` and `b`, the two halves of the rotated pairs, and `rest`, the dims that pass
through. Without rotation everything is `rest`; with full rotation there is none.

Shapes: T tokens, H query heads, K kv heads, D head dim of q and k, E head dim of v, W = D or all heads' dims together,
P positions, F rotated pairs (2F <= D), R = 2F, N pages of the layer's pool, S locations per page.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from playhead.kernels.triton.dependent import after_upstream, dependent, let_downstream_start

MAX_TILE = 4096  # elements of one program's tile: 32 for each of 128 threads, so that nothing spills


@triton.jit
def _factor(weight, head_H, dim, mask, D: tl.constexpr, TOGETHER: tl.constexpr, UNIT_OFFSET: tl.constexpr):
    """What each number is multiplied by after the division: one row for every head, or one for each."""
    place = dim[None, :]
    if TOGETHER:
        place = head_H[:, None] * D + place
    factor = tl.load(weight + place, mask=mask, other=0.0).to(tl.float32)
    if UNIT_OFFSET:
        factor += 1.0
    return factor


@triton.jit
def _turn_heads(
    source, source_H, target, target_H, writes, head_H, weight, angles, eps,
    NUM_HEADS: tl.constexpr, D: tl.constexpr, F: tl.constexpr, STEP: tl.constexpr,
    HAS_NORM: tl.constexpr, TOGETHER: tl.constexpr, UNIT_OFFSET: tl.constexpr,
    BLOCK_F: tl.constexpr, BLOCK_REST: tl.constexpr,
):  # fmt: skip
    """Heads at `source + source_H`, normed and rotated, to `target + target_H` if it `writes`.

    Both may be the same memory.
    """
    live_H = head_H < NUM_HEADS
    pair = tl.arange(0, BLOCK_F)
    dim_a, dim_b, live_F = pair * STEP, pair * STEP + (F if STEP == 1 else 1), pair < F
    dim_rest = 2 * F + tl.arange(0, BLOCK_REST)
    live_rest = dim_rest < D
    mask_HF = live_H[:, None] & live_F[None, :]
    mask_rest = live_H[:, None] & live_rest[None, :]
    # All loads before the first sum, which they would wait for otherwise; the angles last, which wait for a position.
    if F > 0:
        a = tl.load(source + source_H[:, None] + dim_a[None, :], mask=mask_HF, other=0.0).to(tl.float32)
        b = tl.load(source + source_H[:, None] + dim_b[None, :], mask=mask_HF, other=0.0).to(tl.float32)
    if D > 2 * F:
        rest = tl.load(source + source_H[:, None] + dim_rest[None, :], mask=mask_rest, other=0.0).to(tl.float32)
    if HAS_NORM and F > 0:
        weighed_HF = mask_HF if TOGETHER else live_F[None, :]
        factor_a = _factor(weight, head_H, dim_a, weighed_HF, D, TOGETHER, UNIT_OFFSET)
        factor_b = _factor(weight, head_H, dim_b, weighed_HF, D, TOGETHER, UNIT_OFFSET)
    if HAS_NORM and D > 2 * F:
        weighed = mask_rest if TOGETHER else live_rest[None, :]
        factor_rest = _factor(weight, head_H, dim_rest, weighed, D, TOGETHER, UNIT_OFFSET)
    if F > 0:
        cos_1F = tl.load(angles + pair, mask=live_F, other=1.0)[None, :]
        sin_1F = tl.load(angles + F + pair, mask=live_F, other=0.0)[None, :]
    if HAS_NORM:
        squares_H = tl.zeros_like(live_H.to(tl.float32))
        if F > 0:
            squares_H += tl.sum(a * a + b * b, 1)
        if D > 2 * F:
            squares_H += tl.sum(rest * rest, 1)
        if TOGETHER:
            squares_H = tl.zeros_like(squares_H) + tl.sum(squares_H) / NUM_HEADS
        inverse_H1 = tl.rsqrt(squares_H / D + eps)[:, None]
        if F > 0:
            a *= inverse_H1 * factor_a
            b *= inverse_H1 * factor_b
        if D > 2 * F:
            rest *= inverse_H1 * factor_rest
    to = target.dtype.element_ty
    if F > 0:
        target_a, target_b = target + target_H[:, None] + dim_a[None, :], target + target_H[:, None] + dim_b[None, :]
        tl.store(target_a, (a * cos_1F - b * sin_1F).to(to), mask=mask_HF & writes)
        tl.store(target_b, (b * cos_1F + a * sin_1F).to(to), mask=mask_HF & writes)
    if D > 2 * F:
        tl.store(target + target_H[:, None] + dim_rest[None, :], rest.to(to), mask=mask_rest & writes)


@triton.jit
def qk_rope_write_kernel(
    q, k, v, q_weight, k_weight, angles, positions, k_cache, v_cache, locs, eps,
    q_token, q_head, k_token, k_head, v_token, v_head, k_page, k_slot, k_cache_head, v_page, v_slot, v_cache_head,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, E: tl.constexpr, F: tl.constexpr, STEP: tl.constexpr,
    PAGE_SIZE: tl.constexpr, NUM_Q_BLOCKS: tl.constexpr,
    HAS_NORM: tl.constexpr, TOGETHER: tl.constexpr, UNIT_OFFSET: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_F: tl.constexpr,
    BLOCK_REST: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    after_upstream(DEPENDENT)
    # Not before: attention reads tables before it waits, and kernels in front of this one have written them. Also, its
    # programs would start while the projection has most multiprocessors, pile up on those that are free, and stay.
    let_downstream_start(DEPENDENT)
    if F > 0:
        angles += tl.load(positions + token).to(tl.int64) * (2 * F)
    if part < NUM_Q_BLOCKS:
        head_H = part * BLOCK_H + tl.arange(0, BLOCK_H)
        place_H = token * q_token + head_H * q_head
        _turn_heads(
            q, place_H, q, place_H, True, head_H, q_weight, angles, eps,
            H, D, F, STEP, HAS_NORM, TOGETHER, UNIT_OFFSET, BLOCK_F, BLOCK_REST,
        )  # fmt: skip
    else:
        loc = tl.maximum(tl.load(locs + token), 0)  # -1 is the sink, as 0 is
        writes = loc > 0  # a mask, not a branch: the loads below need not wait for it
        page, slot = (loc // PAGE_SIZE).to(tl.int64), (loc % PAGE_SIZE).to(tl.int64)
        head_K = tl.arange(0, BLOCK_K)
        live_K = head_K < K
        k_place = page * k_page + slot * k_slot
        _turn_heads(
            k, token * k_token + head_K * k_head, k_cache, k_place + head_K * k_cache_head, writes, head_K, k_weight,
            angles, eps, K, D, F, STEP, HAS_NORM, TOGETHER, UNIT_OFFSET, BLOCK_F, BLOCK_REST,
        )  # fmt: skip
        v_place = page * v_page + slot * v_slot
        dim = tl.arange(0, BLOCK_E)[None, :]
        mask = live_K[:, None] & (dim < E)
        v_KE = tl.load(v + token * v_token + head_K[:, None] * v_head + dim, mask=mask, other=0.0)
        v_target = v_cache + v_place + head_K[:, None] * v_cache_head + dim
        tl.store(v_target, v_KE.to(v_cache.dtype.element_ty), mask=mask & writes)


def launch_qk_rope_write(*call: Any) -> None:
    *tensors, eps, unit_offset, interleaved = call
    q_THD, k_TKD, v_TKE, q_weight_W, _, table_PR, _, k_cache_NSKD, v_cache_NSKE, _ = tensors
    num_tokens, num_heads, head_dim = q_THD.shape
    num_kv_heads, v_head_dim = v_TKE.shape[1:]
    num_pairs = 0 if table_PR is None else table_PR.shape[1] // 2
    has_norm = q_weight_W is not None
    together = q_weight_W is not None and q_weight_W.numel() != head_dim
    block_dim = triton.next_power_of_2(head_dim)
    block_heads = triton.next_power_of_2(num_heads)
    if not together:
        block_heads = min(block_heads, max(MAX_TILE // block_dim, 1))
    # With neither norm nor rotation the queries stay as they are, and only the writing programs run.
    num_q_blocks = triton.cdiv(num_heads, block_heads) if has_norm or num_pairs else 0
    qk_rope_write_kernel[(num_tokens, num_q_blocks + 1)](
        *tensors, eps, *q_THD.stride()[:2], *k_TKD.stride()[:2], *v_TKE.stride()[:2],
        *k_cache_NSKD.stride()[:3], *v_cache_NSKE.stride()[:3],
        H=num_heads, K=num_kv_heads, D=head_dim, E=v_head_dim, F=num_pairs, STEP=2 if interleaved else 1,
        PAGE_SIZE=k_cache_NSKD.shape[1], NUM_Q_BLOCKS=num_q_blocks,
        HAS_NORM=has_norm, TOGETHER=together, UNIT_OFFSET=unit_offset,
        BLOCK_H=block_heads, BLOCK_K=triton.next_power_of_2(num_kv_heads), BLOCK_E=triton.next_power_of_2(v_head_dim),
        BLOCK_F=triton.next_power_of_2(max(num_pairs, 1)),
        BLOCK_REST=triton.next_power_of_2(max(head_dim - 2 * num_pairs, 1)),
        num_warps=min(max(block_heads * block_dim // 1024, 4), 16), **dependent(q_THD),
    )  # fmt: skip
