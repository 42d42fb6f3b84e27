"""Linear maps that also keep the small integers their matrices were stored as, for steps of few tokens on a CPU.

A step of one token reads every matrix once, and takes as long as that: a 135M model is 540 MB of float32 numbers, and
120 MB of blocks. In a step of many tokens the multiplications take the time, and those of float32 are faster. So there
are both, and the number of tokens decides. Either way products are of the same numbers, which differ in rounding alone.

Shapes: T tokens, I inputs, O outputs, B blocks of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from playhead.kernels.blocks import LAYER_BITS, OUTPUTS_AT_ONCE, block_matmul, packed_layer
from playhead.layers.linear import PlainLinear, PlainWeights
from playhead.layers.spec import StoredAs

BLOCK_SIZES = frozenset({32, 64, 128, 256})
FAST_ON = frozenset({"AVX2", "AVX512"})  # elsewhere torch multiplies blocks one number at a time
MOST_TOKENS = 8  # of a step that multiplies by blocks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """Rows of a matrix as they are stored: weight = scale * code + offset, with codes of at most 8 bits."""

    codes_OI: torch.Tensor
    scales_OB: torch.Tensor
    offsets_OB: torch.Tensor

    @classmethod
    def joined(cls, parts: Sequence[Blocks]) -> Blocks:
        """The rows of the first part, then those of the second, and so on."""
        return cls(
            codes_OI=torch.cat([part.codes_OI for part in parts]),
            scales_OB=torch.cat([part.scales_OB for part in parts]),
            offsets_OB=torch.cat([part.offsets_OB for part in parts]),
        )

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Blocks:
        """The same change of rows for codes, scales and offsets: another order, or some of them."""
        return Blocks(
            codes_OI=change(self.codes_OI), scales_OB=change(self.scales_OB), offsets_OB=change(self.offsets_OB)
        )

    @property
    def can_be_packed(self) -> bool:
        """Whether torch multiplies by blocks of this size and number."""
        num_outputs, num_inputs = self.codes_OI.shape
        return num_outputs % OUTPUTS_AT_ONCE == 0 and num_inputs // self.scales_OB.shape[1] in BLOCK_SIZES


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWeights(PlainWeights):
    """Plain matrices; on a CPU that gains by it, with the blocks they were made from."""

    @property
    def keeps_blocks(self) -> bool:
        is_fast = torch.backends.cpu.get_cpu_capability() in FAST_ON
        return self.device.type == "cpu" and self.dtype is torch.float32 and is_fast

    def linear(self, num_inputs: int, num_outputs: int, *, has_bias: bool, scale: float = 1.0) -> PlainLinear:
        plain = PlainWeights.linear(self, num_inputs, num_outputs, has_bias=has_bias, scale=scale)
        return plain if scale != 1.0 else BlockLinear(plain.weight, plain.bias)

    def linear_over(self, weight_OI: nn.Parameter) -> PlainLinear:
        return BlockLinear(weight_OI)


class BlockLinear(PlainLinear):
    """A map over one matrix, of plain numbers and, once they were given, of blocks."""

    _low: torch.Tensor | None
    _low_scales_BO2: torch.Tensor | None
    _high: torch.Tensor | None
    _high_scales_BO2: torch.Tensor | None

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> None:
        super().__init__(weight_OI, bias_O)
        for name in ("_low", "_low_scales_BO2", "_high", "_high_scales_BO2"):
            self.register_buffer(name, None, persistent=False)

    def keep(self, blocks: Blocks) -> None:
        """The integers of the whole matrix."""
        codes_OI, scales_OB, offsets_OB, size = blocks.codes_OI, blocks.scales_OB, blocks.offsets_OB, 2**LAYER_BITS
        if int(codes_OI.max()) >= size:
            # The offset belongs to the larger numbers: there most of it cancels before anything is added up.
            self._high, self._high_scales_BO2 = packed_layer(codes_OI // size, size * scales_OB, offsets_OB)
            codes_OI, offsets_OB = codes_OI % size, torch.zeros_like(offsets_OB)
        self._low, self._low_scales_BO2 = packed_layer(codes_OI, scales_OB, offsets_OB)

    def forward(self, x_TI: torch.Tensor, out_TO: torch.Tensor | None = None) -> torch.Tensor:
        if self._low is None or len(x_TI) > MOST_TOKENS:
            return super().forward(x_TI, out_TO)
        if out_TO is None:
            out_TO = x_TI.new_empty((len(x_TI), self.weight.shape[0]))
        self._multiply(out_TO, x_TI, adds=False)
        return out_TO if self.bias is None else out_TO.add_(self.bias)

    def add_to(self, sum_TO: torch.Tensor, x_TI: torch.Tensor) -> torch.Tensor:
        if self._low is None or len(x_TI) > MOST_TOKENS:
            return super().add_to(sum_TO, x_TI)
        self._multiply(sum_TO, x_TI, adds=True)
        return sum_TO if self.bias is None else sum_TO.add_(self.bias)

    def _multiply(self, out_TO: torch.Tensor, x_TI: torch.Tensor, *, adds: bool) -> None:
        assert self._low is not None, "the blocks were given"
        assert self._low_scales_BO2 is not None, "with their scales"
        high = (self._high, self._high_scales_BO2)
        block_matmul(out_TO, x_TI.contiguous(), self._low, self._low_scales_BO2, *high, adds)


WEIGHT_FORMATS: Mapping[StoredAs, type[PlainWeights]] = {StoredAs.PLAIN: PlainWeights, StoredAs.BLOCKS: BlockWeights}
