"""Linear maps that also keep the small integers their matrices were stored as, for steps of few tokens on a CPU.

A step of one token reads every matrix once, and takes as long as that: a 135M model is 540 MB of float32 numbers, and
170 MB of blocks. In a step of several tokens the multiplications take the time, and those of plain numbers are faster.
So there are both, and the number of tokens decides. The numbers are the same; sums round differently.

Shapes: T tokens, I inputs, O outputs, B blocks of a row, J = 32 inputs of a block; in groups of outputs
see `playhead.kernels.blocks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import nn

from playhead.kernels.blocks import BLOCK_SIZE, LANES, block_matmul, in_lanes
from playhead.layers.linear import PlainLinear, PlainWeights
from playhead.layers.spec import StoredAs

MOST_TOKENS = 2  # of a step that multiplies by blocks
BYTES_PER_BLOCK = BLOCK_SIZE + 4 + 4
"""A code of one byte for each weight, a scale and an offset in float32."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """Rows of a matrix as they are stored: weight = scale * code + offset. Codes are int8, 32 of them to a block."""

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

    def write_to(self, out_OI: torch.Tensor) -> None:
        """The weights as numbers, without other memory."""
        out_OBJ = out_OI.view(*self.scales_OB.shape, BLOCK_SIZE)
        out_OBJ.copy_(self.codes_OI.reshape(out_OBJ.shape))
        out_OBJ.mul_(self.scales_OB[..., None]).add_(self.offsets_OB[..., None])

    @property
    def can_be_packed(self) -> bool:
        """Whether the outputs make whole groups, of whole blocks."""
        num_outputs, num_inputs = self.codes_OI.shape
        return num_outputs % LANES == 0 and num_inputs == BLOCK_SIZE * self.scales_OB.shape[1]


def packed_bytes(num_outputs: int, num_inputs: int) -> int:
    """Bytes of a matrix in blocks; 0 if it does not make whole groups of whole blocks. 64 x 32 weights: 2,560."""
    if num_outputs % LANES or num_inputs % BLOCK_SIZE:
        return 0
    return num_outputs * (num_inputs // BLOCK_SIZE) * BYTES_PER_BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWeights(PlainWeights):
    """Plain matrices; on a CPU that gains by it, with the blocks they were made from."""

    @property
    def keeps_blocks(self) -> bool:
        """Without numba, which comes with the extra `gguf`, nothing multiplies by blocks faster."""
        return self.device.type == "cpu" and self.dtype is torch.float32 and find_spec("numba") is not None

    def linear(self, num_inputs: int, num_outputs: int, *, has_bias: bool, scale: float = 1.0) -> PlainLinear:
        plain = PlainWeights.linear(self, num_inputs, num_outputs, has_bias=has_bias, scale=scale)
        return plain if scale != 1.0 else BlockLinear(plain.weight, plain.bias)

    def linear_over(self, weight_OI: nn.Parameter) -> PlainLinear:
        return BlockLinear(weight_OI)


class BlockLinear(PlainLinear):
    """A map over one matrix, of plain numbers and, once they were given, of blocks."""

    codes_NBJL: torch.Tensor | None
    scales_NBL: torch.Tensor | None
    offsets_NBL: torch.Tensor | None

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> None:
        super().__init__(weight_OI, bias_O)
        for name in ("codes_NBJL", "scales_NBL", "offsets_NBL"):
            self.register_buffer(name, None, persistent=False)

    def keep(self, blocks: Blocks) -> None:
        """The integers of the whole matrix."""
        self.codes_NBJL = in_lanes(blocks.codes_OI.reshape(*blocks.scales_OB.shape, BLOCK_SIZE))
        self.scales_NBL, self.offsets_NBL = in_lanes(blocks.scales_OB), in_lanes(blocks.offsets_OB)

    def forward(self, x_TI: torch.Tensor, out_TO: torch.Tensor | None = None) -> torch.Tensor:
        if self.codes_NBJL is None or self.is_ordered or x_TI.shape[0] > MOST_TOKENS:
            return super().forward(x_TI, out_TO)
        if out_TO is None:
            out_TO = x_TI.new_empty((x_TI.shape[0], self.weight.shape[0]))
        self._multiply(out_TO, x_TI, adds=False)
        return out_TO if self.bias is None else out_TO.add_(self.bias)

    def add_to(self, sum_TO: torch.Tensor, x_TI: torch.Tensor) -> torch.Tensor:
        if self.codes_NBJL is None or self.is_ordered or x_TI.shape[0] > MOST_TOKENS:
            return super().add_to(sum_TO, x_TI)
        self._multiply(sum_TO, x_TI, adds=True)
        return sum_TO if self.bias is None else sum_TO.add_(self.bias)

    def _multiply(self, out_TO: torch.Tensor, x_TI: torch.Tensor, *, adds: bool) -> None:
        assert self.codes_NBJL is not None, "the blocks were given"
        assert self.scales_NBL is not None, "with their scales"
        assert self.offsets_NBL is not None, "and offsets"
        block_matmul(out_TO, x_TI, self.codes_NBJL, self.scales_NBL, self.offsets_NBL, adds)


WEIGHT_FORMATS: Mapping[StoredAs, type[PlainWeights]] = {StoredAs.PLAIN: PlainWeights, StoredAs.BLOCKS: BlockWeights}
