"""Attention of the CPU by cells, against the oracle. Whatever a query may not see is NaN in these steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead.attention.base import LENGTHS_SLOT, ROWS_SLOT, extend_arguments
from playhead.attention.cpu import CpuBackend, Lookup
from playhead.attention.reference import ReferenceBackend
from playhead.kernels.attention import extend
from playhead.kernels.cpu.attention import MOST_PRODUCTS, CellMemory, decode_cells, key_cells_into
from playhead.kv.pool import ForwardLocs, GroupLocs
from tests.unit.attention.scenes import Scene, SceneSpec, make_scene
from tests.unit.attention.strategies import scene_specs


def in_cells(scene: Scene) -> Scene:
    """The same scene in memory whose pages are a whole number of cells apart, as a KV pool's mostly are."""

    def spread(cache: torch.Tensor) -> torch.Tensor:
        arena = torch.full((cache.shape[0], 3, *cache.shape[1:]), float("nan"))
        arena[:, 1] = cache
        return arena[:, 1]

    k_cache, v_cache = spread(scene.layer.k_cache_NSKD), spread(scene.layer.v_cache_NSKE)
    return replace(scene, layer=replace(scene.layer, k_cache_NSKD=k_cache, v_cache_NSKE=v_cache))


def cells_of(scene: Scene) -> CellMemory | None:
    return CellMemory.of(scene.layer.k_cache_NSKD, scene.layer.v_cache_NSKE)


def cpu_backend(scene: Scene) -> CpuBackend:
    return CpuBackend(scene.plan.page_table_RP, (scene.layer,))


def prepared(backend: CpuBackend, scene: Scene) -> tuple[torch.Tensor, ...]:
    """What the backend hands to the scene's layer at the start of a forward."""
    group = GroupLocs(table_RP=scene.plan.page_table_RP, new_locs_T=torch.zeros_like(scene.plan.rows_B))
    slots = {ROWS_SLOT: scene.plan.rows_B, LENGTHS_SLOT: scene.plan.seq_lens_B}
    (tensors,) = backend.prepare((scene.layer,), ForwardLocs(groups=(group,), version=0), slots)
    return tensors


def both(scene: Scene) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs of the CPU's backend and of the oracle."""
    backend, found, wanted = cpu_backend(scene), scene.new_out(), scene.new_out()
    tensors = prepared(backend, scene)
    assert tensors, "this memory is cells"
    backend.decode(scene.plan, scene.layer, scene.q, found, tensors)
    ReferenceBackend(scene.plan.page_table_RP).decode(scene.plan, scene.layer, scene.q, wanted)
    return found[: scene.num_live], wanted[: scene.num_live]


@settings(max_examples=40)
@given(spec=scene_specs(extend=False), seed=st.integers(0, 2**31))
def test_decode_gives_what_the_oracle_gives(spec, seed):
    scene = in_cells(make_scene(replace(spec, v_head_dim=spec.k_head_dim), seed))
    torch.testing.assert_close(*both(scene), atol=1e-5, rtol=1e-5)


def test_more_products_than_numpy_may_do_go_to_torch():
    spec = SceneSpec(seq_lens=(2100, 3), group_size=8, k_head_dim=8, v_head_dim=8, page_size=16)
    assert 2100 * spec.group_size * spec.k_head_dim > MOST_PRODUCTS
    torch.testing.assert_close(*both(in_cells(make_scene(spec, seed=2))), atol=1e-5, rtol=1e-5)


def test_keys_and_values_of_other_widths_run_the_reference():
    scene = in_cells(make_scene(SceneSpec(seq_lens=(3,), k_head_dim=8, v_head_dim=4), seed=0))
    backend, found, wanted = cpu_backend(scene), scene.new_out(), scene.new_out()
    assert cells_of(scene) is None
    assert prepared(backend, scene) == ()
    assert backend.write_target(scene.layer, scene.plan.rows_B, ())[0] is scene.layer.k_cache_NSKD
    backend.decode(scene.plan, scene.layer, scene.q, found)
    ReferenceBackend(scene.plan.page_table_RP).decode(scene.plan, scene.layer, scene.q, wanted)
    assert torch.equal(found, wanted)


def test_new_keys_are_written_to_the_cells_that_were_looked_up():
    scene = in_cells(make_scene(SceneSpec(seq_lens=(3,)), seed=0))
    backend = cpu_backend(scene)
    tensors = prepared(backend, scene)
    k_cells, _, cells = backend.write_target(scene.layer, torch.tensor([-1]), tensors)
    assert k_cells.shape[1] == 1
    assert cells is Lookup(*tensors).new_cells_B


def test_lengths_are_read_at_every_call():
    scene = in_cells(make_scene(SceneSpec(seq_lens=(3, 33), group_size=2), seed=6))
    both(scene)
    scene.plan.seq_lens_B.fill_(2)
    torch.testing.assert_close(*both(scene), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("page_stride", "fits"), [(64, True), (96, True), (72, False)])
def test_memory_is_cells_where_pages_are_whole_cells_apart(page_stride, fits):
    cache = torch.arange(1000.0).as_strided((5, 4, 2, 8), (page_stride, 16, 8, 1), 32)
    memory = CellMemory.of(cache, cache)
    assert (memory is not None) == fits
    if memory is not None:
        assert torch.equal(memory.k_A1KD[3 * memory.cells_per_page + 2, 0], cache[3, 2])


def test_new_tokens_go_to_the_cells_of_their_locations():
    """Location 6 of pages of 4, and nobody's, which is the sink; pages are 10 cells apart."""
    ints, longs = {"dtype": torch.int32}, {"dtype": torch.int64}
    found = (torch.zeros(2, 8, **longs), torch.zeros(2, 8), torch.zeros(2, **longs))
    requests = (torch.zeros(1, 2, **ints), torch.zeros(2, **ints), torch.ones(2, **ints), torch.tensor([6, -1], **ints))
    key_cells_into(*found, *requests, 4, 10)
    assert found[2].tolist() == [12, 0]


@settings(max_examples=40)
@given(lengths=st.lists(st.integers(1, 24), min_size=1, max_size=5), window=st.integers(1, 24))
def test_key_cells_are_those_of_the_reference(lengths, window):
    """Pages of 4 locations and 10 cells, six for each request; the first new location is nobody's."""
    num_requests = len(lengths)
    table = torch.randperm(6 * num_requests).int().view(num_requests, 6)
    new_locs = torch.arange(-1, num_requests - 1).int()
    requests = (table, torch.randperm(num_requests).int(), torch.tensor(lengths).int(), new_locs)

    def run(op):
        shape = (num_requests, window)
        made = (torch.zeros(shape, dtype=torch.int64), torch.zeros(shape), torch.zeros(num_requests, dtype=torch.int64))
        op(*made, *requests, 4, 10)
        return made

    for found, wanted in zip(run(key_cells_into), run(key_cells_into.reference), strict=True):
        assert torch.equal(found, wanted)


@settings(max_examples=40)
@given(
    spec=scene_specs(extend=False), seed=st.integers(0, 2**31), dtype=st.sampled_from((torch.float32, torch.bfloat16))
)
def test_what_the_cpu_runs_is_the_reference(spec, seed, dtype):
    scene = in_cells(make_scene(replace(spec, v_head_dim=spec.k_head_dim), seed))
    layer, memory, lookup = scene.layer, cells_of(scene), Lookup(*prepared(cpu_backend(scene), scene))
    q, k_cells, v_cells = (x.to(dtype) for x in (scene.q, memory.k_A1KD, memory.v_A1KD))
    rest = (lookup.key_cells_BJ, lookup.bias_BJ, scene.plan.seq_lens_B, layer.sinks_H, layer.scale, layer.softcap)
    found, wanted = torch.zeros_like(q), torch.zeros_like(q)
    decode_cells(q, found, k_cells, v_cells, *rest)
    decode_cells.reference(q, wanted, k_cells, v_cells, *rest)
    live = slice(scene.num_live)
    torch.testing.assert_close(found[live], wanted[live], atol=1e-5, rtol=1e-5)


@settings(max_examples=60)
@given(
    spec=scene_specs(extend=True), dtype=st.sampled_from((torch.float32, torch.bfloat16)), seed=st.integers(0, 2**31)
)
def test_a_live_extend_gives_what_the_reference_gives(spec, dtype, seed):
    scene = in_cells(make_scene(replace(spec, v_head_dim=spec.k_head_dim), seed))
    assert cells_of(scene) is not None
    q, found, wanted = scene.q.to(dtype), scene.new_out().to(dtype), scene.new_out().to(dtype)
    cpu_backend(scene).extend(scene.plan, scene.layer, q, found)
    extend.reference(q, wanted, *extend_arguments(scene.plan, scene.layer))
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance, equal_nan=True)


def test_layers_of_a_group_share_what_the_first_one_found():
    """Requests of 1 and of 2 queries are two batches; two layers of one group find them once."""
    scene = in_cells(make_scene(SceneSpec(seq_lens=(9, 5, 7), query_lens=(1, 2, 1)), seed=4))
    plan, layers = scene.plan, (scene.layer, replace(scene.layer, scale=1.0))
    backend = CpuBackend(plan.page_table_RP, layers)
    backend.extend(plan, layers[0], scene.q, scene.new_out())
    (spans,) = plan.notes.values()
    assert [tuple(equal.token_bQ.shape) for equal in spans] == [(2, 1), (1, 2)]
    backend.extend(plan, layers[1], scene.q, scene.new_out())
    assert plan.notes[scene.layer.kv_group] is spans
