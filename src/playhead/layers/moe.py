"""Mixture of experts: a router picks a few experts per token, a grouped matmul runs them.

Every shape is fixed by the number of tokens, whatever the router decides, so the block can be captured.

Shapes: T tokens, M hidden, X experts, C chosen per token, P = T * C (token, expert) pairs, I intermediate,
J = 2 * I.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from playhead.kernels.elementwise import gated_activation
from playhead.kernels.experts import grouped_matmul
from playhead.layers.linear import WeightFormat
from playhead.layers.norm import Norm, Output, Stream
from playhead.layers.spec import MoeSpec


class MoeMlp(nn.Module):
    """Experts with clamped SwiGLU and biases. Rows [0, I) of gate_up are the gate's, [I, 2I) up's."""

    def __init__(self, spec: MoeSpec, hidden_size: int, weights: WeightFormat) -> None:
        super().__init__()

        def parameter(*shape: int) -> nn.Parameter:
            numbers = torch.empty(*shape, dtype=weights.dtype, device=weights.device)
            return nn.Parameter(numbers, requires_grad=False)

        self.spec, self._experts = spec, weights.experts(spec.num_experts)
        num_experts = self._experts.count
        self.router_XM = parameter(spec.num_experts, hidden_size)
        self.router_bias_X = parameter(spec.num_experts)
        self.gate_up_XIM = parameter(num_experts, 2 * spec.size, hidden_size)
        self.gate_up_bias_XI = parameter(num_experts, 2 * spec.size)
        self.down_XMI = parameter(num_experts, hidden_size, spec.size)
        self.down_bias_XM = parameter(num_experts, hidden_size)

    def of_stream(
        self, stream: Stream, norm: Norm | None, live_T: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, Output]:
        """The complete residual, and the block's output for what the norm makes of it."""
        residual_TM, h_TM = stream.normed(norm)
        return residual_TM, partial(self.forward, h_TM, live_T)

    def forward(self, h_TM: torch.Tensor, live_T: torch.Tensor | None = None) -> torch.Tensor:
        """Rows that `live_T` says are padding give zeros."""
        num_tokens, top_k, here = h_TM.shape[0], self.spec.top_k, self._experts
        # In float32: rounded to bf16, router logits tie, and a tie sends the token to another expert.
        logits_TX = F.linear(h_TM.float(), self.router_XM.float(), self.router_bias_X.float())
        logits_TC, experts_TC = logits_TX.topk(top_k, dim=-1)
        weights_TC = torch.softmax(logits_TC, dim=-1)
        if live_T is not None:
            weights_TC = torch.where(live_T[:, None], weights_TC, 0.0)  # of NaN there are no weights

        # Pairs sorted by expert, so that each expert's tokens are neighbours; stable, so that a batch's order is kept.
        places_TC = here.places(experts_TC, live_T)
        places_P, order_P = places_TC.flatten().sort(stable=True)
        experts_X = torch.arange(1, here.count + 1, device=h_TM.device)
        ends_X = torch.searchsorted(places_P, experts_X, out_int32=True)
        x_PM = h_TM[order_P // top_k]
        gate_up_PJ = grouped_matmul(x_PM, self.gate_up_XIM.mT, ends_X).add_(here.rows(self.gate_up_bias_XI, places_P))
        hidden_PI = gated_activation(gate_up_PJ, "clamped_swiglu", self.spec.swiglu_alpha, self.spec.swiglu_limit)
        out_PM = grouped_matmul(hidden_PI, self.down_XMI.mT, ends_X).add_(here.rows(self.down_bias_XM, places_P))

        # Back in token order by a gather: a scatter-add would sum in an order that changes from run to run.
        place_P = torch.empty_like(order_P).scatter_(0, order_P, torch.arange(num_tokens * top_k, device=h_TM.device))
        out_TCM = out_PM[place_P].view(num_tokens, top_k, -1)
        return here.combined(out_TCM, weights_TC, places_TC, h_TM.dtype)
