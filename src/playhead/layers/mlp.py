"""Gated feed-forward blocks.

Shapes: T tokens, M hidden, I intermediate.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from playhead.layers.linear import Linear
from playhead.layers.spec import Activation, MlpSpec


class GatedMlp(nn.Module):
    """`down(activation(gate) * up)`, gate and up in one matmul: rows [0, I) are the gate's, [I, 2I) up's."""

    def __init__(self, spec: MlpSpec, hidden_size: int, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.spec = spec
        self.gate_up = Linear(hidden_size, 2 * spec.size, has_bias=spec.has_bias, dtype=dtype, device=device)
        self.down = Linear(spec.size, hidden_size, has_bias=spec.has_bias, dtype=dtype, device=device)

    def forward(self, h_TM: torch.Tensor) -> torch.Tensor:
        gate_TI, up_TI = self.gate_up(h_TM).chunk(2, dim=-1)
        # In float32, so that the product is rounded once and not its factor too.
        hidden_TI = _activate(gate_TI.float(), self.spec.activation) * up_TI.float()
        down_TM: torch.Tensor = self.down(hidden_TI.to(h_TM.dtype))
        return down_TM


def _activate(gate_TI: torch.Tensor, activation: Activation) -> torch.Tensor:
    if activation is Activation.SILU:
        return F.silu(gate_TI)
    return F.gelu(gate_TI, approximate="tanh")
