"""A step in two graphs: the body runs before the late slots are filled, and the tail reads them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from playhead.errors import CaptureError, GraphError, SlotError
from playhead.graph.audit import SampledStep, audit
from playhead.graph.backends.tape import TapeBackend
from playhead.graph.late import LateRegistry
from playhead.graph.registry import NUM_STAGES
from playhead.graph.shapes import Dispatcher
from playhead.graph.slots import FillContext, GraphSlot, PaddingPolicy, host_vector
from playhead.graph.spec import OwnedMemory, StepSpec
from playhead.graph.split import CUT, SplitCapture, SplitRunner
from playhead.testing.fake_stream import LaggingPort
from playhead.types import Mode

MAX_ROWS = 8
WIDTH = 3


def registry_of(port: LaggingPort | None = None) -> LateRegistry:
    late = GraphSlot(
        name="late",
        shape_fn=lambda bs, tokens: (bs, WIDTH),
        dtype=torch.int32,
        axis="bs",
        padding_policy=PaddingPolicy.FILL_SENTINEL,
        pad_value=-1,
        staged=True,
    )
    registry = LateRegistry(late, max_bs=MAX_ROWS, max_num_tokens=MAX_ROWS, device="cpu", port=port)
    registry.register_slot(host_vector("x", "bs", torch.float32, graph_writes="the tail leaves it one further"))
    registry.freeze()
    return registry


class Rig:
    """`x * 10` in the body; in the tail plus the sum of the late row, and `x` becomes `x + 1`."""

    def __init__(self, buckets=(2, 4), num_cuts: int = 1) -> None:
        self.registry = registry_of()
        self.scaled = torch.zeros(MAX_ROWS)

        def step(inputs, scope):
            scaled = self.scaled[: len(inputs["x"])]
            scaled.copy_(inputs["x"] * 10)
            for _ in range(num_cuts):
                scope.call(CUT, scaled, site=0)
            inputs["x"].add_(1)
            return scaled + inputs["late"].sum(dim=1)

        spec = StepSpec(
            name="split",
            axis="bs",
            fn=step,
            plan=lambda batch, ctx, inputs: None,
            placeholder=self.registry.null_batch,
            owned=(OwnedMemory(name="scaled", tensors=(self.scaled,), writable=True),),
        )
        self.runner = SplitRunner(
            spec,
            registry=self.registry,
            capture=SplitCapture(),
            backend=TapeBackend(),
            dispatcher=Dispatcher(Mode.FULL, buckets),
        )
        if buckets:
            self.runner.capture_all()

    def finish(self, *rows: int):
        late = self.registry.open_late(range(len(rows))).values
        late[: len(rows)] = late_rows(*rows)
        return self.runner.finish()


def late_rows(*rows: int) -> np.ndarray:
    return np.array([[row] * WIDTH for row in rows], dtype=np.int32)


@pytest.mark.parametrize("buckets", [(2, 4), ()])
def test_the_tail_reads_what_was_filled_after_the_body_ran(buckets):
    rig = Rig(buckets)
    rig.runner.run({"x": np.array([1, 2, 3], np.float32)}, raw_bs=3, raw_num_tokens=3)
    if buckets:
        assert rig.scaled[:3].tolist() == [10, 20, 30]  # the body ran
        assert rig.registry.get_slot("x").rows(0, 3).tolist() == [1, 2, 3]  # the tail did not
    result = rig.finish(1, 2, 3)
    assert result.output.tolist() == [13, 26, 39]
    assert rig.registry.get_slot("x").rows(0, 3).tolist() == [2, 3, 4]


@pytest.mark.parametrize("buckets", [(2, 4), ()])
def test_a_step_goes_on_in_place_with_other_late_values(buckets):
    rig = Rig(buckets)
    rig.runner.run({"x": np.array([1, 2], np.float32)}, raw_bs=2, raw_num_tokens=2)
    rig.finish(1, 1)
    num_fills = rig.registry.num_fills
    rig.runner.replay_advanced()
    assert rig.finish(5, 7).output.tolist() == [35, 51]
    assert rig.registry.num_fills == num_fills


def test_late_padding_is_written_at_every_late_fill():
    rig = Rig((4,))
    slot = rig.registry.get_slot("late")
    for rows in ((1, 2, 3, 4), (5, 6)):
        rig.runner.run({"x": np.arange(len(rows), dtype=np.float32)}, raw_bs=len(rows), raw_num_tokens=len(rows))
        rig.finish(*rows)
        assert slot.rows(0, 4).tolist() == [[row] * WIDTH for row in (*rows, *[-1] * (4 - len(rows)))]


def test_rows_written_in_place_are_padding_again_when_others_are_written():
    """A stage is used again after some fills: nothing that an older one left may be sent with a newer one."""
    registry = registry_of()
    slot = registry.get_slot("late")
    for turn in range(3 * NUM_STAGES):
        row = turn % 3
        registry.open_late([row]).values[row] = turn
        registry.send_late()
        wanted = [[turn if at == row else -1] * WIDTH for at in range(MAX_ROWS)]
        assert slot.rows(0, MAX_ROWS).tolist() == wanted


def test_late_rows_are_written_again_only_after_their_copy_was_seen():
    port = LaggingPort()
    registry = registry_of(port)
    for turn in range(3 * NUM_STAGES):
        registry.open_late([0]).values[0] = turn
        registry.send_late()
    assert port.violations == []


def test_rows_of_a_late_fill_that_was_cut_short_are_padding_again():
    registry = registry_of()
    registry.open_late([2]).values[2] = 7  # and never sent
    for _ in range(2 * NUM_STAGES):
        registry.open_late([])
        registry.send_late()
        assert (registry.get_slot("late").rows(0, MAX_ROWS) == -1).all()


def test_a_late_slot_has_a_row_per_request_and_padding():
    late = host_vector("x", "tokens", torch.int32)
    with pytest.raises(SlotError, match="'x': declared as a late slot"):
        LateRegistry(late, max_bs=2, max_num_tokens=2, device="cpu")


def test_late_values_are_checked_like_others():
    ctx = FillContext(raw_bs=2, padded_bs=2, raw_num_tokens=2, padded_num_tokens=2)
    with pytest.raises(SlotError, match="'late': source of int32"):
        registry_of().fill_late(late_rows(1, 2, 3), ctx)


def test_finish_needs_a_body_that_was_launched():
    rig = Rig()
    with pytest.raises(GraphError, match="finish without a body"):
        rig.finish(1)


@pytest.mark.parametrize(("num_cuts", "says"), [(0, "a step without a cut"), (2, "a second cut")])
def test_a_step_has_one_cut(num_cuts, says):
    with pytest.raises(CaptureError, match=says):
        Rig(num_cuts=num_cuts)


def test_a_late_slot_may_not_have_the_name_of_another():
    late = host_vector("x", "bs", torch.int32)
    registry = LateRegistry(late, max_bs=2, max_num_tokens=2, device="cpu")
    with pytest.raises(SlotError, match="registered twice"):
        registry.register_slot(host_vector("x", "bs", torch.int32))


def test_the_audit_of_a_split_step_is_clean_and_covers_the_late_slot():
    rig = Rig((2, 4))

    def sample(raw: int, seed: int) -> SampledStep:
        rng = np.random.default_rng((seed, raw))
        batch = {"x": rng.random(raw, dtype=np.float32), "late": rng.integers(0, 9, (raw, WIDTH)).astype(np.int32)}
        return SampledStep(batch=batch, raw_bs=raw, raw_num_tokens=raw)

    report = audit(rig.runner, sample)
    assert report.ok, report.findings
    assert all(graph.num_recordings == 2 for graph in report.graphs)


def test_a_batch_without_late_values_leaves_them_as_they_are():
    registry = registry_of()
    ctx = FillContext(raw_bs=1, padded_bs=2, raw_num_tokens=1, padded_num_tokens=2)
    registry.fill_from({"x": np.ones(1, np.float32), "late": late_rows(7)}, ctx)
    registry.fill_from({"x": np.ones(1, np.float32)}, ctx)
    assert registry.get_slot("late").rows(0, 2).tolist() == [[7] * WIDTH, [-1] * WIDTH]
