"""The page table on the device, and how what the host decided about pages gets there.

Before a step one pinned copy brings all changes, then one scatter per table writes them. A plain copy from unpinned
memory would wait for the step that is running, and with it the next step's launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from playhead.graph.registry import NUM_STAGES
from playhead.graph.staging import StagingRing, field_view, lay_out, port_for
from playhead.kv.pool import DeviceWrite
from playhead.kv.tables import RowTables, ranges

MAX_ENTRIES = 8192  # of one copy: 96 KiB; a larger change goes in several


class DevicePageTable:
    """Full page ids of every running request, at an address that never changes. Row 0 is the sink's."""

    def __init__(self, rows: RowTables, device: torch.device) -> None:
        self._rows = rows
        self.table_RP = torch.zeros(rows.tables[0].shape, dtype=torch.int32, device=device)
        self._entries = self.table_RP.view(-1)

    def take_writes(self) -> list[DeviceWrite]:
        """The entries that changed since the last call: entries [1, 3) of row 2 lie at 17 and 18, with 8 a row."""
        table = self._rows.tables[0]
        rows, firsts, ends = self._rows.take_changed()
        if not len(rows):
            return []
        index = ranges(rows * table.shape[1] + firsts, ends - firsts)
        return [DeviceWrite(self._entries, index, table.reshape(-1)[index])]


class Publisher:
    """Carries out `DeviceWrite`s on the current stream, before all work that is launched later."""

    def __init__(self, device: torch.device, *, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        fields, num_bytes = lay_out([((max_entries,), torch.int64, 0), ((max_entries,), torch.int32, 0)])
        arena = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self._places, self._values = (field_view(arena, place) for place in fields)
        self._ring = StagingRing(fields, arena, port_for(device), NUM_STAGES)

    def send(self, writes: Sequence[DeviceWrite]) -> None:
        """Write all of them. The host goes on at once; the arrays may be changed when this returns."""
        for group in self._copies(writes):
            stage = self._ring.acquire()
            places, values = stage.fields
            spans, end = [], 0
            for write in group:
                first, end = end, end + len(write.places)
                places[first:end], values[first:end] = write.places, write.values
                spans.append((write.target, first, end))
            self._ring.submit(stage)
            for target, first, end in spans:
                target.index_copy_(0, self._places[first:end], self._values[first:end])

    def _copies(self, writes: Sequence[DeviceWrite]) -> Iterator[list[DeviceWrite]]:
        """The writes cut so that each group fits one copy."""
        group: list[DeviceWrite] = []
        room = self._max_entries
        for target, places, values in writes:
            for first in range(0, len(places), self._max_entries):
                piece = DeviceWrite(
                    target, places[first : first + self._max_entries], values[first : first + self._max_entries]
                )
                if len(piece.places) > room:
                    yield group
                    group, room = [], self._max_entries
                group.append(piece)
                room -= len(piece.places)
        if group:
            yield group
