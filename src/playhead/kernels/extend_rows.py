"""Attention of many queries per request on a CPU: requests with as many queries go together, keys are found once.

A step's dozen short requests would cost a dozen torch ops each in every layer. Here requests with equally many queries
are one batch of matmuls over the rows of `decode_rows.row_view`, and what depends on lengths alone is made once for all
layers of a group.

Shapes: T tokens, B requests of the step, b those of a batch, Q queries of each of them, C = the most keys any of them
sees, H query heads, K kv heads, G = H / K, D head dim, R rows of the page table, P pages per row, A rows of
memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from playhead.kernels.decode_rows import MASKED, Ints, gathered, rows_of
from playhead.kernels.softmax import with_sinks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EqualSpans:
    """Requests of a step with equally many queries: their tokens, the rows of their keys, what is added to scores."""

    token_bQ: torch.Tensor
    key_rows_bC: torch.Tensor
    bias_b1QC: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowLayout:
    """How a group's locations become rows of memory, and how far back its queries see."""

    page_size: int
    rows_per_page: int
    window: int | None


def equal_spans(
    page_table_RP: torch.Tensor,
    rows_B: torch.Tensor,
    seq_lens_B: torch.Tensor,
    spans: tuple[torch.Tensor, torch.Tensor],
    layout: RowLayout,
) -> tuple[EqualSpans, ...]:
    """The step's requests by their number of queries. `spans` are where these start and how many there are, [B] each.

    Queries see what `extend_reference` says. A column after a request's last key repeats that key, which is finite.
    """
    table, rows, lengths, starts, nums = (x.numpy() for x in (page_table_RP, rows_B, seq_lens_B, *spans))
    found = []
    for num_queries in np.unique(nums[nums > 0]).tolist():
        chosen = np.flatnonzero(nums == num_queries)
        end_b1 = lengths[chosen, None].astype(np.int64)
        query_bQ = end_b1 - num_queries + np.arange(num_queries)
        first_b1 = np.zeros_like(end_b1)
        if layout.window is not None:
            first_b1 = np.maximum(query_bQ[:, :1] - layout.window + 1, 0)
        key_bC = first_b1 + np.arange((end_b1 - first_b1).max())
        hidden_bQC: Ints = key_bC[:, None] > query_bQ[:, :, None]
        if layout.window is not None:
            hidden_bQC |= key_bC[:, None] <= query_bQ[:, :, None] - layout.window
        key_bC = np.minimum(key_bC, end_b1 - 1)
        page_bC = table[rows[chosen, None], key_bC // layout.page_size].astype(np.int64)
        locs_bC = page_bC * layout.page_size + key_bC % layout.page_size
        found.append(
            EqualSpans(
                token_bQ=torch.from_numpy(starts[chosen, None].astype(np.int64) + np.arange(num_queries)),
                key_rows_bC=torch.from_numpy(rows_of(locs_bC, layout.page_size, layout.rows_per_page)),
                bias_b1QC=torch.from_numpy(hidden_bQC[:, None] * np.float32(MASKED)),
            )
        )
    return tuple(found)


def extend_rows(
    q_THD: torch.Tensor,
    out_THD: torch.Tensor,
    memory: tuple[torch.Tensor, torch.Tensor],
    spans: EqualSpans,
    scoring: tuple[float, float | None, torch.Tensor | None],
) -> None:
    """`extend_reference` for the requests of `spans`. `memory` are the rows of keys and of values, [A, 1, K, D];
    `scoring` the scale, the softcap and the sinks [H].
    """
    (scale, softcap, sinks_H), (num_heads, head_dim) = scoring, q_THD.shape[1:]
    (num_requests, num_queries), width = spans.token_bQ.shape, spans.key_rows_bC.shape[1]
    num_kv_heads, tokens = memory[0].shape[2], spans.token_bQ.view(-1)
    k, v = (gathered(rows_A1KD, spans.key_rows_bC.view(-1), num_requests) for rows_A1KD in memory)
    by_token = (num_requests, num_queries, num_heads, head_dim)
    # A matmul for each request and kv head, its rows being the queries of the heads that share it: [b * K, G * Q, D].
    q = (q_THD.index_select(0, tokens).float() * scale).view(by_token).transpose(1, 2)
    score = torch.bmm(q.reshape(num_requests * num_kv_heads, -1, head_dim), k.mT)
    score = score.view(num_requests, num_heads, num_queries, width)
    if softcap is not None:
        score.div_(softcap).tanh_().mul_(softcap)
    score.add_(spans.bias_b1QC)
    weight = with_sinks(score, None if sinks_H is None else sinks_H[:, None])
    out = torch.bmm(weight.reshape(num_requests * num_kv_heads, -1, width), v)
    out = out.view(num_requests, num_heads, num_queries, head_dim).transpose(1, 2)
    out_THD.index_copy_(0, tokens, out.reshape(-1, num_heads, head_dim).to(out_THD.dtype))
