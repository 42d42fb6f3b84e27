"""How what the host decided about pages gets to the tables on the device.

Before a step one pinned copy brings all changes, then one scatter writes them. A plain copy from unpinned memory would
wait for the step that is running, and with it the next step's launch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from playhead.graph.registry import NUM_STAGES
from playhead.graph.staging import StagingRing, field_view, lay_out, port_for
from playhead.kernels.sizes import next_power_of_2
from playhead.kv.device_tables import DeviceWrite

MAX_ENTRIES = 8192  # of one copy: 96 KiB; a larger change goes in several
FEW_ENTRIES = 1024  # 12 KiB: a prompt's pages, and most other changes


class Room:
    """Host and device memory for the places and values of one copy. A copy carries all of it."""

    def __init__(self, memory_L: torch.Tensor, num_entries: int) -> None:
        self._memory_L, self.num_entries = memory_L, num_entries
        fields, num_bytes = lay_out([((num_entries,), torch.int64, 0), ((num_entries,), torch.int32, 0)])
        arena = torch.zeros(num_bytes, dtype=torch.uint8, device=memory_L.device)
        self._places, self._values = (field_view(arena, place) for place in fields)
        self._ring = StagingRing(fields, arena, port_for(memory_L.device), NUM_STAGES)
        self._views: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def send(self, writes: Sequence[DeviceWrite]) -> None:
        """Carry out the writes, which fit one copy."""
        stage = self._ring.acquire()
        places, values = stage.fields
        end = 0
        for write in writes:
            first, end = end, end + len(write.places)
            places[first:end], values[first:end] = write
        size = min(next_power_of_2(end), self.num_entries)
        if end < size:
            places[end:size], values[end:size] = places[0], values[0]
        self._ring.submit(stage)
        self._memory_L.index_copy_(0, *self._views_of(size))

    def _views_of(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        views = self._views.get(size)
        if views is None:
            views = self._views[size] = self._places[:size], self._values[:size]
        return views


class Publisher:
    """Carries out `DeviceWrite`s on the current stream, before all work that is launched later.

    A copy is filled up to a power of two with repetitions of its first entry. So there are few sizes and few views to
    keep; making a view takes as long as half a scatter. A copy carries all bytes of its room, so few entries have a
    small room of their own.
    """

    def __init__(self, memory_L: torch.Tensor, *, max_entries: int = MAX_ENTRIES) -> None:
        self._few, self._many = (Room(memory_L, min(most, max_entries)) for most in (FEW_ENTRIES, max_entries))

    def send(self, writes: Sequence[DeviceWrite]) -> None:
        """Write all of them. The host goes on at once; the arrays may be changed when this returns."""
        num_entries, most = sum([len(write.places) for write in writes]), self._many.num_entries
        if num_entries > most:
            for places, values in writes:
                for first in range(0, len(places), most):
                    self._many.send([DeviceWrite(places[first : first + most], values[first : first + most])])
        elif num_entries:
            (self._few if num_entries <= self._few.num_entries else self._many).send(writes)
