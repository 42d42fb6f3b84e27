"""Attention by our own kernels: what a CUDA device runs. On CPU tensors the same ops run their references.

Shapes: T tokens, B requests, H query heads, D head dim of q and k, E head dim of v, R rows of the page table, P pages
per row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from playhead.attention.base import AttentionBackend, AttentionPlan, LayerAttention, decode_arguments, extend_arguments
from playhead.graph.breaks import Tensors
from playhead.graph.spec import OwnedMemory
from playhead.kernels.attention import decode, extend
from playhead.kernels.splits import DecodeShape, num_arrivals, num_parts, num_splits


class TritonBackend(AttentionBackend):
    """Decode splits what each layer can see over programs, through scratch that all layers and batch sizes share.

    The scratch is sized at once for the largest step of any of `layers`, so its address never changes. Two decode
    steps must not run at the same time on it; steps of one stream never do.
    """

    name = "triton"

    def __init__(self, page_table_RP: Tensor, layers: Sequence[LayerAttention], *, max_bs: int) -> None:
        super().__init__(page_table_RP)
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
        return (*super().owned(), OwnedMemory(name="decode scratch", tensors=scratch, writable=True))

    def decode(
        self, plan: AttentionPlan, layer: LayerAttention, q_BHD: Tensor, out_BHE: Tensor, prepared: Tensors = ()
    ) -> None:
        splits = num_splits(decode_shape(layer, plan.page_table_RP), q_BHD.shape[0])
        scratch = (self._parts, self._tops_sums, self._arrivals)
        decode(q_BHD, out_BHE, *decode_arguments(plan, layer), *scratch, splits)

    def extend(self, plan: AttentionPlan, layer: LayerAttention, q_THD: Tensor, out_THE: Tensor) -> None:
        extend(q_THD, out_THE, *extend_arguments(plan, layer))


def decode_shape(layer: LayerAttention, page_table_RP: Tensor) -> DecodeShape:
    """What decides the splits of a layer: the keys it can ever see, and its heads."""
    max_context = page_table_RP.shape[1] * layer.page_size
    return DecodeShape(
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        v_head_dim=layer.v_head_dim,
        max_keys=max_context if layer.window is None else min(layer.window, max_context),
    )
