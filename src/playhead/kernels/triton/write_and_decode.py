# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernel of `write_and_decode`: decode from the packed projection on, for steps of few requests.

Keys and values of earlier steps do not depend on the projection: a program loads its first block of them while the
projection runs. The newest key is nowhere in memory then. The last split brings it in, and stores it for later steps.

What stands between the projection's end and the first product counts, in every layer: one barrier, and no memory but
the projection (`tests/unit/kernels/test_compile.py` reads it from the compiled kernel).

Shapes are those of `decode.py` and `newest.py`.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from playhead.kernels.attention import left_width
from playhead.kernels.rope import on_packed
from playhead.kernels.sizes import next_power_of_2
from playhead.kernels.splits import MOST_HEADS_TOGETHER, MOST_KEYS_TOGETHER, WIDE_HEAD
from playhead.kernels.triton.decode import (
    AS_MEASURED,
    SAME_BINARY,
    Cut,
    Launch,
    attend_blocks,
    launch_decode,
    load_block,
    share_of,
    start_of_softmax,
)
from playhead.kernels.triton.decode_tiles import MAX_REGISTERS
from playhead.kernels.triton.dependent import after_upstream, dependent, let_downstream_start
from playhead.kernels.triton.left import keep_or_leave_share, leave_nothing
from playhead.kernels.triton.newest import add_newest, load_turning, newest_heads, repeated, store_newest
from playhead.kernels.triton.rope import launch_qk_rope_write
from playhead.kernels.triton.scores import attend_block, key_pages

MOST_KV_HEADS = 256  # of all requests: with more, a rope kernel before attention is faster,
MOST_DIMS = 32_768  # and so it is with more dims of all their heads
FEW_KV_HEADS = 64  # which leave the device room for programs with all registers there are
FEW_REQUESTS = 8  # whose projection is so short that the kernel behind attention may start with it, except where
# several wide heads attend: what is loaded early then delays their own loads


@triton.jit
def _first_block(
    k_cache, v_cache, table_row, first, last, k_page, k_slot, v_page, v_slot,
    D: tl.constexpr, E: tl.constexpr, PAGE_SIZE: tl.constexpr, SAME_STRIDES: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """Keys and values of a share's first block, which of them are live, and the pages of the next block."""
    key_J = first + tl.arange(0, BLOCK_J)
    live_J = key_J < last
    k_JD, v_JE = load_block(
        k_cache, v_cache, key_pages(table_row, key_J, live_J, PAGE_SIZE), key_J, live_J, k_page, k_slot, v_page, v_slot,
        D, E, PAGE_SIZE, SAME_STRIDES, BLOCK_D, BLOCK_E,
    )  # fmt: skip
    return k_JD, v_JE, live_J, key_pages(table_row, key_J + BLOCK_J, key_J + BLOCK_J < last, PAGE_SIZE)


@triton.jit(do_not_specialize=SAME_BINARY)
def write_and_decode_kernel(
    qkv, out, k_cache, v_cache, page_table, rows, seq_lens, sinks, parts, log_weights, arrivals,
    q_weight, k_weight, angles, locs, eps,
    scale, softcap, num_splits, group_size, whole_keys, least_keys, few_splits, most_keys,
    qkv_token, out_token, k_page, k_slot, k_head, v_page, v_slot, v_head, table_stride,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PAGE_SIZE: tl.constexpr,
    SAME_STRIDES: tl.constexpr, WINDOW: tl.constexpr, NUM_M_BLOCKS: tl.constexpr, F: tl.constexpr, STEP: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, HAS_NORM: tl.constexpr, UNIT_OFFSET: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_X: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_G: tl.constexpr, LEFT: tl.constexpr, STARTS_EARLY: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """With STARTS_EARLY the next kernel may load its weights meanwhile; with LEFT a head's output is left in parts."""
    if STARTS_EARLY:
        let_downstream_start(DEPENDENT)
    head, request, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_old = tl.load(seq_lens + request, volatile=True) - 1  # both at once; the newest key's position too
    row, loc = tl.load(rows + request, volatile=True).to(tl.int64), tl.load(locs + request)
    turning = load_turning(q_weight, k_weight, angles, num_old, G, D, F, STEP, HAS_NORM, BLOCK_G, BLOCK_D)
    num_keys = tl.minimum(num_old, WINDOW - 1) if WINDOW > 0 else num_old
    first, last, num_live = share_of(
        num_old, num_keys, split, num_splits, whole_keys, least_keys, few_splits, most_keys, BLOCK_J
    )
    table_row = page_table + row * table_stride
    k_cache, v_cache = k_cache + head.to(tl.int64) * k_head, v_cache + head.to(tl.int64) * v_head
    k_JD, v_JE, live_J, next_page_J = _first_block(
        k_cache, v_cache, table_row, first, last, k_page, k_slot, v_page, v_slot,
        D, E, PAGE_SIZE, SAME_STRIDES, BLOCK_D, BLOCK_E, BLOCK_J,
    )  # fmt: skip
    after_upstream(DEPENDENT)
    if not STARTS_EARLY:
        let_downstream_start(DEPENDENT)
    out_row = out + request.to(tl.int64) * out_token
    if split < num_live:
        q_GD, k_GD, value_E = newest_heads(
            qkv + request.to(tl.int64) * qkv_token, head, turning, eps,
            H, G, D, E, F, STEP, HAS_NORM, UNIT_OFFSET, BLOCK_G, BLOCK_D, BLOCK_E,
        )  # fmt: skip
        q_MD = repeated(q_GD, BLOCK_M, BLOCK_D)
        top_M, sum_M, acc_ME = start_of_softmax(sinks, head, split, G, NUM_M_BLOCKS, HAS_SINKS, BLOCK_M, BLOCK_E)
        top_M, sum_M, acc_ME = attend_block(
            q_MD, k_JD, v_JE, live_J[None, :], top_M, sum_M, acc_ME, scale, softcap, HAS_SOFTCAP, True
        )
        is_last = split == num_live - 1
        if is_last:
            top_M, sum_M, acc_ME = add_newest(q_GD, k_GD, value_E, top_M, sum_M, acc_ME, scale, softcap, HAS_SOFTCAP)
        if first + BLOCK_J < last:
            top_M, sum_M, acc_ME = attend_blocks(
                q_MD, k_cache, v_cache, table_row, next_page_J, first + BLOCK_J, last,
                top_M, sum_M, acc_ME, scale, softcap, k_page, k_slot, v_page, v_slot,
                D, E, PAGE_SIZE, SAME_STRIDES, HAS_SOFTCAP, BLOCK_D, BLOCK_E, BLOCK_J,
            )  # fmt: skip
        keep_or_leave_share(
            top_M, sum_M, acc_ME, out_row, parts, log_weights, arrivals,
            head, request, split, num_live, num_splits, group_size,
            H, G, E, LEFT, BLOCK_M, BLOCK_E, BLOCK_X, BLOCK_H,
        )  # fmt: skip
        if is_last:
            store_newest(k_GD, value_E, k_cache, v_cache, loc, k_page, k_slot, v_page, v_slot, D, E, PAGE_SIZE)
    leave_nothing(out_row, head, split, num_live, H, G, E, LEFT, BLOCK_H, BLOCK_E)


def is_faster_apart(num_requests: int, num_kv_heads: int, head_dim: int, max_keys: int, *, has_norm: bool) -> bool:
    """Whether rope and attention behind it take less than one kernel: measured in decode steps of Gemma-3, Llama-3.2-1B
    and Qwen3-0.6B.
    """
    num_programs = num_requests * num_kv_heads
    is_crowded = num_programs > MOST_KV_HEADS or num_programs * head_dim > MOST_DIMS
    norms_often = has_norm and num_kv_heads > 1 and 1 < num_requests <= FEW_REQUESTS  # each split norms its heads
    return is_crowded or norms_often or max_keys > MOST_KEYS_TOGETHER


def launch_write_and_decode(*call: Any, cut: Cut = AS_MEASURED) -> None:
    qkv_BX, out_BY, *turning, eps, unit_offset, interleaved = call[:10]
    *memory, seq_lens_B, sinks_H, scale, window, softcap = call[10:-6]
    *scratch, num_splits, _, num_left = call[-6:]  # steps that are worth an order are those that rope is faster for
    *weights, table_PR, _, locs_B = turning
    q_weight_W, _ = weights
    (num_kv_heads, head_dim), v_head_dim = memory[0].shape[2:], memory[1].shape[3]
    num_requests, num_heads = qkv_BX.shape[0], out_BY.shape[1] // left_width(1, v_head_dim, num_left)
    group, num_programs = num_heads // num_kv_heads, num_requests * num_kv_heads
    is_normed_together = q_weight_W is not None and q_weight_W.numel() != head_dim
    max_context = memory[2].shape[1] * memory[0].shape[1]
    max_keys = max_context if window is None else min(window, max_context)
    is_slower = is_faster_apart(num_requests, num_kv_heads, head_dim, max_keys, has_norm=q_weight_W is not None)
    if is_normed_together or group >= MOST_HEADS_TOGETHER or is_slower:
        # No program has all that is normed together, or so many heads were not measured, or rope is faster.
        assert not num_left, "parts are left by the kernel below alone"
        q_BHD = on_packed(launch_qk_rope_write, qkv_BX, *call[2:10], caches=memory[:2])
        launch_decode(q_BHD, out_BY.view(-1, num_heads, v_head_dim), *call[10:-1], cut=cut)
        return
    assert num_left <= num_splits, f"{num_left} parts, of which {num_splits} programs of a head fill one each"
    launch = Launch.of(*memory, num_heads=num_heads, num_splits=num_splits, window=window, cut=cut, num_left=num_left)
    write_and_decode_kernel[launch.grid](
        qkv_BX, out_BY, *memory, seq_lens_B, sinks_H, *scratch, *weights, table_PR, locs_B, eps,
        scale, 0.0 if softcap is None else softcap, *launch.numbers,
        qkv_BX.stride(0), out_BY.stride(0), *launch.strides,
        F=0 if table_PR is None else table_PR.shape[1] // 2, STEP=2 if interleaved else 1,
        HAS_SOFTCAP=softcap is not None, HAS_SINKS=sinks_H is not None,
        HAS_NORM=q_weight_W is not None, UNIT_OFFSET=unit_offset,
        BLOCK_G=max(next_power_of_2(group), launch.options["num_warps"]), LEFT=num_left,
        STARTS_EARLY=num_requests <= FEW_REQUESTS and not (num_kv_heads > 1 and head_dim >= WIDE_HEAD),
        **launch.options | ({"maxnreg": MAX_REGISTERS} if num_programs <= FEW_KV_HEADS else {}), **dependent(qkv_BX),
    )  # fmt: skip
