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
    extend_arguments,
    plan_from_slots,
)
from playhead.graph.capture import Inputs
from playhead.graph.runner import OwnedMemory
from playhead.graph.slots import Batch, FillContext
from playhead.kernels.decode import attend_last_queries
from playhead.kernels.decode_rows import decode_rows, key_rows
from playhead.kernels.extend import extend, extend_reference
from playhead.kernels.extend_rows import EqualSpans, RowLayout, equal_spans, extend_rows
from playhead.kv.pool import GroupLocs


class ReferenceBackend:
    """Decode can be captured; so can extend on a CPU, where one op reads the lengths at every replay.

    On a CPU both find the rows of their keys once for all layers of a group, where the memory allows it; extend only
    where it runs live, between segments. Else decode gathers as many keys as the table or the window can hold, and
    extend goes request by request.
    """

    name = "reference"
    seq_len_fill_value = 1  # a softmax over no keys has no value

    def __init__(self, *, page_table_RP: torch.Tensor) -> None:
        self.page_table_RP = page_table_RP

    def owned(self) -> tuple[OwnedMemory, ...]:
        return (OwnedMemory(name="page table", tensors=(self.page_table_RP,)),)

    def plan(self, batch: Batch, ctx: FillContext, inputs: Inputs) -> AttentionPlan:
        return plan_from_slots(self.page_table_RP, inputs)

    def lookup(self, layer: LayerAttention, locs: GroupLocs, inputs: Inputs) -> Lookup | None:
        as_rows = layer.as_rows()
        if as_rows is None or as_rows.k_cache_NSKD.device.type != "cpu":
            return None
        max_context = locs.table_RP.shape[1] * layer.page_size
        key_rows_BJ, bias_BJ, new_rows_B = key_rows(
            locs.table_RP,
            inputs[ROWS_SLOT],
            inputs[LENGTHS_SLOT],
            locs.new_locs_T,
            page_size=layer.page_size,
            rows_per_page=rows_per_page(layer, as_rows),
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
            layer.sinks_H,
            layer.scale,
            layer.window,
            layer.softcap,
        )

    def extend(self, plan: AttentionPlan, layer: LayerAttention, q_THD: torch.Tensor, out_THE: torch.Tensor) -> None:
        is_cpu, as_rows = q_THD.device.type == "cpu", layer.as_rows()
        if plan.spans is None or as_rows is None or not is_cpu:
            # A tape keeps the op, which is the reference on a CPU; on a GPU it would be the kernel held to it.
            (extend if is_cpu else extend_reference)(q_THD, out_THE, *extend_arguments(plan, layer))
            return
        spans = plan.spans.get(layer.group)
        if spans is None:
            spans = plan.spans[layer.group] = self._equal_spans(plan, layer, as_rows)
        memory, scoring = (as_rows.k_cache_NSKD, as_rows.v_cache_NSKE), (layer.scale, layer.softcap, layer.sinks_H)
        for equal in spans:
            extend_rows(q_THD, out_THE, memory, equal, scoring)

    def _equal_spans(
        self, plan: AttentionPlan, layer: LayerAttention, as_rows: LayerAttention
    ) -> tuple[EqualSpans, ...]:
        assert plan.query_starts_B is not None, "an extend plan"
        assert plan.query_lens_B is not None, "an extend plan"
        layout = RowLayout(
            page_size=layer.page_size,
            rows_per_page=rows_per_page(layer, as_rows),
            window=layer.window,
        )
        spans = (plan.query_starts_B, plan.query_lens_B)
        return equal_spans(plan.page_table_RP, plan.rows_B, plan.seq_lens_B, spans, layout)


def rows_per_page(layer: LayerAttention, as_rows: LayerAttention) -> int:
    """Rows of memory from one page of the layer to its next."""
    return layer.k_cache_NSKD.stride(0) // as_rows.k_cache_NSKD.stride(0)
