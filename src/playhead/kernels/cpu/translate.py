"""`translate` of `translate.py` by numpy.

Shapes: T tokens, C pages a window can touch, b requests.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from playhead.kernels.cpu.arrays import as_arrays
from playhead.kernels.op import Work
from playhead.kernels.translate import max_pages_seen


def bind_translate(*call: Any) -> Work:
    """The columns of first queries alone: other tokens bring the page they stand in."""
    window_locs, window_table, mapping, table, full_locs, rows, positions, page_size, window = as_arrays(call)
    num_tokens, max_pages = len(full_locs), table.shape[1]
    window_locs, window_table, table = window_locs[:num_tokens], window_table.reshape(-1), table.reshape(-1)
    column_C = np.arange(max_pages_seen(window, page_size), dtype=np.int64)
    is_first = np.ones(num_tokens, dtype=np.bool_)

    def work() -> None:
        window_locs[:] = mapping[full_locs]
        np.not_equal(rows[1:], rows[:-1], out=is_first[1:])
        row_start_T = rows.astype(np.int64) * max_pages
        last_T = positions // page_size
        first = slice(None) if is_first.all() else np.flatnonzero(is_first)
        page_bC = np.maximum(positions[first] - (window - 1), 0)[:, None] // page_size + column_C
        np.minimum(page_bC, last_T[first, None], out=page_bC)
        place_bC = page_bC + row_start_T[first, None]
        window_table[place_bC] = mapping[table[place_bC] * page_size] // page_size
        if not isinstance(first, slice):
            place_T = row_start_T + last_T
            window_table[place_T] = mapping[table[place_T] * page_size] // page_size

    return work
