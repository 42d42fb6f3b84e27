"""A forward's translation is of the tokens it is given: nothing is remembered by address."""

from __future__ import annotations

import pytest
import torch

from playhead.kv.hybrid import HybridAllocator
from playhead.kv.pool import ForwardTokens
from playhead.kv.swa_pool import SWAKVPool
from playhead.kv.violations import ViolationLog
from playhead.testing.kv_pools import one_request
from playhead.testing.kv_rules import small_layer, small_plan

PAGE_SIZE = 4


@pytest.fixture
def allocator() -> HybridAllocator:
    plan = small_plan([small_layer(8), small_layer(None)], page_size=PAGE_SIZE, num_slabs=60)
    return HybridAllocator(plan, ViolationLog(strict=True))


@pytest.fixture
def pool(allocator) -> SWAKVPool:
    return SWAKVPool(allocator.plan, allocator.mapping, device=torch.device("cpu"))


def cut(tokens: ForwardTokens, start: int, stop: int) -> ForwardTokens:
    return ForwardTokens(
        page_table_RP=tokens.page_table_RP,
        full_locs_T=tokens.full_locs_T[start:stop],
        rows_T=tokens.rows_T[start:stop],
        positions_T=tokens.positions_T[start:stop],
    )


def window_locs(pool: SWAKVPool, tokens: ForwardTokens) -> list[int]:
    return pool.begin_forward(tokens).groups[1].new_locs_T.tolist()


def test_views_of_one_storage_are_different_tokens(pool, allocator):
    pages = allocator.allocate(2)
    pool.publish(allocator.mapping)
    tokens = one_request(allocator.plan, pages, range(8))
    wanted = [allocator.mapping.window_loc(0, loc) for loc in tokens.full_locs_T.tolist()]
    assert window_locs(pool, cut(tokens, 0, 4)) == wanted[:4]
    assert window_locs(pool, cut(tokens, 4, 8)) == wanted[4:]
    assert len(set(wanted)) == 8


def test_slots_that_are_refilled_in_place_are_translated_again(pool, allocator):
    """The address, the length and the mapping are those of the last forward."""
    first, second = allocator.allocate(1), allocator.allocate(1)
    pool.publish(allocator.mapping)
    slots = one_request(allocator.plan, first, range(4))
    window_locs(pool, slots)
    refilled = one_request(allocator.plan, second, range(4))
    slots.full_locs_T.copy_(refilled.full_locs_T)
    slots.page_table_RP.copy_(refilled.page_table_RP)
    wanted = [allocator.mapping.window_loc(0, loc) for loc in refilled.full_locs_T.tolist()]
    assert window_locs(pool, slots) == wanted
