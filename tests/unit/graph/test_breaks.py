"""Breaks, bridges and the split of traced callables."""

from __future__ import annotations

import pytest
import torch

from playhead.errors import CaptureError
from playhead.graph import BreakableCapture, BreakOp, BridgePool, PiecewiseCapture, TapeBackend, TensorSpec, as_traced
from playhead.graph.breaks import InlineScope
from playhead.graph.piecewise import split_at_breaks, with_prime_rows


def add_live(live, inputs, outputs, site):
    outputs[0].copy_(inputs[0] + inputs[1] * live)


def live_add() -> BreakOp:
    return BreakOp("playhead_test::live_add", run=add_live, outputs=lambda inputs: [TensorSpec.like(inputs[0])])


def two_breaks(op: BreakOp, weight: torch.Tensor):
    def fn(inputs, scope):
        h = inputs["x"]
        for i in range(2):
            (a,) = scope.call(op, h @ weight, h, site=i)
            h = h + torch.relu(a)
        return h

    return fn


CAPTURES = [BreakableCapture, lambda bridges: PiecewiseCapture(bridges, as_traced)]


@pytest.fixture(params=CAPTURES)
def capture(request):
    return request.param(BridgePool(max_rows=8, device="cpu"))


def test_live_values_are_those_of_the_replay(capture):
    fn, x = two_breaks(live_add(), torch.randn(4, 4)), torch.randn(8, 4)
    step = capture.capture(TapeBackend(), fn, {"x": x}, 1.0)
    for live in (1.0, -2.5):
        x.copy_(torch.randn(8, 4))
        step.replay(live)
        assert torch.equal(step.output, fn({"x": x}, InlineScope(live)))


def test_a_bucket_captured_later_does_not_disturb_an_earlier_one(capture):
    fn, x = two_breaks(live_add(), torch.randn(4, 4)), torch.randn(8, 4)
    large = capture.capture(TapeBackend(), fn, {"x": x}, 1.0)
    small = capture.capture(TapeBackend(), fn, {"x": x[:3]}, 1.0)
    for step, rows in ((large, 8), (small, 3), (large, 8)):
        x.copy_(torch.randn(8, 4))
        step.replay(2.0)
        assert torch.equal(step.output, fn({"x": x[:rows]}, InlineScope(2.0)))


def test_all_sizes_share_the_bridges():
    bridges = BridgePool(max_rows=8, device="cpu")
    fn = two_breaks(live_add(), torch.randn(4, 4))
    for rows in (8, 3, 5):
        BreakableCapture(bridges).capture(TapeBackend(), fn, {"x": torch.randn(rows, 4)}, 1.0)
    assert len(bridges.buffers) == 3  # two inputs, one output
    assert bridges.num_bytes == 3 * 8 * 4 * 4


def test_segments_are_one_more_than_breaks():
    step = BreakableCapture(BridgePool(max_rows=8, device="cpu")).capture(
        TapeBackend(), two_breaks(live_add(), torch.randn(4, 4)), {"x": torch.randn(8, 4)}, 1.0
    )
    assert len(step.recordings) == 3
    assert [bound.site for bound in step.breaks] == [0, 1]


def test_an_input_computed_into_its_bridge_is_not_copied():
    op, weight, x = live_add(), torch.randn(4, 4), torch.randn(8, 4)

    def fn(inputs, scope):
        h = inputs["x"]
        product = torch.mm(h, weight, out=scope.bridge(op, 0, TensorSpec.like(h), h))
        return scope.call(op, product, h, site=0)[0] + 1

    step = BreakableCapture(BridgePool(max_rows=8, device="cpu")).capture(TapeBackend(), fn, {"x": x}, 1.0)
    assert step.recordings[0].log.count("aten::copy_") == 1  # the other input
    x.copy_(torch.randn(8, 4))
    step.replay(0.5)
    assert torch.equal(step.output, fn({"x": x}, InlineScope(0.5)))


def test_more_rows_than_the_bridges_hold_are_refused():
    capture = BreakableCapture(BridgePool(max_rows=4, device="cpu"))
    with pytest.raises(CaptureError, match="8 rows cross a break with bridges of 4"):
        capture.capture(TapeBackend(), two_breaks(live_add(), torch.randn(4, 4)), {"x": torch.randn(8, 4)}, 1.0)


def test_a_split_program_has_pieces_between_breaks_and_weights_as_inputs():
    weight = torch.randn(4, 4)
    program = split_at_breaks(two_breaks(live_add(), weight), {"x": torch.randn(8, 4)}, as_traced)
    assert len(program.pieces) == 3
    assert [site.site for site in program.breaks.values()] == [0, 1]
    for rows in (2, 7, 8):
        x = torch.randn(rows, 4)
        expected = two_breaks(live_add(), weight)({"x": x}, InlineScope(3.0))
        assert torch.equal(program({"x": x}, InlineScope(3.0)), expected)


def test_rows_as_many_as_the_model_is_wide_stay_rows():
    """16 rows of a 16-wide model: traced as they are, the two sizes would become one."""
    weight = torch.randn(16, 16)
    program = split_at_breaks(two_breaks(live_add(), weight), {"x": torch.randn(16, 16)}, as_traced)
    x = torch.randn(5, 16)
    expected = two_breaks(live_add(), weight)({"x": x}, InlineScope(1.0))
    assert torch.equal(program({"x": x}, InlineScope(1.0)), expected)


@pytest.mark.parametrize(("rows", "cut"), [(16, 13), (13, 13), (2, 2), (2048, 2039)])
def test_rows_are_cut_to_a_prime(rows, cut):
    inputs = {"ids": torch.zeros(rows), "mrope": torch.zeros(3, rows), "one": torch.zeros(1)}
    cut_inputs, num_rows = with_prime_rows(inputs)
    assert [tuple(tensor.shape) for tensor in cut_inputs.values()] == [(cut,), (3, cut), (1,)]
    assert num_rows == cut


def test_a_traced_break_never_runs_by_itself():
    with pytest.raises(CaptureError, match="a traced break was run"):
        live_add().traced([torch.ones(2), torch.ones(2)], 0)


def test_no_size_crosses_a_break():
    """A row count that one piece computes and another uses is computed twice, from tensors both have."""
    op, weight = live_add(), torch.randn(4, 4)

    def fn(inputs, scope):
        h = inputs["x"]
        rows = h.shape[0] * 2
        for i in range(2):
            (a,) = scope.call(op, h @ weight, h, site=i)
            h = (torch.cat([a, a]).view(rows, 4) * rows)[: h.shape[0]]
        return h

    program = split_at_breaks(fn, {"x": torch.randn(8, 4)}, as_traced)
    for piece, _ in program.pieces.values():
        values = [node.meta.get("val") for node in piece.graph.nodes if node.op == "placeholder"]
        assert not any(isinstance(value, torch.SymInt) for value in values)
    for rows in (3, 8):
        x = torch.randn(rows, 4)
        assert torch.equal(program({"x": x}, InlineScope(1.0)), fn({"x": x}, InlineScope(1.0)))


def test_an_output_that_counts_rows_is_refused_by_a_trace():
    """Traced once for all sizes, the number would be a symbol."""
    capture = PiecewiseCapture(BridgePool(max_rows=8, device="cpu"), as_traced)
    with pytest.raises(CaptureError, match="a number that depends on the rows"):
        capture.capture(TapeBackend(), lambda inputs, scope: inputs["x"].shape[0], {"x": torch.randn(8, 4)}, 1.0)


@pytest.mark.parametrize("rows", [len, lambda x: int(x.shape[0])], ids=["len", "int"])
def test_a_step_that_makes_a_number_of_its_row_count_is_refused_by_a_trace(rows):
    """Replayed for fewer rows, the piece would compute the traced number of them."""

    def fn(inputs, scope):
        return inputs["x"].new_ones((rows(inputs["x"]), 4)) + inputs["x"]

    capture = PiecewiseCapture(BridgePool(max_rows=8, device="cpu"), as_traced)
    with pytest.raises(CaptureError, match=r"axis 0 of input .* became the number 7"):
        capture.capture(TapeBackend(), fn, {"x": torch.randn(8, 4)}, 1.0)
