"""Gated feed-forward blocks.

Shapes: T tokens, M hidden, I intermediate, J = 2 * I.
"""

from __future__ import annotations

import torch
from torch import nn

from playhead.kernels.elementwise import UNCLAMPED, gated_activation
from playhead.layers.linear import WeightFormat
from playhead.layers.spec import MlpSpec


class GatedMlp(nn.Module):
    """`down(activation(gate) * up)`, gate and up in one matmul: rows [0, I) are the gate's, [I, 2I) up's."""

    def __init__(self, spec: MlpSpec, hidden_size: int, weights: WeightFormat) -> None:
        super().__init__()
        self.spec = spec
        self.gate_up = weights.linear(hidden_size, 2 * spec.size, has_bias=spec.has_bias)
        self.down = weights.linear(spec.size, hidden_size, has_bias=spec.has_bias, scale=spec.output_scale)

    def forward(self, h_TM: torch.Tensor, beside_TM: torch.Tensor | None = None) -> torch.Tensor:
        """The block's output, added in place to what runs beside it if that is given."""
        hidden_TI = gated_activation(self.gate_up(h_TM), self.spec.activation.value, *UNCLAMPED)
        return self.down(hidden_TI) if beside_TM is None else self.down.add_to(beside_TM, hidden_TI)
