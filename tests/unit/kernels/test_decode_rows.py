"""Decode by rows against the oracle. Whatever a query may not see is NaN in these steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead.attention.base import LENGTHS_SLOT, ROWS_SLOT
from playhead.attention.reference import ReferenceBackend
from playhead.kernels.decode_rows import (
    MOST_PRODUCTS,
    decode_rows,
    decode_rows_reference,
    key_rows,
    key_rows_into,
    key_rows_into_reference,
    row_view,
)
from playhead.kv.pool import GroupLocs
from tests.unit.attention.scenes import Scene, SceneSpec, make_scene
from tests.unit.attention.strategies import scene_specs


def in_whole_rows(scene: Scene) -> Scene:
    """The same scene in memory whose pages are a whole number of rows apart, as a KV pool's mostly are."""

    def spread(cache: torch.Tensor) -> torch.Tensor:
        arena = torch.full((cache.shape[0], 3, *cache.shape[1:]), float("nan"))
        arena[:, 1] = cache
        return arena[:, 1]

    caches = {name: spread(getattr(scene.layer, name)) for name in ("k_cache_NSKD", "v_cache_NSKE")}
    return replace(scene, layer=replace(scene.layer, **caches))


def locs_of(scene: Scene) -> GroupLocs:
    return GroupLocs(table_RP=scene.plan.page_table_RP, new_locs_T=torch.zeros_like(scene.plan.rows_B))


def both(scene: Scene) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs with and without a lookup."""
    backend = ReferenceBackend(page_table_RP=scene.plan.page_table_RP)
    slots = {ROWS_SLOT: scene.plan.rows_B, LENGTHS_SLOT: scene.plan.seq_lens_B}
    lookup = backend.lookup(scene.layer, locs_of(scene), slots)
    as_rows = scene.layer.as_rows()
    assert lookup is not None
    assert as_rows is not None
    found, wanted = scene.new_out(), scene.new_out()
    backend.decode(scene.plan, as_rows, scene.q, found, lookup)
    backend.decode(scene.plan, scene.layer, scene.q, wanted)
    return found[: scene.num_live], wanted[: scene.num_live]


@settings(max_examples=40)
@given(spec=scene_specs(extend=False), seed=st.integers(0, 2**31))
def test_rows_give_what_the_oracle_gives(spec, seed):
    scene = in_whole_rows(make_scene(replace(spec, v_head_dim=spec.k_head_dim), seed))
    torch.testing.assert_close(*both(scene), atol=1e-5, rtol=1e-5)


def test_more_products_than_numpy_may_do_go_to_torch():
    spec = SceneSpec(seq_lens=(2100, 3), group_size=8, k_head_dim=8, v_head_dim=8, page_size=16)
    assert 2100 * spec.group_size * spec.k_head_dim > MOST_PRODUCTS
    torch.testing.assert_close(*both(in_whole_rows(make_scene(spec, seed=2))), atol=1e-5, rtol=1e-5)


def test_keys_and_values_of_other_widths_are_no_rows():
    assert (
        in_whole_rows(make_scene(SceneSpec(seq_lens=(3,), k_head_dim=8, v_head_dim=4), seed=0)).layer.as_rows() is None
    )


def test_lengths_are_read_at_every_call():
    scene = in_whole_rows(make_scene(SceneSpec(seq_lens=(3, 33), group_size=2), seed=6))
    both(scene)
    scene.plan.seq_lens_B.fill_(2)
    torch.testing.assert_close(*both(scene), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("page_stride", "fits"), [(64, True), (96, True), (72, False)])
def test_memory_is_rows_where_pages_are_whole_rows_apart(page_stride, fits):
    cache = torch.arange(1000.0).as_strided((5, 4, 2, 8), (page_stride, 16, 8, 1), 32)
    rows = row_view(cache)
    assert (rows is not None) == fits
    if rows is not None:
        assert torch.equal(rows[3 * (page_stride // 16) + 2, 0], cache[3, 2])


def test_new_tokens_go_to_the_rows_of_their_locations():
    """Location 6 of pages of 4, and nobody's, which is the sink; pages are 10 rows apart."""
    table, ints = torch.zeros(1, 2, dtype=torch.int32), {"dtype": torch.int32}
    rows, lengths, locs = torch.zeros(2, **ints), torch.ones(2, **ints), torch.tensor([6, -1], **ints)
    found = key_rows(table, rows, lengths, locs, page_size=4, rows_per_page=10, num_keys=8)
    assert found[2].tolist() == [12, 0]


@settings(max_examples=40)
@given(lengths=st.lists(st.integers(1, 24), min_size=1, max_size=5), window=st.integers(1, 24))
def test_key_rows_are_those_of_the_reference(lengths, window):
    """Pages of 4 locations and 10 rows, six for each request; the first new location is nobody's."""
    num_requests = len(lengths)
    table = torch.randperm(6 * num_requests).int().view(num_requests, 6)
    new_locs = torch.arange(-1, num_requests - 1).int()
    lookup = (table, torch.randperm(num_requests).int(), torch.tensor(lengths).int(), new_locs)

    def run(op):
        shape = (num_requests, window)
        made = (torch.zeros(shape, dtype=torch.int64), torch.zeros(shape), torch.zeros(num_requests, dtype=torch.int64))
        op(*made, *lookup, 4, 10)
        return made

    for found, wanted in zip(run(key_rows_into), run(key_rows_into_reference), strict=True):
        assert torch.equal(found, wanted)


@settings(max_examples=40)
@given(
    spec=scene_specs(extend=False), seed=st.integers(0, 2**31), dtype=st.sampled_from((torch.float32, torch.bfloat16))
)
def test_what_the_cpu_runs_is_the_reference(spec, seed, dtype):
    scene = in_whole_rows(make_scene(replace(spec, v_head_dim=spec.k_head_dim), seed))
    backend, layer = ReferenceBackend(page_table_RP=scene.plan.page_table_RP), scene.layer.as_rows()
    slots = {ROWS_SLOT: scene.plan.rows_B, LENGTHS_SLOT: scene.plan.seq_lens_B}
    lookup = backend.lookup(scene.layer, locs_of(scene), slots)
    q, k_rows, v_rows = (x.to(dtype) for x in (scene.q, layer.k_cache_NSKD, layer.v_cache_NSKE))
    rest = (lookup.key_rows_BJ, lookup.bias_BJ, scene.plan.seq_lens_B, layer.sinks_H, layer.scale, layer.softcap)
    found, wanted = torch.zeros_like(q), torch.zeros_like(q)
    decode_rows(q, found, k_rows, v_rows, *rest)
    decode_rows_reference(q, wanted, k_rows, v_rows, *rest)
    live = slice(scene.num_live)
    torch.testing.assert_close(found[live], wanted[live], atol=1e-5, rtol=1e-5)
