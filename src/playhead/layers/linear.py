"""Linear maps, the formats in which they store their matrices, and the gated feed-forward block of two of them.

Shapes: T tokens, I inputs, O outputs; of the block, M hidden, I intermediate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from playhead.kernels.elementwise import UNCLAMPED, gated_activation
from playhead.kernels.ordered import matmul_in_order
from playhead.layers.spec import MlpSpec


class Linear(Protocol):
    """`scale * (x @ W.T + bias)`, whatever W is stored as."""

    def __call__(self, x_TI: torch.Tensor, out_TO: torch.Tensor | None = None, /) -> torch.Tensor:
        """The product, in `out_TO` if that is given."""

    def add_to(self, sum_TO: torch.Tensor, x_TI: torch.Tensor) -> torch.Tensor:
        """`sum_TO` with the product added, in place: the matmul does it as it stores."""


class WeightFormat(Protocol):
    """How the linear maps of one decoder store their matrices. The checkpoint's config chooses the format.

    Embeddings, norms and experts are plain numbers of `dtype` on `device` in every format.
    """

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    def linear(self, num_inputs: int, num_outputs: int, *, has_bias: bool, scale: float = 1.0) -> Linear:
        """A module. Memory is taken but not written: a loader fills its parameters."""

    def linear_over(self, weight_OI: nn.Parameter) -> Linear:
        """The same over a matrix that another module has: a tied embedding."""

    def finish_loading(self, decoder: nn.Module) -> None:
        """Called once, when all parameters are filled: store matrices as the device multiplies by them fastest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainWeights:
    """Matrices of `dtype`, a number for each weight."""

    dtype: torch.dtype
    device: torch.device

    def linear(self, num_inputs: int, num_outputs: int, *, has_bias: bool, scale: float = 1.0) -> PlainLinear:
        weight_OI = torch.empty(num_outputs, num_inputs, dtype=self.dtype, device=self.device)
        bias_O = torch.empty(num_outputs, dtype=self.dtype, device=self.device) if has_bias else None
        return PlainLinear(weight_OI, bias_O, scale)

    def linear_over(self, weight_OI: nn.Parameter) -> PlainLinear:
        return PlainLinear(weight_OI)

    def finish_loading(self, decoder: nn.Module) -> None:
        # Loaders fill matrices by output, and CUDA's matmuls want them so. MKL takes up to twice as long over those.
        if self.device.type == "cpu":
            for module in decoder.modules():
                if isinstance(module, PlainLinear):
                    module.weight.data = module.weight.data.t().contiguous().t()


class PlainLinear(nn.Module):
    """A map over one matrix of plain numbers. The matrix may be another module's parameter: a tied embedding."""

    bias: nn.Parameter | None
    _zero: torch.Tensor | None

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None, scale: float = 1.0) -> None:
        super().__init__()
        is_shared = isinstance(weight_OI, nn.Parameter)
        self.weight = weight_OI if is_shared else nn.Parameter(weight_OI, requires_grad=False)
        self.bias = None if bias_O is None else nn.Parameter(bias_O, requires_grad=False)
        self.scale = scale
        self.is_ordered = False
        # A matmul takes a scale only together with something to add.
        needs_zero = scale != 1.0 and bias_O is None
        self.register_buffer("_zero", weight_OI.new_zeros(1) if needs_zero else None, persistent=False)

    def forward(self, x_TI: torch.Tensor, out_TO: torch.Tensor | None = None) -> torch.Tensor:
        if self.is_ordered:
            out_TO = x_TI.new_empty((x_TI.shape[0], self.weight.shape[0])) if out_TO is None else out_TO
            matmul_in_order(x_TI, self.weight, self.bias, out_TO, self.scale, False)
            return out_TO
        if self._zero is not None:
            return torch.addmm(self._zero, x_TI, self.weight.t(), beta=0, alpha=self.scale, out=out_TO)
        if self.bias is None:
            return torch.mm(x_TI, self.weight.t(), out=out_TO)
        return torch.addmm(self.bias, x_TI, self.weight.t(), beta=self.scale, alpha=self.scale, out=out_TO)

    def add_to(self, sum_TO: torch.Tensor, x_TI: torch.Tensor) -> torch.Tensor:
        if self.is_ordered:
            matmul_in_order(x_TI, self.weight, self.bias, sum_TO, self.scale, True)
            return sum_TO
        sum_TO.addmm_(x_TI, self.weight.t(), alpha=self.scale)
        return sum_TO if self.bias is None else sum_TO.add_(self.bias, alpha=self.scale)


def order_sums(decoder: nn.Module) -> None:
    """From now on every linear map adds up in an order that depends on a row alone: for `batch_invariant`."""
    for module in decoder.modules():
        if isinstance(module, PlainLinear):
            module.is_ordered = True


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
