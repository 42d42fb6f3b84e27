"""Pages of all groups tile one arena."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.kv_models import models
from playhead.kv.geometry import KVGeometry, LayerKV
from playhead.kv.layout import LAYER_ALIGN_BYTES, MAX_LARGEST_PAGES_PER_SLAB, lay_out


def test_gemma_3_12b_slab_is_five_full_pages_or_one_window_page():
    layout = lay_out(KVGeometry.of(models()["Gemma-3-12B"], 16))
    assert [group.pages_per_slab for group in layout.groups] == [5, 1]


def test_gemma_3_1b_slab_is_704_kib():
    layout = lay_out(KVGeometry.of(models()["Gemma-3-1B"], 16))
    assert layout.slab_bytes == 704 * 1024
    assert [group.pages_per_slab for group in layout.groups] == [11, 2]


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("name", list(models()))
def test_pages_of_the_table_s_models_lose_no_byte(name, page_size):
    layout = lay_out(KVGeometry.of(models()[name], page_size))
    for group in layout.groups:
        assert group.page_stride_bytes == group.group.bytes_per_token * page_size


layers = st.builds(
    LayerKV,
    window=st.sampled_from([None, 8, 16, 32]),
    num_kv_heads=st.integers(1, 5),
    k_head_dim=st.integers(1, 24),
    v_head_dim=st.integers(1, 24),
)


@given(st.lists(layers, min_size=1, max_size=12), st.sampled_from([1, 2, 16]))
def test_layers_never_overlap_and_pages_tile_the_slab(specs, page_size):
    layout = lay_out(KVGeometry.of(specs, page_size))
    largest = max(group.page_stride_bytes for group in layout.groups)
    assert layout.slab_bytes <= MAX_LARGEST_PAGES_PER_SLAB * largest
    for group in layout.groups:
        if not group.has_bytes:
            continue
        assert group.pages_per_slab * group.page_stride_bytes == layout.slab_bytes
        assert group.page_stride_bytes % LAYER_ALIGN_BYTES == 0
        end = 0
        for layer, offsets in zip(group.group.layers, group.layers, strict=True):
            assert end <= offsets.k_bytes
            assert offsets.k_bytes + page_size * layer.k_bytes_per_token <= offsets.v_bytes
            assert offsets.k_bytes % LAYER_ALIGN_BYTES == offsets.v_bytes % LAYER_ALIGN_BYTES == 0
            end = offsets.v_bytes + page_size * layer.v_bytes_per_token
        assert end <= group.page_stride_bytes
