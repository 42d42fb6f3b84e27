"""A decode step from its packed projection on, by one kernel: interpreted, against the two ops that it stands for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead.kernels.attention import write_and_decode
from playhead.kernels.triton import write_and_decode as kernels
from playhead.kernels.triton.write_and_decode import launch_write_and_decode
from playhead.testing.mutant import swapped

OUT, K_CACHE, V_CACHE, ARRIVALS = 1, 10, 11, 21


def random_call(
    seq_lens, heads, dims, *, norm=None, interleaved=False, page_size=4, seed=0, num_splits=2, order=(), **scoring
):
    """Arguments of one call: requests of these lengths, and one at the sink. `norm` is None, "head" or "all heads".

    Memory that nobody may read is NaN, the newest keys' places included.
    """
    (num_heads, num_kv_heads), (k_dim, v_dim, num_pairs) = heads, dims
    rng = torch.Generator().manual_seed(seed)
    num_requests, num_pages = len(seq_lens) + 1, -(-max(seq_lens) // page_size)
    table = torch.zeros(num_requests, num_pages, dtype=torch.int32)
    table[1:] = torch.randperm((num_requests - 1) * num_pages, generator=rng).view(-1, num_pages) + 1
    caches = [torch.full((table.numel() + 1, page_size, num_kv_heads, dim), float("nan")) for dim in (k_dim, v_dim)]
    locs = []
    for row, length in enumerate(seq_lens, start=1):
        position = torch.arange(length)
        page, slot = table[row, position // page_size], position % page_size
        for cache in caches:
            cache[page[:-1], slot[:-1]] = torch.randn(length - 1, *cache.shape[2:], generator=rng)
        locs.append(int(page[-1]) * page_size + int(slot[-1]))
    for cache in caches:
        cache[0] = 0.0
    angles = torch.rand(max(seq_lens), num_pairs, generator=rng)
    norm_widths = {None: (), "head": (k_dim, k_dim), "all heads": (num_heads * k_dim, num_kv_heads * k_dim)}[norm]
    num_parts = num_requests * num_heads * num_splits

    def indices(values):
        return torch.tensor(values, dtype=torch.int32)

    return [
        torch.randn(num_requests, (num_heads + num_kv_heads) * k_dim + num_kv_heads * v_dim, generator=rng),
        torch.full((num_requests, num_heads * v_dim), float("nan")),
        *([torch.randn(width, generator=rng) for width in norm_widths] or (None, None)),
        torch.cat((angles.cos(), angles.sin()), dim=1) if num_pairs else None,
        indices([*(length - 1 for length in seq_lens), 0]),
        indices([*locs, -1]),
        1e-6,
        True,
        interleaved,
        *caches,
        table,
        indices([*range(1, num_requests), 0]),
        indices([*seq_lens, 1]),
        torch.randn(num_heads, generator=rng) if scoring.get("has_sinks") else None,
        k_dim**-0.5,
        scoring.get("window"),
        scoring.get("softcap"),
        torch.zeros(num_parts * v_dim),
        torch.zeros(2 * num_parts),
        torch.zeros(num_requests * num_heads * (num_splits + 1), dtype=torch.int32),
        num_splits,
        indices(order) if order else None,
        0,
    ]


def together():
    """Where one kernel can do it all it does, whether or not two were faster."""
    return swapped(kernels, "is_faster_apart", lambda *_, **__: False)


def check(*call, **options):
    """The kernel's outputs and memory are the reference's, and nobody counts on after it."""
    found, wanted = random_call(*call, **options), random_call(*call, **options)
    with together():
        launch_write_and_decode(*found)
    write_and_decode.reference(*wanted)
    torch.testing.assert_close(found[OUT][:-1], wanted[OUT][:-1])
    assert found[OUT].isfinite().all()  # of the request at the sink too
    for position in (K_CACHE, V_CACHE):
        torch.testing.assert_close(found[position], wanted[position], equal_nan=True)
    assert not found[ARRIVALS].any()


@settings(max_examples=20)
@given(
    seq_lens=st.lists(st.integers(1, 90), min_size=1, max_size=2),
    heads=st.sampled_from(((1, 1), (4, 2), (15, 1), (16, 1))),
    dims=st.sampled_from(((16, 16, 8), (24, 8, 3), (16, 16, 0))),
    norm=st.sampled_from((None, "head", "all heads")),
    interleaved=st.booleans(),
    page_size=st.sampled_from((1, 4, 16)),
    num_splits=st.sampled_from((1, 3)),
    window=st.sampled_from((None, 1, 20)),
    softcap=st.sampled_from((None, 5.0)),
    has_sinks=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_kernel_agrees_with_the_ops_it_stands_for(seq_lens, heads, dims, **options):
    check(seq_lens, heads, dims, **options)


def test_the_newest_key_counts_once_however_many_splits_there_are():
    """200 keys of a wide head are seven blocks, a split each; two requests have none but the newest."""
    check([200, 1, 2], (4, 1), (256, 256, 128), norm="head", page_size=16, num_splits=7)


def test_an_order_changes_nothing():
    """It is for steps of many programs, which rope is faster for."""
    with swapped(kernels, "MOST_KV_HEADS", 0):
        found, wanted = (random_call([20, 1, 9], (4, 2), (16, 16, 8), order=order) for order in ((2, 0, 3, 1), ()))
        for call in (found, wanted):
            launch_write_and_decode(*call)
        assert torch.equal(found[OUT], wanted[OUT])
    check([20, 1, 9], (4, 2), (16, 16, 8), norm="head", order=(2, 0, 3, 1))


@pytest.mark.parametrize(
    ("seq_lens", "heads", "norm"),
    [
        ([3], (16, 1), None),
        ([3], (4, 2), "all heads"),
        ([3, 3], (4, 2), None),
        ([3], (6, 3), None),
        ([9], (4, 2), None),
    ],
)
def test_what_programs_cannot_turn_or_take_long_over_is_turned_by_rope(seq_lens, heads, norm):
    """Sixteen query heads of a kv head were not measured, and heads that are normed together have several programs."""
    called = []
    with (
        swapped(kernels, "launch_qk_rope_write", lambda *call: called.append(call)),
        swapped(kernels, "MOST_KV_HEADS", 3),
        swapped(kernels, "MOST_DIMS", 32),
        swapped(kernels, "MOST_KEYS_TOGETHER", 8),
    ):
        launch_write_and_decode(*random_call(seq_lens, heads, (16, 16, 8), norm=norm))
    assert len(called) == 1


def test_the_projection_stays_as_it_is_where_one_kernel_does_it_all():
    call = random_call([5, 9], (4, 2), (16, 16, 8), norm="head")
    before = call[0].clone()
    with together():
        launch_write_and_decode(*call)
    assert torch.equal(call[0], before)


def test_few_requests_whose_splits_would_norm_several_heads_again_and_again_are_turned_by_rope():
    wide = {"head_dim": 256, "max_keys": 1024}
    assert kernels.is_faster_apart(2, 4, has_norm=True, **wide)
    assert kernels.is_faster_apart(8, 4, has_norm=True, **wide)
    assert not kernels.is_faster_apart(1, 4, has_norm=True, **wide)
    assert not kernels.is_faster_apart(16, 4, has_norm=True, **wide)
    assert not kernels.is_faster_apart(8, 1, has_norm=True, **wide)
    assert not kernels.is_faster_apart(8, 4, has_norm=False, **wide)
