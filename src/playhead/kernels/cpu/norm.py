"""The norms of `norm.py` by numpy. LayerNorm is left to the references.

Shapes: T tokens, D width.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from playhead.kernels.cpu.arrays import Array, as_arrays
from playhead.kernels.op import Work

ONE = np.float32(1.0)


def bind_normed(rows: Array, weights: Array, out: Array, eps: float, unit_offset: bool) -> Work:
    """The norm of float32 rows [..., D] into `out`."""
    power, scales = np.empty((*rows.shape[:-1], 1), np.float32), np.empty_like(weights)
    width = rows.shape[-1]
    power_of_rows, least, root = power[..., 0], np.float32(width * eps), np.float32(width**0.5)

    def work() -> None:
        # One dot product for each row, so a row's result does not depend on how many there are.
        np.vecdot(rows, rows, power_of_rows)
        # 1 / sqrt(power / width + eps), without a division of its own by the width.
        np.add(power, least, power)
        np.divide(root, np.sqrt(power, power), power)
        np.multiply(rows, power, out)
        np.multiply(out, np.add(weights, ONE, scales) if unit_offset else weights, out)

    return work


def bind_rms_norm(*call: Any) -> Work | None:
    out, x, weight, eps, unit_offset, centred = as_arrays(call)
    return None if centred else bind_normed(x, weight, out, eps, unit_offset)


def bind_add_rms_norm(*call: Any) -> Work | None:
    out, x, residual, weight, x_weight, eps, unit_offset, centred = as_arrays(call)
    if centred:
        return None
    norm_sum = bind_normed(residual, weight, out, eps, unit_offset)
    norm_x = None if x_weight is None else bind_normed(x, x_weight, out, eps, unit_offset)
    added = x if norm_x is None else out

    def work() -> None:
        if norm_x is not None:
            norm_x()
        np.add(residual, added, residual)
        norm_sum()

    return work


def bind_norm_add(*call: Any) -> Work | None:
    x, residual, x_weight, eps, unit_offset, centred = as_arrays(call)
    if centred:
        return None
    normed = np.empty(residual.shape, np.float32)
    norm_x = bind_normed(x, x_weight, normed, eps, unit_offset)

    def work() -> None:
        norm_x()
        np.add(residual, normed, residual)

    return work
