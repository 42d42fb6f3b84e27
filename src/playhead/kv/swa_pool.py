"""`SWAKVPool`: KV of models with sliding windows. It owns the translation; callers hand it full locations only.

Translation is one op per window group and forward, `playhead::translate`: from a mapping whose address never changes
into workspaces whose addresses never change. A captured graph holds the op and repeats it at every replay. Nothing is
remembered between forwards: no memo can be stale, a warm-up run leaves nothing behind, and views of one storage cannot
be taken for each other.

Shapes: T tokens of a forward, A entries of a workspace, R rows of the page table, P pages per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from playhead.errors import ConfigError, StaleTranslation
from playhead.kernels.translate import translate
from playhead.kv.device_tables import DeviceTables, DeviceWrite
from playhead.kv.plan import KVPlan
from playhead.kv.pool import (
    ForwardLocs,
    ForwardTokens,
    GroupKVPool,
    GroupLocs,
    MHAKVPool,
    new_arena,
)
from playhead.kv.tables import NO_PAGE, Int32Array, WindowMapping


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowSpace:
    """One window group on the device, all int32: its mapping, and the workspaces that a forward's translation fills.

    The mapping has an entry per full location. The table has the shape of the page table of full pages.
    """

    window: int
    mapping_L: torch.Tensor
    locs_A: torch.Tensor
    table_RP: torch.Tensor


class SWAKVPool:
    """One arena, a pool per group, and for each window group the mapping from full to window locations.

    `layers_mapping[layer]` is (index in its group, group index); group 0 is the full one. `mapping` is the host's
    side, with the one writer; `publish` brings its changes to the device. `device_mappings` are what translation reads
    and `workspaces` what it writes: two forwards must not run at the same time on them; those of one stream never do.
    """

    def __init__(
        self, plan: KVPlan, mapping: WindowMapping, *, device: torch.device, tables: DeviceTables | None = None
    ) -> None:
        if not plan.geometry.windows:
            raise ConfigError(
                "SWAKVPool: found a model without window layers; wanted at least one window group. Use create_kv_pool"
            )
        self.mapping = mapping
        self.layers_mapping, self.num_sink_pages = plan.geometry.layers_mapping, plan.num_sink_pages
        self._page_size = plan.geometry.page_size
        self.device = device
        arena = new_arena(plan, device)
        self._pools = tuple(
            GroupKVPool(arena=arena, layout=layout, num_pages=plan.num_pages(index), page_size=self._page_size)
            for index, layout in enumerate(plan.layout.groups)
        )
        limits = plan.limits
        # A step that mixes one chunk with decoding requests has a token of each of them besides.
        self._max_tokens = limits.chunk_tokens + limits.max_running
        self._tables = tables or DeviceTables(plan, device)
        self.device_mappings = self._tables.mappings
        self._windows = tuple(
            WindowSpace(
                window=group.window or 0,
                mapping_L=mapping_L,
                locs_A=torch.zeros(self._max_tokens, dtype=torch.int32, device=device),
                table_RP=torch.zeros_like(self._tables.table_RP),
            )
            for group, mapping_L in zip(plan.geometry.windows, self.device_mappings, strict=True)
        )
        self.workspaces = tuple(tensor for space in self._windows for tensor in (space.locs_A, space.table_RP))
        self._offsets = np.arange(self._page_size, dtype=np.int32)
        self._begin_mappings()

    @property
    def full_to_swa_index_mapping(self) -> torch.Tensor:
        """Window location of every full location in the first window group: int32, 0 -> 0, and -1 -> -1 at the end."""
        return self.device_mappings[0]

    def _begin_mappings(self) -> None:
        """The pairs that the mapping has already; and a last entry of -1, which index -1 reads."""
        for index, (start, mapping_L) in enumerate(zip(self._tables.mapping_starts, self.device_mappings, strict=True)):
            table = self.mapping.table(index)
            mapped = np.flatnonzero(table != NO_PAGE)
            self._write(self._expanded(start, np.stack((mapped.astype(np.int32), table[mapped]), axis=1)))
            mapping_L[-1] = -1
        self.mapping.take_unpublished()

    # Translation.

    def begin_forward(self, tokens: ForwardTokens, *, is_launched: bool = False) -> ForwardLocs:
        """Translate what this forward's window layers need: one op per window group, however many layers.

        The result is for this forward only. Inside a captured graph the ops are captured, so a replay translates anew.
        `is_launched` says that the forward belongs to a launched step: the launch has already refused an unpublished
        mapping, and changes since then are for later steps.
        """
        if not is_launched:
            self.mapping.require_published("begin_forward")
        forward = self.forward_locs(tokens.page_table_RP, tokens.full_locs_T)
        for space in self._windows:
            translate(
                space.locs_A,
                space.table_RP,
                space.mapping_L,
                tokens.page_table_RP,
                tokens.full_locs_T,
                tokens.rows_T,
                tokens.positions_T,
                self._page_size,
                space.window,
            )
        return forward

    def forward_locs(self, page_table_RP: torch.Tensor, full_locs_T: torch.Tensor) -> ForwardLocs:
        """Where `begin_forward` puts its results: fixed addresses, by which work between captured segments finds them.

        Nothing is translated here.
        """
        num_tokens = full_locs_T.shape[0]
        if num_tokens > self._max_tokens or page_table_RP.shape != self._windows[0].table_RP.shape:
            raise ConfigError(
                f"begin_forward: {num_tokens} tokens over a page table of {tuple(page_table_RP.shape)}; wanted at most "
                f"{self._max_tokens} tokens and {tuple(self._windows[0].table_RP.shape)}, the limits of the plan"
            )
        groups = [GroupLocs(table_RP=page_table_RP, new_locs_T=full_locs_T)]
        groups += [GroupLocs(table_RP=space.table_RP, new_locs_T=space.locs_A[:num_tokens]) for space in self._windows]
        return ForwardLocs(groups=tuple(groups), version=self.mapping.version)

    def translate_loc_from_full_to_swa(self, full_locs: torch.Tensor, window_group: int = 0) -> torch.Tensor:
        """Window locations (int32) of full ones: a plain gather. -1 gives -1, an expired location the sink."""
        self.mapping.require_published("translate_loc_from_full_to_swa")
        return self.device_mappings[window_group][full_locs]

    def invalidate_loc_cache(self) -> None:
        """Nothing: no translation outlives its forward."""

    # Keys and values.

    def set_kv_buffer(self, layer: int, locs: ForwardLocs | torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write one row of `k` and `v` per new token into a layer.

        `locs` is `begin_forward`'s result, or plain full locations, which are translated for this call alone. The
        layers of the engine write the same places by `playhead::qk_rope_write`, which also rotates the keys.
        """
        index, group_index = self.layers_mapping[layer]
        if isinstance(locs, ForwardLocs):
            if locs.version != self.mapping.version:
                raise StaleTranslation(
                    "set_kv_buffer", locs.version, self.mapping.version, "Call begin_forward again after a change"
                )
            locs_T = locs.groups[group_index].new_locs_T
        else:
            locs_T = self.translate_loc_from_full_to_swa(locs, group_index - 1) if group_index else locs
        self._pools[group_index].set_kv_buffer(index, locs_T, k, v)

    def get_kv_buffer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All pages of a layer, by its own group's page numbers: keys and values."""
        index, group_index = self.layers_mapping[layer]
        return self._pools[group_index].get_kv_buffer(index)

    # The mapping.

    def publish(self, mapping: WindowMapping) -> None:
        """Bring the mapping's changes to the device, ordered before what is launched next on this stream."""
        for write in self.take_writes(mapping):
            self._write(write)

    def _write(self, write: DeviceWrite) -> None:
        places, values = (torch.from_numpy(numbers).to(self.device) for numbers in write)
        self._tables.memory_L.index_copy_(0, places, values)

    def take_writes(self, mapping: WindowMapping) -> list[DeviceWrite]:
        """The changes since the last call, for a caller that brings them to the device itself; now published."""
        assert mapping is self.mapping, "a pool has one mapping for life: captured graphs read its tensor"
        return [
            self._expanded(start, changes)
            for start, changes in zip(self._tables.mapping_starts, mapping.take_unpublished(), strict=True)
            if len(changes)
        ]

    def set_full_to_swa_mapping(
        self, full_pages: Sequence[int], window_pages: Sequence[int], window_group: int = 0
    ) -> None:
        """Map many pages at once, as a cache does that loads KV back; on the device when this returns.

        The caller holds both kinds of pages (`HybridAllocator.attach_windows` takes and maps them in one call). All or
        nothing, one-to-one, and a new version, like every other change of the mapping.
        """
        self.mapping.set(window_group, full_pages, window_pages)
        self.publish(self.mapping)

    def clear(self) -> None:
        """Forget all pairs; on the device when this returns. The caller has given up every window page before."""
        self.mapping.clear()
        self.publish(self.mapping)

    def _expanded(self, start: int, changes: Int32Array) -> DeviceWrite:
        """Changed pages of the mapping that starts there, as locations. Where there is no page the sink's first stands.

        With page size 2, full page 3 over window page 5 is 6 -> 10, 7 -> 11; full page 4 over none is 8 -> 0, 9 -> 0.
        """
        locs_N2S = changes[:, :, None] * np.int32(self._page_size) + self._offsets
        window_locs_NS = locs_N2S[:, 1] * (changes[:, 1:] != NO_PAGE)
        return DeviceWrite(locs_N2S[:, 0].reshape(-1) + np.int64(start), window_locs_NS.reshape(-1))


def create_kv_pool(
    plan: KVPlan, mapping: WindowMapping, *, device: torch.device, tables: DeviceTables | None = None
) -> MHAKVPool | SWAKVPool:
    """The pool a model needs. A mapping, which lies in `tables`, exists only where there are windows."""
    if plan.geometry.windows:
        return SWAKVPool(plan, mapping, device=device, tables=tables)
    return MHAKVPool(plan, device=device)
