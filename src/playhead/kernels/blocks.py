"""Products with matrices of small integers in blocks, on CPUs whose torch multiplies by 4-bit integers as they are.

A weight is `scale * code + offset`; the weights of a block share scale and offset. Codes of 5 to 8 bits are two layers
of 4: `code = 16 * high + low`, and the products of the two layers are added.

Shapes: T tokens, I inputs, O outputs, B blocks of a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from playhead.kernels.op import op

LAYER_BITS = 4
HALF = 2 ** (LAYER_BITS - 1)  # torch counts a layer's codes from -8
OUTPUTS_AT_ONCE = 16  # torch packs so many rows together


def packed_layer(codes_OI: Tensor, scales_OB: Tensor, offsets_OB: Tensor) -> tuple[Tensor, Tensor]:
    """Codes below 16 as torch packs them, and their scales and zeros [B, O, 2]."""
    packed: Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes_OI.to(torch.int32), 1)
    zeros_OB = offsets_OB + HALF * scales_OB
    return packed, torch.stack((scales_OB, zeros_OB), dim=-1).transpose(0, 1).contiguous()


@op(mutates=("out_TO",), cuda=None)
def block_matmul(
    out_TO: Tensor, x_TI: Tensor, low: Tensor, low_scales_BO2: Tensor,
    high: Tensor | None, high_scales_BO2: Tensor | None, adds: bool,
) -> None:  # fmt: skip
    """Writes `x @ W.T` into `out_TO`, or adds it to what is there. A row's bits do not depend on the other rows.

    `low` and `high` are what `packed_layer` gives; codes below 16 have no high layer.
    """
    block_size = x_TI.shape[1] // low_scales_BO2.shape[0]
    multiply = torch.ops.aten._weight_int4pack_mm_for_cpu
    product_TO: Tensor = multiply(x_TI, low, block_size, low_scales_BO2)
    if high is not None:
        product_TO.add_(multiply(x_TI, high, block_size, high_scales_BO2))
    if adds:
        out_TO.add_(product_TO)
    else:
        out_TO.copy_(product_TO)
