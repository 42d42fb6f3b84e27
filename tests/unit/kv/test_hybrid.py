"""The allocator over groups: all or nothing, holders, and reuse only after the step that could touch a page."""

from __future__ import annotations

import pytest

from playhead.errors import LedgerError, OutOfPages, StaleTranslation
from playhead.kv.hybrid import HybridAllocator
from playhead.kv.violations import ViolationKind, ViolationLog
from playhead.testing.kv_rules import small_layer, small_plan
from playhead.types import Step

LAYERS = [small_layer(8), small_layer(8), small_layer(8), small_layer(None)]


def new_allocator(num_slabs: int = 30, *, strict: bool = True) -> HybridAllocator:
    return HybridAllocator(small_plan(LAYERS, page_size=4, num_slabs=num_slabs), ViolationLog(strict=strict))


def taken(allocator: HybridAllocator) -> list[int]:
    return [group.num_taken for group in allocator.groups]


def free_all(allocator: HybridAllocator, pages: list[int]) -> None:
    for window in range(allocator.num_windows):
        allocator.drop_windows(window, pages)
    allocator.drop(pages)


def launch(allocator: HybridAllocator) -> Step:
    allocator.mapping.take_unpublished()
    return allocator.launch()


def test_allocation_gives_a_window_page_under_every_full_page():
    allocator = new_allocator()
    pages = allocator.allocate(3)
    windows = [allocator.mapping.window_page(0, page) for page in pages]
    assert len(set(windows)) == 3
    assert 0 not in windows
    assert taken(allocator) == [3, 3]


def test_allocation_takes_from_all_groups_or_from_none():
    """The full group could serve them all, the window group cannot: nothing may be left taken."""
    allocator = new_allocator(num_slabs=20)
    wanted = allocator.groups[0].num_available
    with pytest.raises(OutOfPages):
        allocator.allocate(wanted)
    assert taken(allocator) == [0, 0]
    assert allocator.arena.num_free == 19
    assert allocator.mapping.version == 0


def test_a_page_with_two_holders_stays_until_both_are_gone():
    allocator = new_allocator()
    pages = allocator.allocate(1)
    allocator.hold(pages)
    allocator.hold_windows(0, pages)
    free_all(allocator, pages)
    assert taken(allocator) == [1, 1]
    free_all(allocator, pages)
    assert taken(allocator) == [0, 0]


def test_more_than_255_sequences_can_hold_a_page():
    allocator = new_allocator()
    pages = allocator.allocate(1)
    for _ in range(300):
        allocator.hold(pages)
    for _ in range(300):
        allocator.drop(pages)
    assert allocator.num_holders(0, pages[0]) == 1


def test_dropping_more_often_than_holding_is_a_double_free():
    allocator = new_allocator()
    pages = allocator.allocate(1)
    allocator.retain(pages)
    allocator.drop(pages)
    with pytest.raises(LedgerError):
        allocator.drop(pages)


def test_in_production_a_double_drop_is_counted():
    allocator = new_allocator(strict=False)
    pages = allocator.allocate(1)
    allocator.retain(pages)
    allocator.drop(pages)
    allocator.drop(pages)
    assert allocator._violations.num_by_kind[ViolationKind.DOUBLE_FREE] == 1
    assert allocator.num_cached[0] == 1


def test_window_pages_go_before_the_full_page_does():
    allocator = new_allocator()
    pages = allocator.allocate(2)
    assert allocator.drop_windows(0, pages[:1]) == []
    assert taken(allocator) == [2, 1]
    assert not allocator.has_window(0, pages[0])


def test_a_retained_page_is_cached_and_not_freed():
    allocator = new_allocator()
    pages = allocator.allocate(1)
    allocator.retain(pages)
    assert allocator.drop_windows(0, pages) == pages
    allocator.drop(pages)
    assert (allocator.num_held, allocator.num_cached) == ([0, 0], [1, 1])
    allocator.forget(pages)
    assert taken(allocator) == [0, 0]


def test_a_window_expires_under_a_full_page_that_stays():
    allocator = new_allocator()
    pages = allocator.allocate(1)
    allocator.retain(pages)
    free_all(allocator, pages)
    allocator.forget_windows(0, pages[0])
    assert taken(allocator) == [1, 0]


def test_a_page_given_up_while_a_step_runs_is_reused_only_after_it_retired():
    allocator = new_allocator()
    pages = allocator.allocate(2)
    step = launch(allocator)
    free_all(allocator, pages)
    assert allocator.num_pending == [2, 2]
    assert not set(pages) & set(allocator.allocate(3))
    allocator.retire(step)
    assert allocator.num_pending == [0, 0]


def test_a_cached_page_whose_last_step_retired_is_free_at_once():
    """Eviction must help the step that is being planned, although another one runs."""
    allocator = new_allocator()
    pages = allocator.allocate(1)
    allocator.retain(pages)
    step = launch(allocator)
    free_all(allocator, pages)
    allocator.retire(step)
    launch(allocator)
    allocator.forget(pages)
    assert allocator.num_pending == [0, 0]


def test_a_step_is_not_launched_on_a_mapping_the_device_has_not_seen():
    allocator = new_allocator()
    allocator.allocate(1)
    with pytest.raises(StaleTranslation, match="launch"):
        allocator.launch()


@pytest.mark.parametrize("step", [2, -1])
def test_steps_retire_in_order(step):
    allocator = new_allocator()
    launch(allocator)
    with pytest.raises(LedgerError, match="retire"):
        allocator.retire(Step(step))


def test_windows_are_attached_in_bulk_under_pages_that_lost_theirs():
    allocator = new_allocator()
    pages = allocator.allocate(3)
    allocator.drop_windows(0, pages)
    attached = allocator.attach_windows(0, pages)
    assert [allocator.mapping.window_page(0, page) for page in pages] == attached
    assert allocator.num_held == [3, 3]


def test_attaching_to_a_page_that_has_a_window_changes_nothing():
    allocator = new_allocator()
    pages = allocator.allocate(2)
    allocator.drop_windows(0, pages[:1])
    with pytest.raises(LedgerError):
        allocator.attach_windows(0, pages)
    assert taken(allocator) == [2, 1]


def test_windows_move_with_their_holders():
    allocator = new_allocator()
    source, target = allocator.allocate(2)
    allocator.drop_windows(0, [target])
    window_page = allocator.mapping.window_page(0, source)
    allocator.move_windows(source, target)
    assert allocator.mapping.window_page(0, target) == window_page
    assert not allocator.has_window(0, source)
    assert allocator.num_holders(1, window_page) == 1


def test_available_bytes_count_what_the_cache_would_give_up():
    allocator = new_allocator()
    everything = allocator.num_available_bytes()
    pages = allocator.allocate(5)
    less = allocator.num_available_bytes()
    assert less < everything
    allocator.retain(pages)
    free_all(allocator, pages)
    assert allocator.num_available_bytes() == everything


def test_reclaimed_pages_are_announced():
    class Listener:
        def __init__(self) -> None:
            self.heard: list[tuple[int, list[int]]] = []

        def on_reclaim(self, group_index, pages):
            self.heard.append((group_index, list(pages)))

    allocator = new_allocator()
    allocator.listener = listener = Listener()
    pages = allocator.allocate(1)
    window_page = allocator.mapping.window_page(0, pages[0])
    free_all(allocator, pages)
    assert listener.heard == [(1, [window_page]), (0, pages)]
