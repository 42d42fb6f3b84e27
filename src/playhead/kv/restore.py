"""The account of pages, counted again from the sequences after a change was cut short or a violation was found.

What is trusted: which full pages each sequence has, and which window pages its row shows from its frontier on. All else
follows from that: holders, free lists, slabs, the mapping, free rows. The prefix cache starts empty, because it is
not known which of its pages were written. Pages in quarantine stay there. Only while no step is in flight: what is free
afterwards may be written at once.

Restoring twice gives the same, so a restoration that is cut short itself is simply done again.
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING

from playhead.kv.geometry import window_frontier
from playhead.kv.tables import FULL

if TYPE_CHECKING:
    from playhead.kv.cache import HybridKVCache
from playhead.kv.sequence import SequenceKV


def restore(cache: HybridKVCache) -> None:
    """Count everything again. A sequence that cannot have all the pages its next token sees is dropped."""
    recount = Recount(cache)
    for name, seq in list(cache.sequences.items()):
        if not recount.add(seq):
            del cache.sequences[name]
    cache.allocator.restore(recount.holders, recount.window_of)
    cache.prefix.restore()
    cache.rows.restore([seq.row for seq in cache.sequences.values()])
    for seq in cache.sequences.values():
        seq.offered_key, seq.is_offered, seq.slides_at = b"", False, 0
        for group_index, pages in enumerate(recount.pages_of(seq)):
            first = 0 if group_index == FULL else seq.frontiers[group_index - 1]
            # Live entries stay while the rest is cleared: cut short here, the next restoration still finds them.
            cache.rows.clear(group_index, seq.row, 0, first)
            cache.rows.clear(group_index, seq.row, first + len(pages), None)
            cache.rows.write(group_index, seq.row, first, pages)
    cache.rows.show_all()


class Recount:
    """Holders of every group's pages, and the window page under each full page, from one sequence after the other."""

    def __init__(self, cache: HybridKVCache) -> None:
        self._cache = cache
        num_windows = cache.allocator.num_windows
        self.holders: list[Counter[int]] = [Counter() for _ in range(1 + num_windows)]
        self.window_of: list[dict[int, int]] = [{} for _ in range(num_windows)]
        self._full_of: list[dict[int, int]] = [{} for _ in range(num_windows)]
        self._group_of_slab: dict[int, int] = {
            slab: index for index in range(1 + num_windows) for slab in self._slabs(index, self._quarantined(index))
        }

    def add(self, seq: SequenceKV) -> bool:
        """Count a sequence's pages; False, and nothing is counted, if they cannot all be its own.

        Two sequences that share a full page may show different window pages under it, in the middle of an exchange.
        Both have the same contents, and the one that was counted first stays.
        """
        added = [self._add_pairs(seq, window_group) for window_group in range(len(seq.frontiers))]
        under = zip(seq.frontiers, self.window_of, strict=True)
        is_whole = all(page in window_of for frontier, window_of in under for page in seq.pages[frontier:])
        if not is_whole or not all(self._can_have(index, each) for index, each in enumerate(self.pages_of(seq))):
            for window_group, full_pages in enumerate(added):
                for full in full_pages:
                    del self._full_of[window_group][self.window_of[window_group].pop(full)]
            return False
        for index, each in enumerate(self.pages_of(seq)):
            self.holders[index].update(each)
            self._group_of_slab.update(dict.fromkeys(self._slabs(index, each), index))
        return True

    def _add_pairs(self, seq: SequenceKV, window_group: int) -> list[int]:
        """Note what a sequence's row shows under its live pages; gives the full pages that were not noted before."""
        geometry = self._cache.plan.geometry
        # A slide that was cut short has let go of pages before this frontier. The next token sees none of them.
        frontier = window_frontier(
            seq.num_launched_tokens, geometry.windows[window_group].window or 0, geometry.page_size
        )
        seq.frontiers[window_group] = frontier = max(frontier, seq.frontiers[window_group])
        shown = self._cache.rows.tables[window_group + 1][seq.row, frontier : len(seq.pages)].tolist()
        window_of, full_of = self.window_of[window_group], self._full_of[window_group]
        added = []
        for full, page in zip(seq.pages[frontier:], shown, strict=True):
            if full not in window_of and page not in full_of:
                window_of[full], full_of[page] = page, full
                added.append(full)
        return added

    def pages_of(self, seq: SequenceKV) -> list[array[int]]:
        """A sequence's pages by group; in window groups those from its frontier on."""
        windows = (
            array("i", [self.window_of[window_group][page] for page in seq.pages[frontier:]])
            for window_group, frontier in enumerate(seq.frontiers)
        )
        return [seq.pages, *windows]

    def _can_have(self, index: int, pages: array[int]) -> bool:
        """Whether these are pages at all, none in quarantine, none in a slab of another group."""
        if not all(0 < page < self._cache.plan.num_pages(index) for page in pages):
            return False
        known = self._group_of_slab
        return not self._quarantined(index).intersection(pages) and all(
            known.get(slab, index) == index for slab in self._slabs(index, pages)
        )

    def _quarantined(self, index: int) -> set[int]:
        return set(self._cache.allocator.groups[index].quarantined_pages())

    def _slabs(self, index: int, pages: array[int] | set[int]) -> set[int]:
        """Slabs of the shared arena that these pages lie in."""
        layout = self._cache.plan.layout.groups[index]
        return {page // layout.pages_per_slab for page in pages} if layout.has_bytes else set()
