"""Gated feed-forward blocks.

Shapes: T tokens, M hidden, I intermediate, J = 2 * I.
"""

from __future__ import annotations

import torch
from torch import nn

from playhead.kernels.elementwise import UNCLAMPED, gated_activation
from playhead.layers.linear import Linear
from playhead.layers.spec import MlpSpec


class GatedMlp(nn.Module):
    """`down(activation(gate) * up)`, gate and up in one matmul: rows [0, I) are the gate's, [I, 2I) up's."""

    def __init__(self, spec: MlpSpec, hidden_size: int, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.spec = spec
        self.gate_up = Linear(hidden_size, 2 * spec.size, has_bias=spec.has_bias, dtype=dtype, device=device)
        self.down = Linear(spec.size, hidden_size, has_bias=spec.has_bias, dtype=dtype, device=device)

    def forward(self, h_TM: torch.Tensor, beside_TM: torch.Tensor | None = None) -> torch.Tensor:
        """The block's output, added in place to what runs beside it if that is given."""
        gate_up_TJ: torch.Tensor = self.gate_up(h_TM)
        hidden_TI = gated_activation(gate_up_TJ, self.spec.activation.value, *UNCLAMPED)
        if beside_TM is not None:
            return self.down.add_to(beside_TM, hidden_TI)
        down_TM: torch.Tensor = self.down(hidden_TI)
        return down_TM
