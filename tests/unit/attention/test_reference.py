"""The oracle itself, against attention computed one query at a time from unpaged keys."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead.attention.reference import ReferenceBackend
from playhead.graph.backends.base import record
from playhead.graph.backends.tape import TapeBackend
from tests.unit.attention.scenes import SceneSpec, dense_attention, make_scene
from tests.unit.attention.strategies import scene_specs


@settings(max_examples=60)
@given(spec=scene_specs(extend=False), seed=st.integers(0, 2**31))
def test_decode_agrees_with_dense_attention(spec, seed):
    scene = make_scene(spec, seed)
    out = scene.new_out()
    ReferenceBackend(scene.plan.page_table_RP).decode(scene.plan, scene.layer, scene.q, out)
    torch.testing.assert_close(out[: scene.num_live].double(), dense_attention(scene), atol=1e-5, rtol=1e-5)


@settings(max_examples=60)
@given(spec=scene_specs(extend=True).filter(lambda spec: sum(spec.queries) > 0), seed=st.integers(0, 2**31))
def test_extend_agrees_with_dense_attention(spec, seed):
    scene = make_scene(spec, seed)
    out = scene.new_out()
    ReferenceBackend(scene.plan.page_table_RP).extend(scene.plan, scene.layer, scene.q, out)
    torch.testing.assert_close(out[: scene.num_live].double(), dense_attention(scene), atol=1e-5, rtol=1e-5)
    assert out[scene.num_live :].isnan().all(), "rows of no request are left alone"


def test_decode_on_a_tape_follows_lengths_that_change():
    """Lengths are data: a replay must look at the keys there are now, not at those of the capture."""
    spec = SceneSpec(seq_lens=(21, 6), window=5, has_own_pool=True, has_sinks=True)
    scene = make_scene(spec, seed=3)
    wanted = dense_attention(scene)
    backend = ReferenceBackend(scene.plan.page_table_RP)
    out, lengths = scene.new_out(), scene.plan.seq_lens_B.clone()
    scene.plan.seq_lens_B.fill_(1)
    recording, _ = record(TapeBackend(), lambda: backend.decode(scene.plan, scene.layer, scene.q, out))
    scene.plan.seq_lens_B.copy_(lengths)
    out.fill_(float("nan"))
    recording.replay()
    torch.testing.assert_close(out.double(), wanted, atol=1e-5, rtol=1e-5)
