"""`forbid_` of `masks.py` by numpy."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from playhead.kernels.cpu.arrays import Array, as_arrays
from playhead.kernels.op import Work

MAX_KEPT = 32  # 512 KB of a vocabulary of 4,096, 32 MB of one of 262,144


@lru_cache(maxsize=MAX_KEPT)
def bounds_of(mask: bytes, num_ids: int) -> Array:
    """What a logit may be at most: inf where a mask allows an id, -inf where it forbids it.

    A form has few masks, and its answers come back to them: 20 in 600 masks of strings in JSON.
    """
    bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), count=num_ids, bitorder="little")
    bounds = np.where(bits, np.float32(np.inf), np.float32(-np.inf))
    bounds.flags.writeable = False
    return bounds


def bind_forbid(*call: Any) -> Work:
    """The rows alone that forbid something. In few calls: between other work each one costs more than what it does."""
    logits, allowed = as_arrays(call)
    num_ids, all_allowed = logits.shape[1], b"\xff" * allowed[0].nbytes
    lines = list(zip(allowed, logits, strict=True))

    def work() -> None:
        for mask, row in lines:
            bits = mask.tobytes()
            if bits != all_allowed:
                np.minimum(row, bounds_of(bits, num_ids), out=row)

    return work
