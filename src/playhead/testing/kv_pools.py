"""Pools that notice what a plain tensor forgives: reading another's token (K5) and reading freed memory (K8).

`NaNOnReclaim` fills every page with NaN when it becomes free, so a kernel that reads too far poisons its own output.
`ReferenceKVPool` adds a shadow of (request, position, generation) per location and checks it at every read and write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from playhead.kv.cache import HybridKVCache
from playhead.kv.geometry import num_pages_for
from playhead.kv.plan import KVPlan
from playhead.kv.pool import ForwardTokens, MHAKVPool
from playhead.kv.sequence import SequenceKV
from playhead.kv.swa_pool import SWAKVPool, create_kv_pool
from playhead.kv.tables import FULL


def one_request(
    plan: KVPlan, pages: Sequence[int], positions: Sequence[int], *, device: torch.device | str = "cpu"
) -> ForwardTokens:
    """The tokens of a forward over these positions of one request, which has these pages, in row 1 of the table."""
    page_size, limits = plan.geometry.page_size, plan.limits
    table_RP = torch.zeros(1 + limits.max_running, num_pages_for(limits.max_context_tokens, page_size))
    table_RP[1, : len(pages)] = torch.tensor(pages)
    locs = [pages[position // page_size] * page_size + position % page_size for position in positions]

    def int32(values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return ForwardTokens(
        page_table_RP=table_RP.to(device, torch.int32),
        full_locs_T=int32(locs),
        rows_T=int32([1] * len(positions)),
        positions_T=int32(positions),
    )


class OwnershipError(AssertionError):
    """A location was read or written by a request it does not belong to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Who wrote a location, which token it was, and how often its page had been freed before."""

    request: str
    position: int
    generation: int


class NaNOnReclaim:
    """Fills pages with NaN as they become free; set it as the allocator's listener."""

    def __init__(self, cache: HybridKVCache, pool: MHAKVPool | SWAKVPool) -> None:
        self._groups = cache.plan.geometry.groups
        self._pool = pool
        cache.allocator.listener = self

    def on_reclaim(self, group_index: int, pages: Sequence[int]) -> None:
        for layer in self._groups[group_index].layer_ids:
            for tensor in self._pool.get_kv_buffer(layer):
                tensor[list(pages)] = float("nan")


class ReferenceKVPool:
    """A pool for tests: every write is stamped, every read is checked, freed pages are NaN."""

    def __init__(self, cache: HybridKVCache, *, device: str = "cpu") -> None:
        self.pool = create_kv_pool(cache.plan, cache.allocator.mapping, device=torch.device(device))
        self._cache = cache
        self._poison = NaNOnReclaim(cache, self.pool)
        self._stamps: tuple[dict[int, Stamp], ...] = tuple({} for _ in cache.plan.geometry.groups)
        self._generations: tuple[dict[int, int], ...] = tuple({} for _ in cache.plan.geometry.groups)
        cache.allocator.listener = self

    def on_reclaim(self, group_index: int, pages: Sequence[int]) -> None:
        self._poison.on_reclaim(group_index, pages)
        for page in pages:
            self._generations[group_index][page] = self._generation(group_index, page) + 1

    def write(self, seq: SequenceKV, first: int, kv: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Write tokens from `first` on, for each layer its keys and values, as one forward would."""
        num_tokens = next(iter(kv.values()))[0].shape[0]
        self.pool.publish(self._cache.allocator.mapping)
        tokens = one_request(self._cache.plan, seq.pages, range(first, first + num_tokens), device=self.pool.device)
        forward = self.pool.begin_forward(tokens)
        for position in range(first, first + num_tokens):
            for group_index in range(len(self._stamps)):
                self._stamp(seq, group_index, position)
        for layer, (k, v) in kv.items():
            self.pool.set_kv_buffer(layer, forward, k, v)

    def read(self, seq: SequenceKV, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values the next token of this sequence sees in a layer, before its own."""
        group_index = self._group_of(layer)
        window = self._cache.plan.geometry.groups[group_index].window
        first = 0 if window is None else max(0, seq.num_tokens - window + 1)
        locs = [self._checked_loc(seq, group_index, position) for position in range(first, seq.num_tokens)]
        pages, offsets = zip(*(divmod(loc, self._cache.allocator.page_size) for loc in locs), strict=True)
        k, v = self.pool.get_kv_buffer(layer)
        found = k[list(pages), list(offsets)], v[list(pages), list(offsets)]
        if any(bool(tensor.isnan().any()) for tensor in found):
            raise OwnershipError(f"{seq.request}: NaN among the tokens layer {layer} sees: freed or never written")
        return found

    def _stamp(self, seq: SequenceKV, group_index: int, position: int) -> None:
        loc, page = self._loc(seq, group_index, position)
        if self._cache.allocator.num_holders(group_index, page) != 1:
            raise OwnershipError(
                f"{seq.request}: writes token {position} into page {page}, which it does not hold alone"
            )
        generation = self._generation(group_index, page)
        self._stamps[group_index][loc] = Stamp(request=seq.request, position=position, generation=generation)

    def _checked_loc(self, seq: SequenceKV, group_index: int, position: int) -> int:
        loc, page = self._loc(seq, group_index, position)
        stamp = self._stamps[group_index].get(loc)
        full_page = seq.pages[position // self._cache.allocator.page_size]
        is_shared = self._cache.allocator.is_retained(full_page)
        if (
            stamp is None
            or stamp.position != position
            or stamp.generation != self._generation(group_index, page)
            or (stamp.request != seq.request and not is_shared)
        ):
            raise OwnershipError(
                f"{seq.request}: token {position} in group {group_index} would be read from loc {loc}, "
                f"which holds {stamp}"
            )
        return loc

    def _loc(self, seq: SequenceKV, group_index: int, position: int) -> tuple[int, int]:
        full_loc = self._cache.full_loc(seq, position)
        loc = full_loc if group_index == FULL else self._cache.allocator.mapping.window_loc(group_index - 1, full_loc)
        if loc == 0:
            raise OwnershipError(f"{seq.request}: token {position} has no place in group {group_index}")
        return loc, loc // self._cache.allocator.page_size

    def _generation(self, group_index: int, page: int) -> int:
        return self._generations[group_index].get(page, 0)

    def _group_of(self, layer: int) -> int:
        groups = self._cache.plan.geometry.groups
        return next(index for index, group in enumerate(groups) if layer in group.layer_ids)
