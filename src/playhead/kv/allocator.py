"""Pages of one group, cut from slabs that all groups share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from playhead.errors import OutOfPages
from playhead.kv.violations import Violation, ViolationKind, ViolationLog


def is_each_once(pages: Sequence[int], marks: Sequence[int]) -> bool:
    """Whether all these pages have the mark 1 and none is listed twice, so that they can be changed all at once."""
    return len(set(pages)) == len(pages) == list(map(marks.__getitem__, pages)).count(1)


class SlabArena:
    """Slabs of one arena: free, or lent to one group at a time. Slab 0 holds every group's sink and is never lent.

    Slabs from `_first_fresh` on are free and were never lent: a list of all of them would take long to make.
    """

    def __init__(self, num_slabs: int) -> None:
        self.num_slabs = num_slabs
        self._free: list[int] = []
        self._first_fresh = 1

    @property
    def num_free(self) -> int:
        return len(self._free) + self.num_slabs - self._first_fresh

    def take(self, count: int) -> list[int]:
        """This many slabs, those that were given back last first; the caller has asked `num_free` before."""
        slabs = self._free[: -count - 1 : -1]
        del self._free[-count:]
        first, self._first_fresh = self._first_fresh, self._first_fresh + count - len(slabs)
        return [*slabs, *range(first, self._first_fresh)]

    def give_back(self, slabs: Iterable[int]) -> None:
        self._free.extend(slabs)

    def take_this(self, slab: int) -> bool:
        """Take one certain slab, if it is free."""
        if self._first_fresh <= slab < self.num_slabs:
            self._free[:0] = range(slab - 1, self._first_fresh - 1, -1)
            self._first_fresh = slab + 1
            return True
        if slab not in self._free:
            return False
        self._free.remove(slab)
        return True

    def restore(self, lent: set[int]) -> None:
        """These slabs are lent, all others are free."""
        newest = max(lent, default=0)
        self._free = [slab for slab in range(newest, 0, -1) if slab not in lent]
        self._first_fresh = newest + 1

    def free_slabs(self) -> npt.NDArray[np.int64]:
        """All that are free, for the ledger."""
        fresh = np.arange(self._first_fresh, self.num_slabs, dtype=np.int64)
        return np.concatenate((np.array(self._free, dtype=np.int64), fresh))


class PageAllocator:
    """The pages of one group. `take` hands pages out, `give_back` takes ownership of them.

    Pages come from the slab that lost a page last, which is the fullest one as a rule, so that emptier slabs drain and
    can go to another group. A slab is returned to the arena with its last page.
    """

    def __init__(self, *, name: str, arena: SlabArena, pages_per_slab: int, violations: ViolationLog) -> None:
        self.name = name
        self.num_slabs = 0
        self._arena = arena
        self._pages_per_slab = pages_per_slab
        self._violations = violations
        self._free_in: dict[int, list[int]] = {}
        self._num_free = 0
        self._is_taken = bytearray(arena.num_slabs * pages_per_slab)
        self._quarantined: set[int] = set()

    @property
    def num_pages(self) -> int:
        """Pages of the slabs this group has now."""
        return self.num_slabs * self._pages_per_slab

    @property
    def num_free(self) -> int:
        """Free pages in the group's own slabs."""
        return self._num_free

    @property
    def num_available(self) -> int:
        """Pages that `take` could hand out now, if no other group takes slabs first."""
        return self._num_free + self._arena.num_free * self._pages_per_slab

    @property
    def num_quarantined(self) -> int:
        return len(self._quarantined)

    @property
    def num_taken(self) -> int:
        """Pages handed out and not given back, those in quarantine aside."""
        return self.num_slabs * self._pages_per_slab - self._num_free - len(self._quarantined)

    def take(self, count: int) -> list[int]:
        """This many pages, or `OutOfPages` and no change."""
        if count > self.num_available:
            raise OutOfPages(self.name, count, self.num_available)
        pages: list[int] = []
        while self._free_in and len(pages) < count:
            slab, free = self._free_in.popitem()
            wanted = count - len(pages)
            if len(free) > wanted:
                pages += free[-wanted:]
                del free[-wanted:]
                self._free_in[slab] = free
            else:
                pages += free
        if len(pages) < count:
            pages += self._take_from_arena(count - len(pages))
        self._num_free -= count
        is_taken = self._is_taken
        for page in pages:
            is_taken[page] = 1
        return pages

    def give_back(self, pages: Sequence[int]) -> None:
        """Take these pages back. A page that was not handed out is a double free. A page in quarantine stays there."""
        if not self._quarantined and is_each_once(pages, self._is_taken):
            self._put_back(pages)
            return
        for page in pages:
            if not self._is_taken[page]:
                self._report_double_free(page)
            elif page not in self._quarantined:
                self._put_back((page,))

    def _put_back(self, pages: Sequence[int]) -> None:
        """Pages into their slabs. A slab whose pages are all free goes back to the arena."""
        per_slab, free_in, is_taken = self._pages_per_slab, self._free_in, self._is_taken
        for page in pages:
            is_taken[page] = 0
        if per_slab == 1:
            self.num_slabs -= len(pages)
            self._arena.give_back(pages)
            return
        whole: list[int] = []
        for page in pages:
            slab = page // per_slab
            if slab not in free_in:
                free_in[slab] = [page]
            elif len(free_in[slab]) + 1 < per_slab:
                free_in[slab].append(page)
            else:
                del free_in[slab]
                whole.append(slab)
        num_whole = len(whole)
        self._num_free += len(pages) - num_whole * per_slab
        self.num_slabs -= num_whole
        self._arena.give_back(whole)

    def distrust(self, pages: set[int]) -> None:
        """Never hand these pages out again. Only before `restore`, which takes them out of the free lists."""
        self._quarantined |= pages

    def quarantine(self, page: int) -> None:
        """Never hand this page out again; its slab stays with the group. Too late if another group has the slab."""
        if page in self._quarantined:
            return
        if not self._is_taken[page]:
            slab = page // self._pages_per_slab
            if slab not in self._free_in and not self._adopt(slab):
                return
            self._free_in[slab].remove(page)
            if not self._free_in[slab]:
                del self._free_in[slab]
            self._num_free -= 1
            self._is_taken[page] = 1
        self._quarantined.add(page)

    def restore(self, held: Iterable[int]) -> set[int]:
        """These pages are taken, and those in quarantine; all others are free. Returns the slabs they lie in."""
        taken = sorted({*held, *self._quarantined})
        is_taken = bytearray(len(self._is_taken))
        for page in taken:
            is_taken[page] = 1
        per_slab = self._pages_per_slab
        slabs = {page // per_slab for page in taken}
        free_in: dict[int, list[int]] = {}
        for slab in sorted(slabs):
            free = [page for page in range(slab * per_slab, (slab + 1) * per_slab) if not is_taken[page]]
            if free:
                free_in[slab] = free
        self._is_taken, self._free_in, self.num_slabs = is_taken, free_in, len(slabs)
        self._num_free = len(slabs) * per_slab - len(taken)
        return slabs

    def restore_arena(self, lent: set[int]) -> None:
        """The same for the arena, where the group has one to itself."""
        self._arena.restore(lent)

    def free_pages(self) -> Iterator[int]:
        """Free pages in the group's own slabs, for the ledger."""
        for free in self._free_in.values():
            yield from free

    def taken_mask(self) -> npt.NDArray[np.bool_]:
        """Which pages are handed out, by number, for the ledger."""
        return np.frombuffer(self._is_taken, dtype=np.bool_)

    def quarantined_pages(self) -> Iterator[int]:
        return iter(self._quarantined)

    def _take_from_arena(self, count: int) -> list[int]:
        """This many pages of fresh slabs; what is left of the last slab is free in the group."""
        per_slab = self._pages_per_slab
        slabs = self._arena.take(-(-count // per_slab))
        self.num_slabs += len(slabs)
        self._num_free += len(slabs) * per_slab
        if per_slab == 1:
            return slabs
        pages = [page for slab in slabs for page in range(slab * per_slab, (slab + 1) * per_slab)]
        if len(pages) > count:
            self._free_in[slabs[-1]] = pages[count:]
        return pages[:count]

    def _adopt(self, slab: int) -> bool:
        """Take one certain slab from the arena, all its pages free."""
        if not self._arena.take_this(slab):
            return False
        first = slab * self._pages_per_slab
        self.num_slabs += 1
        self._num_free += self._pages_per_slab
        self._free_in[slab] = list(range(first, first + self._pages_per_slab))
        return True

    def _report_double_free(self, page: int) -> None:
        self._violations.add(
            Violation(kind=ViolationKind.DOUBLE_FREE, group=self.name, page=page, detail="given back while free")
        )
        self.quarantine(page)
