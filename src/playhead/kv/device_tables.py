"""The tables on the device that the host keeps up to date: the page table, and the mappings of window groups.

All of them lie in one memory, so that one scatter brings all changes. Their addresses never change.

Shapes: L entries of all tables, R rows of the page table, P pages per row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from playhead.kv.geometry import num_pages_for
from playhead.kv.plan import KVPlan
from playhead.kv.tables import FULL

ALIGNMENT = 64  # entries between two tables' starts: kernels load each one as if it had memory of its own


class DeviceWrite(NamedTuple):
    """Numbers on their way into the tables: `memory_L[places] = values`. A place may stand twice, with one value."""

    places: npt.NDArray[np.int64]
    values: npt.NDArray[np.int32]


class DeviceTables:
    """The page table of full pages, and behind it a mapping for each window group, by full location."""

    def __init__(self, plan: KVPlan, device: torch.device) -> None:
        limits, page_size = plan.limits, plan.geometry.page_size
        num_rows, row_pages = 1 + limits.max_running, num_pages_for(limits.max_context_tokens, page_size)
        num_table, num_mapping = num_rows * row_pages, plan.num_pages(FULL) * page_size + 1
        starts = [0, aligned(num_table)]
        for _ in plan.geometry.windows:
            starts.append(starts[-1] + aligned(num_mapping))
        self.memory_L = torch.zeros(starts[-1], dtype=torch.int32, device=device)
        self.table_RP = self.memory_L[:num_table].view(num_rows, row_pages)
        self.mapping_starts = tuple(starts[1:-1])
        self.mappings = tuple(self.memory_L[start : start + num_mapping] for start in self.mapping_starts)


def aligned(num_entries: int) -> int:
    """So many entries and what is left before the next table may start: 64 for 3, 64 for 64."""
    return -(-num_entries // ALIGNMENT) * ALIGNMENT
