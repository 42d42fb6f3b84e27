"""`forbid_` of `masks.py` by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from playhead.kernels.cpu.arrays import as_arrays
from playhead.kernels.op import Work

FORBIDDEN_OF_BYTE = np.unpackbits(~np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").view(np.bool_)
"""For each byte of a mask whether it forbids its eight ids, the lowest bit first."""


def bind_forbid(*call: Any) -> Work:
    """The rows alone that forbid something. In few calls: between other work each one costs more than what it does."""
    logits, allowed = as_arrays(call)
    never = logits.dtype.type(-np.inf)
    all_allowed = b"\xff" * allowed[0].nbytes
    lines = list(zip(allowed.view(np.uint8), logits, strict=True))
    is_forbidden = np.empty((len(all_allowed), 8), dtype=np.bool_)
    of_ids = is_forbidden.reshape(-1)[: logits.shape[1]]

    def work() -> None:
        for mask, row in lines:
            if mask.tobytes() != all_allowed:
                FORBIDDEN_OF_BYTE.take(mask, 0, is_forbidden, "clip")
                row[of_ids] = never

    return work
