"""What a rank does with the token ids that it has: it embeds those, and chooses among those.

A rank's choice is one number, whose high half orders as the scores do and whose low half tells the id. So the choice
among all ids is the largest of the ranks' numbers.

Shapes: T tokens, N rows of logits, V ids of this rank, D width, X parts of a row, R rows of the scratch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from playhead.kernels.op import op
from playhead.kernels.tokens import gumbel_noise

ID_BITS = 32
ID_MASK = 2**31 - 1


@op(
    out=lambda ids_T, table_VD, *_: table_VD.new_empty((ids_T.shape[0], table_VD.shape[1])),
    bind="cpu.vocabulary:bind_embed_share",
    cuda="triton.embedding:launch_embed_share",
)
def embed_share(ids_T: Tensor, table_VD: Tensor, scale: float, first_id: int) -> Tensor:
    """Rows of the table times `scale`, which are those of ids from `first_id` on; zeros for ids of other ranks."""
    row_T = ids_T.long() - first_id
    is_mine_T1 = ((row_T >= 0) & (row_T < len(table_VD)))[:, None]
    rows_TD = table_VD.index_select(0, row_T.clamp(0, len(table_VD) - 1))
    scaled_TD = rows_TD if scale == 1.0 else rows_TD.float().mul_(scale).to(table_VD.dtype)
    return torch.where(is_mine_T1, scaled_TD, 0.0)


@op(mutates=("keys_N", "parts_RX", "arrivals_R"), cuda="triton.choose:launch_choose_keys")
def choose_keys(
    logits_NV: Tensor, temperature_N: Tensor, seeds_N: Tensor, positions_N: Tensor, keys_N: Tensor,
    parts_RX: Tensor, arrivals_R: Tensor, first_id: int, greedy_below: float, draws: bool,
) -> None:  # fmt: skip
    """Writes the key of each row's choice among the ids from `first_id` on, made as `choose_tokens` makes it."""
    scores_NV = logits_NV.float()
    if draws:
        greedy_N1 = temperature_N[:, None] < greedy_below
        drawn_NV = scores_NV / torch.where(greedy_N1, 1.0, temperature_N[:, None])
        drawn_NV += gumbel_noise(seeds_N, positions_N, logits_NV.shape[1], first_id)
        scores_NV = torch.where(greedy_N1, scores_NV, drawn_NV)
    best_N, id_N = scores_NV.nan_to_num(-math.inf, math.inf, -math.inf).max(dim=-1)
    bits_N = (best_N + 0.0).view(torch.int32)  # -0.0 becomes 0.0: they are equal
    ordered_N = bits_N ^ ((bits_N >> 31) & 0x7FFFFFFF)  # as integers, negative floats run backwards
    torch.bitwise_or(ordered_N.long() << ID_BITS, (id_N + first_id) ^ ID_MASK, out=keys_N)


def tokens_of(keys_N: Tensor) -> Tensor:
    """The ids in keys."""
    return (keys_N & ID_MASK) ^ ID_MASK
