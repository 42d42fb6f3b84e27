"""Rows of running requests: what the device is shown."""

from __future__ import annotations

import pytest

from playhead.errors import OutOfPages
from playhead.kv.tables import RowTables


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
