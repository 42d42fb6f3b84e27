"""The translation of one forward, on a CPU and interpreted, against its reference and against plain Python."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead.kernels.translate import max_pages_seen, translate
from playhead.kernels.triton.translate import launch_translate

UNTOUCHED = 7777
MAX_PAGES = 12


def int32(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def random_call(spans, page_size, window, *, num_padding=0, seed=0) -> list:
    """Requests with `spans` of (first position, number of tokens), then padding; the last token goes nowhere (-1)."""
    rng = torch.Generator().manual_seed(seed)
    num_rows = 1 + len(spans)
    table = torch.zeros(num_rows, MAX_PAGES, dtype=torch.int32)
    num_full = 1 + len(spans) * MAX_PAGES
    table[1:] = (torch.randperm(num_full - 1, generator=rng) + 1).view(len(spans), MAX_PAGES)
    window_page = torch.cat((int32([0]), torch.randperm(num_full - 1, generator=rng).int() + 1))
    window_page[torch.randint(1, num_full, (3,), generator=rng)] = 0  # pages whose windows have expired
    offsets = torch.arange(page_size, dtype=torch.int32)
    by_loc = torch.where(window_page[:, None] > 0, window_page[:, None] * page_size + offsets, 0).flatten()
    row_order = (torch.randperm(len(spans), generator=rng) + 1).tolist()
    pairs = [(row, first + i) for row, (first, count) in zip(row_order, spans, strict=True) for i in range(count)] + [
        (0, 0)
    ] * num_padding
    rows, positions = int32([row for row, _ in pairs]), int32([position for _, position in pairs])
    locs = table[rows, positions // page_size] * page_size + positions % page_size
    locs[-1] = -1
    workspaces = [torch.full((len(pairs) + 3,), UNTOUCHED), torch.full((num_rows, MAX_PAGES), UNTOUCHED)]
    mapping = torch.cat((by_loc, int32([-1])))
    return [*(w.int() for w in workspaces), mapping, table, locs, rows, positions, page_size, window]


def by_hand(call) -> tuple[list[int], list[list[int]]]:
    """What the op must leave, one token and one key at a time."""
    window_locs, window_table, mapping, table, locs, rows, positions, page_size, window = call
    new_locs = [-1 if loc < 0 else int(mapping[loc]) for loc in locs.tolist()]
    found = window_table.tolist()
    for row, position in zip(rows.tolist(), positions.tolist(), strict=True):
        for key in range(max(0, position - window + 1), position + 1):
            page = key // page_size
            found[row][page] = int(mapping[int(table[row, page]) * page_size]) // page_size
    return new_locs + window_locs[len(new_locs) :].tolist(), found


SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 15)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    spans=SPANS,
    page_size=st.sampled_from((4, 5, 16)),
    window=st.sampled_from((1, 2, 4, 7, 16, 64)),
    num_padding=st.integers(0, 3),
    seed=st.integers(0, 2**31),
)
@pytest.mark.parametrize("run", [translate, translate.reference, launch_translate])
def test_exactly_the_pages_that_queries_see_are_translated(run, spans, page_size, window, num_padding, seed):
    call = random_call(spans, page_size, window, num_padding=num_padding, seed=seed)
    wanted_locs, wanted_table = by_hand(call)
    run(*call)
    assert call[0].tolist() == wanted_locs
    assert call[1].tolist() == wanted_table


@pytest.mark.parametrize("run", [translate, translate.reference, launch_translate])
def test_pages_of_one_location_are_locations(run):
    """More tokens than a program takes, and a window of more pages than a program takes."""
    call = random_call([(0, 5), (11, 1), (2, 9)] * 5, page_size=1, window=100, num_padding=5, seed=3)
    wanted_locs, wanted_table = by_hand(call)
    run(*call)
    assert (call[0].tolist(), call[1].tolist()) == (wanted_locs, wanted_table)


def test_a_wide_window_takes_several_blocks_of_pages():
    table = torch.arange(300, dtype=torch.int32).view(2, 150)
    mapping = torch.cat((torch.arange(300).flip(0).int(), int32([-1])))
    found = [torch.full((1,), UNTOUCHED).int(), torch.full((2, 150), UNTOUCHED).int()]
    launch_translate(*found, mapping, table, int32([289]), int32([1]), int32([139]), 1, 130)
    assert found[0].tolist() == [10]
    assert found[1][1, 10:140].tolist() == list(range(139, 9, -1))
    assert (found[1][0] == UNTOUCHED).all()
    assert (found[1][1, :10] == UNTOUCHED).all()
    assert (found[1][1, 140:] == UNTOUCHED).all()


def test_the_bound_op_reads_its_memory_at_every_call():
    """A tape binds the op once and runs it at every replay, over slots that were refilled and a mapping that moved."""
    call = random_call([(3, 2), (9, 1)], page_size=4, window=6, seed=1)
    translate(*call)
    call[6].sub_(1)
    call[2][4:-1] = call[2][4:-1].flip(0)
    call[0].fill_(UNTOUCHED)
    call[1].fill_(UNTOUCHED)
    wanted = by_hand(call)
    translate(*call)
    assert (call[0].tolist(), call[1].tolist()) == wanted


@pytest.mark.parametrize(("window", "num_pages"), [(1, 1), (2, 2), (16, 2), (17, 2), (18, 3), (512, 33)])
def test_a_window_touches_at_most_so_many_pages_of_16(window, num_pages):
    assert max_pages_seen(window, 16) == num_pages
    last = max(range(window, window + 16), key=lambda end: (end - 1) // 16 - (end - window) // 16)
    assert (last - 1) // 16 - (last - window) // 16 + 1 == num_pages
