"""The backend of the GPU on a CPU: its ops run their references here, and a tape sees them as one op each."""

from __future__ import annotations

from itertools import product

import pytest
import torch

import playhead.kernels.splits
from playhead.attention.base import LENGTHS_SLOT, Phase
from playhead.attention.triton import CUTS, TritonBackend, decode_shape
from playhead.graph.backends.base import record
from playhead.graph.backends.tape import TapeBackend
from playhead.kernels.splits import num_arrivals, num_parts
from playhead.testing.mutant import swapped
from tests.unit.attention.scenes import Scene, SceneSpec, dense_attention, make_scene

DECODE = SceneSpec(seq_lens=(21, 6), num_null=1, group_size=2, window=5, has_own_pool=True, softcap=5.0)
EXTEND = SceneSpec(seq_lens=(21, 6), query_lens=(4, 6), num_null=1, group_size=2, has_sinks=True)


def backend_for(scene: Scene) -> TritonBackend:
    return TritonBackend(scene.plan.page_table_RP, [scene.layer], max_bs=scene.plan.rows_B.shape[0])


@pytest.mark.parametrize("spec", [DECODE, EXTEND], ids=["decode", "extend"])
def test_it_agrees_with_dense_attention(spec):
    scene = make_scene(spec, seed=1)
    backend, out = backend_for(scene), scene.new_out()
    run = backend.decode if scene.plan.phase is Phase.DECODE else backend.extend
    run(scene.plan, scene.layer, scene.q, out)
    torch.testing.assert_close(out[: scene.num_live].double(), dense_attention(scene), atol=1e-5, rtol=1e-5)


def test_decode_is_one_op_of_a_recording_that_declares_what_it_writes():
    scene = make_scene(DECODE, seed=1)
    backend, out = backend_for(scene), scene.new_out()
    recording, _ = record(TapeBackend(), lambda: backend.decode(scene.plan, scene.layer, scene.q, out))
    (op,) = (op for op in recording.log.ops if not op.is_view)
    assert op.name == "playhead::decode.default"
    scratch = next(owned for owned in backend.owned() if owned.writable)
    assert {access.start for access in op.writes} == {out.data_ptr(), *(t.data_ptr() for t in scratch.tensors)}
    wanted = out.clone()
    out.fill_(float("nan"))
    recording.replay()
    torch.testing.assert_close(out, wanted, rtol=0, atol=0, equal_nan=True)


def test_steps_of_many_programs_find_the_order_of_their_requests_once():
    few, many = (make_scene(SceneSpec(seq_lens=(3, 7), num_kv_heads=heads), seed=0) for heads in (1, 2))
    layers, inputs = (few.layer, many.layer, many.layer), {LENGTHS_SLOT: few.plan.seq_lens_B}
    backend = TritonBackend(few.plan.page_table_RP, layers, max_bs=2)
    with swapped(playhead.kernels.splits, "MANY_PROGRAMS", 3):
        first, *others = backend.prepare(layers, None, inputs)
    assert first == ()
    assert [order_B.tolist() for (order_B,) in others] == [[1, 0], [1, 0]]
    assert others[0][0] is others[1][0]
    assert backend.prepare(layers, None, inputs) == ((), (), ())


def test_scratch_holds_every_batch_size_up_to_the_largest():
    layer = make_scene(SceneSpec(seq_lens=(4,), num_kv_heads=2, group_size=4), seed=0).layer
    table = torch.zeros(300, 2048, dtype=torch.int32)
    backend = TritonBackend(table, [layer], max_bs=256)
    scratch = next(owned for owned in backend.owned() if owned.writable)
    parts, log_weights, arrivals = scratch.tensors
    shape = decode_shape(layer, table)
    for bs, cut in product(range(1, 257), CUTS):
        step = (shape, bs, cut(shape, bs))
        assert num_parts(*step) * layer.v_head_dim <= parts.numel()
        assert num_parts(*step) <= log_weights.numel()
        assert num_arrivals(*step) <= arrivals.numel()
