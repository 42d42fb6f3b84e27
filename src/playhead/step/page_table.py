"""The page table on the device: a copy of the host's rows, brought up to date before each step."""

from __future__ import annotations

import numpy as np
import torch

from playhead.kv.pool import DeviceWrite
from playhead.kv.rows import RowTables


class DevicePageTable:
    """Full page ids of every running request, at an address that never changes. Row 0 is the sink's."""

    def __init__(self, rows: RowTables, device: torch.device) -> None:
        self._rows = rows
        self.table_RP = torch.zeros(rows.tables[0].shape, dtype=torch.int32, device=device)

    def take_writes(self) -> list[DeviceWrite]:
        """What changed since the last call: row 2, entries [1, 3) of a table with 8 a row are 17 and 18."""
        table = self._rows.tables[0]
        spans = self._rows.take_changed()
        if not spans:
            return []
        index = np.concatenate([row * table.shape[1] + np.arange(first, end) for row, first, end in spans])
        return [DeviceWrite(self.table_RP.view(-1), index, table.reshape(-1)[index])]
