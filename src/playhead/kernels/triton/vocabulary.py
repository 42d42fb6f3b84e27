# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernel of `embed_share`.

Shapes: T tokens, D width, V ids of this rank.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from playhead.kernels.triton.dependent import after_upstream, dependent, let_downstream_start

BLOCK = 1024  # eight elements for each of 128 threads


@triton.jit
def embed_share_kernel(
    ids, table, out, table_stride, scale, first_id,
    NUM_IDS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    after_upstream(DEPENDENT)
    let_downstream_start(DEPENDENT)  # not before: see `dependent.py`
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
        ids_T, table_VD, out_TD, table_VD.stride(0), scale, first_id,
        NUM_IDS=num_ids, WIDTH=width, BLOCK=BLOCK, **dependent(ids_T),
    )  # fmt: skip
    return out_TD
