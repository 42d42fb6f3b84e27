"""Attention in a fixed order, interpreted: right, and the same bits however a sequence is cut into steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead.attention.base import AttentionPlan, extend_arguments
from playhead.attention.ordered import OrderedBackend
from playhead.kernels.attention import extend
from playhead.kernels.triton import ordered_attention
from playhead.kernels.triton.ordered_attention import (
    ENOUGH_PROGRAMS,
    OrderedTiles,
    launch_attend_in_order,
    most_segments,
    ordered_tiles,
    programs_of_a_request,
)
from tests.unit.attention.scenes import Scene, SceneSpec, make_scene
from tests.unit.attention.strategies import scene_specs

SMALL = OrderedTiles(block_m=16, block_j=16, num_warps=4, num_stages=2)
LENGTH = 50
NUM_PARTS = 16


def attend(q, out, plan: AttentionPlan, layer, *, segment: int = 32, num_parts: int = NUM_PARTS) -> None:
    numbers = layer.num_heads * num_parts
    scratch = torch.full((numbers * layer.v_head_dim,), float("nan")), torch.full((2 * numbers,), float("nan"))
    arrivals = torch.zeros(plan.rows_B.shape[0] * layer.num_heads, dtype=torch.int32)
    call = (q, out, *extend_arguments(plan, layer), *scratch, arrivals, False)
    launch_attend_in_order(*call, tiles=SMALL, segment=segment)
    assert not arrivals.any(), "the next step counts from zero"


@settings(max_examples=12)
@given(spec=scene_specs(extend=True), seed=st.integers(0, 2**31), segment=st.sampled_from((16, 32, 256)))
def test_kernels_agree_with_reference(spec, seed, segment):
    scene = make_scene(spec, seed)
    out, wanted = scene.new_out(), scene.new_out()
    attend(scene.q, out, scene.plan, scene.layer, segment=segment)
    extend.reference(scene.q, wanted, *extend_arguments(scene.plan, scene.layer))
    torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("layer", [{}, {"window": 20, "has_sinks": True, "softcap": 2.0}], ids=str)
def test_a_query_has_the_same_bits_in_a_step_of_its_own_and_in_a_chunk(layer):
    """Contexts of several segments, cut in different places: in each cut a query stands in another tile, or alone."""
    scene = make_scene(SceneSpec(seq_lens=(LENGTH,), query_lens=(LENGTH,), group_size=2, **layer), seed=1)
    whole = in_chunks(scene, (LENGTH,))
    assert torch.equal(in_chunks(scene, (21, 1, 19, 1, 8)), whole)


@pytest.mark.parametrize("layer", [{}, {"window": 20, "has_sinks": True, "softcap": 2.0}], ids=str)
def test_one_program_for_all_segments_gives_the_bits_of_one_for_each(layer, monkeypatch):
    scene = make_scene(SceneSpec(seq_lens=(LENGTH,), query_lens=(LENGTH,), group_size=2, **layer), seed=4)
    cut, grids = (LENGTH - 1, 1), []
    several = in_chunks(scene, cut)
    real = ordered_attention.programs_of_a_request
    monkeypatch.setattr(ordered_attention, "programs_of_a_request", lambda *call: grids.append(real(*call)) or 1)
    assert torch.equal(in_chunks(scene, cut), several)
    assert min(grids) > 1, "else it was one program before, too"


def in_chunks(scene: Scene, chunks: tuple[int, ...], **options: int) -> torch.Tensor:
    """One request's queries, a chunk after the other."""
    out, done = scene.new_out(), 0
    for num_queries in chunks:
        lens = torch.tensor([num_queries], dtype=torch.int32)
        plan = replace(scene.plan, seq_lens_B=lens + done, query_starts_B=torch.zeros_like(lens), query_lens_B=lens)
        here = slice(done, done + num_queries)
        attend(scene.q[here], out[here], plan, scene.layer, **options)
        done += num_queries
    return out


def test_a_request_without_room_for_its_parts_has_the_same_bits():
    scene = make_scene(SceneSpec(seq_lens=(LENGTH,), query_lens=(LENGTH,), group_size=2), seed=2)
    cut = (LENGTH - 1, 1)
    assert torch.equal(in_chunks(scene, cut, num_parts=2), in_chunks(scene, cut))


def test_a_decode_step_is_a_step_over_tokens_with_one_query_each():
    scene = make_scene(SceneSpec(seq_lens=(1, 9, 30), num_null=1, group_size=2, window=7), seed=3)
    backend = OrderedBackend(scene.plan.page_table_RP, (scene.layer,), max_bs=8)
    out, wanted = scene.new_out(), scene.new_out()
    backend.decode(scene.plan, scene.layer, scene.q, out)
    ones = torch.ones(4, dtype=torch.int32)
    plan = replace(scene.plan, query_starts_B=torch.arange(4, dtype=torch.int32), query_lens_B=ones)
    extend.reference(scene.q, wanted, *extend_arguments(plan, scene.layer))
    assert torch.equal(out[:3], wanted[:3])


def test_one_size_of_block_serves_every_step():
    assert ordered_tiles(192, itemsize=2) == ordered_tiles(256, itemsize=2)
    assert ordered_tiles(80, itemsize=4).block_j == 16


def test_a_window_sees_as_many_segments_as_it_may_touch():
    assert most_segments(8192, None, 256) == 32
    assert most_segments(8192, 512, 256) == 3
    assert most_segments(300, 512, 256) == 2


def test_programs_share_segments_where_there_are_few_of_them_or_many_segments():
    assert programs_of_a_request(1, 3) == 3
    assert programs_of_a_request(ENOUGH_PROGRAMS, 3) == 3
    assert programs_of_a_request(ENOUGH_PROGRAMS + 1, 3) == 1
    assert programs_of_a_request(256, 16) == 5
