"""Tensors of the KV arena: one byte tensor, seen by each layer as pages of keys and of values.

A layer's keys are `[page, offset in page, kv head, k head dim]`, strided through the arena: page `i` of a group
starts at `i * page_stride_bytes`, so a kernel must compute offsets in 64 bits. The views are made once and their
addresses never change.

Shapes: T tokens of a forward, R rows of the page table, P pages per row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from playhead.errors import ConfigError
from playhead.kv.device_tables import DeviceWrite
from playhead.kv.geometry import KVDtype, LayerKV
from playhead.kv.layout import GroupLayout
from playhead.kv.plan import KVPlan
from playhead.kv.tables import WindowMapping

ARENA_ALIGNMENT = 64  # bytes, as torch aligns its own memory

TORCH_DTYPES: Mapping[KVDtype, torch.dtype] = {
    KVDtype.FLOAT32: torch.float32,
    KVDtype.BFLOAT16: torch.bfloat16,
    KVDtype.FLOAT16: torch.float16,
    KVDtype.FLOAT8_E4M3: torch.float8_e4m3fn,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardTokens:
    """The tokens of one forward in full space, all int32: all that a pool needs to know of a forward.

    Token i stands at `positions_T[i]` of the request in row `rows_T[i]` of the page table, and is written to
    `full_locs_T[i]`. The tokens of a request are next to each other; padding is row 0, position 0, location 0.
    """

    page_table_RP: torch.Tensor
    full_locs_T: torch.Tensor
    rows_T: torch.Tensor
    positions_T: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupLocs:
    """One group's own page table, by the rows of the full one, and the locations of the forward's new tokens in it.

    A window group's table holds the pages that this forward's queries see. Its other entries are leftovers.
    """

    table_RP: torch.Tensor
    new_locs_T: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardLocs:
    """Where one forward's tokens are in every group, translated once and handed to every layer.

    It lives as long as the forward. `version` is the mapping's at that time; a pool refuses it after any change.
    """

    groups: tuple[GroupLocs, ...]
    version: int


class GroupKVPool:
    """Keys and values of one group's layers, by the group's own locations."""

    def __init__(self, *, arena: torch.Tensor, layout: GroupLayout, num_pages: int, page_size: int) -> None:
        self._page_size = page_size
        self._layers = tuple(
            (
                _layer_view(arena, layer, layer.k_head_dim, offsets.k_bytes, layout, num_pages, page_size),
                _layer_view(arena, layer, layer.v_head_dim, offsets.v_bytes, layout, num_pages, page_size),
            )
            for layer, offsets in zip(layout.group.layers, layout.layers, strict=True)
        )

    def set_kv_buffer(self, index: int, locs_T: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write one row of `k` and `v` per location into the group's layer `index`. -1 writes to the sink.

        With page size 16, location 50 is page 3, offset 2.
        """
        k_pages, v_pages = self._layers[index]
        # Without the clamp, -1 would be offset 15 of the last page, where a request may have a token.
        writable_T = locs_T.clamp_min(0)
        page_T, offset_T = writable_T // self._page_size, writable_T % self._page_size
        k_pages[page_T, offset_T] = k
        v_pages[page_T, offset_T] = v

    def get_kv_buffer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All pages of the group's layer `index`: keys and values."""
        return self._layers[index]


class MHAKVPool:
    """KV of a model whose layers are all full. It answers `SWAKVPool`'s calls without translating anything."""

    full_to_swa_index_mapping: None = None
    device_mappings: tuple[torch.Tensor, ...] = ()
    workspaces: tuple[torch.Tensor, ...] = ()

    def __init__(self, plan: KVPlan, *, device: torch.device) -> None:
        self.device = device
        self.layers_mapping, self.num_sink_pages = plan.geometry.layers_mapping, plan.num_sink_pages
        self._pool = GroupKVPool(
            arena=new_arena(plan, device),
            layout=plan.layout.groups[0],
            num_pages=plan.num_pages(0),
            page_size=plan.geometry.page_size,
        )

    def forward_locs(self, page_table_RP: torch.Tensor, full_locs_T: torch.Tensor) -> ForwardLocs:
        """The page table and the locations themselves."""
        return ForwardLocs(groups=(GroupLocs(table_RP=page_table_RP, new_locs_T=full_locs_T),), version=0)

    def begin_forward(self, tokens: ForwardTokens, *, is_launched: bool = False) -> ForwardLocs:
        """The same: no work."""
        return self.forward_locs(tokens.page_table_RP, tokens.full_locs_T)

    def set_kv_buffer(self, layer: int, locs: ForwardLocs | torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write one row of `k` and `v` per new token into a layer."""
        self._pool.set_kv_buffer(layer, locs.groups[0].new_locs_T if isinstance(locs, ForwardLocs) else locs, k, v)

    def get_kv_buffer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All pages of a layer: keys and values."""
        return self._pool.get_kv_buffer(layer)

    def translate_loc_from_full_to_swa(self, full_locs: torch.Tensor, window_group: int = 0) -> torch.Tensor:
        """The same locations: there is no other space."""
        return full_locs

    def invalidate_loc_cache(self) -> None:
        """Nothing: no translation is kept."""

    def set_full_to_swa_mapping(
        self, full_pages: Sequence[int], window_pages: Sequence[int], window_group: int = 0
    ) -> None:
        """Nothing: there is no mapping."""

    def clear(self) -> None:
        """Nothing, for the same reason."""

    def publish(self, mapping: WindowMapping) -> None:
        """Nothing reaches the device: a mapping without window groups never changes."""
        mapping.take_unpublished()

    def take_writes(self, mapping: WindowMapping) -> list[DeviceWrite]:
        """None, for the same reason."""
        mapping.take_unpublished()
        return []


def new_arena(plan: KVPlan, device: torch.device) -> torch.Tensor:
    """The bytes of all groups. Zeroed: what a padded row reads from the sink must be finite.

    A CPU's arena takes no memory until it is written: the system hands out pages of zeros one by one, so gigabytes cost
    no time at start.
    """
    if device.type != "cpu":
        return torch.zeros(plan.arena_bytes, dtype=torch.uint8, device=device)
    try:
        raw = np.zeros(plan.arena_bytes + ARENA_ALIGNMENT, dtype=np.uint8)
    except MemoryError:
        raise ConfigError(
            f"kv_memory_bytes: the system refused {plan.arena_bytes} bytes. Lower kv_memory_bytes or max_model_len."
        ) from None
    start = -raw.ctypes.data % ARENA_ALIGNMENT
    return torch.from_numpy(raw[start : start + plan.arena_bytes])


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
