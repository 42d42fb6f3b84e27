"""Attention of one query per request over paged keys and values.

Shapes: B requests, H query heads, K kv heads, G = H / K, D head dim of q and k, E head dim of v, J keys looked at,
R rows of the page table, P pages per row, N pages of the layer's pool, S locations per page.
"""

from __future__ import annotations

import torch

from playhead.kernels.op import no_output, register_op
from playhead.kernels.softmax import attention_weights


def attend_last_queries(
    q_BHD: torch.Tensor,
    out_BHE: torch.Tensor,
    k_cache_NSKD: torch.Tensor,
    v_cache_NSKE: torch.Tensor,
    page_table_RP: torch.Tensor,
    rows_B: torch.Tensor,
    seq_lens_B: torch.Tensor,
    sinks_H: torch.Tensor | None,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> None:
    """Writes `out_BHE`: each request's query against its last `window` keys (all of them where None), itself included.

    `seq_lens_B` counts the keys with this step's. The page table is the layer's group's. Shapes depend on the table and
    the window alone, never on a length, so a tape can record this.
    """
    num_requests, num_heads, head_dim = q_BHD.shape
    page_size, num_kv_heads = k_cache_NSKD.shape[1:3]
    max_keys = page_table_RP.shape[1] * page_size
    num_keys = max_keys if window is None else min(window, max_keys)

    # A full layer looks at positions 0, 1, ...; a window layer at the last `window` ones, some of them before 0.
    index_J = torch.arange(num_keys, dtype=torch.int32, device=q_BHD.device)
    start_B = torch.zeros_like(seq_lens_B) if window is None else seq_lens_B - num_keys
    key_BJ = start_B[:, None] + index_J
    seen_BJ = (key_BJ >= 0) & (key_BJ < seq_lens_B[:, None])
    key_BJ = torch.where(seen_BJ, key_BJ, 0)
    table_BP = page_table_RP[rows_B.long()]
    page_BJ, slot_BJ = table_BP.gather(1, (key_BJ // page_size).long()), key_BJ % page_size
    # Rows nobody may see can hold anything, and 0 * NaN is NaN.
    k_BJKD = torch.where(seen_BJ[..., None, None], k_cache_NSKD[page_BJ, slot_BJ], 0).float()
    v_BJKE = torch.where(seen_BJ[..., None, None], v_cache_NSKE[page_BJ, slot_BJ], 0).float()

    q_BKGD = q_BHD.reshape(num_requests, num_kv_heads, -1, head_dim).float()
    score_BKGJ = torch.einsum("bkgd,bjkd->bkgj", q_BKGD, k_BJKD) * scale
    sinks_KG = None if sinks_H is None else sinks_H.view(num_kv_heads, -1)
    weight_BKGJ = attention_weights(score_BKGJ, seen_BJ[:, None, None], softcap, sinks_KG)
    out_BHE.copy_(torch.einsum("bkgj,bjke->bkge", weight_BKGJ, v_BJKE).reshape(num_requests, num_heads, -1))


def decode_reference(
    q_BHD: torch.Tensor,
    out_BHE: torch.Tensor,
    k_cache_NSKD: torch.Tensor,
    v_cache_NSKE: torch.Tensor,
    page_table_RP: torch.Tensor,
    rows_B: torch.Tensor,
    seq_lens_B: torch.Tensor,
    sinks_H: torch.Tensor | None,
    parts: torch.Tensor,
    part_tops_sums: torch.Tensor,
    arrivals: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    num_splits: int,
) -> None:
    """`attend_last_queries`, with what the kernel needs to share one request among programs.

    `num_splits` and the scratch decide how the work is cut, not what comes out: `parts` holds B * H * num_splits
    results of E float32, `part_tops_sums` two more numbers for each, `arrivals` as many zeroed int32 as
    `splits.num_arrivals` says. The kernel leaves `arrivals` zeroed.
    """
    attend_last_queries(
        q_BHD,
        out_BHE,
        k_cache_NSKD,
        v_cache_NSKE,
        page_table_RP,
        rows_B,
        seq_lens_B,
        sinks_H,
        scale,
        window,
        softcap,
    )


def _cuda(*args: object) -> None:
    from playhead.kernels.triton.decode import launch_decode

    launch_decode(*args)  # type: ignore[arg-type]


decode = register_op(
    "decode",
    reference=decode_reference,
    cuda=_cuda,
    fake=no_output,
    mutates=("out_BHE", "parts", "part_tops_sums", "arrivals"),
)
