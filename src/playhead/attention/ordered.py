"""Attention for engines with `batch_invariant` on a CUDA device: a query's bits do not depend on the step around it.

Decode steps and steps over tokens go through one op. A token may be computed in either, and what later tokens read of
it must be the same.

Shapes: T tokens, B requests, H query heads, D head dim of q and k, E head dim of v, R rows of the page table, P pages
per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from playhead.attention.base import AttentionBackend, AttentionPlan, LayerAttention, extend_arguments
from playhead.graph.breaks import Tensors
from playhead.graph.spec import OwnedMemory
from playhead.kernels.ordered import attend_in_order

PARTS_OF_A_REQUEST, SPARE_PARTS = 8, 1024
"""A part is a segment's result. Requests without room for theirs are computed by fewer programs, to the same bits."""


class OrderedBackend(AttentionBackend):
    """Says to the kernels that request b of a decode step has one query, the step's b-th. All layers share scratch."""

    name = "ordered"

    def __init__(self, page_table_RP: Tensor, layers: Sequence[LayerAttention], *, max_bs: int) -> None:
        super().__init__(page_table_RP)
        device = page_table_RP.device
        self._starts_B = torch.arange(max_bs, dtype=torch.int32, device=device)
        self._lens_B = torch.ones_like(self._starts_B)
        num_parts = PARTS_OF_A_REQUEST * max_bs + SPARE_PARTS
        most_numbers = num_parts * max(layer.num_heads * layer.v_head_dim for layer in layers)
        most_heads = max(layer.num_heads for layer in layers)
        self._parts = torch.zeros(most_numbers, dtype=torch.float32, device=device)
        self._tops_sums = torch.zeros(2 * num_parts * most_heads, dtype=torch.float32, device=device)
        self._arrivals = torch.zeros(max_bs * most_heads, dtype=torch.int32, device=device)

    @property
    def _scratch(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._parts, self._tops_sums, self._arrivals

    def owned(self) -> tuple[OwnedMemory, ...]:
        return (
            *super().owned(),
            OwnedMemory(name="queries of a decode step", tensors=(self._starts_B, self._lens_B)),
            OwnedMemory(name="attention scratch", tensors=self._scratch, writable=True),
        )

    def decode(
        self, plan: AttentionPlan, layer: LayerAttention, q_BHD: Tensor, out_BHE: Tensor, prepared: Tensors = ()
    ) -> None:
        bs = q_BHD.shape[0]
        plan = replace(plan, query_starts_B=self._starts_B.narrow(0, 0, bs), query_lens_B=self._lens_B.narrow(0, 0, bs))
        attend_in_order(q_BHD, out_BHE, *extend_arguments(plan, layer), *self._scratch, True)

    def extend(self, plan: AttentionPlan, layer: LayerAttention, q_THD: Tensor, out_THE: Tensor) -> None:
        attend_in_order(q_THD, out_THE, *extend_arguments(plan, layer), *self._scratch, False)
