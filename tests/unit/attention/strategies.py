"""Attention steps for hypothesis: every feature on and off, lengths around the edges of pages and windows."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.unit.attention.scenes import SceneSpec

LENGTHS = st.integers(1, 40)


@st.composite
def scene_specs(draw, *, extend: bool) -> SceneSpec:
    lengths = draw(st.lists(LENGTHS, min_size=1, max_size=3))
    k_head_dim, v_head_dim = draw(st.sampled_from(((8, 8), (12, 8), (16, 16))))
    window = draw(st.sampled_from((None, 1, 3, 8, 64)))
    return SceneSpec(
        seq_lens=tuple(lengths),
        query_lens=tuple(draw(st.integers(0, length)) for length in lengths) if extend else None,
        num_null=draw(st.integers(0, 2)),
        num_kv_heads=draw(st.sampled_from((1, 2))),
        group_size=draw(st.sampled_from((1, 3, 4))),
        k_head_dim=k_head_dim,
        v_head_dim=v_head_dim,
        page_size=draw(st.sampled_from((1, 4, 16))),
        window=window,
        softcap=draw(st.sampled_from((None, 2.0))),
        has_sinks=draw(st.booleans()),
        has_own_pool=window is not None and draw(st.booleans()),
    )
