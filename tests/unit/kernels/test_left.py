"""Attention's output in parts: kernels interpreted, against attention that merges and a product of what it gives."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead.kernels.attention import NO_WEIGHT, left_width, merge_left, split_left, write_and_decode
from playhead.kernels.projection import project, project_normed
from playhead.kernels.splits import MOST_HEADS_TOGETHER, MOST_KEYS_TOGETHER, DecodeShape, num_splits, parts_left
from playhead.kernels.triton.projection import launch_project_normed, merge_and_multiply
from playhead.kernels.triton.write_and_decode import is_faster_apart, launch_write_and_decode
from tests.unit.kernels.test_newest import ARRIVALS, K_CACHE, OUT, V_CACHE, random_call, together

GEMMA = DecodeShape(num_heads=4, num_kv_heads=1, v_head_dim=256, max_keys=512)
LLAMA = DecodeShape(num_heads=32, num_kv_heads=8, v_head_dim=64, max_keys=4096)


def calls(seq_lens, heads, dims, *, num_left, **options):
    """The same call twice: with an output in parts, which is NaN before, and with a merged one."""
    left, merged = random_call(seq_lens, heads, dims, **options), random_call(seq_lens, heads, dims, **options)
    num_requests, (num_heads, num_kv_heads) = len(seq_lens) + 1, heads
    left[OUT] = torch.full((num_requests, left_width(num_heads, dims[1], num_left)), float("nan"))
    left[ARRIVALS] = torch.zeros(max(left[ARRIVALS].numel(), num_requests * num_kv_heads * num_left), dtype=torch.int32)
    left[-1] = num_left
    return left, merged


@settings(max_examples=20)
@given(
    seq_lens=st.lists(st.integers(1, 90), min_size=1, max_size=2),
    heads=st.sampled_from(((1, 1), (4, 2), (15, 1))),
    dims=st.sampled_from(((16, 16, 8), (24, 8, 3))),
    norm=st.sampled_from((None, "head")),
    page_size=st.sampled_from((1, 4, 16)),
    num_left=st.sampled_from((1, 2, 3, 8)),
    window=st.sampled_from((None, 1, 20)),
    softcap=st.sampled_from((None, 5.0)),
    has_sinks=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_parts_merge_to_what_attention_gives_that_merges(seq_lens, heads, dims, num_left, **options):
    left, merged = calls(seq_lens, heads, dims, num_left=num_left, num_splits=8, **options)
    with together():
        launch_write_and_decode(*left)
    write_and_decode.reference(*merged)
    assert left[OUT].isfinite().all()  # a part without keys counts as nothing, and nothing times NaN would be NaN
    torch.testing.assert_close(merge_left(left[OUT], num_left, merged[OUT].shape[1])[:-1], merged[OUT][:-1])
    for position in (K_CACHE, V_CACHE):
        torch.testing.assert_close(left[position], merged[position], equal_nan=True)
    assert not left[ARRIVALS].any()


@pytest.mark.parametrize("dims", [(16, 16, 8), (24, 8, 3)])
def test_neighbouring_splits_merge_where_there_are_more_than_parts(dims):
    """Five splits of 128 keys in two parts: three splits, and two."""
    left, merged = calls([600], (4, 2), dims, num_left=2, num_splits=8, page_size=16)
    with together():
        launch_write_and_decode(*left)
    write_and_decode.reference(*merged)
    _, log_weights_BHL = split_left(left[OUT], 2, dims[1])
    assert (log_weights_BHL[0] > NO_WEIGHT).all()
    assert (log_weights_BHL[1, :, 1:] == NO_WEIGHT).all()  # the request at the sink has one key
    torch.testing.assert_close(merge_left(left[OUT], 2, merged[OUT].shape[1])[:-1], merged[OUT][:-1])
    assert not left[ARRIVALS].any()


def test_parts_that_no_program_would_fill_are_refused():
    left, _ = calls([3], (4, 2), (16, 16, 8), num_left=3, num_splits=2)
    with together(), pytest.raises(AssertionError, match="3 parts, of which 2 programs"):
        launch_write_and_decode(*left)


@pytest.mark.parametrize("num_left", [1, 4])
def test_the_reference_leaves_what_merges_to_its_output(num_left):
    left, merged = calls([20, 9], (4, 2), (16, 16, 8), num_left=num_left)
    for call in (left, merged):
        write_and_decode.reference(*call)
    torch.testing.assert_close(merge_left(left[OUT], num_left, 64), merged[OUT])


def parts_of_a_row(num_heads, head_dim, num_left, seed=0):
    """A row in parts, of which each head has one at least and some are none."""
    rng = torch.Generator().manual_seed(seed)
    left_1Z = torch.zeros(1, left_width(num_heads, head_dim, num_left))
    parts_1HLE, log_weights_1HL = split_left(left_1Z, num_left, head_dim)
    parts_1HLE.copy_(torch.randn(parts_1HLE.shape, generator=rng))
    log_weights_1HL.copy_(20 * torch.randn(log_weights_1HL.shape, generator=rng))
    is_none_1HL = torch.rand(log_weights_1HL.shape, generator=rng) < 0.5
    is_none_1HL[..., -1] = False
    log_weights_1HL[is_none_1HL] = NO_WEIGHT
    parts_1HLE[is_none_1HL] = 0.0
    return left_1Z


@pytest.mark.parametrize(("num_heads", "head_dim"), [(8, 64), (16, 64), (3, 256)])
@pytest.mark.parametrize("num_left", [1, 8, 16])
def test_a_product_merges_parts_and_its_norm_adds_up_groups_of_heads(num_heads, head_dim, num_left):
    rng, num_inputs = torch.Generator().manual_seed(1), num_heads * head_dim
    left_1Z = parts_of_a_row(num_heads, head_dim, num_left)
    first, weight, residual = (torch.randn(shape, generator=rng) for shape in ((40, num_inputs), (22, 40), (1, 40)))
    norms = (torch.randn(40, generator=rng), torch.randn(40, generator=rng), 1e-6, True, False)
    merged_1I, product = merge_left(left_1Z, num_left, num_inputs), torch.empty(1, 40)
    project.reference(product, merged_1I, first, None, 1.0, False)
    parts_S1M = merge_and_multiply(left_1Z, first, num_left)
    assert len(parts_S1M) == num_inputs // (512 if head_dim == 64 else 256)
    torch.testing.assert_close(parts_S1M.sum(0), product, atol=1e-4, rtol=1e-4)
    found, wanted = torch.full((1, 11), float("nan")), torch.full((1, 11), float("nan"))
    call = (left_1Z, first, None, 1.0, residual, *norms, weight, None, "silu", num_left)
    found_total = launch_project_normed(found, *call)
    torch.testing.assert_close(found_total, project_normed.reference(wanted, *call), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_one_request_leaves_parts_where_that_was_faster():
    """Several wide heads were slower, and so were steps of several requests."""
    assert parts_left(GEMMA, 1) == 16
    assert parts_left(LLAMA, 1) == 4
    assert parts_left(LLAMA, 2) == parts_left(GEMMA, 2) == 0
    assert parts_left(DecodeShape(num_heads=8, num_kv_heads=4, v_head_dim=256, max_keys=1024), 1) == 0
    assert parts_left(DecodeShape(num_heads=9, num_kv_heads=3, v_head_dim=64, max_keys=2048), 1) == 0  # 576 inputs
    assert parts_left(DecodeShape(num_heads=32, num_kv_heads=8, v_head_dim=64, max_keys=131_072), 1) == 0


@given(
    num_kv_heads=st.sampled_from((1, 2, 4, 8, 16)),
    group=st.sampled_from((1, 4, 8, 15, 16, 32)),
    head_dim=st.sampled_from((64, 128, 256)),
    max_keys=st.sampled_from((64, 4096, 16_384, 16_385, 131_072)),
    has_norm=st.booleans(),
)
def test_parts_are_left_only_where_one_kernel_turns_and_attends(num_kv_heads, group, head_dim, max_keys, has_norm):
    shape = DecodeShape(
        num_heads=num_kv_heads * group, num_kv_heads=num_kv_heads, v_head_dim=head_dim, max_keys=max_keys
    )
    if parts_left(shape, 1):
        assert group < MOST_HEADS_TOGETHER
        assert not is_faster_apart(1, num_kv_heads, head_dim, max_keys, has_norm=has_norm)


def test_a_window_that_is_longer_than_the_context_is_as_long_as_the_context():
    """The rule of parts counts keys that a layer can see, and so does the launch."""
    left, merged = calls([20], (4, 2), (16, 16, 8), num_left=2, window=MOST_KEYS_TOGETHER + 1)
    launch_write_and_decode(*left)
    write_and_decode.reference(*merged)
    torch.testing.assert_close(merge_left(left[OUT], 2, 64)[:-1], merged[OUT][:-1])


@pytest.mark.parametrize("max_keys", [32, 64, 512, 4096])
def test_there_is_a_program_for_each_part(max_keys):
    shape = DecodeShape(num_heads=4, num_kv_heads=1, v_head_dim=256, max_keys=max_keys)
    assert parts_left(shape, 1) <= num_splits(shape, 1)


def test_a_weight_is_the_logarithm_of_what_was_summed():
    """One part of one key: its weight is its score, in base 2."""
    left, _ = calls([1], (1, 1), (16, 16, 0), num_left=1)
    with together():
        launch_write_and_decode(*left)
    parts_BHLE, log_weights_BHL = split_left(left[OUT], 1, 16)
    q_D, k_D, v_D = left[0][0].view(3, 16)
    torch.testing.assert_close(log_weights_BHL[0, 0, 0], (q_D @ k_D) * 16**-0.5 * math.log2(math.e))
    torch.testing.assert_close(parts_BHLE[0, 0, 0], v_D)
