"""Rows of running requests: what the device is shown."""

from __future__ import annotations

import numpy as np
import pytest

from playhead.errors import OutOfPages
from playhead.kv.tables import RowTables, ranges


def new_rows() -> RowTables:
    return RowTables(num_groups=2, max_running=2, max_pages=4)


def test_row_0_belongs_to_padding():
    rows = new_rows()
    assert {rows.take(), rows.take()} == {1, 2}


def test_no_row_left_is_out_of_pages():
    rows = new_rows()
    rows.take()
    rows.take()
    with pytest.raises(OutOfPages, match="rows"):
        rows.take()


def test_a_recycled_row_shows_nothing_of_its_former_request():
    rows = new_rows()
    row = rows.take()
    rows.write(0, row, 0, [7, 8, 9])
    rows.write(1, row, 1, [5, 6])
    rows.give_back(row)
    assert rows.take() == row
    assert all(not table[row].any() for table in rows.tables)


def test_passed_entries_show_the_sink():
    rows = new_rows()
    row = rows.take()
    rows.write(1, row, 0, [5, 6, 7])
    rows.clear(1, row, 0, 2)
    assert rows.tables[1][row].tolist() == [0, 0, 7, 0]


def test_ranges_stand_one_after_the_other():
    assert ranges(np.array([7, 4]), np.array([3, 2])).tolist() == [7, 8, 9, 4, 5]


def test_pages_of_many_rows_go_behind_those_they_show():
    rows = new_rows()
    first, second = rows.take(), rows.take()
    rows.write(0, first, 0, [7])
    rows.write(1, first, 0, [3])
    rows.take_changed()
    rows.append(np.array([first, second], np.int32), np.array([2, 1], np.int32), [[8, 9, 5], [4, 6, 2]])
    assert [table[[first, second]].tolist() for table in rows.tables] == [
        [[7, 8, 9, 0], [5, 0, 0, 0]],
        [[3, 4, 6, 0], [2, 0, 0, 0]],
    ]
    assert rows.num_pages[[first, second]].tolist() == [3, 1]
    assert rows.must_publish
    entries, values = rows.take_changed()
    assert dict(zip(entries.tolist(), values.tolist(), strict=True)) == {
        4 * first + 1: 8,
        4 * first + 2: 9,
        4 * second: 5,
    }
