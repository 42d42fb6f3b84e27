"""The head of a decoder: logits of rows, or without logits the tokens that are chosen from them.

A step that wants tokens alone need not store its logits: on a GPU one kernel multiplies and keeps each row's best id.
It chooses from the very numbers that `head_logits` stores for as many rows, so a request's tokens do not depend on
whether another request of the step wants logits. `can_choose` says for which heads and how many rows there is such a
kernel. On a GPU it adds up a row's inputs in ascending order, whatever its tiles: up to LONG_ROW inputs that is the
order of `matmul_in_order`.

Shapes: N rows, M hidden, V vocabulary, R rows of the scratch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from playhead.kernels.elementwise import softcap_
from playhead.kernels.op import op
from playhead.kernels.ordered import LONG_ROW
from playhead.kernels.projection import project
from playhead.kernels.tokens import NO_KEY, choose_scratch, choose_tokens
from playhead.kernels.triton.head_tiles import head_tiles

NO_CAP = math.inf


def can_choose(h_NM: Tensor, weight_VM: Tensor, *, in_order: bool = False) -> bool:
    """Whether the two ops below have a kernel for such rows. With `in_order` it must add up as `matmul_in_order`."""
    if in_order and weight_VM.shape[1] > LONG_ROW:
        return False
    return h_NM.is_cuda and head_tiles(h_NM, weight_VM) is not None


@op(mutates=("logits_NV",), cuda="triton.head:launch_head_logits")
def head_logits(logits_NV: Tensor, h_NM: Tensor, weight_VM: Tensor, scale: float, cap: float) -> None:
    """Writes the product, rounded to its factors' dtype, then times `scale`, then bent below `cap`."""
    product_NV = h_NM.new_empty(logits_NV.shape)
    project.reference(product_NV, h_NM, weight_VM, None, 1.0, False)
    logits_NV.copy_(product_NV)
    logits_NV.mul_(scale)
    if cap != NO_CAP:
        softcap_.reference(logits_NV, cap)


@op(mutates=("tokens_N", "best_R", "arrivals_R"), cuda="triton.head:launch_head_tokens")
def head_tokens(
    h_NM: Tensor, weight_VM: Tensor, scale: float, cap: float, temperature_N: Tensor, seeds_N: Tensor,
    positions_N: Tensor, tokens_N: Tensor, best_R: Tensor, arrivals_R: Tensor, greedy_below: float, draws: bool,
) -> None:  # fmt: skip
    """Writes what `choose_tokens` chooses from the logits. `head_scratch` and `choose_scratch` make the scratch, which
    the kernel leaves as it was.
    """
    is_bent = scale != 1.0 or cap != NO_CAP
    shape, dtype = (len(h_NM), len(weight_VM)), torch.float32 if is_bent else h_NM.dtype
    logits_NV = torch.empty(shape, dtype=dtype, device=h_NM.device)
    head_logits.reference(logits_NV, h_NM, weight_VM, scale, cap)
    scratch = choose_scratch(*shape, h_NM.device)
    numbers = (temperature_N, seeds_N, positions_N)
    choose_tokens.reference(logits_NV, None, *numbers, tokens_N, *scratch, greedy_below, draws)


def head_scratch(max_rows: int, device: torch.device | str = "cpu") -> Tensor:
    """`best_R` for steps of up to `max_rows` rows: keys that are below those of all scores."""
    return torch.full((max_rows,), NO_KEY, dtype=torch.int64, device=device)
