"""MXFP4: four-bit floats in blocks of 32 that share a power of two.

Shapes: O outputs, B blocks per output, Y bytes per block (two values each), I = 2 * B * Y inputs.
"""

from __future__ import annotations

import torch

FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
SCALE_BIAS = 127


def dequantise_mxfp4(blocks_OBY: torch.Tensor, scales_OB: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The matrix as numbers. A byte's low half is the earlier value; scale 127 means times one."""
    table = torch.tensor(FP4_VALUES, dtype=torch.float32, device=blocks_OBY.device)
    nibbles_OBYN = torch.stack((blocks_OBY & 0x0F, blocks_OBY >> 4), dim=-1)
    values_OBV = table[nibbles_OBYN.int()].flatten(-2)
    exponents_OB = scales_OB.int() - SCALE_BIAS
    return torch.ldexp(values_OBV, exponents_OB[..., None]).flatten(-2).to(dtype)
