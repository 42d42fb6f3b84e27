"""Everything that is wrong with the account of pages, recounted from the sequences, the tree and the free lists.

Whole arrays at a time: a pool of 200,000 pages is recounted in milliseconds (`python -m bench.ledger`). Nothing is
changed here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from playhead.kv.cache import HybridKVCache
from playhead.kv.tables import FULL, NO_PAGE, Int32Array
from playhead.kv.violations import Violation, ViolationKind

Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]


def audit(cache: HybridKVCache) -> list[Violation]:
    """Every violation, each with the page or the row that cannot be trusted."""
    found: list[Violation] = []
    kept = _concatenated(node.pages for node in cache.prefix.nodes())
    for group_index in range(len(cache.allocator.groups)):
        found += GroupAudit(cache, group_index, kept).violations()
    found += _audit_slabs(cache)
    for window_group in range(cache.allocator.num_windows):
        found += _audit_mapping(cache, window_group)
    for group_index in range(len(cache.allocator.groups)):
        found += _audit_rows(cache, group_index)
    num_free, num_running, num_rows = cache.rows.num_free, len(cache.sequences), cache.plan.limits.max_running
    if num_free + num_running != num_rows:
        detail = f"{num_free} rows free, {num_running} sequences, of {num_rows}"
        found.append(Violation(kind=ViolationKind.LEAK, group="rows", page=-1, detail=detail))
    return found


class GroupAudit:
    """The pages of one group: who holds them, from the sequences themselves, and the one state each must be in."""

    def __init__(self, cache: HybridKVCache, group_index: int, kept: Int32Array) -> None:
        self._allocator, self._index = cache.allocator, group_index
        self._group = cache.allocator.groups[group_index]
        self._num_pages = cache.plan.num_pages(group_index)
        sequences = cache.sequences.values()
        if group_index == FULL:
            held = _concatenated(seq.pages for seq in sequences)
        else:
            window_of = cache.allocator.mapping.table(group_index - 1)
            held = window_of[_concatenated(seq.pages[seq.frontiers[group_index - 1] :] for seq in sequences)]
            kept = window_of[kept]
            kept = kept[kept != NO_PAGE]
        self._held = self._count(held)
        self._kept = self._count(kept)
        self._pending = self._count(list(cache.allocator.pending_pages(group_index)))

    def violations(self) -> list[Violation]:
        return [*self._wrong_counts(), *self._wrong_states()]

    def _wrong_counts(self) -> Iterator[Violation]:
        counted = self._allocator.holder_counts(self._index)
        for page in np.flatnonzero(counted != self._held).tolist():
            detail = f"counted {counted[page]} holders, {self._held[page]} sequences hold it"
            yield self._wrong(ViolationKind.WRONG_COUNT, page, detail)
        if self._index == FULL:  # with its last holder gone, a page of the tree that is not retained would be freed
            retained, in_tree = self._allocator.retained_mask(), self._kept > 0
            detail = "retained, but not in the tree"
            yield from self._all_wrong(ViolationKind.WRONG_COUNT, np.flatnonzero(retained > in_tree), detail)
            detail = "in the tree, but not retained"
            yield from self._all_wrong(ViolationKind.WRONG_COUNT, np.flatnonzero(in_tree > retained), detail)
        wanted = (
            ("held", self._allocator.num_held, int(np.count_nonzero(self._held))),
            ("cached", self._allocator.num_cached, int(np.count_nonzero((self._kept > 0) > (self._held > 0)))),
            ("pending", self._allocator.num_pending, int(np.count_nonzero(self._pending))),
        )
        for state, counts, found in wanted:
            if counts[self._index] != found:
                yield self._wrong(ViolationKind.WRONG_COUNT, -1, f"counted {counts[self._index]} {state}, {found} are")

    def _wrong_states(self) -> Iterator[Violation]:
        """Every page of the group's slabs in exactly one state."""
        group, taken = self._group, self._group.taken_mask()
        in_use, pending = (self._held > 0) | (self._kept > 0), self._pending > 0
        free = np.array(list(group.free_pages()), dtype=np.int64)
        states: tuple[tuple[Mask, str], ...] = (
            ((in_use | pending) > taken, "in use and free"),  # of masks: in the first and not in the second
            (in_use & pending, "in use and given up"),
            (self._kept > 1, "twice in the tree"),
            (self._pending > 1, "given up twice"),
        )
        for mask, detail in states:
            yield from self._all_wrong(ViolationKind.TWO_STATES, np.flatnonzero(mask), detail)
        if in_use[NO_PAGE]:
            yield self._wrong(ViolationKind.TWO_STATES, NO_PAGE, "the sink is in use")
        yield from self._all_wrong(ViolationKind.TWO_STATES, free[taken[free]], "taken and listed as free")
        lost = taken > (in_use | pending)
        lost[list(group.quarantined_pages())] = False
        yield from self._all_wrong(ViolationKind.LEAK, np.flatnonzero(lost), "taken, but in no other state")
        num_taken = int(np.count_nonzero(taken))
        if num_taken + group.num_free != group.num_pages or group.num_free != len(free):
            detail = f"{num_taken} taken, {group.num_free} free, {len(free)} listed, of {group.num_pages}"
            yield self._wrong(ViolationKind.LEAK, -1, detail)

    def _count(self, pages: Int32Array | list[int]) -> Counts:
        """How often each page is named."""
        return np.bincount(np.asarray(pages, dtype=np.int64), minlength=self._num_pages)

    def _all_wrong(self, kind: ViolationKind, pages: Counts, detail: str) -> Iterator[Violation]:
        for page in pages.tolist():
            yield self._wrong(kind, page, detail)

    def _wrong(self, kind: ViolationKind, page: int, detail: str) -> Violation:
        return Violation(kind=kind, group=self._group.name, page=page, detail=detail)


def _audit_slabs(cache: HybridKVCache) -> list[Violation]:
    """Every slab of the shared arena free or lent, and to one group; pages in quarantine aside."""
    allocator, layouts = cache.allocator, cache.plan.layout.groups
    num_owners = np.zeros(cache.plan.num_slabs, dtype=np.int8)
    is_lent = np.zeros(cache.plan.num_slabs, dtype=np.bool_)
    for group, layout in zip(allocator.groups, layouts, strict=True):
        if layout.has_bytes:
            is_there = group.taken_mask().copy()
            is_there[list(group.free_pages())] = True
            is_lent |= is_there.reshape(-1, layout.pages_per_slab).any(axis=1)
            is_there[list(group.quarantined_pages())] = False
            num_owners += is_there.reshape(-1, layout.pages_per_slab).any(axis=1)
    free_slabs = allocator.arena.free_slabs()
    num_states = is_lent + np.bincount(free_slabs, minlength=len(is_lent))
    num_states[NO_PAGE] += 1  # the sinks' slab belongs to no group
    found = []
    if (num_states != 1).any():
        slab = int(np.flatnonzero(num_states != 1)[0])
        detail = f"{len(free_slabs)} slabs free, {int(is_lent.sum())} lent, of {len(is_lent)}; wrong from {slab} on"
        found.append(Violation(kind=ViolationKind.LEAK, group="arena", page=-1, detail=detail))
    for slab in np.flatnonzero(num_owners > 1).tolist():
        for group, layout in zip(allocator.groups, layouts, strict=True):
            if layout.has_bytes:
                first = slab * layout.pages_per_slab
                for page in first + np.flatnonzero(group.taken_mask()[first : first + layout.pages_per_slab]):
                    detail = f"slab {slab} is lent to two groups"
                    found.append(
                        Violation(kind=ViolationKind.TWO_STATES, group=group.name, page=int(page), detail=detail)
                    )
    return found


def _audit_mapping(cache: HybridKVCache, window_group: int) -> list[Violation]:
    """One-to-one, and a window page lies under a full page exactly while both are held or retained."""
    allocator = cache.allocator
    window_of, full_of = allocator.mapping.table(window_group), allocator.mapping.full_table(window_group)
    full_name, name = allocator.groups[FULL].name, allocator.groups[window_group + 1].name
    is_idle = np.zeros(len(window_of), dtype=np.bool_)
    is_idle[list(cache.prefix.idle_windows(window_group))] = True
    found: list[Violation] = []

    def wrong(full_pages: Iterable[int], detail: str) -> None:
        """Neither the full page nor what lies under it can be trusted."""
        for full_page in full_pages:
            under = int(window_of[full_page])
            said = f"full page {full_page}, window page {under}: {detail}"
            found.append(Violation(kind=ViolationKind.BAD_MAPPING, group=name, page=under or -1, detail=said))
            found.append(Violation(kind=ViolationKind.BAD_MAPPING, group=full_name, page=full_page, detail=said))

    mapped = np.flatnonzero(window_of)
    is_held = allocator.holder_counts(window_group + 1)[window_of[mapped]] > 0
    is_retained = allocator.retained_mask()[mapped]
    wrong(np.flatnonzero(is_idle & (window_of == NO_PAGE)).tolist(), "listed as cached, but nothing is there")
    wrong(mapped[full_of[window_of[mapped]] != mapped].tolist(), "the mapping back names another page")
    wrong(mapped[is_held & is_idle[mapped]].tolist(), "held and listed as cached")
    wrong(mapped[~is_held & ~is_idle[mapped]].tolist(), "kept by nobody")
    wrong(mapped[~is_held & ~is_retained].tolist(), "kept under a page that is not retained")
    back = np.flatnonzero(full_of)
    for page in back[window_of[full_of[back]] != back].tolist():
        detail = f"said to lie under full page {int(full_of[page])}, which has another"
        found.append(Violation(kind=ViolationKind.BAD_MAPPING, group=name, page=page, detail=detail))
    return found


def _audit_rows(cache: HybridKVCache, group_index: int) -> list[Violation]:
    """A row shows its sequence's pages, window pages from the frontier on, and the sink everywhere else.

    A step may have written a page that a row shows wrongly, so each such page is a violation too.
    """
    table, name = cache.rows.tables[group_index], cache.allocator.groups[group_index].name
    # Beyond the longest row in use everything must be empty: that is most of the table, and one look at all of it.
    width = max((len(seq.pages) for seq in cache.sequences.values()), default=0)
    if table[:, width:].any():
        width = table.shape[1]
    table = table[:, :width]
    wanted = np.zeros_like(table)
    for seq in cache.sequences.values():
        pages = np.frombuffer(seq.pages, dtype=np.int32)
        if group_index == FULL:
            wanted[seq.row, : len(pages)] = pages
        else:
            first = seq.frontiers[group_index - 1]
            wanted[seq.row, first : len(pages)] = cache.allocator.mapping.table(group_index - 1)[pages[first:]]
    found = []
    for row in np.flatnonzero((table != wanted).any(axis=1)).tolist():
        places = np.flatnonzero(table[row] != wanted[row])
        shown = table[row, places].tolist()
        detail = f"row {row} shows {shown} at {places.tolist()}, its sequence has {wanted[row, places].tolist()}"
        found += [
            Violation(kind=ViolationKind.BAD_ROW, group=name, page=page or -1, row=row, detail=detail)
            for page in dict.fromkeys(shown)
        ]
    return found


def _concatenated(runs: Iterable[array[int]]) -> Int32Array:
    arrays = [np.frombuffer(run, dtype=np.int32) for run in runs if run]
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int32)


def report(cache: HybridKVCache) -> str:
    """The account as a table, one line per group, and what was ever found wrong."""
    allocator = cache.allocator
    head = f"{'group':<12}{'pages':>10}{'free':>10}{'pending':>10}{'held':>10}{'cached':>10}{'quarantined':>13}"
    lines = [head]
    for index, group in enumerate(allocator.groups):
        lines.append(
            f"{group.name:<12}{group.num_pages:>10}{group.num_free:>10}{allocator.num_pending[index]:>10}"
            f"{allocator.num_held[index]:>10}{allocator.num_cached[index]:>10}{group.num_quarantined:>13}"
        )
    lines.append(
        f"{allocator.arena.num_free} of {allocator.arena.num_slabs} slabs free, {len(cache.sequences)} sequences"
    )
    for kind, count in cache.violations.num_by_kind.items():
        last = next(one for one in reversed(cache.violations.kept) if one.kind is kind)
        lines.append(f"{count} x {kind.value}; the last: {last}")
    return "\n".join(lines)
