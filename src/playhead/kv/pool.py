"""Tensors of the KV arena: one byte tensor, seen by each layer as pages of keys and of values.

A layer's keys are `[page, offset in page, kv head, k head dim]`, strided through the arena: page `i` of a group
starts at `i * page_stride_bytes`, so a kernel must compute offsets in 64 bits. The views are made once and their
addresses never change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from playhead.kv.geometry import KVDtype, LayerKV
from playhead.kv.layout import GroupLayout
from playhead.kv.mapping import WindowMapping
from playhead.kv.plan import KVPlan

TORCH_DTYPES: Mapping[KVDtype, torch.dtype] = {
    KVDtype.FLOAT32: torch.float32,
    KVDtype.BFLOAT16: torch.bfloat16,
    KVDtype.FLOAT16: torch.float16,
    KVDtype.FLOAT8_E4M3: torch.float8_e4m3fn,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PagedLocs:
    """Locations of one group, split once for all its layers. Both are int32; a location of -1 writes to the sink."""

    locs: torch.Tensor
    page: torch.Tensor
    offset: torch.Tensor

    @classmethod
    def split(cls, locs: torch.Tensor, page_size: int) -> PagedLocs:
        """With page size 16, loc 50 is page 3, offset 2."""
        # Without the clamp, -1 would be offset 15 of the last page: somebody's token.
        writable = locs.clamp_min(0)
        return cls(locs=locs, page=writable // page_size, offset=writable % page_size)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardLocs:
    """The locations of one forward's new tokens in every group, translated once and handed to every layer.

    It lives as long as the forward. `version` is the mapping's at that time; a pool refuses it after any change.
    """

    groups: tuple[PagedLocs, ...]
    version: int


class DeviceWrite(NamedTuple):
    """Numbers on their way into a flat int32 tensor on the device: `target[places] = values`, each place once."""

    target: torch.Tensor
    places: npt.NDArray[np.int64]
    values: npt.NDArray[np.int32]


class GroupKVPool:
    """Keys and values of one group's layers, by the group's own locations."""

    def __init__(self, *, arena: torch.Tensor, layout: GroupLayout, num_pages: int, page_size: int) -> None:
        self._layers = tuple(
            (
                _layer_view(arena, layer, layer.k_head_dim, offsets.k_bytes, layout, num_pages, page_size),
                _layer_view(arena, layer, layer.v_head_dim, offsets.v_bytes, layout, num_pages, page_size),
            )
            for layer, offsets in zip(layout.group.layers, layout.layers, strict=True)
        )

    def set_kv_buffer(self, index: int, locs: PagedLocs, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write one row of `k` and `v` per location into the group's layer `index`."""
        k_pages, v_pages = self._layers[index]
        k_pages[locs.page, locs.offset] = k
        v_pages[locs.page, locs.offset] = v

    def get_kv_buffer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All pages of the group's layer `index`: keys and values."""
        return self._layers[index]


class MHAKVPool:
    """KV of a model whose layers are all full. It answers `SWAKVPool`'s calls without translating anything."""

    def __init__(self, plan: KVPlan, *, device: torch.device) -> None:
        arena = new_arena(plan, device)
        self._page_size = plan.geometry.page_size
        self._pool = GroupKVPool(
            arena=arena, layout=plan.layout.groups[0], num_pages=plan.num_pages(0), page_size=self._page_size
        )

    def begin_forward(self, full_locs: torch.Tensor) -> ForwardLocs:
        """The forward's locations, for every layer."""
        return ForwardLocs(groups=(PagedLocs.split(full_locs, self._page_size),), version=0)

    def set_kv_buffer(self, layer: int, locs: ForwardLocs | torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write one row of `k` and `v` per new token into a layer."""
        forward = locs if isinstance(locs, ForwardLocs) else self.begin_forward(locs)
        self._pool.set_kv_buffer(layer, forward.groups[0], k, v)

    def get_kv_buffer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All pages of a layer: keys and values."""
        return self._pool.get_kv_buffer(layer)

    def translate_loc_from_full_to_swa(self, full_locs: torch.Tensor) -> torch.Tensor:
        """The same locations: there is no other space."""
        return full_locs

    def window_mapping(self, layer: int) -> None:
        """None: full locations are every layer's own."""

    def invalidate_loc_cache(self) -> None:
        """Nothing: no translation is kept."""

    def publish(self, mapping: WindowMapping) -> None:
        """Nothing reaches the device: a mapping without window groups never changes."""
        mapping.take_unpublished()

    def take_writes(self, mapping: WindowMapping) -> list[DeviceWrite]:
        """None, for the same reason."""
        mapping.take_unpublished()
        return []


def new_arena(plan: KVPlan, device: torch.device) -> torch.Tensor:
    """The bytes of all groups. Zeroed: what a padded row reads from the sink must be finite."""
    return torch.zeros(plan.arena_bytes, dtype=torch.uint8, device=device)


def _layer_view(
    arena: torch.Tensor,
    layer: LayerKV,
    head_dim: int,
    offset_bytes: int,
    layout: GroupLayout,
    num_pages: int,
    page_size: int,
) -> torch.Tensor:
    """One layer's keys or values as `[num_pages, page_size, num_kv_heads, head_dim]`."""
    itemsize = layer.dtype.itemsize
    per_token = layer.num_kv_heads * head_dim
    return arena.view(TORCH_DTYPES[layer.dtype]).as_strided(
        (num_pages, page_size, layer.num_kv_heads, head_dim),
        (layout.page_stride_bytes // itemsize, per_token, head_dim, 1),
        offset_bytes // itemsize,
    )
