"""Affine maps, with the projections that read the same input fused into one.

Shapes: T tokens, I inputs, O outputs.
"""

from __future__ import annotations

import torch
from torch import nn


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

    def forward(self, x_TI: torch.Tensor, out_TO: torch.Tensor | None = None) -> torch.Tensor:
        """The product, in `out_TO` if that is given."""
        if self.bias is None:
            return torch.mm(x_TI, self.weight.t(), out=out_TO)
        return torch.addmm(self.bias, x_TI, self.weight.t(), out=out_TO)

    def add_to(self, sum_TO: torch.Tensor, x_TI: torch.Tensor) -> torch.Tensor:
        """`sum_TO` with the product added, in place: the matmul does it as it stores."""
        sum_TO.addmm_(x_TI, self.weight.t())
        return sum_TO if self.bias is None else sum_TO.add_(self.bias)

    def lay_out(self) -> None:
        """Put the loaded weight in the order of memory that the device's matmul reads fastest."""
        self.weight.data = laid_out(self.weight.data)


def laid_out(weight_OI: torch.Tensor) -> torch.Tensor:
    """The same matrix, stored by input on a CPU: MKL takes up to twice as long over a row for each output.

    Loaders fill matrices by output, and CUDA's matmuls want them so.
    """
    return weight_OI.t().contiguous().t() if weight_OI.device.type == "cpu" else weight_OI
