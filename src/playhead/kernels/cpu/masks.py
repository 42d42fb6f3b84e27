"""`forbid_` of `masks.py` by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from playhead.kernels.cpu.arrays import as_arrays
from playhead.kernels.op import Work


def bind_forbid(*call: Any) -> Work:
    """The rows alone that forbid something."""
    logits, allowed = as_arrays(call)
    vocab_size = logits.shape[1]

    def work() -> None:
        for row in np.flatnonzero((allowed != -1).any(axis=1)):
            forbidden = np.unpackbits((~allowed[row]).view(np.uint8), count=vocab_size, bitorder="little")
            np.copyto(logits[row], -np.inf, where=forbidden.view(np.bool_))

    return work
