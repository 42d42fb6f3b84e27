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
    SMALL_WAVE,
    DecodeShape,
    merge_width,
    num_arrivals,
    num_parts,
    num_splits,
    splits_per_group,
    wave_fill,
)

GEMMA_1B = DecodeShape(num_heads=4, num_kv_heads=1, v_head_dim=256, max_keys=8192)


def test_the_docstrings_numbers():
    assert num_splits(GEMMA_1B, 32) == 22
    assert num_splits(GEMMA_1B, 8) == 33
    assert num_splits(GEMMA_1B, 1) == 128
    assert merge_width(GEMMA_1B.part_elements) == splits_per_group(128, GEMMA_1B.part_elements) == 16
    assert splits_per_group(22, GEMMA_1B.part_elements) == 11
    assert round(wave_fill(768), 2) == 0.97


def test_a_window_is_not_split_finer_than_it_is_worth():
    assert num_splits(replace(GEMMA_1B, max_keys=512), 1) == 16
    assert num_splits(replace(GEMMA_1B, max_keys=1), 1) == 1


@pytest.mark.parametrize("num_requests", [1, 7, 32, 128, 256, 1000])
@pytest.mark.parametrize("num_kv_heads", [1, 4, 8])
def test_a_large_step_fills_its_waves(num_requests, num_kv_heads):
    shape = DecodeShape(num_heads=8, num_kv_heads=num_kv_heads, v_head_dim=128, max_keys=32768)
    count = num_splits(shape, num_requests)
    num_programs = num_requests * num_kv_heads * count
    assert 1 <= count <= MAX_SPLITS
    if num_programs >= SLOTS:
        assert wave_fill(num_programs) >= 0.85


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
    assert num_parts(GEMMA_1B, 32) == 32 * 4 * 22


def test_counters_are_one_per_group_and_one_for_the_groups():
    assert num_arrivals(GEMMA_1B, 32) == 32 * 4 * (2 + 1)
    assert num_arrivals(GEMMA_1B, 1) == 4 * (8 + 1)
