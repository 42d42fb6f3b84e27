"""`forbid_` of `masks.py` by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from playhead.kernels.cpu.arrays import as_arrays
from playhead.kernels.op import Work


def bind_forbid(*call: Any) -> Work:
    """The rows alone that forbid something. In few calls: between other work each one costs more than what it does."""
    logits, allowed = as_arrays(call)
    vocab_size, never = logits.shape[1], logits.dtype.type(-np.inf)
    lines = list(zip(allowed, logits, strict=True))
    all_allowed = b"\xff" * allowed[0].nbytes
    forbidden = np.empty_like(allowed[0])

    def work() -> None:
        for words, row in lines:
            if words.tobytes() != all_allowed:
                np.invert(words, out=forbidden)
                bits = np.unpackbits(forbidden.view(np.uint8), count=vocab_size, bitorder="little")
                np.putmask(row, bits.view(np.bool_), never)

    return work
