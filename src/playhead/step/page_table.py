"""The page table on the device: a copy of the host's rows, brought up to date before each step."""

from __future__ import annotations

import numpy as np
import torch

from playhead.kv.rows import RowTables
from playhead.types import Row


class DevicePageTable:
    """Full page ids of every running request, at an address that never changes. Row 0 is the sink's."""

    def __init__(self, rows: RowTables, device: torch.device) -> None:
        self._rows = rows
        self.table_RP = torch.zeros(rows.tables[0].shape, dtype=torch.int32, device=device)

    def publish(self) -> list[Row]:
        """Copy the rows that changed since the last call, ordered before what is launched next on this stream."""
        changed = self._rows.take_changed()
        if changed:
            index = torch.from_numpy(np.array(changed, dtype=np.int64)).to(self.table_RP.device)
            self.table_RP[index] = torch.from_numpy(self._rows.tables[0][changed]).to(self.table_RP.device)
        return changed
