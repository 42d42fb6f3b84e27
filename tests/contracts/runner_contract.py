"""What every runner does, whatever it is captured with and recorded on.

Imported by tests that give the `backend` fixture: tape and eager on the CPU, cuda on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from playhead.errors import CaptureError, GraphError
from playhead.graph import EagerBackend, Mode, Reason
from playhead.graph.audit import audit, same_bits
from playhead.graph.outputs import map_tensors
from playhead.graph.registry import NUM_STAGES
from playhead.graph.shapes import DispatchLimits
from playhead.testing.graph_mutants import STALE_LOC_TAIL
from playhead.testing.toy import ToyRequest
from playhead.testing.toy_runners import KINDS, ToyRig, toy_rig

ANY_PADDING = DispatchLimits(max_padding_ratio=100)


@pytest.fixture(params=KINDS)
def rig(request, backend) -> ToyRig:
    rig = toy_rig(request.param, backend=backend, limits=ANY_PADDING)
    rig.runner.capture_all()
    return rig


def run(rig: ToyRig, requests: list[ToyRequest]):
    num_tokens = sum(len(r.tokens) for r in requests)
    batch = rig.model.batch(requests, axis=rig.axis)
    return rig.runner.run(batch, raw_bs=len(requests), raw_num_tokens=num_tokens)


def eager_in_bucket(rig: ToyRig, requests: list[ToyRequest], bucket: int):
    num_tokens = sum(len(r.tokens) for r in requests)
    ctx = rig.runner.context(raw_bs=len(requests), raw_num_tokens=num_tokens, bucket=bucket)
    live = rig.runner.prepare(rig.model.batch(requests, axis=rig.axis), ctx)
    return rig.runner.run_eager(ctx, live, prepared=True)[:num_tokens]


def requests_of(lengths: list[int]) -> list[ToyRequest]:
    return [ToyRequest(row=i + 1, num_cached=0, tokens=list(range(i + 1, i + 1 + n))) for i, n in enumerate(lengths)]


def test_replay_equals_eager_for_every_raw_size(rig):
    """K4: same bucket, same bits."""
    for raw in range(1, 9):
        requests = requests_of([1] * raw)
        result = run(rig, requests)
        replayed = map_tensors(torch.clone, result.output)
        assert same_bits([replayed], [eager_in_bucket(rig, requests, result.decision.bucket)])


def test_padded_rows_never_touch_live_locs(rig):
    """A batch that shrinks must not replay the dead rows' writes."""
    run(rig, requests_of([1] * 4))
    before = rig.model.k_cache[:, 1:].clone()
    sentinel = int(rig.model.table_RL[3, 0])
    rig.model.k_cache[:, sentinel] = 77
    run(rig, requests_of([1, 1]))
    assert bool((rig.model.k_cache[:, sentinel] == 77).all())
    assert not torch.equal(before, rig.model.k_cache[:, 1:])


def test_stale_location_tail_corrupts_a_live_request_and_the_fill_prevents_it(backend):
    """The regression of the second document, with its bug put back and without."""

    def another_request_is_intact() -> bool:
        rig = toy_rig("full", backend=backend, limits=ANY_PADDING)
        rig.runner.capture_all()
        for num_requests in (*[4] * NUM_STAGES, 1):  # every stage of the ring has held four rows
            theirs = rig.model.k_cache[:, int(rig.model.table_RL[3, 0])]
            theirs.fill_(77)
            run(rig, requests_of([1] * num_requests))
        return bool((theirs == 77).all())

    with STALE_LOC_TAIL.apply():
        assert not another_request_is_intact()
    assert another_request_is_intact()


def test_audit_is_clean(rig):
    report = audit(rig.runner, rig.model.sample(rig.axis))
    assert report.ok, report.text()


@pytest.mark.parametrize("kind", ["breakable", "piecewise"])
def test_one_capture_serves_any_number_of_requests(kind, backend):
    """Captured with one placeholder; 1, 2, 5 and 16 requests of the same bucket get the bits of eager."""
    rig = toy_rig(kind, buckets=(16,), backend=backend, limits=ANY_PADDING)
    rig.runner.capture_all()
    for num_requests in (1, 2, 5, 16):
        lengths = [16 // num_requests] * num_requests
        lengths[0] += 16 - sum(lengths)
        requests = requests_of(lengths)
        result = run(rig, requests)
        assert result.decision.mode is rig.runner.capture.mode
        replayed = map_tensors(torch.clone, result.output)
        assert same_bits([replayed], [eager_in_bucket(rig, requests, 16)])


def test_requests_of_one_batch_do_not_see_each_other(backend):
    rig = toy_rig("breakable", buckets=(16,), backend=backend, limits=ANY_PADDING)
    rig.runner.capture_all()
    together = map_tensors(torch.clone, run(rig, requests_of([5, 7])).output)
    alone = run(rig, requests_of([5])).output
    torch.testing.assert_close(together[:5], alone, rtol=1e-5, atol=1e-5)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Nested:
    """An output of tensors in everything that can hold them, and plain values beside them."""

    hidden: torch.Tensor
    by_name: dict[str, object]
    pair: Pair
    nothing: None
    count: int


@pytest.fixture(params=KINDS)
def nesting_rig(request, backend) -> ToyRig:
    rig = toy_rig(request.param, backend=backend, limits=ANY_PADDING)
    forward = rig.runner.step.fn

    def nested(inputs, scope):
        h = forward(inputs, scope)
        by_name = {"twice": [h * 2, None, 7], "of the first row": h[0].sum(), "label": "toy"}
        return Nested(hidden=h + 0, by_name=by_name, pair=Pair(h - 1, None), nothing=None, count=3)

    object.__setattr__(rig.runner.step, "fn", nested)
    rig.runner.capture_all()
    return rig


def test_outputs_may_nest_and_hold_plain_values(nesting_rig):
    for raw in (3, 2):
        requests = requests_of([1] * raw)
        output = run(nesting_rig, requests).output
        assert [type(output), type(output.pair), output.nothing, output.count] == [Nested, Pair, None, 3]
        assert output.by_name["twice"][1:] == [None, 7]
        assert output.by_name["label"] == "toy"
        assert output.pair.right is None
        assert output.by_name["of the first row"].shape == ()
        assert [len(t) for t in (output.hidden, output.by_name["twice"][0], output.pair.left)] == [raw] * 3
        assert torch.equal(output.by_name["twice"][0], output.hidden * 2)
        assert torch.equal(output.pair.left, output.hidden - 1)


def test_an_output_that_could_hide_a_tensor_is_refused_at_capture(backend):
    rig = toy_rig("full", backend=backend, limits=ANY_PADDING)
    forward = rig.runner.step.fn
    object.__setattr__(rig.runner.step, "fn", lambda inputs, scope: Hidden(forward(inputs, scope)))
    with pytest.raises(CaptureError, match="a Hidden can be neither replayed nor cut"):
        rig.runner.capture_all()


class Hidden:
    """Not a dataclass: nobody can find its tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def test_an_output_is_overwritten_by_the_next_step_and_a_clone_is_not(rig):
    """Outputs are the graph's memory, on every backend."""
    first = run(rig, requests_of([1, 1, 1]))
    kept, values = first.cloned(), first.output.clone()
    other = [ToyRequest(row=5 + i, num_cached=0, tokens=[40 + i]) for i in range(3)]
    second = run(rig, other)
    assert first.output.data_ptr() == second.output.data_ptr()
    assert not torch.equal(first.output, values)
    assert torch.equal(kept.output, values)
    assert kept.decision == first.decision


def test_capture_leaves_live_memory_alone(backend):
    """A bucket captured in mid-serving runs on placeholders that point at the sink."""
    rig = toy_rig("full", backend=backend, limits=DispatchLimits(lazy=True))
    rig.model.k_cache.fill_(5)
    result = run(rig, requests_of([1, 1, 1]))
    assert result.decision.reason is Reason.CAPTURE_NOW
    written = [int(rig.model.table_RL[i, 0]) for i in (1, 2, 3)]
    untouched = [loc for loc in range(1, rig.model.shape.num_locs) if loc not in written]
    assert bool((rig.model.k_cache[:, untouched] == 5).all())
    assert run(rig, requests_of([1, 1, 1])).decision.reason is Reason.CAPTURED


def test_capture_goes_from_large_to_small_and_reports(backend):
    rig = toy_rig("full", buckets=(2, 4, 8), backend=backend)
    reports = []
    rig.runner.capture_all(reports.append)
    assert [r.size for r in reports] == [8, 4, 2]
    assert [(r.done, r.total) for r in reports] == [(1, 3), (2, 3), (3, 3)]
    assert all(r.seconds > 0 for r in reports)
    assert isinstance(backend, EagerBackend) or all(r.num_nodes > 0 for r in reports)


def test_python_does_not_run_on_replay(backend):
    if isinstance(backend, EagerBackend):
        return  # it does there, and says so
    rig = toy_rig("full", backend=backend, limits=ANY_PADDING)
    calls = []
    attend, rig.model.attention.run = rig.model.attention.run, lambda *args: calls.append(1) or attend(*args)
    rig.runner.capture_all()
    calls.clear()
    run(rig, requests_of([1, 1]))
    assert calls == []


def test_a_plan_on_other_memory_is_refused(backend):
    """A full graph has its plan's addresses baked in: replaying another plan would read the old one."""
    rig = toy_rig("full", backend=backend, limits=ANY_PADDING)
    rig.runner.capture_all()
    ctx = rig.runner.context(raw_bs=2, raw_num_tokens=2, bucket=4)
    live = rig.runner.prepare(rig.model.batch(requests_of([1, 1]), axis="bs"), ctx)
    moved = type(live)(
        rows_R=live.rows_R.clone(), lens_R=live.lens_R, ends_R=None, locs_T=live.locs_T, num_tokens=live.num_tokens
    )
    with pytest.raises(GraphError, match="other tensors than at capture"):
        rig.runner.replay(4, moved)


def test_eager_steps_say_why(rig):
    assert run(rig, requests_of([1] * 3)).decision.mode is rig.runner.dispatcher.mode
    rig.runner.dispatcher.mode = Mode.EAGER
    result = run(rig, requests_of([1] * 3))
    assert (result.decision.mode, result.decision.reason) == (Mode.EAGER, Reason.DISABLED)
