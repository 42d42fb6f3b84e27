"""Logits of which only allowed tokens keep theirs: what a grammar leaves of a step's choice.

Shapes: N requests of a step, V vocabulary, W words of a mask, with a bit for each id, the lowest bit first.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from playhead.kernels.op import op

BITS = 32


@op(mutates=("logits_NV",), bind="cpu.masks:bind_forbid", cuda="triton.masks:launch_forbid")
def forbid_(logits_NV: Tensor, allowed_NW: Tensor) -> None:
    """-inf, in place, for the ids whose bit of their row is not set.

    With the words (0b101,) and three ids, the logits (1, 2, 3) become (1, -inf, 3). A word of -1 allows all of its ids.
    A forbidden NaN may stay one: `choose_tokens` takes it for -inf.
    """
    shift_B = torch.arange(BITS, dtype=torch.int32, device=allowed_NW.device)
    bits_NV = ((allowed_NW[:, :, None] >> shift_B) & 1).flatten(1)[:, : logits_NV.shape[1]]
    logits_NV.masked_fill_(bits_NV == 0, -math.inf)
