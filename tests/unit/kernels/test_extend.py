"""The extend kernel, interpreted, against its reference. Whatever a query may not see is NaN in these steps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead.attention.base import extend_arguments
from playhead.kernels.attention import extend, write_and_extend
from playhead.kernels.triton import extend as extend_triton
from playhead.kernels.triton.decode import Cut, launch_decode
from playhead.kernels.triton.extend import (
    MIN_BLOCK_B,
    ExtendTiles,
    extend_tiles,
    launch_extend,
    launch_tiles,
    launch_write_and_extend,
    num_programs,
)
from tests.unit.attention.scenes import Scene, SceneSpec, make_scene
from tests.unit.attention.strategies import scene_specs
from tests.unit.kernels.test_decode import FINEST
from tests.unit.kernels.test_decode import SMALL as SMALL_DECODE

SMALL = ExtendTiles(block_m=16, block_j=16, num_warps=4, num_stages=2)
ONE_LOOP = SMALL._replace(one_loop=True)
OUT, K_CACHE, V_CACHE = 1, 10, 11
FINE_CUT = Cut(tiles=SMALL_DECODE, keys=FINEST)


def run(scene: Scene, function, **options) -> torch.Tensor:
    out, layer, plan = scene.new_out(), scene.layer, scene.plan
    function(scene.q, out, *extend_arguments(plan, layer), **options)
    assert out[scene.num_live :].isnan().all(), "rows of no request are left alone"
    return out[: scene.num_live]


@settings(max_examples=30)
@given(spec=scene_specs(extend=True), seed=st.integers(0, 2**31), tiles=st.sampled_from((SMALL, ONE_LOOP)))
def test_kernel_agrees_with_reference(spec, seed, tiles):
    scene = make_scene(spec, seed)
    torch.testing.assert_close(
        run(scene, launch_tiles, tiles=tiles), run(scene, extend.reference), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("tiles", [SMALL, ONE_LOOP])
def test_a_window_inside_a_tile_masks_both_ends(tiles):
    """Fewer keys in the window than tokens in the tile: no block is seen whole by all of its queries."""
    scene = make_scene(SceneSpec(seq_lens=(50,), query_lens=(30,), window=3, has_own_pool=True), seed=8)
    torch.testing.assert_close(
        run(scene, launch_tiles, tiles=tiles), run(scene, extend.reference), atol=1e-5, rtol=1e-5
    )


def test_many_requests_find_their_tiles():
    """More requests than the kernel looks through at least, most of them decoding beside one that prefills."""
    num_decoding = MIN_BLOCK_B + 2
    lengths = tuple(1 + b % 3 for b in range(num_decoding))
    spec = SceneSpec(seq_lens=(*lengths, 20), query_lens=(*(1,) * num_decoding, 20), page_size=1, num_null=2)
    scene = make_scene(spec, seed=9)
    tiles = ExtendTiles(block_m=64, block_j=16, num_warps=4, num_stages=2)
    torch.testing.assert_close(
        run(scene, launch_tiles, tiles=tiles), run(scene, extend.reference), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("tiles", [SMALL, ONE_LOOP])
def test_programs_take_turns_where_there_are_more_tiles_than_programs(tiles, monkeypatch):
    """Forty requests and room for sixty, on a device that is full with a few programs."""
    monkeypatch.setattr(extend_triton, "NUM_SMS", 1)
    monkeypatch.setattr(extend_triton, "SPARE_TILES", 2)
    spec = SceneSpec(seq_lens=(*(1 + b % 3 for b in range(40)), 20), query_lens=(*(1,) * 40, 20), num_null=20)
    scene = make_scene(spec, seed=10)
    torch.testing.assert_close(
        run(scene, launch_tiles, tiles=tiles), run(scene, extend.reference), atol=1e-5, rtol=1e-5
    )


def test_room_for_many_requests_costs_few_programs():
    """Four for every multiprocessor, or a spare one beside each whole tile; never more than there can be tiles."""
    assert num_programs(8, 128, num_kv_heads=8) == 66  # 128 tokens, 16 of them a tile, of up to 128 requests
    assert num_programs(64, 256, num_kv_heads=8) == 96
    assert num_programs(8, 3, num_kv_heads=8) == 11


@settings(max_examples=15)
@given(spec=scene_specs(extend=True), num_splits=st.integers(1, 3), seed=st.integers(0, 2**31))
def test_requests_with_one_query_are_split_as_in_decode(spec, num_splits, seed):
    scene = make_scene(spec, seed)
    found = run(scene, with_splits(scene, num_splits))
    torch.testing.assert_close(found, run(scene, extend.reference), atol=1e-5, rtol=1e-5)


def test_tiles_pass_over_requests_with_one_query():
    """Their keys would go through one program, however many they are."""
    scene = make_scene(SceneSpec(seq_lens=(40, 20, 9), query_lens=(1, 7, 1), num_null=1), seed=3)
    found = run(scene, launch_tiles, tiles=SMALL, least_queries=2)
    assert found[[0, 8]].isnan().all()
    assert not found[1:8].isnan().any()


def test_a_request_beside_a_prompt_has_the_bits_that_it_has_in_a_decode_step():
    """The same number of splits, and the same keys in each."""
    mixed = make_scene(SceneSpec(seq_lens=(40, 20), query_lens=(1, 7), group_size=2), seed=3)
    found = run(mixed, with_splits(mixed, 3))[:1]
    plan, layer = mixed.plan, mixed.layer
    call = (plan.page_table_RP, plan.rows_B[:1], plan.seq_lens_B[:1], None, layer.scale, None, None)
    alone = torch.full_like(found, float("nan"))
    scratch = decode_scratch(mixed, 3)
    launch_decode(mixed.q[:1], alone, layer.k_cache_NSKD, layer.v_cache_NSKE, *call, *scratch, 3, None, cut=FINE_CUT)
    assert torch.equal(found, alone)


def packed_call(scene: Scene, scratch: tuple[torch.Tensor, ...], num_splits: int, *, norm: str | None = "head"):
    """Arguments of a step from its packed projection on: the scene's queries, with keys and values for its memory."""
    spec, plan, layer, rng = scene.spec, scene.plan, scene.layer, torch.Generator().manual_seed(5)
    k_width, v_width = spec.num_kv_heads * spec.k_head_dim, spec.num_kv_heads * spec.v_head_dim
    num_rows, angles = len(scene.q), torch.rand(max(spec.seq_lens), spec.k_head_dim // 2, generator=rng)
    positions, locs = torch.zeros(num_rows, dtype=torch.int32), torch.full((num_rows,), -1, dtype=torch.int32)
    start = 0
    for row, (seq_len, num_queries) in enumerate(zip(spec.seq_lens, spec.queries, strict=True), start=1):
        position, tokens = torch.arange(seq_len - num_queries, seq_len), slice(start, start + num_queries)
        pages = plan.page_table_RP[row, position // spec.page_size]
        positions[tokens], locs[tokens] = position.int(), pages * spec.page_size + position % spec.page_size
        start += num_queries
    widths = {None: (), "head": (spec.k_head_dim,) * 2, "all heads": (spec.num_heads * spec.k_head_dim, k_width)}[norm]
    caches = (layer.k_cache_NSKD.clone(), layer.v_cache_NSKE.clone())
    return (
        torch.cat((scene.q.flatten(1), torch.randn(num_rows, k_width + v_width, generator=rng)), dim=1),
        scene.new_out().flatten(1),
        *([torch.randn(width, generator=rng) for width in widths] or (None, None)),
        torch.cat((angles.cos(), angles.sin()), dim=1),
        *(positions, locs, 1e-6, True, False),
        *caches,
        *extend_arguments(plan, layer)[2:],
        *scratch,
        num_splits,
    )


@settings(max_examples=15)
@given(
    spec=scene_specs(extend=True),
    norm=st.sampled_from((None, "head", "all heads")),
    num_splits=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_a_step_from_its_projection_on_is_two_launches(spec, norm, num_splits, seed):
    """What is attended, what is written, and rows of nobody are as the reference has them."""
    scene = make_scene(spec, seed)
    wanted, found = (packed_call(scene, decode_scratch(scene, num_splits), num_splits, norm=norm) for _ in range(2))
    write_and_extend.reference(*wanted)
    launch_write_and_extend(*found)
    assert found[OUT][scene.num_live :].isnan().all()
    for position in (OUT, K_CACHE, V_CACHE):
        torch.testing.assert_close(found[position], wanted[position], atol=1e-5, rtol=1e-5, equal_nan=True)
    assert not found[-2].any(), "arrivals are left zeroed for the next launch"


def decode_scratch(scene: Scene, num_splits: int) -> tuple[torch.Tensor, ...]:
    num_heads, num_requests = scene.layer.num_heads, scene.plan.rows_B.shape[0]
    num_parts = num_requests * num_heads * num_splits
    return (
        torch.full((num_parts * scene.layer.v_head_dim,), float("nan")),
        torch.full((num_parts,), float("nan")),
        torch.zeros(num_requests * num_heads * (num_splits + 1), dtype=torch.int32),
    )


def with_splits(scene: Scene, num_splits: int):
    """The launch that has scratch for requests with one query. Rows of padding must be left alone by both kernels."""
    scratch = decode_scratch(scene, num_splits)

    def launch(*call):
        launch_extend(*call, *scratch, num_splits, tiles=SMALL, cut=FINE_CUT)
        assert not scratch[2].any(), "arrivals are left zeroed for the next launch"

    return launch


def test_small_steps_take_half_tiles_and_smaller_ones_narrow_tiles():
    assert extend_tiles(256, itemsize=2, num_rows=512 * 4).block_m == 16
    assert extend_tiles(256, itemsize=2, num_rows=1024 * 4).block_m == 64
    assert extend_tiles(128, itemsize=2, num_rows=256 * 16).block_m == 16
    assert extend_tiles(128, itemsize=2, num_rows=272 * 16).block_m == 64
    assert extend_tiles(64, itemsize=2, num_rows=256 * 32).block_m == 16
    assert extend_tiles(64, itemsize=2, num_rows=272 * 32).block_m == 64
    assert extend_tiles(64, itemsize=2, num_rows=1024 * 32).block_m == 128
    assert extend_tiles(256, itemsize=2, num_rows=1024 * 8).block_m == 64
    assert extend_tiles(256, itemsize=2, num_rows=1536 * 8).block_m == 128
    assert extend_tiles(256, itemsize=2, num_rows=8192 * 4).block_m == 128
    assert extend_tiles(192, itemsize=2, num_rows=8192 * 4) == extend_tiles(256, itemsize=2, num_rows=8192 * 4)
    assert extend_tiles(80, itemsize=4, num_rows=64).block_j == 16
