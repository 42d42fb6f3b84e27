"""Pages of one group, from slabs all groups share."""

from __future__ import annotations

import random

import pytest

from playhead.errors import DoubleFree, OutOfPages
from playhead.kv.allocator import PageAllocator, SlabArena
from playhead.kv.violations import ViolationKind, ViolationLog
from tests.counting import executed_lines


def new_allocator(arena: SlabArena, *, pages_per_slab: int = 4, strict: bool = True) -> PageAllocator:
    violations = ViolationLog(strict=strict)
    return PageAllocator(name="full", arena=arena, pages_per_slab=pages_per_slab, violations=violations)


def test_the_sink_is_never_handed_out():
    allocator = new_allocator(SlabArena(5))
    pages = allocator.take(16)
    assert min(pages) == 4, "pages 0 to 3 lie in the sink's slab"
    assert len(set(pages)) == 16


def test_running_out_changes_nothing():
    allocator = new_allocator(SlabArena(3))
    allocator.take(3)
    with pytest.raises(OutOfPages, match="'full': wanted 6 pages, 5 free"):
        allocator.take(6)
    assert (allocator.num_free, allocator.num_taken) == (1, 3)


def test_a_slab_goes_back_with_its_last_page():
    arena = SlabArena(3)
    allocator = new_allocator(arena)
    pages = allocator.take(4)
    allocator.give_back(pages[:3])
    assert arena.num_free == 1
    allocator.give_back(pages[3:])
    assert arena.num_free == 2


def test_a_returned_slab_serves_another_group():
    arena = SlabArena(2)
    full, window = new_allocator(arena), new_allocator(arena, pages_per_slab=1)
    pages = full.take(1)
    with pytest.raises(OutOfPages):
        window.take(1)
    full.give_back(pages)
    assert window.take(1) == [1]


def test_pages_come_from_the_fullest_slab_so_that_others_drain():
    arena = SlabArena(3)
    allocator = new_allocator(arena)
    first, second = allocator.take(4), allocator.take(4)
    allocator.give_back(first[:3])
    allocator.give_back(second[:1])
    assert allocator.take(1) == second[:1]


def test_double_free_is_an_error():
    allocator = new_allocator(SlabArena(3))
    pages = allocator.take(2)
    allocator.give_back(pages[:1])
    with pytest.raises(DoubleFree, match="page 4 was given back, but it is not held"):
        allocator.give_back(pages[:1])


@pytest.mark.parametrize("pages_per_slab", [1, 4])
def test_a_page_twice_in_one_list_is_a_double_free(pages_per_slab):
    allocator = new_allocator(SlabArena(3), pages_per_slab=pages_per_slab)
    pages = allocator.take(2)
    with pytest.raises(DoubleFree):
        allocator.give_back([pages[0], pages[0]])


def test_in_production_a_double_free_is_counted_and_the_page_never_handed_out_again():
    arena = SlabArena(3)
    violations = ViolationLog(strict=False)
    allocator = PageAllocator(name="full", arena=arena, pages_per_slab=4, violations=violations)
    pages = allocator.take(2)
    allocator.give_back(pages[:1])
    allocator.give_back(pages[:1])
    assert violations.num_by_kind[ViolationKind.DOUBLE_FREE] == 1
    assert pages[0] not in allocator.take(allocator.num_available)
    assert allocator.num_quarantined == 1


def test_pages_that_are_slabs_come_back_at_once_but_for_one_in_quarantine():
    allocator = new_allocator(SlabArena(4), pages_per_slab=1)
    pages = allocator.take(3)
    allocator.quarantine(pages[0])
    allocator.give_back(pages)
    assert (allocator.num_slabs, allocator.num_taken, allocator.num_available) == (1, 0, 2)
    assert sorted(allocator.take(2)) == sorted(pages[1:])


def test_a_quarantined_page_that_is_held_stays_out_when_given_back():
    allocator = new_allocator(SlabArena(2))
    pages = allocator.take(4)
    allocator.quarantine(pages[0])
    allocator.give_back(pages)
    assert (allocator.num_free, allocator.num_quarantined, allocator.num_taken) == (3, 1, 0)
    assert pages[0] not in allocator.take(3)


def test_quarantine_reaches_a_page_whose_slab_went_back_to_the_arena():
    allocator = new_allocator(SlabArena(2))
    allocator.quarantine(5)
    assert (allocator.num_quarantined, allocator.num_free) == (1, 3)
    assert 5 not in allocator.take(3)


def test_quarantine_comes_too_late_when_another_group_has_the_slab():
    arena = SlabArena(2)
    allocator, other = new_allocator(arena), new_allocator(arena)
    other.take(1)
    allocator.quarantine(5)
    assert allocator.num_quarantined == 0


@pytest.mark.parametrize("pages_per_slab", [1, 5, 29])
def test_taking_and_giving_back_a_thousand_pages_takes_as_many_steps_in_any_arena(pages_per_slab):
    counts = []
    for num_pages in (10**4, 10**6):
        allocator = new_allocator(SlabArena(2 + num_pages // pages_per_slab), pages_per_slab=pages_per_slab)
        counts.append(executed_lines(lambda allocator=allocator: allocator.give_back(allocator.take(1000))))
        assert allocator.num_taken == 0
    few, many = counts
    assert many == few
    assert many < 30 * 1000, "a page costs a few lines"


def test_slabs_come_in_the_order_of_a_list_of_all():
    """Those given back last come first, then those never lent, from below; one that was asked for is left out."""
    arena, listed, draw = SlabArena(40), list(range(39, 0, -1)), random.Random(3)
    lent: list[int] = []
    for _ in range(300):
        count = draw.randint(1, 4)
        if draw.random() < 0.5 and count <= len(listed):
            wanted = [listed.pop() for _ in range(count)]
            assert arena.take(count) == wanted
            lent += wanted
        elif lent and draw.random() < 0.8:
            slab = lent.pop(draw.randrange(len(lent)))
            arena.give_back([slab])
            listed.append(slab)
        else:
            slab = draw.randint(0, 40)
            assert arena.take_this(slab) == (slab in listed)
            if slab in listed:
                listed.remove(slab)
                lent.append(slab)
        assert arena.num_free == len(listed)
        assert sorted(arena.free_slabs()) == sorted(listed)
    arena.restore(set(lent))
    listed = [slab for slab in range(39, 0, -1) if slab not in lent]
    assert arena.take(len(listed)) == listed[::-1]
