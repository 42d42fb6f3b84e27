"""Attention by our own kernels: what a CUDA device runs. On CPU tensors the same ops run their references.

Shapes: T tokens, B requests, H query heads, D head dim of q and k, E head dim of v, R rows of the page table, P pages
per row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from playhead.attention.base import (
    AttentionPlan,
    LayerAttention,
    Lookup,
    extend_arguments,
    plan_from_slots,
)
from playhead.graph.capture import Inputs
from playhead.graph.runner import OwnedMemory
from playhead.graph.slots import Batch, FillContext
from playhead.kernels.decode import decode
from playhead.kernels.extend import extend
from playhead.kernels.splits import DecodeShape, num_arrivals, num_parts, num_splits
from playhead.kv.pool import GroupLocs


class TritonBackend:
    """Decode splits what each layer can see over programs, through scratch that all layers and batch sizes share.

    The scratch is sized at once for the largest step of any of `layers`, so its address never changes. Two decode
    steps must not run at the same time on it; steps of one stream never do.
    """

    name = "triton"
    seq_len_fill_value = 1  # a softmax over no keys has no value

    def __init__(self, *, page_table_RP: torch.Tensor, layers: Sequence[LayerAttention], max_bs: int) -> None:
        self.page_table_RP = page_table_RP
        shapes = {decode_shape(layer, page_table_RP) for layer in layers}
        steps = [(shape, num_parts(shape, bs)) for shape in shapes for bs in range(1, max_bs + 1)]
        device = page_table_RP.device
        most_numbers = max(parts * shape.v_head_dim for shape, parts in steps)
        self._parts = torch.zeros(most_numbers, dtype=torch.float32, device=device)
        self._tops_sums = torch.zeros(2 * max(parts for _, parts in steps), dtype=torch.float32, device=device)
        most_arrivals = max(num_arrivals(shape, bs) for shape in shapes for bs in range(1, max_bs + 1))
        self._arrivals = torch.zeros(most_arrivals, dtype=torch.int32, device=device)

    def owned(self) -> tuple[OwnedMemory, ...]:
        scratch = (self._parts, self._tops_sums, self._arrivals)
        return (
            OwnedMemory(name="page table", tensors=(self.page_table_RP,)),
            OwnedMemory(name="decode scratch", tensors=scratch, writable=True),
        )

    def plan(self, batch: Batch, ctx: FillContext, inputs: Inputs) -> AttentionPlan:
        return plan_from_slots(self.page_table_RP, inputs)

    def lookup(self, layer: LayerAttention, locs: GroupLocs, inputs: Inputs) -> Lookup | None:
        return None  # the kernels look up their own keys, a block ahead

    def decode(
        self,
        plan: AttentionPlan,
        layer: LayerAttention,
        q_BHD: torch.Tensor,
        out_BHE: torch.Tensor,
        lookup: Lookup | None = None,
    ) -> None:
        decode(
            q_BHD,
            out_BHE,
            layer.k_cache_NSKD,
            layer.v_cache_NSKE,
            plan.page_table_RP,
            plan.rows_B,
            plan.seq_lens_B,
            layer.sinks_H,
            self._parts,
            self._tops_sums,
            self._arrivals,
            layer.scale,
            layer.window,
            layer.softcap,
            num_splits(decode_shape(layer, plan.page_table_RP), q_BHD.shape[0]),
        )

    def extend(self, plan: AttentionPlan, layer: LayerAttention, q_THD: torch.Tensor, out_THE: torch.Tensor) -> None:
        extend(q_THD, out_THE, *extend_arguments(plan, layer))


def decode_shape(layer: LayerAttention, page_table_RP: torch.Tensor) -> DecodeShape:
    """What decides the splits of a layer: the keys it can ever see, and its heads."""
    max_context = page_table_RP.shape[1] * layer.page_size
    return DecodeShape(
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        v_head_dim=layer.v_head_dim,
        max_keys=max_context if layer.window is None else min(layer.window, max_context),
    )
