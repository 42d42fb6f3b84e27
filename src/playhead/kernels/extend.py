"""Attention of many queries per request over paged keys and values, their own included: prefill, chunks, mixed steps.

Shapes: T tokens, B requests, H query heads, K kv heads, G = H / K, D head dim of q and k, E head dim of v,
Q queries of one request, J keys it sees, R rows of the page table, P pages per row, N pages of the layer's pool,
S locations per page.
"""

from __future__ import annotations

import torch

from playhead.kernels.op import no_output, register_op
from playhead.kernels.softmax import attention_weights


def extend_reference(
    q_THD: torch.Tensor,
    out_THE: torch.Tensor,
    k_cache_NSKD: torch.Tensor,
    v_cache_NSKE: torch.Tensor,
    page_table_RP: torch.Tensor,
    rows_B: torch.Tensor,
    seq_lens_B: torch.Tensor,
    query_starts_B: torch.Tensor,
    query_lens_B: torch.Tensor,
    sinks_H: torch.Tensor | None,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> None:
    """Writes the rows of `out_THE` that belong to requests.

    Request b's queries are rows [start, start + len) of q, and its last `len` keys are theirs: the query at position p
    sees keys p - window + 1 to p (all up to p where the window is None). Keys before them were cached by earlier
    steps. A request of length 1 decodes; one of length 0 does nothing.
    """
    page_size, num_kv_heads = k_cache_NSKD.shape[1:3]
    num_heads, head_dim = q_THD.shape[1:]
    spans = zip(rows_B.tolist(), seq_lens_B.tolist(), query_starts_B.tolist(), query_lens_B.tolist(), strict=True)
    for row, seq_len, start, num_queries in spans:
        if num_queries == 0:
            continue
        first_query = seq_len - num_queries
        first_key = 0 if window is None else max(0, first_query - window + 1)
        key_J = torch.arange(first_key, seq_len, device=q_THD.device)
        query_Q1 = torch.arange(first_query, seq_len, device=q_THD.device)[:, None]
        seen_QJ = (key_J <= query_Q1) if window is None else (key_J <= query_Q1) & (key_J > query_Q1 - window)
        page_J, slot_J = page_table_RP[row, key_J // page_size], key_J % page_size
        k_JKD, v_JKE = k_cache_NSKD[page_J, slot_J].float(), v_cache_NSKE[page_J, slot_J].float()

        q_QKGD = q_THD[start : start + num_queries].reshape(num_queries, num_kv_heads, -1, head_dim).float()
        score_KGQJ = torch.einsum("qkgd,jkd->kgqj", q_QKGD, k_JKD) * scale
        sinks_KG1 = None if sinks_H is None else sinks_H.view(num_kv_heads, -1, 1)
        weight_KGQJ = attention_weights(score_KGQJ, seen_QJ, softcap, sinks_KG1)
        out_QKGE = torch.einsum("kgqj,jke->qkge", weight_KGQJ, v_JKE)
        out_THE[start : start + num_queries] = out_QKGE.reshape(num_queries, num_heads, -1).to(out_THE.dtype)


def _cuda(*args: object) -> None:
    from playhead.kernels.triton.extend import launch_extend

    launch_extend(*args)  # type: ignore[arg-type]


extend = register_op("extend", reference=extend_reference, cuda=_cuda, fake=no_output, mutates=("out_THE",))
