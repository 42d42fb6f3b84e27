"""`allowed_logits` of `masks.py` by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from playhead.kernels.cpu.arrays import as_arrays
from playhead.kernels.op import Work


def bind_allowed_logits(*call: Any) -> Work:
    """Rows that allow everything are copied; the others are looked at bit by bit."""
    out, logits, allowed = as_arrays(call)
    vocab_size = logits.shape[1]

    def work() -> None:
        np.copyto(out, logits)
        for row in np.flatnonzero((allowed != -1).any(axis=1)):
            forbidden = np.unpackbits((~allowed[row]).view(np.uint8), count=vocab_size, bitorder="little")
            np.copyto(out[row], -np.inf, where=forbidden.view(np.bool_))

    return work
