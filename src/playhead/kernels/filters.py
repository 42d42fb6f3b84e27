"""Top-k, top-p and min-p as one number per row: the least logit that may be drawn.

Every filter keeps the logits that reach a threshold, so equal logits stay or go together, and a row's filters are the
largest of its thresholds. Nothing is written but that number: whoever chooses a token compares with it.

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


@op(
    out=lambda logits_NV, *_: logits_NV.new_empty(len(logits_NV), dtype=torch.float32),
    bind="cpu.filters:bind_filter_thresholds",
    cuda="triton.filters:launch_filter_thresholds",
)
def filter_thresholds(
    logits_NV: Tensor, temperature_N: Tensor, top_k_N: Tensor, top_p_N: Tensor, log_min_p_N: Tensor,
    greedy_below: float,
) -> Tensor:  # fmt: skip
    """[N], float32: the least logit that top-k, then top-p of what is left, and min-p keep.

    Off are top-k with 0, top-p with 1, min-p with -inf, and all of them where the temperature is below `greedy_below`.
    Such rows get -inf. Top-p keeps a token if those above it hold less than p of what top-k left. With p 0.6:

        left by top-k   0.5  0.3  0.2
        above           0    0.5  0.8     -> the first two stay

    The best logit is always kept. NaN counts as -inf. A row whose best logit is infinite gets -inf: it has no choice.
    """
    vocab_size = logits_NV.shape[1]
    top_k_N1, top_p_N1, log_min_p_N1 = top_k_N[:, None], top_p_N[:, None], log_min_p_N[:, None]
    greedy_N1 = temperature_N[:, None] < greedy_below
    temperature_N1 = torch.where(greedy_N1, 1.0, temperature_N[:, None])
    sorted_NV = logits_NV.float().nan_to_num(-math.inf, math.inf, -math.inf).sort(dim=-1, descending=True).values
    best_N1 = sorted_NV[:, :1]
    last_N1 = torch.where(top_k_N1 > 0, top_k_N1, vocab_size).clamp(max=vocab_size) - 1
    by_k_N1 = sorted_NV.gather(1, last_N1)

    weights_NV = integer_weights(sorted_NV, best_N1, LOG2_E / temperature_N1)
    weights_NV = torch.where(sorted_NV >= by_k_N1, weights_NV, 0)
    through_NV = weights_NV.cumsum(dim=-1)
    # The best token holds nothing above it, and stays however small p is.
    limit_N1 = (top_p_N1.double() * through_NV[:, -1:].double()).to(torch.int64).clamp(min=1)
    num_kept_N1 = (through_NV - weights_NV < limit_N1).sum(dim=-1, keepdim=True).clamp(min=1)
    # With p 1 the tail's weights may be too small for an integer; nothing is cut.
    by_p_N1 = torch.where(top_p_N1 < 1, sorted_NV.gather(1, num_kept_N1 - 1), -math.inf)
    by_min_p_N1 = best_N1 + temperature_N1 * log_min_p_N1
    least_N1 = torch.where(top_k_N1 > 0, by_k_N1, -math.inf).maximum(by_p_N1).maximum(by_min_p_N1)
    return torch.where(greedy_N1 | ~best_N1.isfinite(), -math.inf, least_N1)[:, 0]


def integer_weights(logits_NV: Tensor, best_N1: Tensor, per_logit: Tensor | float) -> Tensor:
    """2^((logit - best) * per_logit) as integers, whose sums are the same in any order."""
    return (((logits_NV - best_N1) * per_logit).exp2() * WEIGHT_SCALE).to(torch.int64)
