"""The step from one decode input to the next, interpreted, against its reference; and what it promises."""

from __future__ import annotations

import pytest
import torch

from playhead.kernels.tokens import advance, newest_ids
from playhead.kernels.triton.advance import launch_advance, launch_newest_ids

PAGE_SIZE = 4
NUM_BOXES = 3
NEWEST = 9


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def step_inputs(num_requests: int, num_live: int, seed: int) -> list[torch.Tensor]:
    """Random live rows followed by null requests, over a table whose every entry is different."""
    generator = torch.Generator().manual_seed(seed)
    num_rows, num_pages = num_requests + 3, 6
    table = torch.arange(num_rows * num_pages, dtype=torch.int32).view(num_rows, num_pages)
    table[0] = 0
    live = torch.arange(num_requests) < num_live

    def some(high, low=0):
        return torch.where(live, torch.randint(low, high, (num_requests,), generator=generator), 0).int()

    positions = some(num_pages * PAGE_SIZE)
    rows = torch.where(live, 1 + torch.randperm(num_rows - 1, generator=generator)[:num_requests], 0).int()
    return [
        torch.randint(0, 99, (num_requests,), generator=generator),
        some(99),
        positions,
        torch.where(live, positions + 1, 1).int(),
        some(99),
        some(99).long(),
        some(1 + NUM_BOXES),
        rows,
        int32(num_live),
        some(99, 1).new_zeros(num_rows),
        torch.full((1 + NUM_BOXES, num_requests + 2), -1, dtype=torch.int32),
        table,
    ]


@pytest.mark.parametrize("run", [advance, launch_advance])
@pytest.mark.parametrize(("num_requests", "num_live"), [(1, 1), (5, 3), (4, 0), (8, 8), (130, 129)])
def test_the_kernel_agrees_with_its_reference(num_requests, num_live, run):
    found = step_inputs(num_requests, num_live, seed=num_requests)
    wanted = [tensor.clone() for tensor in found]
    run(*found, PAGE_SIZE)
    advance.reference(*wanted, PAGE_SIZE)
    for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
        skip = 1 if i == NEWEST else 0  # row 0 of the newest tokens is the sink's
        assert torch.equal(one[skip:], other[skip:]), i


def test_a_live_request_goes_on_and_a_null_request_stays_null():
    table = int32(0, 0, 0, 5, 6, 7).view(2, 3)
    ids, positions, lens, locs = int32(8, 0), int32(3, 0), int32(4, 1), int32(23, 0)
    drawn, newest = torch.tensor([2, 0]), int32(0, 0)
    boxes, outbox = int32(3, 0), torch.zeros(1 + NUM_BOXES, 2, dtype=torch.int32)
    state = (ids, positions, lens, locs, drawn, boxes)
    advance(torch.tensor([42, 99]), *state, int32(1, 0), int32(1), newest, outbox, table, PAGE_SIZE)
    assert (ids.tolist(), positions.tolist(), lens.tolist()) == ([42, 0], [4, 0], [5, 1])
    assert (locs.tolist(), drawn.tolist(), newest[1].item()) == ([6 * PAGE_SIZE, 0], [3, 0], 42)
    assert (outbox.tolist(), boxes.tolist()) == ([[0, 0], [0, 0], [0, 0], [42, 0]], [1, 0])


def test_the_last_place_of_a_context_has_no_next_and_nothing_is_read_past_the_table():
    table = int32(0, 0, 0, 5, 6, 7).view(2, 3)
    for run in (advance, launch_advance):
        positions, lens, locs = int32(11), int32(12), int32(31)
        run(
            torch.tensor([1]), int32(2), positions, lens, locs, torch.tensor([0]), int32(0), int32(1), int32(1),
            int32(0, 0), int32(0, 0).view(2, 1), table, PAGE_SIZE,
        )  # fmt: skip
        assert (positions.item(), lens.item(), locs.item()) == (11, 12, 31)


@pytest.mark.parametrize("run", [newest_ids, newest_ids.reference, launch_newest_ids])
def test_ids_below_zero_are_the_newest_tokens_of_rows(run):
    assert run(int32(4, -2, 0, -1), int32(50, 7, 9)).tolist() == [4, 9, 0, 7]
