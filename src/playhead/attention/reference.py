"""Attention in plain torch: every feature, any device, and the oracle the other backends are held to.

Shapes: T tokens, B requests, H query heads, D head dim of q and k, E head dim of v.
"""

from __future__ import annotations

from torch import Tensor

from playhead.attention.base import AttentionBackend, AttentionPlan, LayerAttention, decode_arguments, extend_arguments
from playhead.graph.breaks import Tensors
from playhead.kernels.attention import decode, extend


class ReferenceBackend(AttentionBackend):
    """Decode gathers as many keys as the table or the window can hold, and can be captured. Extend goes request by
    request and reads their lengths, so it cannot.
    """

    name = "reference"

    def decode(
        self, plan: AttentionPlan, layer: LayerAttention, q_BHD: Tensor, out_BHE: Tensor, prepared: Tensors = ()
    ) -> None:
        decode.reference(q_BHD, out_BHE, *decode_arguments(plan, layer))

    def extend(self, plan: AttentionPlan, layer: LayerAttention, q_THD: Tensor, out_THE: Tensor) -> None:
        extend.reference(q_THD, out_THE, *extend_arguments(plan, layer))
