# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernel of `forbid_`: one program per block of ids of one row. It writes and reads no logit that is allowed.

Shapes: N requests of a step, V vocabulary, W words of a mask.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from playhead.kernels.sizes import ceil_div

BLOCK = 1024  # eight ids for each of 128 threads


@triton.jit
def forbid_kernel(logits, allowed, logits_stride, allowed_stride, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = token < VOCAB
    word = tl.load(allowed + row * allowed_stride + token // 32, mask=live, other=-1)
    # The shift copies the sign, and the lowest bit is the wanted one all the same.
    is_forbidden = ((word >> (token % 32)) & 1) == 0
    lowest = tl.full([BLOCK], float("-inf"), tl.float32).to(logits.dtype.element_ty)
    tl.store(logits + row * logits_stride + token, lowest, mask=live & is_forbidden)


def launch_forbid(logits_NV: torch.Tensor, allowed_NW: torch.Tensor) -> None:
    num_rows, vocab_size = logits_NV.shape
    strides = (logits_NV.stride(0), allowed_NW.stride(0))
    grid = (num_rows, ceil_div(vocab_size, BLOCK))
    forbid_kernel[grid](logits_NV, allowed_NW, *strides, VOCAB=vocab_size, BLOCK=BLOCK)
