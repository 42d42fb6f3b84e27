"""Normalisation of rows.

Shapes: N any leading dims, M normalised dim.
"""

from __future__ import annotations

import torch
from torch import nn

from playhead.layers.spec import NormKind, NormSpec


class Norm(nn.Module):
    """Rows normalised over their last dim, weight included, in float32 whatever the input."""

    def __init__(self, spec: NormSpec, size: int, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.spec = spec
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype, device=device), requires_grad=False)

    def forward(self, x_NM: torch.Tensor) -> torch.Tensor:
        return self._normalised(x_NM).to(x_NM.dtype)

    def added_to(self, residual_NM: torch.Tensor, x_NM: torch.Tensor) -> torch.Tensor:
        """The residual with the normalised rows added, rounded once for both."""
        return (residual_NM.float() + self._normalised(x_NM)).to(residual_NM.dtype)

    def _normalised(self, x_NM: torch.Tensor) -> torch.Tensor:
        wide_NM = x_NM.float()
        weight_M = self.weight.float()
        if self.spec.kind is NormKind.LAYERNORM:
            wide_NM = wide_NM - wide_NM.mean(-1, keepdim=True)
        elif self.spec.kind is NormKind.RMS1P:
            weight_M = 1.0 + weight_M
        wide_NM = wide_NM * torch.rsqrt(wide_NM.pow(2).mean(-1, keepdim=True) + self.spec.eps)
        return wide_NM * weight_M
