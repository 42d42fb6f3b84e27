"""How the pages of all groups tile one byte arena.

No fixed split between full and window pages suits both short and long contexts, so groups share the arena. It is cut
into slabs, each of which belongs to one group at a time; a slab is the smallest run of bytes that the pages of every
group tile. Page `i` of a group starts at byte `i * page_stride_bytes`, whichever group owns its slab, so the
addresses captured graphs read never move.

    slab        |            0 (sink)           |             1                 |  ...
    full pages  |  0  |  1  |  2  |  3  |  4    |  5  |  6  |  7  |  8  |  9    |
    window pages|               0               |               1               |
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from playhead.kv.geometry import KVGeometry, KVGroup

LAYER_ALIGN_BYTES = 16
"""Vector loads of 16 bytes must not straddle layers."""

MAX_LARGEST_PAGES_PER_SLAB = 8
"""A slab of more pages than this would strand memory in half-used slabs; pages are padded instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOffsets:
    """Where one layer's keys and values start inside a page, in bytes."""

    k_bytes: int
    v_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLayout:
    """A group's pages in the arena. A group without layers takes no bytes and has no slabs there."""

    group: KVGroup
    pages_per_slab: int
    page_stride_bytes: int
    layers: tuple[LayerOffsets, ...]

    @property
    def has_bytes(self) -> bool:
        return bool(self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaLayout:
    """The slab and each group's pages in it. `groups` is in the order of `KVGeometry.groups`."""

    slab_bytes: int
    groups: tuple[GroupLayout, ...]


def lay_out(geometry: KVGeometry) -> ArenaLayout:
    """The slab of this geometry.

    Gemma-3-12B has 8 full and 40 window layers of one shape, so a slab is 5 full pages or 1 window page, without
    padding.
    """
    offsets = [_layer_offsets(group, geometry.page_size) for group in geometry.groups]
    page_bytes = [size for _, size in offsets]
    slab_bytes, counts = _slab([size for size in page_bytes if size])
    count_of = iter(counts)
    groups = []
    for group, (layers, size) in zip(geometry.groups, offsets, strict=True):
        count = next(count_of) if size else 1
        stride = slab_bytes // count if size else 0
        groups.append(GroupLayout(group=group, pages_per_slab=count, page_stride_bytes=stride, layers=layers))
    return ArenaLayout(slab_bytes=slab_bytes, groups=tuple(groups))


def _layer_offsets(group: KVGroup, page_size: int) -> tuple[tuple[LayerOffsets, ...], int]:
    """Where every layer lies in the group's page, and the page's bytes. A layer's keys come first, then its values."""
    position = 0
    offsets = []
    for layer in group.layers:
        k_bytes = position
        v_bytes = _aligned(k_bytes + page_size * layer.k_bytes_per_token)
        position = _aligned(v_bytes + page_size * layer.v_bytes_per_token)
        offsets.append(LayerOffsets(k_bytes=k_bytes, v_bytes=v_bytes))
    return tuple(offsets), position


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // LAYER_ALIGN_BYTES) * LAYER_ALIGN_BYTES


def _slab(page_bytes: list[int]) -> tuple[int, list[int]]:
    """Slab bytes and pages per slab of each group: exact where a small slab can be, else with the least padding.

    Pages of 64 and 352 KiB (Gemma-3-1B, page size 16) meet in a slab of 704 KiB: 11 or 2 of them.
    """
    largest = max(page_bytes)
    exact = math.lcm(*page_bytes)
    if exact <= MAX_LARGEST_PAGES_PER_SLAB * largest:
        return exact, [exact // size for size in page_bytes]
    candidates = []
    for num_largest in range(1, MAX_LARGEST_PAGES_PER_SLAB + 1):
        slab = num_largest * largest
        counts = [_most_pages(slab, size) for size in page_bytes]
        padding = max(1 - count * size / slab for count, size in zip(counts, page_bytes, strict=True))
        candidates.append((padding, slab, counts))
    _, slab, counts = min(candidates)
    return slab, counts


def _most_pages(slab_bytes: int, page_bytes: int) -> int:
    """The most pages of at least this size that divide the slab into aligned strides."""
    for count in range(slab_bytes // page_bytes, 1, -1):
        if slab_bytes % (count * LAYER_ALIGN_BYTES) == 0:
            return count
    return 1
