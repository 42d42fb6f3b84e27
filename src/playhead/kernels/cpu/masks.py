"""`forbid_` of `masks.py` by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from playhead.kernels.cpu.arrays import as_arrays
from playhead.kernels.op import Work

ALLOWS_OF_BYTE = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").view(np.bool_)
"""For each byte of a mask whether it allows its eight ids, the lowest bit first."""


def bind_forbid(*call: Any) -> Work:
    """The rows alone that forbid something. In few calls: between other work each one costs more than what it does.

    A logit becomes the smaller one of itself and its id's bound: -inf or inf.
    """
    logits, allowed = as_arrays(call)
    bounds_of_byte = np.where(ALLOWS_OF_BYTE, np.inf, -np.inf).astype(logits.dtype)
    all_allowed = b"\xff" * allowed[0].nbytes
    lines = list(zip(allowed.view(np.uint8), logits, strict=True))
    bounds = np.empty((len(all_allowed), 8), dtype=logits.dtype)
    of_ids = bounds.reshape(-1)[: logits.shape[1]]

    def work() -> None:
        for mask, row in lines:
            if mask.tobytes() != all_allowed:
                bounds_of_byte.take(mask, 0, bounds, "clip")
                np.minimum(row, of_ids, out=row)

    return work
