"""The allocator over all groups: who holds each full page and each window page under it, and when it can be reused.

A page is in one of four states. Free: in its group's allocator. Pending: given up, but a launched step may still
touch it. Held: at least one sequence counts on it. Cached: retained by the prefix cache, without a holder. A window
page hangs under a full page (`WindowMapping`) and has holders of its own, because sequences let windows go long
before they let contexts go.

Functions take full pages everywhere; window pages are found through the mapping, whose one writer this class is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from playhead.errors import LedgerError, OutOfPages
from playhead.kv.allocator import PageAllocator, SlabArena, is_each_once
from playhead.kv.numbers import zeros_int32, zeros_int64
from playhead.kv.plan import KVPlan
from playhead.kv.tables import FULL, NO_PAGE, Int32Array, WindowMapping
from playhead.kv.violations import Violation, ViolationKind, ViolationLog
from playhead.types import Step


class ReclaimListener(Protocol):
    """Told when pages become free for good: a pool under test fills them with NaN."""

    def on_reclaim(self, group_index: int, pages: Sequence[int]) -> None: ...


class HybridAllocator:
    """Pages of every group, all or nothing, with holders and deferred reuse."""

    def __init__(self, plan: KVPlan, violations: ViolationLog) -> None:
        self.plan = plan
        self._violations = violations
        self.page_size = plan.geometry.page_size
        self.num_windows = len(plan.geometry.windows)
        self.arena = SlabArena(plan.num_slabs)
        self.groups = tuple(
            PageAllocator(
                name=layout.group.name,
                # A full group without layers has ids but no bytes, so its slabs are its own.
                arena=self.arena if layout.has_bytes else SlabArena(plan.num_pages(index)),
                pages_per_slab=layout.pages_per_slab,
                violations=violations,
            )
            for index, layout in enumerate(plan.layout.groups)
        )
        num_pages = [plan.num_pages(index) for index in range(len(self.groups))]
        self.mapping = WindowMapping(
            num_full_pages=num_pages[FULL], num_window_pages=num_pages[1:], page_size=self.page_size
        )
        self.launched_step = Step(0)
        self.retired_step = Step(0)
        self.listener: ReclaimListener | None = None
        self.num_held = [0] * len(self.groups)
        self.num_cached = [0] * len(self.groups)
        self.num_pending = [0] * len(self.groups)
        # Not a byte: a popular system prompt has more than 255 holders.
        self._holders = tuple(zeros_int32(count) for count in num_pages)
        self._last_step = tuple(zeros_int64(count) for count in num_pages)
        self._is_retained = bytearray(num_pages[FULL])
        self._pending: deque[tuple[Step, int, Sequence[int]]] = deque()

    # Steps: a page given up now may still be read by what was launched before.

    def launch(self) -> Step:
        """The number of the step that is launched now. Everything it reads must be on the device."""
        self.mapping.require_published("launch", pairs_only=True)
        self.launched_step = Step(self.launched_step + 1)
        return self.launched_step

    def retire(self, step: Step) -> None:
        """This step and all before it are done: pages given up while they ran can be reused."""
        if not self.retired_step <= step <= self.launched_step:
            raise LedgerError(
                f"retire: found step {step}; wanted one from {self.retired_step} to {self.launched_step}. "
                "Retire steps in the order in which they were launched"
            )
        self.retired_step = step
        while self._pending and self._pending[0][0] <= step:
            _, group_index, pages = self._pending.popleft()
            self.num_pending[group_index] -= len(pages)
            self._reclaim(group_index, pages)

    # Taking pages.

    def allocate(self, num_pages: int) -> list[int]:
        """Full pages with a window page under each in every window group, held once; or `OutOfPages` and no change."""
        taken: list[list[int]] = []
        try:
            for group in self.groups:
                taken.append(group.take(num_pages))
        except OutOfPages:
            for group, pages in zip(self.groups, taken, strict=False):
                group.give_back(pages)
            raise
        full_pages = taken[FULL]
        for group_index, pages in enumerate(taken):
            holders = self._holders[group_index]
            for page in pages:
                holders[page] = 1
            self.num_held[group_index] += num_pages
        for window_group in range(self.num_windows):
            self.mapping.set(window_group, full_pages, taken[window_group + 1])
        return full_pages

    def attach_windows(self, window_group: int, full_pages: Sequence[int]) -> list[int]:
        """New window pages under full pages whose own have expired, held once; or `OutOfPages` and no change.

        This is what loading KV back from elsewhere needs: the mapping changes in bulk, and as safely as by `allocate`.
        """
        pages = self.groups[window_group + 1].take(len(full_pages))
        try:
            self.mapping.set(window_group, full_pages, pages)
        except LedgerError:
            self.groups[window_group + 1].give_back(pages)
            raise
        for page in pages:
            self._holders[window_group + 1][page] = 1
        self.num_held[window_group + 1] += len(pages)
        return pages

    # Holding and dropping.

    def hold(self, full_pages: Sequence[int]) -> None:
        """One more sequence counts on these pages, each held or cached already."""
        self._hold(FULL, full_pages)

    def hold_windows(self, window_group: int, full_pages: Sequence[int]) -> None:
        """One more sequence counts on the window pages under these."""
        self._hold(window_group + 1, self.mapping.window_pages(window_group, full_pages))

    def drop(self, full_pages: Sequence[int]) -> None:
        """One sequence less counts on these pages. A page that is neither held nor retained any more is freed."""
        is_retained = self._is_retained
        if is_each_once(full_pages, self._holders[FULL]) and not any(map(is_retained.__getitem__, full_pages)):
            self._give_up(FULL, full_pages)
            return
        freed = [page for page in self._drop(FULL, full_pages) if not is_retained[page]]
        self.num_cached[FULL] -= len(freed)
        self._free(FULL, freed)

    def drop_windows(self, window_group: int, full_pages: Sequence[int]) -> list[int]:
        """One sequence less counts on the window pages under these.

        Returns the full pages whose window pages stay, cached; the others' are freed.
        """
        index, is_retained = window_group + 1, self._is_retained
        window_pages = self.mapping.window_pages(window_group, full_pages)
        if is_each_once(window_pages, self._holders[index]) and not any(map(is_retained.__getitem__, full_pages)):
            self.mapping.unmap(window_group, full_pages, window_pages)  # each has one, or it would have no holder
            self._give_up(index, window_pages)
            return []
        idle = self.mapping.full_pages(window_group, self._drop(index, window_pages))
        self._free_windows(window_group, [page for page in idle if not is_retained[page]])
        return [page for page in idle if is_retained[page]]

    def move_windows(self, source: int, target: int) -> None:
        """Hand the window pages under one full page, with their holders, to another that has none in that group."""
        for window_group in range(self.num_windows):
            if self.has_window(window_group, source) and not self.has_window(window_group, target):
                self.mapping.set(window_group, [target], self.mapping.remove(window_group, [source]))

    # Retaining: the prefix cache counts on a page, beside the sequences.

    def retain(self, full_pages: Sequence[int]) -> None:
        """The prefix cache counts on these held pages from now on."""
        for page in full_pages:
            self._is_retained[page] = 1

    def forget(self, full_pages: Sequence[int]) -> None:
        """The prefix cache no longer counts on these pages. Those without a holder are freed, windows included."""
        for window_group in range(self.num_windows):
            holders = self._holders[window_group + 1]
            window_page = self.mapping.window_page
            idle = [page for page in full_pages if (w := window_page(window_group, page)) != NO_PAGE and not holders[w]]
            self._free_windows(window_group, idle)
        for page in full_pages:
            self._is_retained[page] = 0
        freed = [page for page in full_pages if not self._holders[FULL][page]]
        self.num_cached[FULL] -= len(freed)
        self._free(FULL, freed)

    def forget_windows(self, window_group: int, full_page: int) -> None:
        """Free the cached window page under a retained full page: the prefix stays, its window expires."""
        self._free_windows(window_group, [full_page])

    def restore(self, holders: Sequence[Mapping[int, int]], window_of: Sequence[Mapping[int, int]]) -> None:
        """The account as it follows from who holds what: `holders` by group and page, `window_of` by full page."""
        lent: set[int] = set()
        for index, (group, counted) in enumerate(zip(self.groups, holders, strict=True)):
            slabs = group.restore(counted)
            if self.plan.layout.groups[index].has_bytes:
                lent |= slabs
            else:
                group.restore_arena(slabs)
            counts = zeros_int32(len(self._holders[index]))
            for page, count in counted.items():
                counts[page] = count
            self._holders[index][:] = counts
            self._last_step[index][:] = zeros_int64(len(counts))
            self.num_held[index], self.num_cached[index], self.num_pending[index] = len(counted), 0, 0
        self.arena.restore(lent)
        self._pending.clear()
        self._is_retained = bytearray(len(self._is_retained))
        for window_group, under in enumerate(window_of):
            self.mapping.restore(window_group, under)

    # Questions.

    def has_window(self, window_group: int, full_page: int) -> bool:
        return self.mapping.window_page(window_group, full_page) != NO_PAGE

    def is_retained(self, full_page: int) -> bool:
        return bool(self._is_retained[full_page])

    def num_holders(self, group_index: int, page: int) -> int:
        """Sequences that count on a page, given by its group's own number."""
        return self._holders[group_index][page]

    def holder_counts(self, group_index: int) -> Int32Array:
        """The same for all pages of a group at once, to be read only."""
        return np.frombuffer(self._holders[group_index], dtype=np.int32)

    def retained_mask(self) -> npt.NDArray[np.bool_]:
        """Which full pages the prefix cache counts on, to be read only."""
        return np.frombuffer(self._is_retained, dtype=np.bool_)

    def is_settled(self, group_index: int, page: int) -> bool:
        """Whether no step that is still running may touch this cached page."""
        return self._last_step[group_index][page] <= self.retired_step

    def pending_pages(self, group_index: int) -> Iterator[int]:
        for _, index, pages in self._pending:
            if index == group_index:
                yield from pages

    def num_available_bytes(self) -> int:
        """Bytes that are free, or would be without the prefix cache: what a scheduler admits against."""
        num_bytes = self.arena.num_free * self.plan.layout.slab_bytes
        for index, (group, layout) in enumerate(zip(self.groups, self.plan.layout.groups, strict=True)):
            num_bytes += (group.num_free + self.num_cached[index]) * layout.page_stride_bytes
        return num_bytes

    # Below: one place each for the counts.

    def _hold(self, group_index: int, pages: Sequence[int]) -> None:
        holders = self._holders[group_index]
        num_new = 0
        for page in pages:
            num_new += not holders[page]
            holders[page] += 1
        self.num_held[group_index] += num_new
        self.num_cached[group_index] -= num_new

    def _drop(self, group_index: int, pages: Sequence[int]) -> list[int]:
        """Count one holder less; returns the pages that have none left, counted as cached until they are freed."""
        holders, last_step, launched = self._holders[group_index], self._last_step[group_index], self.launched_step
        idle = []
        for page in pages:
            num_left = holders[page] - 1
            if num_left < 0:
                self._report_double_drop(group_index, page)
                continue
            holders[page] = num_left
            if not num_left:
                last_step[page] = launched
                idle.append(page)
        self.num_held[group_index] -= len(idle)
        self.num_cached[group_index] += len(idle)
        return idle

    def _give_up(self, group_index: int, pages: Sequence[int]) -> None:
        """Free pages that one sequence held alone and the cache does not retain, as most pages end."""
        holders = self._holders[group_index]
        for page in pages:
            holders[page] = 0
        self.num_held[group_index] -= len(pages)
        if self.retired_step < self.launched_step:
            self._pending.append((self.launched_step, group_index, pages))
            self.num_pending[group_index] += len(pages)
        else:
            self._reclaim(group_index, pages)

    def _report_double_drop(self, group_index: int, page: int) -> None:
        name = self.groups[group_index].name
        self._violations.add(
            Violation(kind=ViolationKind.DOUBLE_FREE, group=name, page=page, detail="dropped while it was not held")
        )

    def _free_windows(self, window_group: int, full_pages: Sequence[int]) -> None:
        if full_pages:
            pages = self.mapping.remove(window_group, full_pages)
            self.num_cached[window_group + 1] -= len(pages)
            self._free(window_group + 1, pages)

    def _free(self, group_index: int, pages: list[int]) -> None:
        """Give pages back to their group, at once if nothing that runs can touch them, else when it has retired."""
        last_step, retired = self._last_step[group_index], self.retired_step
        waiting = [page for page in pages if last_step[page] > retired]
        if waiting:
            self._pending.append((self.launched_step, group_index, waiting))
            self.num_pending[group_index] += len(waiting)
            pages = [page for page in pages if last_step[page] <= retired] if len(waiting) < len(pages) else []
        if pages:
            self._reclaim(group_index, pages)

    def _reclaim(self, group_index: int, pages: Sequence[int]) -> None:
        self.groups[group_index].give_back(pages)
        if self.listener is not None:
            self.listener.on_reclaim(group_index, pages)
