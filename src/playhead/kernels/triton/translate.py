# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernel of `translate.py`: a program takes a block of tokens and a block of the pages their windows can touch.

Programs write no entry of the table with two different values, so their order does not matter. How many there are
depends on the number of tokens, the window and the page size: a captured launch serves any lengths.

Shapes: T tokens of a program, C pages of a program, A entries of the workspace, R rows of the page table, P pages per
row, L full locations.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from playhead.kernels.sizes import ceil_div, next_power_of_2
from playhead.kernels.translate import max_pages_seen
from playhead.kernels.triton.dependent import after_upstream, dependent, let_downstream_start

BLOCK_TOKENS = 16
MAX_BLOCK_PAGES = 64  # 16 * 64 entries: eight for each of 128 threads


@triton.jit(do_not_specialize=["num_tokens"])  # it differs by bucket, and one binary must serve all of them
def translate_kernel(
    window_locs, window_table, mapping, page_table, full_locs, rows, positions, num_tokens,
    window_table_stride, page_table_stride,
    PAGE_SIZE: tl.constexpr, WINDOW: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    let_downstream_start(DEPENDENT)
    after_upstream(DEPENDENT)
    token_T = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    live_T = token_T < num_tokens
    row_T = tl.load(rows + token_T, mask=live_T, other=0)
    before_T = tl.load(rows + token_T - 1, mask=live_T & (token_T > 0), other=-1)
    position_T = tl.load(positions + token_T, mask=live_T, other=0)
    if tl.program_id(1) == 0:
        loc_T = tl.load(full_locs + token_T, mask=live_T, other=0)
        window_loc_T = tl.load(mapping + loc_T, mask=live_T & (loc_T >= 0), other=-1)
        tl.store(window_locs + token_T, window_loc_T, mask=live_T)
    last_T = position_T // PAGE_SIZE
    first_T = tl.where(row_T == before_T, last_T, tl.maximum(position_T - WINDOW + 1, 0) // PAGE_SIZE)
    column_C = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    page_TC = first_T[:, None] + column_C[None, :]
    live_TC = live_T[:, None] & (page_TC <= last_T[:, None])
    row_TC = row_T.to(tl.int64)[:, None]
    full_page_TC = tl.load(page_table + row_TC * page_table_stride + page_TC, mask=live_TC, other=0)
    window_loc_TC = tl.load(mapping + full_page_TC * PAGE_SIZE, mask=live_TC, other=0)
    tl.store(window_table + row_TC * window_table_stride + page_TC, window_loc_TC // PAGE_SIZE, mask=live_TC)


def launch_translate(*call: Any) -> None:
    *tensors, page_size, window = call
    _, window_table_RP, _, page_table_RP, full_locs_T, _, _ = tensors
    num_tokens = full_locs_T.shape[0]
    num_columns = min(max_pages_seen(window, page_size), page_table_RP.shape[1])
    block_pages = min(next_power_of_2(num_columns), MAX_BLOCK_PAGES)
    translate_kernel[(ceil_div(num_tokens, BLOCK_TOKENS), ceil_div(num_columns, block_pages))](
        *tensors, num_tokens, window_table_RP.stride(0), page_table_RP.stride(0),
        PAGE_SIZE=page_size, WINDOW=window, BLOCK_T=BLOCK_TOKENS, BLOCK_C=block_pages, **dependent(full_locs_T),
    )  # fmt: skip
