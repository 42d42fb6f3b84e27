"""Affine maps, with the projections that read the same input fused into one.

Shapes: T tokens, I inputs, O outputs.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Linear(nn.Module):
    """`x @ weight.T + bias`. Memory is taken but not written: a loader fills it."""

    bias: nn.Parameter | None

    def __init__(
        self, num_inputs: int, num_outputs: int, *, has_bias: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        weight_OI = torch.empty(num_outputs, num_inputs, dtype=dtype, device=device)
        self.weight = nn.Parameter(weight_OI, requires_grad=False)
        self.bias = None
        if has_bias:
            self.bias = nn.Parameter(torch.empty(num_outputs, dtype=dtype, device=device), requires_grad=False)

    def forward(self, x_TI: torch.Tensor) -> torch.Tensor:
        return F.linear(x_TI, self.weight, self.bias)
