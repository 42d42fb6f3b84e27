"""What a runner with breaks captures, keeps and records: nothing that knows how many requests there are."""

from __future__ import annotations

import gc

import pytest
import torch

from playhead.errors import GraphError, SlotError
from playhead.graph import (
    BreakableCapture,
    BreakOp,
    BridgePool,
    CudaGraphBufferRegistry,
    Dispatcher,
    DispatchLimits,
    GraphRunner,
    Mode,
    StepSpec,
    TapeBackend,
    TensorSpec,
)
from playhead.graph.slots import host_vector
from playhead.testing.toy import ToyPlan, ToyRequest
from playhead.testing.toy_runners import ToyRig, toy_rig

ANY_PADDING = DispatchLimits(max_padding_ratio=100)
KINDS = ["breakable", "piecewise"]


def run(rig: ToyRig, num_requests: int) -> torch.Tensor:
    requests = [ToyRequest(row=1 + i, num_cached=0, tokens=[3]) for i in range(num_requests)]
    batch = rig.model.batch(requests, axis="tokens")
    return rig.runner.run(batch, raw_bs=num_requests, raw_num_tokens=num_requests).output


class TestBatchSize:
    @pytest.mark.parametrize("kind", KINDS)
    def test_captured_work_is_given_no_slot_with_a_row_per_request(self, kind):
        rig = toy_rig(kind, buckets=(8,))
        seen = []
        forward = rig.runner.step.fn
        object.__setattr__(
            rig.runner.step, "fn", lambda inputs, scope: seen.append(set(inputs)) or forward(inputs, scope)
        )
        rig.runner.capture_all()
        per_request = {name for name, slot in rig.runner.registry.slots.items() if slot.axis == "bs"}
        assert per_request == {"req_pool_indices", "seq_lens", "extend_lens"}
        assert seen
        assert all(not names & per_request for names in seen)

    @pytest.mark.parametrize("buckets", [(8,), ()], ids=["replay", "eager"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_step_that_gives_rows_of_requests_is_cut_to_them(self, kind, buckets):
        """In a graph it has room for more requests than a step has, and for fewer than the step has tokens."""
        rig = toy_rig(kind, buckets=(8,))
        rig.runner.dispatcher = Dispatcher(rig.runner.capture.mode, buckets, DispatchLimits(lazy=True))
        forward = rig.runner.step.fn
        object.__setattr__(rig.runner.step, "fn", lambda inputs, scope: forward(inputs, scope)[:5])
        object.__setattr__(rig.runner.step, "output_axis", "bs")
        for lengths in ([4, 3], [1, 1, 5], [6]):
            requests = [ToyRequest(row=1 + i, num_cached=0, tokens=[3] * n) for i, n in enumerate(lengths)]
            batch = rig.model.batch(requests, axis="tokens")
            result = rig.runner.run(batch, raw_bs=len(lengths), raw_num_tokens=sum(lengths))
            assert (result.decision.mode is Mode.EAGER) == (not buckets)
            assert len(result.output) == len(lengths)

    @pytest.mark.parametrize("kind", KINDS)
    def test_captured_work_that_reads_one_is_told_why_it_cannot(self, kind):
        rig = toy_rig(kind, buckets=(8,))
        object.__setattr__(rig.runner.step, "fn", lambda inputs, scope: inputs["seq_lens"] + 1)
        with pytest.raises(SlotError, match=f"'seq_lens': axis 'bs' read by a {kind} graph"):
            rig.runner.capture_all()

    @pytest.mark.parametrize("kind", KINDS)
    def test_no_recorded_op_reads_a_slot_with_a_row_per_request(self, kind):
        rig = toy_rig(kind, buckets=(8,))
        rig.runner.capture_all()
        slots = [slot for slot in rig.runner.registry.slots.values() if slot.axis == "bs"]
        spans = [(slot.buffer.data_ptr(), slot.buffer.data_ptr() + slot.buffer.nbytes) for slot in slots]
        ops = [op for recording in rig.runner.captured[8].recordings for op in recording.log.ops]
        assert ops
        for op in ops:
            for access in op.reads + op.writes:
                assert not any(start <= access.start < stop for start, stop in spans), op.name

    @pytest.mark.parametrize("kind", KINDS)
    def test_steps_of_other_batch_sizes_leave_no_tensors_behind(self, kind):
        rig = toy_rig(kind, buckets=(8,), limits=ANY_PADDING)
        rig.runner.capture_all()
        run(rig, 1)
        before = num_live_storages()
        for num_requests in (2, 3, 5, 8):
            run(rig, num_requests)
        assert num_live_storages() == before


def num_live_storages() -> int:
    """How many pieces of tensor memory Python can reach."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) is torch.Tensor and thing.device.type == "cpu"]
    return len({tensor.untyped_storage().data_ptr() for tensor in tensors})


class OtherPlan(ToyPlan):
    """The same tensors, read by other code."""


def test_a_plan_of_another_type_on_the_same_memory_is_refused():
    """A full graph has captured what the plan's type does with its tensors."""
    rig = toy_rig("full", limits=ANY_PADDING)
    rig.runner.capture_all()
    ctx = rig.runner.context(raw_bs=2, raw_num_tokens=2, bucket=4)
    requests = [ToyRequest(row=1 + i, num_cached=0, tokens=[3]) for i in range(2)]
    live = rig.runner.prepare(rig.model.batch(requests, axis="bs"), ctx)
    rig.runner.replay(4, live)
    other = OtherPlan(
        rows_R=live.rows_R, lens_R=live.lens_R, ends_R=None, locs_T=live.locs_T, num_tokens=live.num_tokens
    )
    with pytest.raises(GraphError, match="OtherPlan"):
        rig.runner.replay(4, other)


@pytest.fixture
def trainable() -> GraphRunner:
    """A step whose weights want gradients, before, in and after its break."""
    weight = torch.nn.Parameter(torch.randn(1, 4))

    def times_weight(live, inputs, outputs, site):
        outputs[0].copy_(inputs[0] * weight)

    op = BreakOp("playhead_test::trainable", run=times_weight, outputs=lambda inputs: [TensorSpec.like(inputs[0])])
    registry = CudaGraphBufferRegistry(max_bs=4, max_num_tokens=4, device="cpu")
    registry.register_slot(host_vector("x", "tokens", torch.float32))
    step = StepSpec(
        name="trainable",
        axis="tokens",
        fn=lambda inputs, scope: scope.call(op, inputs["x"].unsqueeze(1) * weight, site=0)[0] * weight,
        plan=lambda batch, ctx, inputs: None,
        placeholder=registry.null_batch,
    )
    capture = BreakableCapture(BridgePool(max_rows=4, device="cpu"))
    return GraphRunner(
        step,
        registry=registry,
        capture=capture,
        backend=TapeBackend(),
        dispatcher=Dispatcher(capture.mode, (2, 4), ANY_PADDING),
    )


class TestGradients:
    def test_a_replayed_break_records_none(self, trainable):
        trainable.capture_all()
        for _ in range(2):
            result = trainable.run({"x": [1.0, 2.0, 3.0]}, raw_bs=1, raw_num_tokens=3)
            assert not result.output.requires_grad
            assert not any(buffer.requires_grad for buffer in trainable.capture.bridges.buffers)

    def test_an_eager_step_records_none(self, trainable):
        result = trainable.run({"x": [1.0, 2.0, 3.0]}, raw_bs=1, raw_num_tokens=3)
        assert result.decision.mode == "eager"
        assert not result.output.requires_grad

    def test_an_eager_run_of_the_captured_form_records_none(self, trainable):
        ctx = trainable.context(raw_bs=1, raw_num_tokens=3, bucket=4)
        live = trainable.prepare({"x": [1.0, 2.0, 3.0]}, ctx)
        assert not trainable.run_eager(ctx, live, prepared=True).requires_grad
