"""Min-p, top-k and top-p as one number per row: the least key that may be drawn.

A token's key orders as its logit does, and equal logits by lower id first. Each filter keeps the tokens that reach some
key, so a row's filters are the largest of their keys. Nothing is written but that number; the choice of a token
compares with it.

Top-p compares sums of probabilities. They are sums of integers, which are the same in any order, so the reference,
which sorts, and the kernel, which does not, keep the same tokens.

Shapes: N rows of logits, V vocabulary. A trailing 1 is kept for broadcasting.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from playhead.kernels.op import op

LOG2_E = math.log2(math.e)
# A softmax weight in (0, 1] becomes an integer of this many bits: 2^21 of them still fit 63 bits.
WEIGHT_SCALE = 2.0**42

ID_BITS = 32
LAST_ID = 2**31 - 1
EVERY_KEY = -2139095041 << ID_BITS
"""Every token reaches it: the key of -inf, with the last id that can be."""


@op(
    out=lambda logits_NV, *_: logits_NV.new_empty(len(logits_NV), dtype=torch.int64),
    bind="cpu.filters:bind_least_keys",
    cuda="triton.filters:launch_least_keys",
)
def least_keys(
    logits_NV: Tensor, temperature_N: Tensor, top_k_N: Tensor, top_p_N: Tensor, log_min_p_N: Tensor,
    greedy_below: float,
) -> Tensor:  # fmt: skip
    """[N], int64: the least key that min-p, then top-k, then top-p of what is left keep. The order is vLLM's.

    Off are top-k with 0, top-p with 1, min-p with -inf, and all of them where the temperature is below `greedy_below`.
    Such rows get `EVERY_KEY`. Top-p keeps a token if those above it hold less than p of what is left. With p 0.6:

        left by min-p and top-k   0.5  0.3  0.2
        above                     0    0.5  0.8     -> the first two stay

    The best token is always kept. NaN counts as -inf. A row whose best logit is infinite is not filtered: it has no
    choice.
    """
    vocab_size = logits_NV.shape[1]
    top_k_N1, top_p_N1, log_min_p_N1 = top_k_N[:, None], top_p_N[:, None], log_min_p_N[:, None]
    greedy_N1 = temperature_N[:, None] < greedy_below
    temperature_N1 = torch.where(greedy_N1, 1.0, temperature_N[:, None])
    keys_NV = token_keys(logits_NV.float().nan_to_num(-math.inf, math.inf, -math.inf))
    keys_NV = keys_NV.sort(dim=-1, descending=True).values
    sorted_NV = logits_of(keys_NV)
    best_N1 = sorted_NV[:, :1]
    num_left_N1 = torch.where(top_k_N1 > 0, top_k_N1, vocab_size).clamp(max=vocab_size)
    by_k_N1 = torch.where(num_left_N1 < vocab_size, keys_NV.gather(1, num_left_N1 - 1), EVERY_KEY)
    left_N1 = by_k_N1.maximum(least_key_of(best_N1 + temperature_N1 * log_min_p_N1))

    weights_NV = integer_weights(sorted_NV, best_N1, LOG2_E / temperature_N1)
    weights_NV = torch.where(keys_NV >= left_N1, weights_NV, 0)
    through_NV = weights_NV.cumsum(dim=-1)
    # The best token holds nothing above it, and stays however small p is.
    limit_N1 = (top_p_N1.double() * through_NV[:, -1:].double()).to(torch.int64).clamp(min=1)
    num_kept_N1 = (through_NV - weights_NV < limit_N1).sum(dim=-1, keepdim=True).clamp(min=1)
    # With p 1 the tail's weights may be too small for an integer; nothing is cut.
    by_p_N1 = torch.where(top_p_N1 < 1, keys_NV.gather(1, num_kept_N1 - 1), EVERY_KEY)
    return torch.where(greedy_N1 | ~best_N1.isfinite(), EVERY_KEY, left_N1.maximum(by_p_N1))[:, 0]


def integer_weights(logits_NV: Tensor, best_N1: Tensor, per_logit: Tensor | float) -> Tensor:
    """2^((logit - best) * per_logit) as integers, whose sums are the same in any order."""
    return (((logits_NV - best_N1) * per_logit).exp2() * WEIGHT_SCALE).to(torch.int64)


def token_keys(logits_NV: Tensor) -> Tensor:
    """Integers in the order of float32 logits without NaN, equal logits by lower id first."""
    ids_V = torch.arange(logits_NV.shape[-1], device=logits_NV.device)
    return least_key_of(logits_NV) | (ids_V ^ LAST_ID)


def least_key_of(logits: Tensor) -> Tensor:
    """The key that all tokens with these logits, or more, reach."""
    bits = (logits + 0.0).view(torch.int32)  # -0.0 becomes 0.0: they are equal
    return (bits ^ ((bits >> 31) & LAST_ID)).to(torch.int64) << ID_BITS  # as integers, negative floats run backwards


def token_ids(keys: Tensor) -> Tensor:
    """The ids in keys."""
    return (keys & LAST_ID) ^ LAST_ID


def logits_of(keys: Tensor) -> Tensor:
    """The logits in keys."""
    bits = (keys >> ID_BITS).to(torch.int32)
    return (bits ^ ((bits >> 31) & LAST_ID)).view(torch.float32)


def reach(logits_NV: Tensor, least_N: Tensor) -> Tensor:
    """Which tokens reach their row's least key. A NaN reaches none but `EVERY_KEY`, and is never chosen."""
    least_N1, ids_V = least_N[:, None], torch.arange(logits_NV.shape[-1], device=logits_NV.device)
    logit_N1, last_id_N1 = logits_of(least_N1), token_ids(least_N1)
    return (logits_NV > logit_N1) | ((logits_NV == logit_N1) & (ids_V <= last_id_N1))
