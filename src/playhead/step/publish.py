"""How what the host decided about pages gets to the tables on the device.

Before a step one pinned copy brings all changes, then one scatter writes them. A plain copy from unpinned memory would
wait for the step that is running, and with it the next step's launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from playhead.graph.registry import NUM_STAGES
from playhead.graph.staging import StagingRing, field_view, lay_out, port_for
from playhead.kv.device_tables import DeviceWrite

MAX_ENTRIES = 8192  # of one copy: 96 KiB; a larger change goes in several


class Publisher:
    """Carries out `DeviceWrite`s on the current stream, before all work that is launched later.

    A copy is filled up to a power of two with repetitions of its first entry. So there are few sizes and few views to
    keep; making a view takes as long as half a scatter.
    """

    def __init__(self, memory_L: torch.Tensor, *, max_entries: int = MAX_ENTRIES) -> None:
        self._memory_L, self._max_entries = memory_L, max_entries
        fields, num_bytes = lay_out([((max_entries,), torch.int64, 0), ((max_entries,), torch.int32, 0)])
        arena = torch.zeros(num_bytes, dtype=torch.uint8, device=memory_L.device)
        self._places, self._values = (field_view(arena, place) for place in fields)
        self._ring = StagingRing(fields, arena, port_for(memory_L.device), NUM_STAGES)
        self._views: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def send(self, writes: Sequence[DeviceWrite]) -> None:
        """Write all of them. The host goes on at once; the arrays may be changed when this returns."""
        for group in self._copies(writes):
            stage = self._ring.acquire()
            places, values = stage.fields
            end = 0
            for write in group:
                first, end = end, end + len(write.places)
                places[first:end], values[first:end] = write
            size = min(1 << (end - 1).bit_length(), self._max_entries)
            places[end:size], values[end:size] = places[0], values[0]
            self._ring.submit(stage)
            self._memory_L.index_copy_(0, *self._views_of(size))

    def _views_of(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        views = self._views.get(size)
        if views is None:
            views = self._views[size] = self._places[:size], self._values[:size]
        return views

    def _copies(self, writes: Sequence[DeviceWrite]) -> Iterator[Sequence[DeviceWrite]]:
        """The writes cut so that each group fits one copy, and has something to write."""
        most, num_entries = self._max_entries, sum(len(write.places) for write in writes)
        if num_entries <= most:
            if num_entries:
                yield writes
            return
        for places, values in writes:
            for first in range(0, len(places), most):
                yield [DeviceWrite(places[first : first + most], values[first : first + most])]
