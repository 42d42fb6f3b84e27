# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernel of `allowed_logits`: one program per block of ids of one row.

Shapes: N requests of a step, V vocabulary, W words of a mask.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024  # eight ids for each of 128 threads


@triton.jit
def allowed_kernel(
    logits, allowed, out, logits_stride, allowed_stride, out_stride, VOCAB: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = token < VOCAB
    word = tl.load(allowed + row * allowed_stride + token // 32, mask=live, other=0)
    logit = tl.load(logits + row * logits_stride + token, mask=live, other=0.0).to(tl.float32)
    # The shift copies the sign, and the lowest bit is the wanted one all the same.
    kept = tl.where(((word >> (token % 32)) & 1) == 1, logit, float("-inf"))
    tl.store(out + row * out_stride + token, kept.to(out.dtype.element_ty), mask=live)


def launch_allowed_logits(logits_NV: torch.Tensor, allowed_NW: torch.Tensor) -> torch.Tensor:
    num_rows, vocab_size = logits_NV.shape
    out_NV = torch.empty((num_rows, vocab_size), dtype=logits_NV.dtype, device=logits_NV.device)
    allowed_kernel[(num_rows, triton.cdiv(vocab_size, BLOCK))](
        logits_NV,
        allowed_NW,
        out_NV,
        logits_NV.stride(0),
        allowed_NW.stride(0),
        out_NV.stride(0),
        VOCAB=vocab_size,
        BLOCK=BLOCK,
    )
    return out_NV
