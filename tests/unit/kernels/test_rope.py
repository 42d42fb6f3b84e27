"""Norm, rotation and KV write in one kernel, interpreted, against the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead.kernels.rope import qk_rope_write, rotated
from playhead.kernels.triton.rope import launch_qk_rope_write

NUM_POSITIONS = 9


def random_call(heads, dims, seed, *, norm=None, interleaved=False, page_size=4):
    """Arguments of one call: 3 tokens, the second of which goes nowhere (-1). `norm` is None, "head" or "all heads"."""
    (num_heads, num_kv_heads), (k_dim, v_dim, num_pairs) = heads, dims
    rng = torch.Generator().manual_seed(seed)
    widths = (num_heads * k_dim, num_kv_heads * k_dim, num_kv_heads * v_dim)
    q, k, v = torch.randn(3, sum(widths), generator=rng).split(widths, dim=-1)
    num_locs = 6 * page_size
    locs = torch.randperm(num_locs - page_size, generator=rng)[:3].to(torch.int32) + page_size
    locs[1] = -1
    angles = torch.rand(NUM_POSITIONS, num_pairs, generator=rng)
    norm_widths = {None: (), "head": (k_dim, k_dim), "all heads": widths[:2]}[norm]
    caches = [torch.randn(6, page_size, num_kv_heads, dim, generator=rng) for dim in (k_dim, v_dim)]
    return [
        q.view(3, num_heads, k_dim),
        k.view(3, num_kv_heads, k_dim),
        v.view(3, num_kv_heads, v_dim),
        *([torch.randn(width, generator=rng) for width in norm_widths] or (None, None)),
        torch.cat((angles.cos(), angles.sin()), dim=1) if num_pairs else None,
        torch.tensor([NUM_POSITIONS - 1, 0, 5], dtype=torch.int32),
        *caches,
        locs,
        1e-6,
        True,
        interleaved,
    ]


@settings(max_examples=20)
@given(
    heads=st.sampled_from(((1, 1), (4, 2), (3, 3))),
    dims=st.sampled_from(((8, 8, 4), (12, 8, 3), (10, 4, 0), (16, 16, 8))),
    norm=st.sampled_from((None, "head", "all heads")),
    interleaved=st.booleans(),
    page_size=st.sampled_from((1, 4, 16)),
    seed=st.integers(0, 2**31),
)
def test_kernel_agrees_with_reference(heads, dims, norm, interleaved, page_size, seed):
    options = {"norm": norm, "interleaved": interleaved, "page_size": page_size}
    expected = random_call(heads, dims, seed, **options)
    found = random_call(heads, dims, seed, **options)
    qk_rope_write.reference(*expected)
    launch_qk_rope_write(*found)
    for position in (0, 7, 8):  # q, and the two caches
        torch.testing.assert_close(found[position], expected[position])


@settings(max_examples=40)
@given(
    heads=st.sampled_from(((1, 1), (4, 2), (3, 3))),
    dims=st.sampled_from(((8, 8, 4), (16, 4, 8), (12, 8, 3), (10, 4, 0))),
    norm=st.sampled_from((None, "head", "all heads")),
    interleaved=st.booleans(),
    page_size=st.sampled_from((1, 4)),
    dtype=st.sampled_from((torch.float32, torch.bfloat16)),
    seed=st.integers(0, 2**31),
)
def test_what_the_cpu_runs_agrees_with_reference(heads, dims, norm, interleaved, page_size, dtype, seed):
    options = {"norm": norm, "interleaved": interleaved, "page_size": page_size}
    calls = [random_call(heads, dims, seed, **options) for _ in range(2)]
    for call in calls:
        packed = torch.cat([heads.flatten(1) for heads in call[:3]], dim=1).to(dtype)
        parts = packed.split([heads.flatten(1).shape[1] for heads in call[:3]], dim=1)
        call[:3] = [part.view(heads.shape) for part, heads in zip(parts, call[:3], strict=True)]
        call[7:9] = [cache.to(dtype) for cache in call[7:9]]
    qk_rope_write(*calls[0])
    qk_rope_write.reference(*calls[1])
    for position in (0, 1, 7, 8):
        torch.testing.assert_close(calls[0][position], calls[1][position])


def test_only_the_tokens_locations_are_written_and_not_the_sink():
    call = random_call((2, 1), (8, 8, 4), seed=1)
    before = call[7].clone()
    qk_rope_write(*call)
    changed = (call[7] != before).flatten(2).any(-1).flatten().nonzero().flatten()
    assert sorted(changed.tolist()) == sorted(loc for loc in call[9].tolist() if loc > 0)


def test_a_weight_of_all_heads_norms_them_together():
    """Then one large head makes the others small."""
    q, k, v, *rest = random_call((4, 2), (8, 8, 0), seed=2, norm="all heads")
    q[:, 0] *= 100
    qk_rope_write(q, k, v, *rest)
    weight_HD = 1 + rest[0].view(4, 8)
    assert (q / weight_HD)[:, 1:].abs().max() < 0.1
    assert (q / weight_HD).square().flatten(1).mean(1).tolist() == pytest.approx([1.0] * 3)


def test_positions_choose_the_rows_of_the_table():
    """A token at position 0 is not turned; the same token further on is."""
    call = random_call((1, 1), (8, 8, 4), seed=3)
    call[5][0] = torch.tensor([1.0] * 4 + [0.0] * 4)
    before = call[0].clone()
    call[6].copy_(torch.tensor([0, 1, 0], dtype=torch.int32))
    qk_rope_write(*call)
    assert [torch.equal(now, then) for now, then in zip(call[0], before, strict=True)] == [True, False, True]


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_quarter_turn_swaps_the_dims_of_a_pair(interleaved):
    x = torch.arange(6.0).view(1, 1, 6)
    turned = rotated(x, torch.zeros(1, 2), torch.ones(1, 2), interleaved)
    expected = [-1.0, 0.0, -3.0, 2.0, 4.0, 5.0] if interleaved else [-2.0, -3.0, 0.0, 1.0, 4.0, 5.0]
    assert turned.flatten().tolist() == expected
