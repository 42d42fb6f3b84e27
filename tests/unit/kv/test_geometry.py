"""Layers become groups by their window, and windows say which pages can go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.kv_models import models
from playhead.errors import ConfigError
from playhead.kv.geometry import (
    KVDtype,
    KVGeometry,
    LayerKV,
    next_slide,
    num_pages_for,
    pages_outside_window,
    window_frontier,
)


def test_one_kv_head_of_256_costs_1024_bytes():
    assert LayerKV(window=None, num_kv_heads=1, k_head_dim=256, v_head_dim=256).bytes_per_token == 1024


def test_gemma_3_1b_has_4_full_and_22_window_layers():
    geometry = KVGeometry.of(models()["Gemma-3-1B"], 16)
    assert [len(group.layers) for group in geometry.groups] == [4, 22]
    assert geometry.full.layer_ids == (5, 11, 17, 23)


def test_groups_differ_in_bytes_where_heads_and_dims_do():
    """MiMo: keys of 192 and values of 128, 4 kv heads in full layers and 8 in window layers."""
    geometry = KVGeometry.of(models()["MiMo-V2-Flash"], 16)
    assert geometry.full.bytes_per_token == 9 * 4 * (192 + 128) * 2
    assert geometry.windows[0].bytes_per_token == 39 * 8 * (192 + 128) * 2


def test_each_distinct_window_is_a_group():
    layers = [LayerKV(window=w, num_kv_heads=1, k_head_dim=8, v_head_dim=8) for w in (64, None, 16, 64)]
    geometry = KVGeometry.of(layers, 4)
    assert [(group.name, group.layer_ids) for group in geometry.groups] == [
        ("full", (1,)),
        ("window16", (2,)),
        ("window64", (0, 3)),
    ]


def test_an_all_window_model_has_a_full_group_without_layers():
    geometry = KVGeometry.of([LayerKV(window=8, num_kv_heads=1, k_head_dim=8, v_head_dim=8)], 4)
    assert geometry.full.layers == ()
    assert geometry.full.bytes_per_token == 0


@pytest.mark.parametrize("field", ["window", "num_kv_heads", "k_head_dim", "v_head_dim"])
def test_a_layer_refuses_sizes_below_one(field):
    sizes = {"window": 4, "num_kv_heads": 1, "k_head_dim": 8, "v_head_dim": 8, field: 0}
    with pytest.raises(ConfigError, match=field):
        LayerKV(**sizes)


@pytest.mark.parametrize(("page_size", "layers"), [(0, 1), (16, 0)])
def test_a_geometry_refuses_no_pages_and_no_layers(page_size, layers):
    with pytest.raises(ConfigError):
        KVGeometry.of([LayerKV(window=None, num_kv_heads=1, k_head_dim=8, v_head_dim=8)] * layers, page_size)


def test_itemsize_of_bfloat16_is_two():
    assert KVDtype.BFLOAT16.itemsize == 2


def test_seven_tokens_with_window_4_let_two_pages_of_2_go():
    assert pages_outside_window(7, 4, 2) == 2


def test_frontier_waits_for_the_page_to_fill():
    """The docstring's numbers: window 4, page size 2."""
    assert window_frontier(7, 4, 2) == 1
    assert window_frontier(8, 4, 2) == 2
    assert next_slide(1, 4, 2) == 8


def test_17_tokens_take_two_pages_of_16():
    assert num_pages_for(17, 16) == 2


@given(st.integers(0, 300), st.integers(1, 70), st.sampled_from([1, 2, 4, 16, 64]), st.integers(1, 50))
def test_frontier_keeps_what_is_seen_and_no_more_than_window_chunk_page(num_tokens, window, page_size, chunk):
    frontier = window_frontier(num_tokens, window, page_size)
    first_seen = max(0, num_tokens - window + 1)
    assert frontier * page_size <= first_seen
    assert num_tokens + chunk - frontier * page_size <= window + chunk + page_size


@given(st.integers(0, 300), st.integers(1, 70), st.sampled_from([1, 2, 4, 16, 64]))
def test_frontier_moves_at_its_next_slide_and_not_before(num_tokens, window, page_size):
    frontier = window_frontier(num_tokens, window, page_size)
    moves_at = next_slide(frontier, window, page_size)
    assert window_frontier(moves_at - 1, window, page_size) == frontier
    assert window_frontier(moves_at, window, page_size) > frontier


@given(st.integers(0, 300), st.integers(1, 8), st.sampled_from([1, 2, 4, 16]))
def test_frontier_leaves_a_hit_at_the_last_whole_page_possible(num_tokens, window_pages, page_size):
    window = window_pages * page_size
    whole = num_tokens - num_tokens % page_size
    assert window_frontier(num_tokens, window, page_size) <= pages_outside_window(whole, window, page_size)
