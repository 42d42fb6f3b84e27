# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernels of `embed`, `embed_share` and `softcap_`: one program per block of columns of one row.

Shapes: T tokens, V rows of the table, D width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from playhead.kernels.sizes import ceil_div
from playhead.kernels.triton.dependent import after_upstream, dependent, let_downstream_start
from playhead.kernels.triton.scores import capped

BLOCK = 1024  # eight elements for each of 128 threads


@triton.jit
def embed_kernel(
    ids, table, out, table_stride, scale, first_id,
    NUM_IDS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A table of NUM_IDS rows is one rank's, from `first_id` on, and ids of other ranks are zeros. Without it, all."""
    after_upstream(DEPENDENT)
    let_downstream_start(DEPENDENT)  # not before: see `dependent.py`
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = col < WIDTH
    token = tl.load(ids + row).to(tl.int64)
    mine = live
    if NUM_IDS is not None:
        token -= first_id
        mine = live & (token >= 0) & (token < NUM_IDS)
    x = tl.load(table + token * table_stride + col, mask=mine, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + col, (x * scale).to(out.dtype.element_ty), mask=live)


@triton.jit
def softcap_kernel(logits, row_stride, cap, WIDTH: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    let_downstream_start(DEPENDENT)
    after_upstream(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = col < WIDTH
    place = logits + row * row_stride + col
    x = tl.load(place, mask=live, other=0.0).to(tl.float32)
    tl.store(place, capped(x, cap).to(logits.dtype.element_ty), mask=live)


def launch_embed(ids_T: torch.Tensor, table_VD: torch.Tensor, scale: float) -> torch.Tensor:
    return _launch(ids_T, table_VD, scale, 0, num_ids=None)


def launch_embed_share(ids_T: torch.Tensor, table_VD: torch.Tensor, scale: float, first_id: int) -> torch.Tensor:
    return _launch(ids_T, table_VD, scale, first_id, num_ids=len(table_VD))


def _launch(
    ids_T: torch.Tensor, table_VD: torch.Tensor, scale: float, first_id: int, *, num_ids: int | None
) -> torch.Tensor:
    num_tokens, width = ids_T.shape[0], table_VD.shape[1]
    out_TD = torch.empty((num_tokens, width), dtype=table_VD.dtype, device=table_VD.device)
    embed_kernel[(num_tokens, ceil_div(width, BLOCK))](
        ids_T, table_VD, out_TD, table_VD.stride(0), scale, first_id,
        NUM_IDS=num_ids, WIDTH=width, BLOCK=BLOCK, **dependent(ids_T),
    )  # fmt: skip
    return out_TD


def launch_softcap(logits_TV: torch.Tensor, cap: float) -> None:
    num_rows, width = logits_TV.shape
    softcap_kernel[(num_rows, ceil_div(width, BLOCK))](
        logits_TV, logits_TV.stride(0), cap, WIDTH=width, BLOCK=BLOCK, **dependent(logits_TV)
    )
