"""Attention in plain torch: every feature, any device, and the oracle the other backends are held to.

Shapes: T tokens, B requests, H query heads, D head dim of q and k, E head dim of v, R rows of the page table, P pages
per row.
"""

from __future__ import annotations

import torch

from playhead.attention.base import (
    LENGTHS_SLOT,
    ROWS_SLOT,
    AttentionPlan,
    LayerAttention,
    Lookup,
    Phase,
    attention_slots,
    extend_arguments,
    plan_from_slots,
)
from playhead.graph.capture import Inputs
from playhead.graph.runner import OwnedMemory
from playhead.graph.slots import Batch, FillContext, GraphSlot
from playhead.kernels.decode import attend_last_queries
from playhead.kernels.decode_rows import decode_rows, key_rows
from playhead.kernels.extend import extend_reference


class ReferenceBackend:
    """Decode can be captured; extend reads lengths on the host, so it runs live, between segments.

    On a CPU decode goes through a lookup, where the memory allows it; else it gathers as many keys as the table or the
    window can hold.
    """

    name = "reference"

    def __init__(self, *, page_table_RP: torch.Tensor) -> None:
        self._page_table_RP = page_table_RP

    def slots(self, phase: Phase) -> tuple[GraphSlot, ...]:
        return attention_slots(phase)

    def owned(self) -> tuple[OwnedMemory, ...]:
        return (OwnedMemory(name="page table", tensors=(self._page_table_RP,)),)

    def plan(self, batch: Batch, ctx: FillContext, inputs: Inputs) -> AttentionPlan:
        return plan_from_slots(self._page_table_RP, inputs)

    def lookup(self, layer: LayerAttention, inputs: Inputs) -> Lookup | None:
        as_rows = layer.as_rows()
        if as_rows is None or as_rows.k_cache_NSKD.device.type != "cpu":
            return None
        max_context = self._page_table_RP.shape[1] * layer.page_size
        key_rows_BJ, bias_BJ, new_rows_B = key_rows(
            self._page_table_RP,
            inputs[ROWS_SLOT],
            inputs[LENGTHS_SLOT],
            inputs["out_cache_loc"],
            layer.mapping_L,
            page_size=layer.page_size,
            rows_per_page=layer.k_cache_NSKD.stride(0) // as_rows.k_cache_NSKD.stride(0),
            num_keys=max_context if layer.window is None else min(layer.window, max_context),
        )
        return Lookup(key_rows_BJ=key_rows_BJ, bias_BJ=bias_BJ, new_rows_B=new_rows_B)

    def decode(
        self,
        plan: AttentionPlan,
        layer: LayerAttention,
        q_BHD: torch.Tensor,
        out_BHE: torch.Tensor,
        lookup: Lookup | None = None,
    ) -> None:
        if lookup is not None:
            decode_rows(
                q_BHD,
                out_BHE,
                layer.k_cache_NSKD,
                layer.v_cache_NSKE,
                lookup.key_rows_BJ,
                lookup.bias_BJ,
                plan.seq_lens_B,
                layer.sinks_H,
                layer.scale,
                layer.softcap,
            )
            return
        attend_last_queries(
            q_BHD,
            out_BHE,
            layer.k_cache_NSKD,
            layer.v_cache_NSKE,
            plan.page_table_RP,
            plan.rows_B,
            plan.seq_lens_B,
            layer.mapping_L,
            layer.sinks_H,
            layer.scale,
            layer.window,
            layer.softcap,
        )

    def extend(self, plan: AttentionPlan, layer: LayerAttention, q_THD: torch.Tensor, out_THE: torch.Tensor) -> None:
        extend_reference(q_THD, out_THE, *extend_arguments(plan, layer))
