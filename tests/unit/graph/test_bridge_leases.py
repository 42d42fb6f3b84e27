"""Bridges are shared by all calls of a break: what is read after the next call must be a copy."""

from __future__ import annotations

import pytest
import torch

from playhead.errors import CaptureError
from playhead.graph import (
    BreakableCapture,
    BreakOp,
    BridgePool,
    FullCapture,
    PiecewiseCapture,
    TapeBackend,
    TensorSpec,
    as_traced,
)
from playhead.graph.breaks import InlineScope
from playhead.graph.leases import storage_of

CAPTURES = {"breakable": BreakableCapture, "piecewise": lambda bridges: PiecewiseCapture(bridges, as_traced)}


@pytest.fixture(params=CAPTURES)
def capture(request):
    return CAPTURES[request.param](BridgePool(max_rows=8, device="cpu"))


def times_live(live, inputs, outputs, site):
    outputs[0].copy_(inputs[0] * live)


def scale(name: str = "playhead_test::scale") -> BreakOp:
    return BreakOp(name, run=times_live, outputs=lambda inputs: [TensorSpec.like(inputs[0])])


def keeps_the_output(op, inputs, scope):
    (first,) = scope.call(op, inputs["x"] + 1, site=0)
    (second,) = scope.call(op, first + 2, site=1)
    return first + second


def keeps_a_view(op, inputs, scope):
    (first,) = scope.call(op, inputs["x"] + 1, site=0)
    half = first.view(-1, 2, 2)[:, 0]
    (second,) = scope.call(op, first + 2, site=1)
    return second[:, :2] + half


def returns_the_output(op, inputs, scope):
    (first,) = scope.call(op, inputs["x"] + 1, site=0)
    (second,) = scope.call(op, first + 2, site=1)
    return first, second + 0


def hands_it_to_a_later_break(op, inputs, scope):
    (first,) = scope.call(op, inputs["x"] + 1, site=0)
    (second,) = scope.call(op, first + 2, site=1)
    return scope.call(op, first, site=2)[0] + second


STALE = [keeps_the_output, keeps_a_view, returns_the_output, hands_it_to_a_later_break]


@pytest.mark.parametrize("fn", STALE)
def test_an_output_read_after_the_next_call_is_refused_and_names_the_break(capture, fn):
    op, x = scale(), torch.randn(8, 4)
    with pytest.raises(CaptureError, match=r"playhead_test::scale.*site 0.*Copy it"):
        capture.capture(TapeBackend(), lambda inputs, scope: fn(op, inputs, scope), {"x": x}, 2.0)


@pytest.mark.parametrize("fn", STALE)
def test_a_full_graph_has_no_bridges_and_takes_it(fn):
    op, x = scale(), torch.randn(8, 4)
    step = FullCapture().capture(TapeBackend(), lambda inputs, scope: fn(op, inputs, scope), {"x": x}, 2.0)
    x.copy_(torch.randn(8, 4))
    step.replay(2.0)
    for found, wanted in zip(step.output, fn(op, {"x": x}, InlineScope(2.0)), strict=True):
        assert torch.equal(found, wanted)


def test_a_full_graph_shares_memory_where_the_callable_says_that_it_may():
    """Calls of a break have one output between them; another break has its own, and so has another shape."""
    op, other, x = scale(), scale("playhead_test::other"), torch.randn(8, 4)
    ends = []

    def fn(inputs, scope):
        scope.share_memory()
        y = inputs["x"]
        for site in range(3):
            room = scope.bridge(op, 0, TensorSpec.like(y), y)
            (y,) = scope.call(op, torch.add(y, 1, out=room), site=site)
            ends.append((storage_of(room), storage_of(y)))
        others = scope.call(op, y[:4] + 1, site=3) + scope.call(other, y, site=0)
        ends.append(tuple(map(storage_of, others)))
        return y + 0

    step = FullCapture().capture(TapeBackend(), fn, {"x": x}, 2.0)
    *of_one, of_others = ends[-4:]
    assert len(set(of_one)) == 1
    assert len({*of_one[0], *of_others}) == 4
    x.copy_(torch.randn(8, 4))
    step.replay(2.0)
    assert torch.equal(step.output, ((x + 1) * 2 + 1) * 4 + 2)


def test_a_copy_made_in_time_is_right(capture):
    op, x = scale(), torch.randn(8, 4)

    def fn(inputs, scope):
        first = scope.call(op, inputs["x"] + 1, site=0)[0].clone()
        (second,) = scope.call(op, first + 2, site=1)
        return first + second

    step = capture.capture(TapeBackend(), fn, {"x": x}, 2.0)
    x.copy_(torch.randn(8, 4))
    step.replay(3.0)
    assert torch.equal(step.output, fn({"x": x}, InlineScope(3.0)))


def test_two_breaks_have_their_own_bridges(capture):
    one, other, x = scale(), scale("playhead_test::other"), torch.randn(8, 4)

    def fn(inputs, scope):
        (first,) = scope.call(one, inputs["x"] + 1, site=0)
        (second,) = scope.call(other, first + 2, site=1)
        return first + second

    step = capture.capture(TapeBackend(), fn, {"x": x}, 2.0)
    x.copy_(torch.randn(8, 4))
    step.replay(3.0)
    assert torch.equal(step.output, fn({"x": x}, InlineScope(3.0)))


def test_two_breaks_of_one_name_share_bridges_and_are_refused(capture):
    one, other, x = scale(), scale(), torch.randn(8, 4)

    def fn(inputs, scope):
        (first,) = scope.call(one, inputs["x"] + 1, site=0)
        (second,) = scope.call(other, first + 2, site=1)
        return first + second

    with pytest.raises(CaptureError, match=r"playhead_test::scale"):
        capture.capture(TapeBackend(), fn, {"x": x}, 2.0)


def test_an_input_bridge_read_after_the_next_call_is_refused():
    """The memory of `scope.bridge` is shared as well. A compiled piece makes its own."""
    op, x = scale(), torch.randn(8, 4)

    def fn(inputs, scope):
        room = scope.bridge(op, 0, TensorSpec.like(inputs["x"]), inputs["x"])
        torch.add(inputs["x"], 1, out=room)
        (first,) = scope.call(op, room, site=0)
        (second,) = scope.call(op, first + 2, site=1)
        return second + room

    with pytest.raises(CaptureError, match=r"input 0 of the break"):
        BreakableCapture(BridgePool(max_rows=8, device="cpu")).capture(TapeBackend(), fn, {"x": x}, 2.0)


def test_a_compiled_piece_is_looked_at_too():
    """Inductor's code is one opaque op: its arguments are what it reads."""
    op, x = scale(), torch.randn(8, 4)
    opaque = PiecewiseCapture(BridgePool(max_rows=8, device="cpu"), lambda piece, examples: lambda *args: piece(*args))
    with pytest.raises(CaptureError, match=r"playhead_test::scale"):
        opaque.capture(TapeBackend(), lambda inputs, scope: keeps_a_view(op, inputs, scope), {"x": x}, 2.0)


def test_a_refused_capture_leaves_nothing_behind(capture):
    op, x = scale(), torch.randn(8, 4)
    with pytest.raises(CaptureError):
        capture.capture(TapeBackend(), lambda inputs, scope: keeps_the_output(op, inputs, scope), {"x": x}, 2.0)
    assert (x.sum() - x.sum()).item() == 0  # no mode is left that would refuse a host read
