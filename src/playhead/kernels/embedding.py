"""The two ends of a decoder that are not matmuls: rows of the embedding, and the cap on the logits.

Shapes: T tokens, V vocabulary, D width.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from playhead.kernels.op import no_output, register_op


def embed_reference(ids_T: torch.Tensor, table_VD: torch.Tensor, scale: float) -> torch.Tensor:
    """Rows of the table times `scale`. Gemma rounds its scale to the weights' dtype: give it rounded."""
    rows_TD = F.embedding(ids_T, table_VD)
    return rows_TD if scale == 1.0 else (rows_TD.float() * scale).to(table_VD.dtype)


def embed_cpu(ids_T: torch.Tensor, table_VD: torch.Tensor, scale: float) -> torch.Tensor:
    """The reference in ops that a tape can run in place: torch's own embedding is not one of them."""
    rows_TD = table_VD.index_select(0, ids_T)
    return rows_TD if scale == 1.0 else rows_TD.float().mul_(scale).to(table_VD.dtype)


def softcap_reference(logits_TV: torch.Tensor, cap: float) -> None:
    """Bends logits into (-cap, cap), in place: cap * tanh(logits / cap)."""
    logits_TV.copy_(cap * torch.tanh(logits_TV.float() / cap))


def _embed_cuda(ids_T: torch.Tensor, table_VD: torch.Tensor, scale: float) -> torch.Tensor:
    from playhead.kernels.triton.embedding import launch_embed

    return launch_embed(ids_T, table_VD, scale)


def _softcap_cuda(logits_TV: torch.Tensor, cap: float) -> None:
    from playhead.kernels.triton.embedding import launch_softcap

    launch_softcap(logits_TV, cap)


def _row_per_id(ids_T: torch.Tensor, table_VD: torch.Tensor, scale: float) -> torch.Tensor:
    return table_VD.new_empty((ids_T.shape[0], table_VD.shape[1]))


embed = register_op("embed", inline=True, reference=embed_reference, cpu=embed_cpu, cuda=_embed_cuda, fake=_row_per_id)

softcap_ = register_op(
    "softcap_", inline=True, reference=softcap_reference, cuda=_softcap_cuda, fake=no_output, mutates=("logits_TV",)
)
