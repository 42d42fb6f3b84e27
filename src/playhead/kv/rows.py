"""Page tables of running requests, as the device will see them.

Row 0 belongs to padding and shows the sink everywhere. A row that is given back is cleared before anyone can take it,
so a recycled row never shows a former request's pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from playhead.errors import OutOfPages
from playhead.kv.hybrid import FULL
from playhead.kv.mapping import NO_PAGE, Int32Array
from playhead.types import Row


class RowSpan(NamedTuple):
    """Entries [first, end) of one row."""

    row: Row
    first: int
    end: int


class RowTables:
    """One page table per group, a row per running request; 0 where a row has no page."""

    def __init__(self, *, num_groups: int, max_running: int, max_pages: int) -> None:
        self.tables: tuple[Int32Array, ...] = tuple(
            np.zeros((1 + max_running, max_pages), dtype=np.int32) for _ in range(num_groups)
        )
        self._free = [Row(row) for row in range(max_running, 0, -1)]
        self.num_pages: Int32Array = np.zeros(1 + max_running, dtype=np.int32)
        """Entries of each row that have been used since it was taken."""
        self._changed: dict[Row, tuple[int, int]] = {}

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
        num_rows, num_entries = self.tables[FULL].shape
        self._changed = {Row(row): (0, num_entries) for row in range(num_rows)}

    def write(self, group_index: int, row: Row, first: int, pages: Sequence[int]) -> None:
        """Put a group's pages into a row, from entry `first` on."""
        end = first + len(pages)
        self.tables[group_index][row, first:end] = pages
        self.num_pages[row] = max(int(self.num_pages[row]), end)
        if group_index == FULL:  # the device has a copy of this table alone: it finds window pages by the mapping
            self._mark(row, first, end)

    def clear(self, group_index: int, row: Row, first: int, end: int | None) -> None:
        """Entries [first, end) of a group are gone: their window has passed."""
        self.tables[group_index][row, first:end] = NO_PAGE

    def take_changed(self) -> list[RowSpan]:
        """Entries of the full group's table that changed since the last call: what the device's copy lacks."""
        changed = [RowSpan(row, first, end) for row, (first, end) in sorted(self._changed.items())]
        self._changed.clear()
        return changed

    def _mark(self, row: Row, first: int, end: int) -> None:
        if first < end:
            known_first, known_end = self._changed.get(row, (first, end))
            self._changed[row] = min(first, known_first), max(end, known_end)
