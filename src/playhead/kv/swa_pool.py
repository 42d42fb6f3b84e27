"""`SWAKVPool`: KV of models with sliding windows. It owns the translation; callers hand it full locations only.

Translation is one gather on a tensor whose address never changes, so a captured graph repeats it at every replay.
Nothing is remembered between forwards: no memo can be stale, a warm-up run leaves nothing behind, and views of one
storage cannot be taken for each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from playhead.errors import ConfigError
from playhead.kv.errors import StaleTranslation
from playhead.kv.mapping import NO_PAGE, Int32Array, WindowMapping
from playhead.kv.plan import KVPlan
from playhead.kv.pool import DeviceWrite, ForwardLocs, GroupKVPool, MHAKVPool, PagedLocs, new_arena


class SWAKVPool:
    """One arena, a pool per group, and for each window group the mapping from full to window locations.

    `layers_mapping[layer]` is (index in its group, group index); group 0 is the full one. `mapping` is the host's
    side, with the one writer; `publish` brings its changes to the device.
    """

    def __init__(self, plan: KVPlan, mapping: WindowMapping, *, device: torch.device) -> None:
        if not plan.geometry.windows:
            raise ConfigError(
                "SWAKVPool: found a model without window layers; wanted at least one window group. Use create_kv_pool"
            )
        self.mapping = mapping
        self.layers_mapping: dict[int, tuple[int, int]] = {
            layer: (index, group_index)
            for group_index, group in enumerate(plan.geometry.groups)
            for index, layer in enumerate(group.layer_ids)
        }
        self._page_size = plan.geometry.page_size
        self._device = device
        arena = new_arena(plan, device)
        self._pools = tuple(
            GroupKVPool(arena=arena, layout=layout, num_pages=plan.num_pages(index), page_size=self._page_size)
            for index, layout in enumerate(plan.layout.groups)
        )
        self._device_mappings = tuple(
            _device_mapping(mapping.table(window), self._page_size, device) for window in range(mapping.num_groups)
        )
        mapping.take_unpublished()

    @property
    def full_to_swa_index_mapping(self) -> torch.Tensor:
        """Window location of every full location in the first window group: int32, 0 -> 0, and -1 -> -1 at the end."""
        return self._device_mappings[0]

    # Translation.

    def begin_forward(self, full_locs: torch.Tensor) -> ForwardLocs:
        """Where this forward's new tokens go in every group: one gather per window group, however many layers.

        The result is for this forward only; inside a captured graph the gather is captured with it.
        """
        self.mapping.require_published("begin_forward")
        locs = [full_locs]
        locs += [self.translate_loc_from_full_to_swa(full_locs, window) for window in range(len(self._device_mappings))]
        return ForwardLocs(
            groups=tuple(PagedLocs.split(group_locs, self._page_size) for group_locs in locs),
            version=self.mapping.version,
        )

    def translate_loc_from_full_to_swa(self, full_locs: torch.Tensor, window: int = 0) -> torch.Tensor:
        """Window locations (int32) of full ones: a plain gather. -1 gives -1, an expired location the sink."""
        return self._device_mappings[window][full_locs]

    def invalidate_loc_cache(self) -> None:
        """Nothing: no translation outlives its forward."""

    # Keys and values.

    def set_kv_buffer(self, layer: int, locs: ForwardLocs | torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write one row of `k` and `v` per new token into a layer.

        In a forward pass `begin_forward`'s result; plain full locations are translated for this call alone.
        """
        forward = locs if isinstance(locs, ForwardLocs) else self.begin_forward(locs)
        if forward.version != self.mapping.version:
            raise StaleTranslation(
                "set_kv_buffer", forward.version, self.mapping.version, "Call begin_forward again after a change"
            )
        index, group_index = self.layers_mapping[layer]
        self._pools[group_index].set_kv_buffer(index, forward.groups[group_index], k, v)

    def get_kv_buffer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All pages of a layer, by its own group's page numbers: keys and values."""
        index, group_index = self.layers_mapping[layer]
        return self._pools[group_index].get_kv_buffer(index)

    # The mapping.

    def window_mapping(self, layer: int) -> torch.Tensor | None:
        """What takes full locations to the layer's own, at an address that never changes; None for a full layer."""
        _, group_index = self.layers_mapping[layer]
        return self._device_mappings[group_index - 1] if group_index else None

    def publish(self, mapping: WindowMapping) -> None:
        """Bring the mapping's changes to the device, ordered before what is launched next on this stream."""
        for write in self.take_writes(mapping):
            index = torch.from_numpy(write.places).to(self._device)
            write.target.index_copy_(0, index, torch.from_numpy(write.values).to(self._device))

    def take_writes(self, mapping: WindowMapping) -> list[DeviceWrite]:
        """The changes since the last call, for a caller that brings them to the device itself; now published."""
        assert mapping is self.mapping, "a pool has one mapping for life: captured graphs read its tensor"
        return [
            self._expanded(device_mapping, changes)
            for device_mapping, changes in zip(self._device_mappings, mapping.take_unpublished(), strict=True)
            if len(changes)
        ]

    def set_full_to_swa_mapping(self, full_pages: Sequence[int], window_pages: Sequence[int], window: int = 0) -> None:
        """Map many pages at once, as a cache does that loads KV back; on the device when this returns.

        The caller holds both kinds of pages (`HybridAllocator.attach_windows` takes and maps them in one call). All or
        nothing, one-to-one, and a new version, like every other change of the mapping.
        """
        self.mapping.set(window, full_pages, window_pages)
        self.publish(self.mapping)

    def _expanded(self, device_mapping: torch.Tensor, changes: Int32Array) -> DeviceWrite:
        """Changed pages as locations."""
        places = changes[:, :1].astype(np.int64) * self._page_size + np.arange(self._page_size)
        return DeviceWrite(device_mapping, places.reshape(-1), _locs_of(changes[:, 1], self._page_size))


def create_kv_pool(plan: KVPlan, mapping: WindowMapping, *, device: torch.device) -> MHAKVPool | SWAKVPool:
    """The pool a model needs: the mapping's tensors exist only where there are windows."""
    if plan.geometry.windows:
        return SWAKVPool(plan, mapping, device=device)
    return MHAKVPool(plan, device=device)


def _device_mapping(table: Int32Array, page_size: int, device: torch.device) -> torch.Tensor:
    """The mapping by location with a last entry of -1, which index -1 reads."""
    return torch.from_numpy(np.append(_locs_of(table, page_size), np.int32(-1))).to(device)


def _locs_of(window_pages: Int32Array, page_size: int) -> Int32Array:
    """Locations of pages, in their order. Where there is no page the sink's first one stands, at any offset."""
    pages = window_pages[:, None]
    locs = np.where(pages == NO_PAGE, 0, pages * page_size + np.arange(page_size, dtype=np.int32))
    return locs.astype(np.int32).reshape(-1)
