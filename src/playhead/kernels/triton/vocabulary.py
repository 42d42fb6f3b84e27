# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernels of `embed_share` and `choose_keys`.

A row's ids are cut into parts, a program each. The best key of a row is a maximum of integers: the same in any order.

Shapes: T tokens, D width, J ids of a block.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from playhead.kernels import tokens
from playhead.kernels.triton.choose import GOLDEN, gumbel, keys, load_block, mixed

BLOCK = 1024  # eight elements for each of 128 threads
LEAST_KEY = -(2**63)


@triton.jit
def embed_share_kernel(
    ids, table, out, table_stride, scale, first_id, NUM_IDS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = col < WIDTH
    token = tl.load(ids + row).to(tl.int64) - first_id
    is_mine = (token >= 0) & (token < NUM_IDS)
    x = tl.load(table + token * table_stride + col, mask=live & is_mine, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + col, (x * scale).to(out.dtype.element_ty), mask=live)


def launch_embed_share(ids_T: torch.Tensor, table_VD: torch.Tensor, scale: float, first_id: int) -> torch.Tensor:
    num_tokens, (num_ids, width) = ids_T.shape[0], table_VD.shape
    out_TD = torch.empty((num_tokens, width), dtype=table_VD.dtype, device=table_VD.device)
    embed_share_kernel[(num_tokens, triton.cdiv(width, BLOCK))](
        ids_T, table_VD, out_TD, table_VD.stride(0), scale, first_id, NUM_IDS=num_ids, WIDTH=width, BLOCK=BLOCK
    )
    return out_TD


@triton.jit(do_not_specialize=["num_blocks", "first_id"])  # one binary for all batches and ranks
def choose_keys_kernel(
    logits, temperatures, seeds, positions, best_keys, logits_stride, first_id, greedy_below, num_blocks,
    NUM_IDS: tl.constexpr, DRAWS: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    row = tl.program_id(1)
    first = part * num_blocks
    row_logits = logits + row.to(tl.int64) * logits_stride
    id_J = first * BLOCK_J + tl.arange(0, BLOCK_J)
    best_J = tl.full([BLOCK_J], float("-inf"), tl.float32)
    best_id_J = id_J
    if DRAWS:
        temperature = tl.load(temperatures + row)
        seed = tl.load(seeds + row).to(tl.uint64)
        position = tl.load(positions + row).to(tl.uint64)
        start = mixed(mixed(seed + GOLDEN) + position * GOLDEN)
    last = tl.minimum(first + num_blocks, tl.cdiv(NUM_IDS, BLOCK_J))
    ahead_J = load_block(row_logits, id_J, True, NUM_IDS)
    for block in range(first, last):
        # One block ahead: otherwise a program has nothing in flight while it computes.
        score_J = ahead_J.to(tl.float32)
        ahead_J = load_block(row_logits, id_J + BLOCK_J, block + 1 < last, NUM_IDS)
        if DRAWS:
            draws = temperature >= greedy_below
            if draws:
                score_J = tl.div_rn(score_J, temperature) + gumbel(
                    mixed(start + (id_J + first_id).to(tl.uint64) * GOLDEN)
                )
        # A NaN is never better; ids grow, so the first of equals stays.
        better_J = score_J > best_J
        best_J = tl.where(better_J, score_J, best_J)
        best_id_J = tl.where(better_J, id_J, best_id_J)
        id_J += BLOCK_J
    tl.atomic_max(best_keys + row, tl.max(keys(best_J, best_id_J + first_id), 0))


def launch_choose_keys(*call: Any) -> None:
    logits_NV, temperature_N, seeds_N, positions_N, keys_N, first_id, greedy_below, draws = call
    num_rows, num_ids = logits_NV.shape
    num_blocks = tokens.blocks_per_part(num_rows, num_ids)
    keys_N.fill_(LEAST_KEY)
    choose_keys_kernel[(triton.cdiv(triton.cdiv(num_ids, tokens.IDS_PER_BLOCK), num_blocks), num_rows)](
        logits_NV, temperature_N, seeds_N, positions_N, keys_N, logits_NV.stride(0), first_id, greedy_below, num_blocks,
        NUM_IDS=num_ids, DRAWS=draws, BLOCK_J=tokens.IDS_PER_BLOCK,
        num_warps=tokens.IDS_PER_BLOCK * logits_NV.element_size() // 512,
    )  # fmt: skip
