"""`SWAKVPool` on the tape: translation once per forward, never stale, captured with the graph.

That the engine's own graphs hold one translation per forward is in `unit/step/test_translation.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from playhead.errors import ConfigError, LedgerError, StaleTranslation
from playhead.graph.backends.base import record
from playhead.graph.backends.tape import TapeBackend
from playhead.kv.hybrid import HybridAllocator
from playhead.kv.pool import MHAKVPool
from playhead.kv.swa_pool import SWAKVPool, create_kv_pool
from playhead.kv.violations import ViolationLog
from playhead.testing.kv_pools import one_request
from playhead.testing.kv_rules import small_layer, small_plan

CPU = torch.device("cpu")
HEADS, DIM = 1, 8


def new_pool(*windows: int | None, page_size: int = 4) -> tuple[SWAKVPool, HybridAllocator]:
    plan = small_plan([small_layer(window) for window in windows], page_size=page_size, num_slabs=150)
    allocator = HybridAllocator(plan, ViolationLog(strict=True))
    return SWAKVPool(plan, allocator.mapping, device=CPU), allocator


def locs_of(pages: list[int], page_size: int) -> torch.Tensor:
    return torch.tensor([page * page_size + i for page in pages for i in range(page_size)], dtype=torch.int32)


def kv_rows(num_tokens: int, start: float = 1.0) -> torch.Tensor:
    return torch.arange(start, start + num_tokens)[:, None, None].expand(num_tokens, HEADS, DIM).contiguous()


def read(pool: SWAKVPool, layer: int, locs: torch.Tensor, page_size: int) -> list[float]:
    k, _ = pool.get_kv_buffer(layer)
    return k[locs // page_size, locs % page_size][:, 0, 0].tolist()


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_translation_is_int32_with_sink_at_0_and_minus_1_kept(page_size):
    pool, allocator = new_pool(8, None, page_size=page_size)
    pages = allocator.allocate(2)
    pool.publish(allocator.mapping)
    full_locs = locs_of(pages, page_size)
    wanted = [allocator.mapping.window_loc(0, loc) for loc in full_locs.tolist()]
    padded = torch.cat([full_locs, torch.tensor([0, -1], dtype=torch.int32)])
    translated = pool.translate_loc_from_full_to_swa(padded)
    assert translated.dtype == pool.full_to_swa_index_mapping.dtype == torch.int32
    assert translated.tolist() == [*wanted, 0, -1]


@pytest.mark.parametrize("page_size", [1, 16])
def test_each_layer_is_written_where_its_own_group_has_the_token(page_size):
    pool, allocator = new_pool(8, None, 8, 4, page_size=page_size)
    allocator.allocate(1)  # so that groups do not number their pages alike
    pages = allocator.allocate(2)
    pool.publish(allocator.mapping)
    full_locs = locs_of(pages, page_size)[-16:]
    forward = pool.begin_forward(one_request(allocator.plan, pages, range(2 * page_size)[-16:]))
    for layer in range(4):
        pool.set_kv_buffer(layer, forward, kv_rows(len(full_locs), 10.0 * layer), kv_rows(len(full_locs)))
    group_locs = {0: full_locs, 1: pool.translate_loc_from_full_to_swa(full_locs, 0)}
    group_locs[2] = pool.translate_loc_from_full_to_swa(full_locs, 1)
    assert pool.layers_mapping == {1: (0, 0), 3: (0, 1), 0: (0, 2), 2: (1, 2)}
    for layer, (_, group_index) in pool.layers_mapping.items():
        assert read(pool, layer, group_locs[group_index], page_size) == [
            10.0 * layer + i for i in range(len(full_locs))
        ]


def test_full_locations_alone_are_enough():
    pool, allocator = new_pool(8, None)
    pages = allocator.allocate(1)
    pool.publish(allocator.mapping)
    full_locs = locs_of(pages, 4)
    pool.set_kv_buffer(0, full_locs, kv_rows(4), kv_rows(4))
    assert read(pool, 0, pool.translate_loc_from_full_to_swa(full_locs), 4) == [1, 2, 3, 4]


def test_padded_rows_and_minus_1_write_to_the_sink():
    pool, allocator = new_pool(8, None)
    pages = allocator.allocate(1)
    pool.publish(allocator.mapping)
    before = [tensor.clone() for layer in (0, 1) for tensor in pool.get_kv_buffer(layer)]
    tokens = one_request(allocator.plan, [0], [0, 0])
    tokens.rows_T.zero_()
    tokens.full_locs_T.copy_(torch.tensor([0, -1]))
    forward = pool.begin_forward(tokens)
    assert [locs.new_locs_T.tolist() for locs in forward.groups] == [[0, -1], [0, -1]]
    for layer in (0, 1):
        pool.set_kv_buffer(layer, forward, kv_rows(2), kv_rows(2))
    after = [tensor for layer in (0, 1) for tensor in pool.get_kv_buffer(layer)]
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old[1:], new[1:])
    assert pages


@pytest.mark.parametrize("num_window_layers", [1, 5, 22])
def test_the_tape_holds_one_translation_however_many_window_layers(num_window_layers):
    pool, allocator = new_pool(*[8] * num_window_layers, None)
    tokens = one_request(allocator.plan, allocator.allocate(1), range(4))
    pool.publish(allocator.mapping)

    def forward() -> None:
        locs = pool.begin_forward(tokens)
        for layer in range(num_window_layers + 1):
            pool.set_kv_buffer(layer, locs, kv, kv)

    kv = kv_rows(4)
    recording, _ = record(TapeBackend(), forward)
    assert recording.log.count("playhead::translate") == 1
    assert recording.log.count("aten::index") == 0


def test_two_window_groups_take_one_translation_each():
    pool, allocator = new_pool(4, 4, 8, 8, None)
    tokens = one_request(allocator.plan, allocator.allocate(1), range(4))
    pool.publish(allocator.mapping)
    recording, _ = record(TapeBackend(), lambda: pool.begin_forward(tokens).groups[1].new_locs_T)
    assert recording.log.count("playhead::translate") == 2


def test_the_table_of_a_window_group_holds_the_pages_its_queries_see():
    """Window 8, pages of 4, queries at 13 and 14: keys 6 to 14, pages 1 to 3. Page 0 is behind the window."""
    pool, allocator = new_pool(8, None)
    pages = allocator.allocate(4)
    allocator.drop_windows(0, pages[:1])
    pool.publish(allocator.mapping)
    table = pool.begin_forward(one_request(allocator.plan, pages, [13, 14])).groups[1].table_RP
    assert table[1, :5].tolist() == [0, *(allocator.mapping.window_page(0, page) for page in pages[1:]), 0]


def test_a_replay_translates_what_the_slots_and_the_mapping_hold_now():
    """The slots are refilled in place and the mapping changes in place: same addresses, new contents."""
    pool, allocator = new_pool(8, None)
    first, second = allocator.allocate(1), allocator.allocate(1)
    pool.publish(allocator.mapping)
    tokens, kv = one_request(allocator.plan, first, range(4)), kv_rows(4)
    recording, _ = record(TapeBackend(), lambda: pool.set_kv_buffer(0, pool.begin_forward(tokens), kv, kv))

    refilled = one_request(allocator.plan, second, range(4))
    tokens.full_locs_T.copy_(refilled.full_locs_T)
    tokens.page_table_RP.copy_(refilled.page_table_RP)
    allocator.drop_windows(0, second)
    allocator.drop_windows(0, first)
    allocator.attach_windows(0, second)
    pool.publish(allocator.mapping)
    kv.copy_(kv_rows(4, 50.0))
    recording.replay()

    assert read(pool, 0, pool.translate_loc_from_full_to_swa(tokens.full_locs_T), 4) == [50, 51, 52, 53]
    table = pool.forward_locs(tokens.page_table_RP, tokens.full_locs_T).groups[1].table_RP
    assert table[1, 0].item() == allocator.mapping.window_page(0, second[0])


def test_a_warm_up_leaves_nothing_that_capture_could_skip():
    pool, allocator = new_pool(8, None)
    tokens = one_request(allocator.plan, allocator.allocate(1), range(4))
    pool.publish(allocator.mapping)
    for _ in range(3):
        pool.begin_forward(tokens)
        pool.invalidate_loc_cache()
    recording, _ = record(TapeBackend(), lambda: pool.begin_forward(tokens).groups[1].new_locs_T)
    assert recording.log.count("playhead::translate") == 1


def test_a_forward_beyond_the_plan_s_limits_is_refused():
    pool, allocator = new_pool(8, None)
    tokens = one_request(allocator.plan, allocator.allocate(5), range(18))
    pool.publish(allocator.mapping)
    with pytest.raises(ConfigError, match="18 tokens"):
        pool.begin_forward(tokens)
    with pytest.raises(ConfigError, match="page table"):
        pool.begin_forward(
            replace(tokens, page_table_RP=tokens.page_table_RP[:, 1:], full_locs_T=tokens.full_locs_T[:4])
        )


def test_views_of_one_storage_are_different_inputs():
    pool, allocator = new_pool(8, None)
    slot = locs_of(allocator.allocate(2), 4)
    pool.publish(allocator.mapping)
    low, high = pool.translate_loc_from_full_to_swa(slot[:4]), pool.translate_loc_from_full_to_swa(slot[4:])
    whole = pool.translate_loc_from_full_to_swa(slot)
    assert low.tolist() + high.tolist() == whole.tolist()
    assert not set(low.tolist()) & set(high.tolist())


def change_by_alloc(pool, allocator, pages):
    allocator.allocate(1)


def change_by_window_free(pool, allocator, pages):
    allocator.drop_windows(0, pages[:1])


def change_by_attach(pool, allocator, pages):
    allocator.drop_windows(0, pages[:1])
    allocator.attach_windows(0, pages[:1])


def change_in_bulk(pool, allocator, pages):
    allocator.drop_windows(0, pages)
    pool.set_full_to_swa_mapping(pages, [5, 6])


def change_by_clear(pool, allocator, pages):
    pool.clear()


@pytest.mark.parametrize(
    "change", [change_by_alloc, change_by_window_free, change_by_attach, change_in_bulk, change_by_clear]
)
def test_whatever_changes_the_mapping_makes_an_earlier_translation_unusable(change):
    pool, allocator = new_pool(8, None)
    pages = allocator.allocate(2)
    pool.publish(allocator.mapping)
    forward = pool.begin_forward(one_request(allocator.plan, pages, range(8)))
    change(pool, allocator, pages)
    pool.publish(allocator.mapping)
    with pytest.raises(StaleTranslation, match="set_kv_buffer"):
        pool.set_kv_buffer(0, forward, kv_rows(8), kv_rows(8))


def test_a_forward_on_an_unpublished_mapping_is_refused():
    pool, allocator = new_pool(8, None)
    pages = allocator.allocate(1)
    with pytest.raises(StaleTranslation, match="publish"):
        pool.begin_forward(one_request(allocator.plan, pages, range(4)))


@pytest.mark.parametrize("change", [change_by_alloc, change_by_window_free])
def test_a_translation_from_an_unpublished_mapping_is_refused(change):
    pool, allocator = new_pool(8, None)
    pages = allocator.allocate(2)
    pool.publish(allocator.mapping)
    change(pool, allocator, pages)
    for ask in (
        lambda: pool.translate_loc_from_full_to_swa(locs_of(pages, 4)),
        lambda: pool.set_kv_buffer(0, locs_of(pages, 4), kv_rows(8), kv_rows(8)),
    ):
        with pytest.raises(StaleTranslation, match="translate_loc_from_full_to_swa"):
            ask()


def test_a_cleared_pool_translates_everything_to_the_sink():
    pool, allocator = new_pool(8, 4, None)
    pages = allocator.allocate(2)
    pool.publish(allocator.mapping)
    version = allocator.mapping.version
    pool.clear()
    assert allocator.mapping.version > version
    for window in range(2):
        assert pool.translate_loc_from_full_to_swa(locs_of(pages, 4), window).tolist() == [0] * 8
        assert not pool.device_mappings[window][:-1].any()


def test_a_bulk_change_is_on_the_device_when_it_returns():
    pool, allocator = new_pool(8, None)
    pages = allocator.allocate(2)
    allocator.drop_windows(0, pages)
    pool.set_full_to_swa_mapping(pages, [5, 6])
    assert pool.translate_loc_from_full_to_swa(locs_of(pages, 4)).tolist() == list(range(20, 28))


def test_a_bulk_change_that_is_not_one_to_one_changes_nothing():
    pool, allocator = new_pool(8, None)
    pages = allocator.allocate(2)
    pool.publish(allocator.mapping)
    before = pool.full_to_swa_index_mapping.clone()
    with pytest.raises(LedgerError):
        pool.set_full_to_swa_mapping(pages, [5, 6])
    assert torch.equal(pool.full_to_swa_index_mapping, before)


def test_the_mapping_never_moves():
    pool, allocator = new_pool(8, None)
    address = pool.full_to_swa_index_mapping.data_ptr()
    for _ in range(5):
        allocator.allocate(2)
        pool.publish(allocator.mapping)
    assert pool.full_to_swa_index_mapping.data_ptr() == address


def test_an_expired_location_translates_to_the_sink():
    pool, allocator = new_pool(8, None)
    pages = allocator.allocate(1)
    allocator.drop_windows(0, pages)
    pool.publish(allocator.mapping)
    assert pool.translate_loc_from_full_to_swa(locs_of(pages, 4)).tolist() == [0, 0, 0, 0]


def test_an_all_window_model_has_no_full_layers():
    pool, allocator = new_pool(8, 8)
    tokens = one_request(allocator.plan, allocator.allocate(1), range(4))
    full_locs = tokens.full_locs_T
    pool.publish(allocator.mapping)
    pool.set_kv_buffer(1, pool.begin_forward(tokens), kv_rows(4), kv_rows(4))
    assert read(pool, 1, pool.translate_loc_from_full_to_swa(full_locs), 4) == [1, 2, 3, 4]
    assert {group for _, group in pool.layers_mapping.values()} == {1}


def test_a_model_without_windows_gets_a_pool_without_a_mapping():
    plan = small_plan([small_layer(None)], page_size=4, num_slabs=30)
    allocator = HybridAllocator(plan, ViolationLog(strict=True))
    assert isinstance(create_kv_pool(plan, allocator.mapping, device=CPU), MHAKVPool)
    with pytest.raises(ConfigError, match="window"):
        SWAKVPool(plan, allocator.mapping, device=CPU)


def test_a_hybrid_model_gets_a_pool_with_one():
    plan = small_plan([small_layer(8), small_layer(None)], page_size=4, num_slabs=30)
    allocator = HybridAllocator(plan, ViolationLog(strict=True))
    assert isinstance(create_kv_pool(plan, allocator.mapping, device=CPU), SWAKVPool)
