"""Linear maps, the formats in which they store their matrices, and the gated feed-forward block of two of them.

Shapes: T tokens, I inputs, O outputs; of the block, M hidden, I intermediate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from playhead.kernels.elementwise import UNCLAMPED, gated_activation
from playhead.kernels.ordered import gate_in_order, matmul_in_order, project_normed_in_order
from playhead.kernels.projection import project, project_gated, project_normed
from playhead.layers.experts import Experts
from playhead.layers.norm import Norm, Output, Stream, are_one_kernel
from playhead.layers.shard import WHOLE, Shard
from playhead.layers.spec import Activation, MlpSpec
from playhead.layers.vocabulary import Vocabulary


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

    @property
    def shard(self) -> Shard:
        """This rank's part of the decoder."""

    def linear(self, num_inputs: int, num_outputs: int, *, has_bias: bool, scale: float = 1.0) -> Linear:
        """A module. Memory is taken but not written: a loader fills its parameters."""

    def linear_back(
        self, num_inputs: int, num_outputs: int, *, num_units: int | None, has_bias: bool, scale: float
    ) -> Linear:
        """A map of inputs that ranks have shares of, divided by units if they have some, to outputs that all have.

        Both numbers are those of all ranks together.
        """

    def vocabulary(self, num_ids: int) -> Vocabulary:
        """Which of a model's ids this rank has."""

    def experts(self, count: int) -> Experts:
        """Which of a block's experts this rank has."""

    def linear_over(self, weight_OI: nn.Parameter) -> Linear:
        """The same over a matrix that another module has: a tied embedding."""

    def finish_loading(self, decoder: nn.Module) -> None:
        """Called once, when all parameters are filled: store matrices as the device multiplies by them fastest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainWeights:
    """Matrices of `dtype`, a number for each weight."""

    dtype: torch.dtype
    device: torch.device
    shard: Shard = WHOLE

    def linear(self, num_inputs: int, num_outputs: int, *, has_bias: bool, scale: float = 1.0) -> PlainLinear:
        weight_OI = torch.empty(num_outputs, num_inputs, dtype=self.dtype, device=self.device)
        bias_O = torch.empty(num_outputs, dtype=self.dtype, device=self.device) if has_bias else None
        return PlainLinear(weight_OI, bias_O, scale)

    def linear_back(
        self, num_inputs: int, num_outputs: int, *, num_units: int | None, has_bias: bool, scale: float
    ) -> PlainLinear:
        return self.linear(num_inputs, num_outputs, has_bias=has_bias, scale=scale)

    def vocabulary(self, num_ids: int) -> Vocabulary:
        return Vocabulary(num_ids)

    def experts(self, count: int) -> Experts:
        return Experts(count)

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
        if self.is_ordered or x_TI.is_cuda:
            out_TO = x_TI.new_empty((x_TI.shape[0], self.weight.shape[0])) if out_TO is None else out_TO
            self._multiply_by_op(out_TO, x_TI, adds=False)
            return out_TO
        if self._zero is not None:
            return torch.addmm(self._zero, x_TI, self.weight.t(), beta=0, alpha=self.scale, out=out_TO)
        if self.bias is None:
            return torch.mm(x_TI, self.weight.t(), out=out_TO)
        return torch.addmm(self.bias, x_TI, self.weight.t(), beta=self.scale, alpha=self.scale, out=out_TO)

    def add_to(self, sum_TO: torch.Tensor, x_TI: torch.Tensor) -> torch.Tensor:
        if self.is_ordered or x_TI.is_cuda:
            self._multiply_by_op(sum_TO, x_TI, adds=True)
            return sum_TO
        sum_TO.addmm_(x_TI, self.weight.t(), alpha=self.scale)
        return sum_TO if self.bias is None else sum_TO.add_(self.bias, alpha=self.scale)

    def is_fused_on(self, x_TI: torch.Tensor) -> bool:
        """Whether the product of such rows may be one op with what is around it."""
        return x_TI.is_cuda

    @property
    def can_merge(self) -> bool:
        """Whether the rows may come in parts that attention left, where the product is one op with the norm behind."""
        return self.is_fused_on(self.weight) and not self.is_ordered and self.bias is None and self.scale == 1.0

    def _multiply_by_op(self, out_TO: torch.Tensor, x_TI: torch.Tensor, *, adds: bool) -> None:
        if self.is_ordered:
            matmul_in_order(x_TI, self.weight, self.bias, out_TO, self.scale, adds)
        else:
            project(out_TO, x_TI, self.weight, self.bias, self.scale, adds)


def order_sums(decoder: nn.Module) -> None:
    """From now on every linear map adds up in an order that depends on a row alone: for `batch_invariant`."""
    for module in decoder.modules():
        if isinstance(module, PlainLinear):
            module.is_ordered = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Product:
    """A product that is still to be made, so that it can be one op with what follows: a block's output.

    With `num_left` the rows are attention's output in so many parts of each head, which that op merges.
    """

    linear: Linear
    x_TI: torch.Tensor
    num_left: int = 0

    def __call__(self) -> torch.Tensor:
        assert not self.num_left, "parts are left to `project_normed` alone"
        return self.linear(self.x_TI)


SecondProduct = tuple[torch.Tensor | None, torch.Tensor | None, str | None]
"""A matrix, its bias and an activation that gates; all None: no product."""


def product_of_stream(
    linear: Linear, stream: Stream, norm: Norm | None, out_TO: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The complete residual, and the product of what the norm makes of it, in `out_TO`."""
    fused = _fused_product(linear, stream, norm, out_TO)
    if fused is not None:
        return fused
    residual_TM, h_TM = stream.normed(norm)
    return residual_TM, linear(h_TM, out_TO)


def normed_end(stream: Stream, norm: Norm) -> torch.Tensor:
    """What the norm behind the last layer makes of the complete residual."""
    output = stream.output
    last = output.linear if isinstance(output, Product) else None
    if output is None or not isinstance(last, PlainLinear) or not last.is_fused_on(stream.residual_TM):
        return stream.normed(norm)[1]
    out_TM = stream.residual_TM.new_empty(stream.residual_TM.shape)
    fused = _fused(last, output, stream, norm, out_TM, (None, None, None))
    return stream.normed(norm)[1] if fused is None else fused[1]


def _fused_product(
    linear: Linear,
    stream: Stream,
    norm: Norm | None,
    out_TO: torch.Tensor | None = None,
    activation: Activation | None = None,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The complete residual and the product, gated with an activation, by one op; None where several are needed."""
    residual_TM, output = stream.residual_TM, stream.output
    if output is None or norm is None or not isinstance(linear, PlainLinear) or not linear.is_fused_on(residual_TM):
        return None
    if out_TO is None:
        num_outputs = linear.weight.shape[0] // (1 if activation is None else 2)
        out_TO = residual_TM.new_empty((residual_TM.shape[0], num_outputs))
    what = (linear.weight, linear.bias, None if activation is None else activation.value)
    return _fused(linear, output, stream, norm, out_TO, what)


def _fused(
    linear: PlainLinear, output: Output, stream: Stream, norm: Norm, out_TO: torch.Tensor, what: SecondProduct
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The same with memory for what is read of the sum: `what` the op multiplies it by, in the order of `linear`."""
    output_norm = stream.output_norm
    if not are_one_kernel(output_norm, norm):
        return None
    x_TI, first_MI, first_bias_M, scale = _factors(output)
    norms = (norm.weight, None if output_norm is None else output_norm.weight, *norm.numbers)
    call = (out_TO, x_TI, first_MI, first_bias_M, scale, stream.residual_TM, *norms, *what)
    if linear.is_ordered:
        return project_normed_in_order(*call), out_TO
    return project_normed(*call, output.num_left if isinstance(output, Product) else 0), out_TO


def _factors(output: Output) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, float]:
    """The product that makes an output: rows, matrix, bias and scale. Without a matrix the rows are the output."""
    if isinstance(output, Product) and isinstance(output.linear, PlainLinear):
        linear = output.linear
        if linear.is_fused_on(output.x_TI):
            return output.x_TI, linear.weight, linear.bias, linear.scale
    return output(), None, None, 1.0


class GatedMlp(nn.Module):
    """`down(activation(gate) * up)`, gate and up in one matmul: rows [0, I) are the gate's, [I, 2I) up's."""

    def __init__(self, spec: MlpSpec, hidden_size: int, weights: WeightFormat) -> None:
        super().__init__()
        self.spec = spec
        self.gate_up = weights.linear(hidden_size, 2 * weights.shard.size(spec.size), has_bias=spec.has_bias)
        self.down = weights.linear_back(
            spec.size, hidden_size, num_units=None, has_bias=spec.has_bias, scale=spec.output_scale
        )

    def forward(self, h_TM: torch.Tensor, beside_TM: torch.Tensor | None = None) -> torch.Tensor:
        """The block's output, added in place to what runs beside it if that is given."""
        hidden_TI = self._hidden(h_TM)
        return self.down(hidden_TI) if beside_TM is None else self.down.add_to(beside_TM, hidden_TI)

    def of_stream(
        self, stream: Stream, norm: Norm | None, live_T: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, Output]:
        """The complete residual, and the block's output for what the norm makes of it. Padding is like tokens here."""
        fused = _fused_product(self.gate_up, stream, norm, activation=self.spec.activation)
        if fused is None:
            residual_TM, h_TM = stream.normed(norm)
            return residual_TM, Product(linear=self.down, x_TI=self._hidden(h_TM))
        residual_TM, hidden_TI = fused
        return residual_TM, Product(linear=self.down, x_TI=hidden_TI)

    def _hidden(self, h_TM: torch.Tensor) -> torch.Tensor:
        if isinstance(self.gate_up, PlainLinear) and self.gate_up.is_fused_on(h_TM):
            gate = gate_in_order if self.gate_up.is_ordered else project_gated
            return gate(h_TM, self.gate_up.weight, self.gate_up.bias, self.spec.activation.value)
        return gated_activation(self.gate_up(h_TM), self.spec.activation.value, *UNCLAMPED)
