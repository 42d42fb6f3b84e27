"""The decode kernel, interpreted, against its reference. Whatever a query may not see is NaN in these steps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead.attention.base import decode_arguments
from playhead.kernels.attention import decode
from playhead.kernels.splits import MERGE_PARTS, KeysPerSplit
from playhead.kernels.triton.decode import Cut, launch_decode
from playhead.kernels.triton.decode_tiles import DecodeTiles, decode_tiles, rows_of_dot
from tests.unit.attention.scenes import Scene, SceneSpec, make_scene
from tests.unit.attention.strategies import scene_specs

SMALL = DecodeTiles(block_j=16, num_warps=4, num_stages=2)
FINEST = KeysPerSplit(whole=1, least=1, few=128, most=1)
"""As many splits as there are, each as short as a block."""


def reference(scene: Scene) -> torch.Tensor:
    out, layer, plan = scene.new_out(), scene.layer, scene.plan
    decode.reference(scene.q, out, *decode_arguments(plan, layer))
    return out[: scene.num_live]


def kernel(
    scene: Scene,
    num_splits: int,
    scratch: tuple[torch.Tensor, ...] | None = None,
    group_size: int | None = None,
    keys: KeysPerSplit = FINEST,
    order: torch.Tensor | None = None,
) -> torch.Tensor:
    out, layer, plan = scene.new_out(), scene.layer, scene.plan
    scratch = scratch or new_scratch(scene, num_splits)
    more = (*decode_arguments(plan, layer), *scratch, num_splits, order)
    launch_decode(scene.q, out, *more, cut=Cut(tiles=SMALL, group_size=group_size, keys=keys))
    assert not scratch[2].any(), "arrivals are left zeroed for the next launch"
    return out[: scene.num_live]


def new_scratch(scene: Scene, num_splits: int) -> tuple[torch.Tensor, ...]:
    num_parts = scene.q.shape[0] * scene.layer.num_heads * num_splits
    return (
        torch.full((num_parts * scene.layer.v_head_dim,), float("nan")),
        torch.full((num_parts,), float("nan")),
        torch.zeros(scene.q.shape[0] * scene.layer.num_heads * (num_splits + 1), dtype=torch.int32),
    )


@settings(max_examples=25)
@given(
    spec=scene_specs(extend=False),
    num_splits=st.integers(1, 4),
    group_size=st.sampled_from((None, 1, 2, 3)),
    seed=st.integers(0, 2**31),
)
def test_kernel_agrees_with_reference(spec, num_splits, group_size, seed):
    scene = make_scene(spec, seed)
    found = kernel(scene, num_splits, group_size=group_size)
    torch.testing.assert_close(found, reference(scene), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("group_size", [17, 70])
def test_many_query_heads_per_kv_head_take_several_blocks(group_size):
    scene = make_scene(SceneSpec(seq_lens=(20,), group_size=group_size), seed=5)
    torch.testing.assert_close(kernel(scene, 2), reference(scene), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("group_size", [2, 3, 4])
def test_many_splits_merge_in_groups_and_then_the_groups(group_size):
    """Full groups, a last group with fewer splits, one with none, and a request that fits a single group."""
    spec = SceneSpec(seq_lens=(110, 70, 20), group_size=3, num_kv_heads=2, has_sinks=True, v_head_dim=12)
    scene = make_scene(spec, seed=8)
    scratch = new_scratch(scene, 7)
    for _ in range(2):
        found = kernel(scene, 7, scratch, group_size)
        torch.testing.assert_close(found, reference(scene), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("num_splits", [MERGE_PARTS + 1, 2 * MERGE_PARTS + 1])
def test_more_parts_than_are_merged_at_a_time(num_splits):
    """The last part, which is merged alone, weighs more than all before."""
    scene = make_scene(SceneSpec(seq_lens=(16 * num_splits,), group_size=2), seed=10)
    last_page_P = scene.plan.page_table_RP[scene.plan.rows_B[0]][4 * num_splits - 4 : 4 * num_splits].long()
    scene.layer.k_cache_NSKD[last_page_P] *= 5.0
    found = kernel(scene, num_splits, group_size=num_splits)
    torch.testing.assert_close(found, reference(scene), atol=1e-5, rtol=1e-5)


def test_splits_without_keys_change_nothing():
    """A graph's splits are fixed and its lengths are not: a short request leaves most of them empty."""
    scene = make_scene(SceneSpec(seq_lens=(3, 33), group_size=2), seed=6)
    torch.testing.assert_close(kernel(scene, 8), reference(scene), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "keys",
    [
        KeysPerSplit(whole=48, least=1, few=128, most=1),  # the shortest are one split each
        KeysPerSplit(whole=1, least=32, few=128, most=1),
        KeysPerSplit(whole=1, least=1, few=2, most=32),  # two splits while these are short, four then
        KeysPerSplit(whole=200, least=1, few=1, most=1),
    ],
)
def test_how_keys_are_shared_among_splits_changes_nothing(keys):
    spec = SceneSpec(seq_lens=(1, 33, 48, 49, 110), num_null=1, group_size=2, has_sinks=True)
    scene = make_scene(spec, seed=9)
    torch.testing.assert_close(kernel(scene, 4, keys=keys), reference(scene), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_the_order_in_which_requests_start_changes_no_bit(order):
    scene = make_scene(SceneSpec(seq_lens=(1, 33, 110), num_null=1, group_size=2, window=40), seed=9)
    found = kernel(scene, 3, order=torch.tensor(order, dtype=torch.int32))
    assert torch.equal(found, kernel(scene, 3))


def test_a_request_that_is_one_split_leaves_no_part():
    scene = make_scene(SceneSpec(seq_lens=(40,)), seed=7)
    scratch = new_scratch(scene, 3)
    kernel(scene, 3, scratch, keys=KeysPerSplit(whole=64, least=1, few=8, most=32))
    assert scratch[0].isnan().all()
    kernel(scene, 3, scratch, keys=FINEST)
    assert not scratch[0].isnan().any()


def test_scratch_of_an_earlier_launch_is_not_read():
    scene = make_scene(SceneSpec(seq_lens=(40,)), seed=7)
    scratch = new_scratch(scene, 3)
    first = kernel(scene, 3, scratch)
    scene.plan.seq_lens_B.fill_(17)  # one split fewer than before
    shorter = kernel(scene, 3, scratch)
    scene.plan.seq_lens_B.fill_(40)
    assert not torch.equal(first, shorter)
    assert torch.equal(kernel(scene, 3, scratch), first)


def test_tiles_keep_their_bytes_whatever_the_head_dim():
    assert decode_tiles(256, 256).block_j == 32
    assert decode_tiles(192, 128).block_j == 32
    assert decode_tiles(64, 64).block_j == 128
    assert decode_tiles(8, 8).block_j == 128


def test_a_program_that_reads_all_keys_of_a_wide_head_takes_long_blocks():
    """Where enough of them fill the device: two a multiprocessor, or one with more in flight where one wave is all."""
    one_wave, more = (decode_tiles(256, 256, num_programs=count, num_splits=1) for count in (128, 256))
    assert (one_wave.block_j, one_wave.num_stages, one_wave.programs_per_sm) == (64, 3, 1)
    assert (more.block_j, more.num_stages, more.programs_per_sm) == (64, 2, 2)
    short = decode_tiles(256, 256)
    assert decode_tiles(256, 256, num_programs=64, num_splits=1) == short
    assert decode_tiles(256, 256, num_programs=256, num_splits=2) == short
    assert decode_tiles(128, 128, num_programs=256, num_splits=1) == decode_tiles(128, 128)
    assert decode_tiles(256, 256, num_programs=448, num_splits=2) == short
    assert [tiles.max_registers for tiles in (short, one_wave, more)] == [168, 255, 128]


@pytest.mark.parametrize(
    ("head_dim", "num_programs", "num_warps", "per_sm"),
    [(64, 257, 1, 9), (128, 2048, 2, 6), (256, 450, 2, 4)],
)
def test_many_programs_are_small_so_that_more_of_them_run_at_once(head_dim, num_programs, num_warps, per_sm):
    for num_splits in (1, 2):
        small = decode_tiles(head_dim, head_dim, num_programs=num_programs, num_splits=num_splits)
        assert (small.num_warps, small.programs_per_sm) == (num_warps, per_sm)
    assert decode_tiles(512, 512, num_programs=num_programs, num_splits=2).num_warps == 4


def test_programs_with_many_rows_share_them_between_warps():
    """24 query heads of a kv head are 32 rows, whose sums one warp has no registers for."""
    few, many = (decode_tiles(64, 64, num_programs=257, num_rows=rows_of_dot(group)) for group in (16, 24))
    assert (few.num_warps, many.num_warps) == (1, 2)
