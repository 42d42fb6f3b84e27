"""The host's mapping: one-to-one, versioned, and loud when it was not published."""

from __future__ import annotations

import numpy as np
import pytest

from playhead.errors import LedgerError, StaleTranslation
from playhead.kv.tables import NO_PAGE, WindowMapping
from playhead.types import FullLoc


def new_mapping(page_size: int = 16) -> WindowMapping:
    return WindowMapping(num_full_pages=10, num_window_pages=[8], page_size=page_size)


def test_loc_50_of_page_3_mapped_to_5_is_at_82():
    mapping = new_mapping()
    mapping.set(0, [3], [5])
    assert mapping.window_loc(0, FullLoc(50)) == 82


def test_a_full_page_without_a_window_page_translates_to_the_sink():
    assert new_mapping().window_loc(0, FullLoc(50)) == 0


def test_every_change_moves_the_version():
    mapping = new_mapping()
    versions = [mapping.version]
    mapping.set(0, [3, 4], [5, 6])
    versions.append(mapping.version)
    mapping.remove(0, [3])
    versions.append(mapping.version)
    assert versions == sorted(set(versions))


def test_only_the_latest_value_of_a_page_is_published():
    mapping = new_mapping()
    mapping.set(0, [3], [5])
    mapping.remove(0, [3])
    mapping.set(0, [3], [6])
    (changes,) = mapping.take_unpublished()
    assert changes.tolist() == [[3, 6]]
    assert changes.dtype == np.int32
    assert mapping.take_unpublished()[0].tolist() == []


def test_an_unpublished_change_is_refused():
    mapping = new_mapping()
    mapping.require_published("here")
    mapping.set(0, [3], [5])
    with pytest.raises(StaleTranslation, match="here: mapping version 0; wanted version 1"):
        mapping.require_published("here")
    mapping.take_unpublished()
    mapping.require_published("here")


def test_a_pair_that_was_taken_away_may_wait_for_a_step_but_not_for_a_translation():
    mapping = new_mapping()
    mapping.set(0, [3], [5])
    mapping.take_unpublished()
    mapping.remove(0, [3])
    mapping.require_published("launch", pairs_only=True)
    assert not mapping.must_publish
    with pytest.raises(StaleTranslation):
        mapping.require_published("here")
    mapping.set(0, [3], [6])
    with pytest.raises(StaleTranslation):
        mapping.require_published("launch", pairs_only=True)
    assert mapping.take_unpublished()[0].tolist() == [[3, 6]]


@pytest.mark.parametrize(
    ("full", "window"),
    [([3], [5]), ([4], [6]), ([0], [7]), ([5], [0]), ([5, 5], [6, 7]), ([5, 6], [7, 7]), ([5], [6, 7])],
    ids=["both mapped", "full mapped", "full sink", "window sink", "full twice", "window twice", "not in pairs"],
)
def test_a_change_that_is_not_one_to_one_changes_nothing(full, window):
    mapping = new_mapping()
    mapping.set(0, [3, 4], [5, 1])
    before = mapping.table(0).tolist(), mapping.version
    with pytest.raises(LedgerError):
        mapping.set(0, full, window)
    assert (mapping.table(0).tolist(), mapping.version) == before


def test_clearing_an_unmapped_page_is_refused():
    with pytest.raises(LedgerError, match="no window page"):
        new_mapping().remove(0, [3])


def test_the_way_back_leads_to_the_full_page():
    mapping = new_mapping()
    mapping.set(0, [3], [5])
    assert mapping.full_page(0, 5) == 3
    mapping.remove(0, [3])
    assert mapping.full_page(0, 5) == NO_PAGE


def test_the_table_cannot_be_written():
    with pytest.raises(ValueError, match="read-only"):
        new_mapping().table(0)[1] = 1


def test_clearing_takes_all_pairs_in_one_version():
    mapping = WindowMapping(num_full_pages=10, num_window_pages=[8, 8], page_size=16)
    mapping.set(0, [3, 4], [5, 6])
    mapping.set(1, [3], [2])
    mapping.take_unpublished()
    version = mapping.version
    mapping.clear()
    assert mapping.version == version + 1
    assert not mapping.table(0).any()
    assert not mapping.table(1).any()
    assert [mapping.full_page(0, page) for page in (5, 6)] == [NO_PAGE] * 2
    assert [changes.tolist() for changes in mapping.take_unpublished()] == [[[3, 0], [4, 0]], [[3, 0]]]
    mapping.set(0, [3], [5])
