"""Tensors in the arena: every layer its own bytes, and the same calls where nothing is translated."""

from __future__ import annotations

import inspect

import pytest
import torch

from playhead.errors import ConfigError
from playhead.graph.backends.base import record
from playhead.graph.backends.tape import TapeBackend
from playhead.kv.geometry import KVDtype, LayerKV
from playhead.kv.hybrid import HybridAllocator
from playhead.kv.pool import ARENA_ALIGNMENT, MHAKVPool, new_arena
from playhead.kv.swa_pool import SWAKVPool, create_kv_pool
from playhead.kv.violations import ViolationLog
from playhead.testing.kv_pools import one_request
from playhead.testing.kv_rules import small_layer, small_plan

CPU = torch.device("cpu")


def test_loc_50_is_page_3_offset_2_at_page_size_16():
    pool = MHAKVPool(small_plan([small_layer(None)], page_size=16, num_slabs=30), device=CPU)
    ones = torch.ones(1, 1, 8)
    pool.set_kv_buffer(0, torch.tensor([50], dtype=torch.int32), ones, ones)
    assert pool.get_kv_buffer(0)[0][..., 0, 0].nonzero().tolist() == [[3, 2]]


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("dtype", list(KVDtype))
def test_layers_of_any_shape_keep_what_was_written(dtype, page_size):
    """Keys and values of different widths, layers of different heads: no write may touch another's bytes."""
    shapes = [(1, 8, 8), (3, 24, 16), (2, 16, 24)]
    layers = [
        LayerKV(window=None, num_kv_heads=heads, k_head_dim=k, v_head_dim=v, dtype=dtype) for heads, k, v in shapes
    ]
    plan = small_plan(layers, page_size=page_size, num_slabs=100)
    pool = MHAKVPool(plan, device=CPU)
    locs = torch.tensor([page_size, page_size + page_size // 2, 3 * page_size - 1], dtype=torch.int32).unique()
    written = {}
    for layer, (heads, k_dim, v_dim) in enumerate(shapes):
        k, v = (torch.randn(len(locs), heads, dim).to(pool.get_kv_buffer(layer)[0].dtype) for dim in (k_dim, v_dim))
        pool.set_kv_buffer(layer, locs, k, v)
        written[layer] = (k, v)
    for layer, tensors in written.items():
        for buffer, tensor in zip(pool.get_kv_buffer(layer), tensors, strict=True):
            found = buffer.view(torch.uint8)[locs // page_size, locs % page_size]
            assert torch.equal(found, tensor.view(torch.uint8))


def test_a_pool_without_windows_answers_the_same_calls_and_translates_nothing():
    plan = small_plan([small_layer(None)], page_size=4, num_slabs=30)
    allocator = HybridAllocator(plan, ViolationLog(strict=True))
    pool = MHAKVPool(plan, device=CPU)
    allocator.allocate(1)
    pool.publish(allocator.mapping)
    allocator.launch()
    tokens = one_request(plan, [1, 2], [3, 4, 5])
    locs = tokens.full_locs_T
    assert pool.translate_loc_from_full_to_swa(locs, 0) is locs
    assert pool.full_to_swa_index_mapping is None
    assert pool.device_mappings == pool.workspaces == ()
    pool.set_full_to_swa_mapping([1], [1])
    pool.clear()
    pool.invalidate_loc_cache()
    kv = torch.ones(3, 1, 8)
    pool.set_kv_buffer(0, pool.begin_forward(tokens), kv, kv)
    (group,) = pool.begin_forward(tokens).groups
    assert (group.table_RP, group.new_locs_T) == (tokens.page_table_RP, locs)
    recording, _ = record(TapeBackend(), lambda: pool.begin_forward(tokens).groups[0].new_locs_T)
    assert recording.log.ops == ()


def test_both_pools_answer_the_same_calls():
    """Names, parameters and defaults: a caller need not know which of the two it has."""

    def calls(pool: type) -> dict[str, inspect.Signature]:
        methods = inspect.getmembers(pool, inspect.isfunction)
        return {name: inspect.signature(call) for name, call in methods if not name.startswith("_")}

    def parameters(pool: type) -> dict[str, list[tuple[str, object]]]:
        return {
            name: [(p.name, p.default) for p in signature.parameters.values()]
            for name, signature in calls(pool).items()
        }

    assert parameters(MHAKVPool) == parameters(SWAKVPool)
    mha, swa = (
        create_kv_pool(plan, HybridAllocator(plan, ViolationLog(strict=True)).mapping, device=CPU)
        for plan in (
            small_plan([small_layer(None)], page_size=4, num_slabs=30),
            small_plan([small_layer(8)], page_size=4, num_slabs=30),
        )
    )
    public = [{name for name in dir(pool) if not name.startswith("_")} - {"mapping"} for pool in (mha, swa)]
    assert public[0] == public[1]


def test_addresses_of_layers_never_change():
    plan = small_plan([small_layer(None)] * 2, page_size=4, num_slabs=30)
    pool = MHAKVPool(plan, device=CPU)
    addresses = [tensor.data_ptr() for layer in (0, 1) for tensor in pool.get_kv_buffer(layer)]
    assert len(set(addresses)) == 4
    assert [tensor.data_ptr() for layer in (0, 1) for tensor in pool.get_kv_buffer(layer)] == addresses


def test_a_cpus_arena_is_zero_aligned_and_refused_in_words_where_the_system_has_no_room(monkeypatch):
    plan = small_plan([small_layer(None)], page_size=16, num_slabs=30)
    arena = new_arena(plan, CPU)
    assert (arena.numel(), int(arena.count_nonzero())) == (plan.arena_bytes, 0)
    assert arena.data_ptr() % ARENA_ALIGNMENT == 0

    def refuse(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr("numpy.zeros", refuse)
    with pytest.raises(ConfigError, match=f"the system refused {plan.arena_bytes} bytes"):
        new_arena(plan, CPU)
