"""GGUF's simple packed types as integers, scales and offsets: 32 weights to a block, each of 4, 5 or 8 bits.

Shapes: N blocks, one after the other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

BLOCK_SIZE = 32
Bytes = npt.NDArray[np.uint8]


class Unpacked(NamedTuple):
    """Weights as they are stored: weight = scale * code + offset. Codes are int8, 32 of them to a scale."""

    codes: npt.NDArray[Any]
    scales: npt.NDArray[Any]
    offsets: npt.NDArray[Any]


# By type: bits of a code, and the code of zero; None where a block has its own smallest weight instead.
SIMPLE_TYPES: dict[str, tuple[int, int | None]] = {
    "Q4_0": (4, 8),
    "Q4_1": (4, None),
    "Q5_0": (5, 16),
    "Q5_1": (5, None),
    "Q8_0": (8, 0),
}


def unpack_blocks(packed_N: Bytes, type_name: str) -> Unpacked:
    """Codes [N, 32] in int8, scales [N] and offsets [N] of blocks [N, bytes of one]: scale * code + offset."""
    bits, zero = SIMPLE_TYPES[type_name]
    num_floats = 1 if zero is not None else 2
    floats_N = np.ascontiguousarray(packed_N[:, : 2 * num_floats]).view(np.float16).astype(np.float32)
    rest_N = packed_N[:, 2 * num_floats :]
    scales_N = floats_N[:, 0]
    offsets_N = np.zeros_like(scales_N) if zero is not None else floats_N[:, 1]
    if bits == 8:
        return Unpacked(rest_N.view(np.int8), scales_N, offsets_N)
    nibbles_N = rest_N if bits == 4 else rest_N[:, 4:]  # fifth bits come first
    codes_N = np.concatenate((nibbles_N & 15, nibbles_N >> 4), axis=1)
    if bits == 5:
        codes_N |= np.unpackbits(rest_N[:, :4], axis=1, bitorder="little") << 4
    return Unpacked(codes_N.view(np.int8) - np.int8(zero or 0), scales_N, offsets_N)
