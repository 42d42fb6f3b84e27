"""How many programs share a request: pure numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from playhead.kernels.splits import MAX_SPLITS, SLOTS, DecodeShape, num_parts, num_splits, wave_fill

GEMMA_1B = DecodeShape(num_heads=4, num_kv_heads=1, v_head_dim=256, max_keys=8192)


def test_the_docstrings_numbers():
    assert num_splits(GEMMA_1B, 32) == 22
    assert num_splits(GEMMA_1B, 1) == 32
    assert round(wave_fill(768), 2) == 0.97


def test_a_window_is_not_split_finer_than_it_is_worth():
    assert num_splits(replace(GEMMA_1B, max_keys=512), 1) == 8
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


def test_parts_are_one_per_head_and_split():
    assert num_parts(GEMMA_1B, 32) == 32 * 4 * 22
