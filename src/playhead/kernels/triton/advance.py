# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernels of `advance` and `newest_ids`: one lane per token or request.

Shapes: B requests, T tokens, R rows of running requests, P pages per row, X boxes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from playhead.kernels.sizes import ceil_div
from playhead.kernels.triton.dependent import after_upstream, dependent, let_downstream_start

BLOCK = 128


@triton.jit
def newest_ids_kernel(ids, newest, out, num_tokens, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    let_downstream_start(DEPENDENT)
    after_upstream(DEPENDENT)
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = token < num_tokens
    token_id = tl.load(ids + token, mask=live, other=0)
    unread = live & (token_id < 0)
    tl.store(out + token, tl.where(unread, tl.load(newest - token_id, mask=unread, other=0), token_id), mask=live)


@triton.jit
def advance_kernel(
    tokens, input_ids, positions, seq_lens, out_cache_loc, num_generated, boxes, rows, num_live, newest, outbox,
    page_table, box_stride, table_stride, num_pages, num_requests,
    NUM_BOXES: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    let_downstream_start(DEPENDENT)
    after_upstream(DEPENDENT)
    request = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = request < tl.minimum(tl.load(num_live), num_requests)
    token = tl.load(tokens + request, mask=live, other=0).to(tl.int32)
    row = tl.load(rows + request, mask=live, other=0)
    max_tokens = num_pages * PAGE_SIZE
    position = tl.minimum(tl.load(positions + request, mask=live, other=0) + 1, max_tokens - 1)
    seq_len = tl.minimum(tl.load(seq_lens + request, mask=live, other=0) + 1, max_tokens)
    box = tl.load(boxes + request, mask=live, other=0)
    tl.store(outbox + box * box_stride + request, token, mask=live)
    tl.store(boxes + request, tl.where(box > 0, box % NUM_BOXES + 1, 0), mask=live)
    tl.store(newest + row, token, mask=live)
    tl.store(input_ids + request, token, mask=live)
    tl.store(positions + request, position, mask=live)
    tl.store(seq_lens + request, seq_len, mask=live)
    tl.store(num_generated + request, tl.load(num_generated + request, mask=live, other=0) + 1, mask=live)
    page = tl.load(page_table + row.to(tl.int64) * table_stride + position // PAGE_SIZE, mask=live, other=0)
    tl.store(out_cache_loc + request, page * PAGE_SIZE + position % PAGE_SIZE, mask=live)


def launch_newest_ids(ids_T: torch.Tensor, newest_R: torch.Tensor) -> torch.Tensor:
    out_T = ids_T.new_empty(ids_T.shape)
    num_tokens = ids_T.shape[0]
    grid = (ceil_div(num_tokens, BLOCK),)
    newest_ids_kernel[grid](ids_T, newest_R, out_T, num_tokens, BLOCK=BLOCK, **dependent(ids_T))
    return out_T


def launch_advance(*call: Any) -> None:
    *tensors, page_size = call
    *_, rows_B, _, _, outbox_XB, page_table_RP = tensors
    num_requests = rows_B.shape[0]
    advance_kernel[(ceil_div(num_requests, BLOCK),)](
        *tensors, outbox_XB.stride(0), page_table_RP.stride(0), page_table_RP.shape[1], num_requests,
        NUM_BOXES=outbox_XB.shape[0] - 1, PAGE_SIZE=page_size, BLOCK=BLOCK, **dependent(rows_B),
    )  # fmt: skip
