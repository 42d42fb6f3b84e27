"""The extend kernel, interpreted, against its reference. Whatever a query may not see is NaN in these steps."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead.attention.base import extend_arguments
from playhead.kernels.attention import extend
from playhead.kernels.triton import extend as extend_triton
from playhead.kernels.triton.extend import ExtendTiles, extend_tiles, launch_extend, num_programs
from tests.unit.attention.scenes import Scene, SceneSpec, make_scene
from tests.unit.attention.strategies import scene_specs

SMALL = ExtendTiles(block_m=16, block_j=16, num_warps=4, num_stages=2)


def run(scene: Scene, function, **options) -> torch.Tensor:
    out, layer, plan = scene.new_out(), scene.layer, scene.plan
    function(scene.q, out, *extend_arguments(plan, layer), **options)
    assert out[scene.num_live :].isnan().all(), "rows of no request are left alone"
    return out[: scene.num_live]


@settings(max_examples=25)
@given(spec=scene_specs(extend=True), seed=st.integers(0, 2**31))
def test_kernel_agrees_with_reference(spec, seed):
    scene = make_scene(spec, seed)
    torch.testing.assert_close(
        run(scene, launch_extend, tiles=SMALL), run(scene, extend.reference), atol=1e-5, rtol=1e-5
    )


def test_a_window_inside_a_tile_masks_both_ends():
    """Fewer keys in the window than tokens in the tile: no block is seen whole by all of its queries."""
    scene = make_scene(SceneSpec(seq_lens=(50,), query_lens=(30,), window=3, has_own_pool=True), seed=8)
    torch.testing.assert_close(
        run(scene, launch_extend, tiles=SMALL), run(scene, extend.reference), atol=1e-5, rtol=1e-5
    )


def test_many_requests_find_their_tiles():
    """More requests than the kernel compares at a time, most of them decoding beside one that prefills."""
    lengths = tuple(1 + b % 3 for b in range(130))
    spec = SceneSpec(seq_lens=(*lengths, 20), query_lens=(*(1,) * 130, 20), page_size=1, num_null=2)
    scene = make_scene(spec, seed=9)
    tiles = ExtendTiles(block_m=64, block_j=16, num_warps=4, num_stages=2)
    torch.testing.assert_close(
        run(scene, launch_extend, tiles=tiles), run(scene, extend.reference), atol=1e-5, rtol=1e-5
    )


def test_programs_take_turns_where_there_are_more_tiles_than_programs(monkeypatch):
    """Forty requests and room for sixty, on a device that is full with a few programs."""
    monkeypatch.setattr(extend_triton, "NUM_SMS", 1)
    monkeypatch.setattr(extend_triton, "SPARE_TILES", 2)
    spec = SceneSpec(seq_lens=(*(1 + b % 3 for b in range(40)), 20), query_lens=(*(1,) * 40, 20), num_null=20)
    scene = make_scene(spec, seed=10)
    torch.testing.assert_close(
        run(scene, launch_extend, tiles=SMALL), run(scene, extend.reference), atol=1e-5, rtol=1e-5
    )


def test_room_for_many_requests_costs_few_programs():
    """Four for every multiprocessor, or a spare one beside each whole tile; never more than there can be tiles."""
    assert num_programs(8, 128, num_kv_heads=8) == 66  # 128 tokens, 16 of them a tile, of up to 128 requests
    assert num_programs(64, 256, num_kv_heads=8) == 96
    assert num_programs(8, 3, num_kv_heads=8) == 11


def test_small_steps_take_half_tiles():
    assert extend_tiles(256, itemsize=2, num_rows=512 * 4).block_m == 64
    assert extend_tiles(256, itemsize=2, num_rows=8192 * 4).block_m == 128
    assert extend_tiles(192, itemsize=2, num_rows=8192 * 4) == extend_tiles(256, itemsize=2, num_rows=8192 * 4)
    assert extend_tiles(80, itemsize=4, num_rows=64).block_j == 16
