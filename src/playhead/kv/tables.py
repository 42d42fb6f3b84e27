"""Which pages requests have, and which window page lies under which full page: the host's truth, for the device to see.

Row 0 of a `RowTables` belongs to padding and shows the sink everywhere. A row that is given back is cleared before
anyone can take it, so a recycled row never shows a former request's pages.

`WindowMapping` is kept by page here and by location on the device. It changes in this class only, every change moves
its version, and a translation over an unpublished change is refused (`require_published`). Only new pairs must be
published before a step. The removal of a pair may wait for the next publication: no query sees an expired location, and
its full page gets a new pair before anything is written there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from playhead.errors import LedgerError, OutOfPages, StaleTranslation
from playhead.kv.numbers import pairs_of, zeros_int32
from playhead.types import FullLoc, Row, WindowLoc

FULL = 0
"""Group index of the full group. Window group `w`, counted among the window groups, has group index `w + 1`."""

NO_PAGE = 0
"""The sink's page: full pages without a window page translate there, which no live row reads and no forward writes."""

Int32Array = npt.NDArray[np.int32]


def ranges(firsts: npt.NDArray[Any], lens: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Numbers from each first on, one range after the other: 3 from 7 on and 2 from 4 on are 7 8 9 4 5."""
    stops = lens.cumsum(dtype=np.int64)
    numbers: npt.NDArray[np.int64] = np.arange(stops[-1]) + (firsts - (stops - lens)).repeat(lens)
    return numbers


class RowTables:
    """One page table per group, a row per running request; 0 where a row has no page."""

    def __init__(self, *, num_groups: int, max_running: int, max_pages: int) -> None:
        self.tables: tuple[Int32Array, ...] = tuple(
            np.zeros((1 + max_running, max_pages), dtype=np.int32) for _ in range(num_groups)
        )
        self._free = [Row(row) for row in range(max_running, 0, -1)]
        self.num_pages: Int32Array = np.zeros(1 + max_running, dtype=np.int32)
        """Entries of each row that have been used since it was taken: a window page has a full page over it."""
        self._max_pages = max_pages
        # Entries [first, end) of the full group's table, all rows one after the other, that the device's copy lacks.
        # A dict for its keys: a row that is given back and taken again has the same entries.
        self._changed: dict[tuple[int, int], None] = {}
        self.must_publish = False
        """Whether the device's copy lacks an entry that the next step may read. Rows that were given back can wait."""

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self) -> Row:
        """An empty row, or `OutOfPages` of the pseudo-group 'rows'."""
        if not self._free:
            raise OutOfPages("rows", 1, 0)
        return self._free.pop()

    def give_back(self, row: Row) -> None:
        """Clear a row and let another request have it."""
        num_used = int(self.num_pages[row])
        for table in self.tables:
            table[row, :num_used] = NO_PAGE
        self.num_pages[row] = 0
        self._mark(row, 0, num_used)
        self._free.append(row)

    def restore(self, taken: Sequence[Row]) -> None:
        """These rows are taken, their entries still to be written; all others are empty and free."""
        is_taken = np.zeros(len(self.num_pages), dtype=np.bool_)
        is_taken[taken] = True
        for table in self.tables:
            table[~is_taken] = NO_PAGE
        self.num_pages[:] = 0
        self._free = [Row(row) for row in range(len(is_taken) - 1, 0, -1) if not is_taken[row]]

    def show_all(self) -> None:
        """The device must take every entry again: it cannot be known which entries it has."""
        self._changed = {(0, self.tables[FULL].size): None}
        self.must_publish = True

    def write(self, group_index: int, row: Row, first: int, pages: Sequence[int]) -> None:
        """Put a group's pages into a row, from entry `first` on."""
        end = first + len(pages)
        self.tables[group_index][row, first:end] = pages
        if group_index == FULL:  # the device has a copy of this table alone: it finds window pages by the mapping
            self.num_pages[row] = max(int(self.num_pages[row]), end)
            self.must_publish = True
            self._mark(row, first, end)

    def append(self, rows: Int32Array, counts: Int32Array, pages: Sequence[Int32Array]) -> None:
        """Put pages of every group, by group, behind those that rows show: each row's count, row after row."""
        firsts = self.num_pages[rows]
        ends, entries = firsts + counts, (np.repeat(rows, counts), ranges(firsts, counts))
        for table, of_group in zip(self.tables, pages, strict=True):
            table[entries] = of_group
        self.num_pages[rows] = ends
        self.must_publish = True
        starts = rows.astype(np.int64) * self._max_pages
        self._changed.update(dict.fromkeys(zip((starts + firsts).tolist(), (starts + ends).tolist(), strict=True)))

    def clear(self, group_index: int, row: Row, first: int, end: int | None) -> None:
        """Entries [first, end) of a group are gone: their window has passed."""
        self.tables[group_index][row, first:end] = NO_PAGE

    def take_changed(self) -> tuple[npt.NDArray[np.int64], Int32Array]:
        """Entries of the full group's table that changed since the last call, and their values until the next change.

        Entry 3 of row 2 is 19, with 8 a row. An entry may stand twice.
        """
        spans = list(self._changed)
        self._changed.clear()
        self.must_publish = False
        table = self.tables[FULL].reshape(-1)
        if len(spans) == 1:  # one prompt
            ((first, end),) = spans
            return np.arange(first, end, dtype=np.int64), table[first:end]
        firsts, ends = pairs_of(spans, np.int64).T
        entries = ranges(firsts, ends - firsts) if spans else firsts
        return entries, table[entries]

    def _mark(self, row: Row, first: int, end: int) -> None:
        if first < end:
            start = row * self._max_pages
            self._changed[start + first, start + end] = None


class WindowMapping:
    """Full page -> window page for each window group, one-to-one, with 0 where there is none."""

    def __init__(self, *, num_full_pages: int, num_window_pages: Sequence[int], page_size: int) -> None:
        self.page_size = page_size
        self.version = 0
        self.published_version = 0
        self._last_set_version = 0
        self._window_of = tuple(zeros_int32(num_full_pages) for _ in num_window_pages)
        self._full_of = tuple(zeros_int32(count) for count in num_window_pages)
        self._unpublished: tuple[dict[int, int], ...] = tuple({} for _ in num_window_pages)

    @property
    def num_groups(self) -> int:
        return len(self._window_of)

    def window_pages(self, window_group: int, full_pages: Sequence[int]) -> list[int]:
        """The window pages under full pages, `NO_PAGE` where there is none."""
        return list(map(self._window_of[window_group].__getitem__, full_pages))

    def window_page(self, window_group: int, full_page: int) -> int:
        """The window page under a full page, or `NO_PAGE`."""
        return self._window_of[window_group][full_page]

    def full_pages(self, window_group: int, window_pages: Sequence[int]) -> list[int]:
        """The full pages that window pages lie under, `NO_PAGE` where there is none."""
        return list(map(self._full_of[window_group].__getitem__, window_pages))

    def full_page(self, window_group: int, window_page: int) -> int:
        """The full page a window page lies under, or `NO_PAGE`."""
        return self._full_of[window_group][window_page]

    def window_loc(self, window_group: int, loc: FullLoc) -> WindowLoc:
        """The host's answer to a translation: with page 3 mapped to 5 and page size 16, loc 50 is at 82."""
        page, offset = divmod(loc, self.page_size)
        window_page = self._window_of[window_group][page]
        return WindowLoc(window_page * self.page_size + offset if window_page else 0)

    def table(self, window_group: int) -> Int32Array:
        """The whole mapping of a group, by full page; a view, to be read only."""
        view = np.frombuffer(self._window_of[window_group], dtype=np.int32)
        view.flags.writeable = False
        return view

    def full_table(self, window_group: int) -> Int32Array:
        """The way back: full pages by window page; a view, to be read only."""
        return np.frombuffer(self._full_of[window_group], dtype=np.int32)

    def set(self, window_group: int, full_pages: Sequence[int], window_pages: Sequence[int]) -> None:
        """Put each window page under its full page. Both must be free of an earlier partner, or nothing changes."""
        window_of, full_of = self._window_of[window_group], self._full_of[window_group]
        if len(full_pages) != len(window_pages):
            raise LedgerError(
                f"window mapping: found {len(full_pages)} full and {len(window_pages)} window pages; wanted as many of "
                "each. Pass them in pairs"
            )
        if len(full_pages) > 1 and (
            len(set(full_pages)) != len(full_pages) or len(set(window_pages)) != len(window_pages)
        ):
            raise LedgerError(
                "window mapping: found a page twice in one change; wanted each once. The mapping is one-to-one"
            )
        has_sink = NO_PAGE in full_pages or NO_PAGE in window_pages
        if has_sink or any(map(window_of.__getitem__, full_pages)) or any(map(full_of.__getitem__, window_pages)):
            raise self._not_free(window_group, full_pages, window_pages)
        for full, window in zip(full_pages, window_pages, strict=True):
            window_of[full] = window
            full_of[window] = full
        self._unpublished[window_group].update(zip(full_pages, window_pages, strict=True))
        self.version += 1
        self._last_set_version = self.version

    def _not_free(self, window_group: int, full_pages: Sequence[int], window_pages: Sequence[int]) -> LedgerError:
        """What is wrong with the first pair that cannot be mapped."""
        window_of, full_of = self._window_of[window_group], self._full_of[window_group]
        full, window = next(
            (full, window)
            for full, window in zip(full_pages, window_pages, strict=True)
            if window_of[full] or full_of[window] or not full or not window
        )
        return LedgerError(
            f"window mapping: found full page {full} -> {window_of[full]} and window page {window} <- "
            f"{full_of[window]}; wanted both unmapped and neither the sink. Remove the old pair first"
        )

    def remove(self, window_group: int, full_pages: Sequence[int]) -> list[int]:
        """Take the window pages from under full pages and return them; each must have one, or nothing changes."""
        window_pages = self.window_pages(window_group, full_pages)
        if NO_PAGE in window_pages:
            full_page = full_pages[window_pages.index(NO_PAGE)]
            raise LedgerError(
                f"window mapping: full page {full_page} has no window page to remove. Its window has expired"
            )
        self.unmap(window_group, full_pages, window_pages)
        return window_pages

    def unmap(self, window_group: int, full_pages: Sequence[int], window_pages: Sequence[int]) -> None:
        """Take window pages from under the full pages that `window_pages` found them under."""
        window_of, full_of = self._window_of[window_group], self._full_of[window_group]
        for full, window in zip(full_pages, window_pages, strict=True):
            window_of[full] = full_of[window] = NO_PAGE
        self._unpublished[window_group].update(dict.fromkeys(full_pages, NO_PAGE))
        self.version += 1

    def clear(self) -> None:
        """Forget every pair of every group."""
        for window_of, full_of, unpublished in zip(self._window_of, self._full_of, self._unpublished, strict=True):
            for full in np.flatnonzero(np.frombuffer(window_of, dtype=np.int32)).tolist():
                full_of[window_of[full]] = window_of[full] = unpublished[full] = NO_PAGE
        self.version += 1

    def restore(self, window_group: int, window_of: Mapping[int, int]) -> None:
        """Exactly these pairs. The device is told every entry again, whatever it has."""
        pages, windows = self._window_of[window_group], self._full_of[window_group]
        pages[:] = zeros_int32(len(pages))
        windows[:] = zeros_int32(len(windows))
        for full, window in window_of.items():
            pages[full], windows[window] = window, full
        self.show_all()

    def show_all(self) -> None:
        """The device must take every entry again: it cannot be known which of them it has."""
        for table, unpublished in zip(self._window_of, self._unpublished, strict=True):
            unpublished.update(enumerate(table))
        self.version += 1
        self._last_set_version = self.version

    @property
    def must_publish(self) -> bool:
        """Whether the device lacks a pair that the next step may use."""
        return self.published_version < self._last_set_version

    def take_unpublished(self) -> tuple[Int32Array, ...]:
        """Changes since the last call, one (full page, window page) row each, the latest value only; now published."""
        changes = tuple(pairs_of(changed.items(), np.int32) for changed in self._unpublished)
        for changed in self._unpublished:
            changed.clear()
        self.published_version = self.version
        return changes

    def require_published(self, where: str, *, pairs_only: bool = False) -> None:
        """Refuse to go on with a device mapping that is behind; with `pairs_only`, with one that lacks a pair."""
        if self.must_publish if pairs_only else self.published_version != self.version:
            raise StaleTranslation(
                where, self.published_version, self.version, "Call the pool's publish() before the step is launched"
            )
