"""How many programs share a request: pure numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from playhead.kernels.splits import (
    ENOUGH_SPLITS,
    MAX_SPLITS,
    MERGE_ELEMENTS,
    MERGE_STEPS,
    SLOTS,
    SMALL_SLOTS,
    SMALL_WAVE,
    DecodeShape,
    is_worth_an_order,
    keys_per_split,
    merge_width,
    num_arrivals,
    num_parts,
    num_splits,
    num_splits_beside_prompts,
    splits_per_group,
    wave_fill,
)

GEMMA_1B = DecodeShape(num_heads=4, num_kv_heads=1, v_head_dim=256, max_keys=8192)
NARROW = DecodeShape(num_heads=16, num_kv_heads=8, v_head_dim=128, max_keys=4096)


def test_the_docstrings_numbers():
    assert num_splits(GEMMA_1B, 32) == 22
    assert num_splits(GEMMA_1B, 8) == 33
    assert num_splits(GEMMA_1B, 1) == 128
    assert merge_width(GEMMA_1B.part_elements) == splits_per_group(128, GEMMA_1B.part_elements) == 16
    assert splits_per_group(22, GEMMA_1B.part_elements) == 11
    assert num_splits_beside_prompts(GEMMA_1B, 256) == 11
    assert num_splits_beside_prompts(GEMMA_1B, 128) == 22
    assert num_splits_beside_prompts(GEMMA_1B, 128, 128) == 8
    assert round(wave_fill(768), 2) == 0.97


def shares(num_keys, num_splits, keys, block_keys=32):
    """Keys of each split, as the kernel's `_share_of` cuts them."""
    per_split = max(-(-num_keys // num_splits), min(-(-num_keys // keys.few), keys.most), keys.least)
    per_split = num_keys if num_keys <= keys.whole else per_split
    per_split = -(-per_split // block_keys) * block_keys
    return [min(per_split, num_keys - first) for first in range(0, num_keys, per_split)]


def test_the_splits_of_requests_of_gemma():
    one, eight, many = (keys_per_split(num_requests, 32, GEMMA_1B.part_elements) for num_requests in (1, 8, 32))
    assert [len(shares(num_keys, 128, one)) for num_keys in (64, 200, 1000, 8000)] == [1, 7, 16, 125]
    assert [len(shares(num_keys, 33, eight)) for num_keys in (257, 384, 385, 1000)] == [9, 12, 7, 11]
    assert [len(shares(num_keys, 22, many)) for num_keys in (257, 1000)] == [5, 8]
    one_of_4b = keys_per_split(4, 32, 512)
    assert [len(shares(num_keys, 32, one_of_4b)) for num_keys in (200, 1000)] == [7, 32]


@pytest.mark.parametrize("programs_per_split", [1, 8, 32, 128, 256, 1024])
def test_a_context_as_long_as_the_table_takes_all_splits(programs_per_split):
    """How keys are shared is about short contexts: long ones are cut as `num_splits` means it."""
    for part_elements in (256, 1024):
        keys = keys_per_split(programs_per_split, 32, part_elements)
        assert len(shares(131072, 32, keys)) == 32


def test_a_window_is_not_split_finer_than_it_is_worth():
    assert num_splits(replace(GEMMA_1B, max_keys=512), 1) == 16
    assert num_splits(replace(GEMMA_1B, max_keys=1), 1) == 1


def test_many_requests_with_a_short_window_are_not_split_at_all():
    """Wide heads alone: others have long blocks anyway."""
    window = replace(GEMMA_1B, max_keys=512)
    assert [num_splits(window, num_requests) for num_requests in (65, 128, 256)] == [1, 1, 1]
    assert num_splits(window, 64) > 1
    assert num_splits(GEMMA_1B, 128) > 1
    assert num_splits(replace(window, v_head_dim=128), 128) > 1


def test_requests_that_fill_a_device_are_cut_later_than_few_that_decode_beside_prompts():
    alone, beside = (keys_per_split(256, 32, 1024, beside_prompts=one) for one in (False, True))
    assert [len(shares(700, 3, keys)) for keys in (alone, beside)] == [2, 3]


def test_windows_of_requests_that_nearly_fill_a_device_are_cut_into_one_wave():
    """32 requests of Gemma-3-4B have three splits each, 24 of them four."""
    assert [len(shares(num_keys, 6, keys_per_split(128, 32, 512))) for num_keys in (200, 1024)] == [3, 3]
    assert len(shares(1024, 6, keys_per_split(96, 32, 512))) == 4


def test_small_programs_that_all_run_at_once_are_cut_once_more():
    """88 requests with 8 kv heads."""
    assert [num_splits(NARROW, num_requests) for num_requests in (88, 96)] == [2, 2]


def test_small_programs_that_do_not_all_run_at_once_are_not_cut():
    """The longest start first. In a step with prompts there is no order, and few of its places decode."""
    assert {num_splits(NARROW, num_requests) for num_requests in range(100, 257)} == {1}
    wide = replace(NARROW, v_head_dim=256)
    assert [num_splits(wide, num_requests) for num_requests in (104, 160, 208)] == [3, 2, 2]
    assert [num_splits_beside_prompts(NARROW, 4 * num_requests) for num_requests in (104, 160, 208)] == [3, 2, 2]


def test_steps_whose_programs_do_not_all_run_at_once_have_an_order():
    narrow, wide = (DecodeShape(num_heads=8, num_kv_heads=4, v_head_dim=dim, max_keys=4096) for dim in (128, 256))
    assert [is_worth_an_order(narrow, num_requests) for num_requests in (63, 64, 65)] == [False, False, True]
    assert [is_worth_an_order(wide, num_requests) for num_requests in (63, 64, 65)] == [False, True, True]


@pytest.mark.parametrize("num_requests", [1, 7, 32, 128, 256, 1000])
@pytest.mark.parametrize("num_kv_heads", [1, 4, 8])
@pytest.mark.parametrize("head_dim", [128, 256])
def test_a_large_step_fills_its_waves(num_requests, num_kv_heads, head_dim):
    """But for more small programs than run at once: the shortest requests fill their last wave."""
    shape = DecodeShape(num_heads=8, num_kv_heads=num_kv_heads, v_head_dim=head_dim, max_keys=32768)
    count = num_splits(shape, num_requests)
    programs_per_split = num_requests * num_kv_heads
    assert 1 <= count <= MAX_SPLITS
    if programs_per_split * count >= SLOTS and (head_dim == 256 or programs_per_split <= SMALL_SLOTS):
        assert wave_fill(programs_per_split * count) >= 0.85


@pytest.mark.parametrize("num_requests", range(1, 9))
def test_a_small_step_is_one_wave(num_requests):
    """No program of a step that is all latency waits for another to end; each request has many."""
    count = num_splits(replace(GEMMA_1B, max_keys=32768), num_requests)
    assert count >= ENOUGH_SPLITS
    assert num_requests * count <= SMALL_WAVE


@pytest.mark.parametrize("part_elements", [64, 256, 512, 1024, 2048, 4096, 8192, 16384])
def test_merging_takes_few_steps_twice(part_elements):
    """Whatever the heads, and for every number of splits that is allowed; parts larger than a step are cut nowhere."""
    width = merge_width(part_elements)
    for count in range(1, min(width * width, MAX_SPLITS) + 1):
        size = splits_per_group(count, part_elements)
        num_groups = -(-count // size)
        for merged in (size, num_groups):
            assert merged * part_elements <= max(MERGE_STEPS * MERGE_ELEMENTS, 2 * part_elements)
        assert size * num_groups >= count > size * (num_groups - 1)


def test_parts_are_one_per_head_and_split():
    assert num_parts(GEMMA_1B, 32, 22) == 32 * 4 * 22


def test_counters_are_one_per_group_and_one_for_the_groups():
    assert num_arrivals(GEMMA_1B, 32, 22) == 32 * 4 * (2 + 1)
    assert num_arrivals(GEMMA_1B, 1, 128) == 4 * (8 + 1)
