"""The contract: what steps must provide, and what a layer may be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from playhead.attention.base import PAST_EVERY_TOKEN, Phase
from playhead.attention.reference import ReferenceBackend
from playhead.errors import ConfigError
from playhead.graph.registry import CudaGraphBufferRegistry
from playhead.graph.slots import FillContext
from playhead.step.inputs import QUERIES
from playhead.step.registries import InputFeatures, build_prefill_registry
from tests.unit.attention.scenes import SceneSpec, dense_attention, make_scene

BACKEND = ReferenceBackend(torch.zeros(5, 3, dtype=torch.int32))


def registry_of(phase: Phase) -> CudaGraphBufferRegistry:
    features = InputFeatures(extra=QUERIES if phase is Phase.EXTEND else ())
    return build_prefill_registry(max_bs=4, max_num_tokens=16, device="cpu", features=features)


def filled(registry: CudaGraphBufferRegistry, ctx: FillContext, **values: list[int]) -> dict[str, torch.Tensor]:
    """Slots after a fill with these values and padding in all others."""
    batch = registry.null_batch(ctx) | {name: np.array(value, dtype=np.int32) for name, value in values.items()}
    registry.fill_from(batch, ctx)
    return registry.extract_buffer(ctx)


def test_a_padded_request_is_row_0_with_one_key():
    ctx = FillContext(raw_bs=2, padded_bs=4, raw_num_tokens=2, padded_num_tokens=4)
    inputs = filled(registry_of(Phase.DECODE), ctx, req_pool_indices=[3, 1], seq_lens=[9, 2])
    plan = BACKEND.plan(inputs)
    assert plan.rows_B.tolist() == [3, 1, 0, 0]
    assert plan.seq_lens_B.tolist() == [9, 2, 1, 1]
    assert plan.phase is Phase.DECODE


def test_a_padded_request_of_an_extend_step_owns_no_token():
    ctx = FillContext(raw_bs=1, padded_bs=2, raw_num_tokens=5, padded_num_tokens=8)
    values = {"req_pool_indices": [2], "seq_lens": [7], "query_starts": [0], "query_lens": [5]}
    plan = BACKEND.plan(filled(registry_of(Phase.EXTEND), ctx, **values))
    assert plan.phase is Phase.EXTEND
    assert [starts.tolist() for starts in plan.tensors()[3:]] == [[0, PAST_EVERY_TOKEN], [5, 0]]


def test_plans_of_one_size_have_the_same_addresses():
    """A full graph has them baked in."""
    registry = registry_of(Phase.DECODE)
    ctx = FillContext(raw_bs=1, padded_bs=2, raw_num_tokens=1, padded_num_tokens=2)
    first, second = (BACKEND.plan(registry.extract_buffer(ctx)) for _ in range(2))
    assert [t.data_ptr() for t in first.tensors()] == [t.data_ptr() for t in second.tensors()]


@pytest.mark.parametrize("query_lens", [None, (1, 3)])
def test_attend_takes_the_phase_from_the_plan(query_lens):
    scene = make_scene(SceneSpec(seq_lens=(4, 3), query_lens=query_lens), seed=0)
    out = scene.new_out()
    ReferenceBackend(scene.plan.page_table_RP).attend(scene.plan, scene.layer, scene.q, out)
    torch.testing.assert_close(out.double(), dense_attention(scene), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"num_heads": 3}, "3 heads for 2 kv heads"),
        ({"window": 0}, "found 0; wanted at least 1"),
        ({"v_head_dim": 4}, "v_cache_NSKE: found shape"),
        ({"k_cache_NSKD": torch.zeros(3, 4, 8, 2).mT}, "last stride 2"),
    ],
)
def test_a_layer_that_cannot_be_computed_is_refused(change, complaint):
    layer = make_scene(SceneSpec(seq_lens=(4,), num_kv_heads=2), seed=0).layer
    with pytest.raises(ConfigError, match=complaint):
        replace(layer, **change)
