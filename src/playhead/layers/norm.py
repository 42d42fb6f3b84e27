"""Normalisation of rows, and the residual between two blocks.

Shapes: T tokens, M normalised dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from playhead.kernels.norm import add_rms_norm, norm_add_, rms_norm
from playhead.layers.spec import NormKind, NormSpec


class Norm(nn.Module):
    """Rows normalised over their last dim, weight included, in float32 whatever the input."""

    def __init__(self, spec: NormSpec, size: int, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.spec = spec
        self.numbers = (spec.eps, spec.kind is NormKind.RMS1P, spec.kind is NormKind.LAYERNORM)
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype, device=device), requires_grad=False)

    def forward(self, x_TM: torch.Tensor) -> torch.Tensor:
        return rms_norm(x_TM, self.weight, *self.numbers)


def are_one_kernel(x_norm: Norm | None, next_norm: Norm) -> bool:
    """Whether one kernel can norm a block's output and the sum behind it: it has one eps."""
    return x_norm is None or x_norm.spec == next_norm.spec


def add_then_norm(
    x_TM: torch.Tensor, residual_TM: torch.Tensor, x_norm: Norm | None, next_norm: Norm | None
) -> torch.Tensor:
    """Adds a block's output to the residual in place and gives what the next block reads.

    `x_norm` norms the output before it is added. `next_norm` is the norm that precedes the next block; without it the
    next block reads the sum itself. At least one of the two is given.
    """
    if next_norm is None:
        assert x_norm is not None, "every placement has a norm on one side"
        norm_add_(x_TM, residual_TM, x_norm.weight, *x_norm.numbers)
        return residual_TM
    if x_norm is not None and not are_one_kernel(x_norm, next_norm):
        norm_add_(x_TM, residual_TM, x_norm.weight, *x_norm.numbers)
        return rms_norm(residual_TM, next_norm.weight, *next_norm.numbers)
    x_weight_M = None if x_norm is None else x_norm.weight
    return add_rms_norm(x_TM, residual_TM, next_norm.weight, x_weight_M, *next_norm.numbers)


Output = Callable[[], torch.Tensor]
"""Makes a block's output. It is called once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stream:
    """What one block hands to the next: the residual, and the block's output, which is still to be made and added.

    The reader makes and adds it, so that a block's last product, the sum, its norm and the next block's first product
    can be one op. `output_norm` norms the output before it is added. Without an output the residual is complete.
    """

    residual_TM: torch.Tensor
    output: Output | None = None
    output_norm: Norm | None = None

    def normed(self, norm: Norm | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The complete residual, summed in place, and what a block reads of it: normed, or itself without a norm."""
        if self.output is not None:
            return self.residual_TM, add_then_norm(self.output(), self.residual_TM, self.output_norm, norm)
        return self.residual_TM, self.residual_TM if norm is None else norm(self.residual_TM)
