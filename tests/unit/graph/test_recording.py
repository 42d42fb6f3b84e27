"""Recordings on the tape: what they redo, and what cannot be recorded."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
import torch.distributed as dist

from playhead.errors import CaptureError
from playhead.graph import FullCapture, TapeBackend, record
from playhead.graph.backends.out_variants import out_variant
from playhead.graph.op_facts import op_name
from playhead.graph.split import CUT, SplitCapture


@torch.library.custom_op("playhead_test::scale_into", mutates_args=("out",))
def scale_into(x: torch.Tensor, factor: float, out: torch.Tensor) -> None:
    out.copy_(torch.from_numpy(x.numpy() * factor))  # leaves the dispatcher, as a kernel does


def plain(inputs, scope):
    return inputs["x"] * 2


def cut(inputs, scope):
    scope.call(CUT, inputs["x"], site=0)
    return inputs["x"] * 2


def taped(work):
    return record(TapeBackend(), work)


def test_replay_reads_the_inputs_of_now():
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    recording, out = taped(lambda: torch.relu(x @ w) + 1)
    x.copy_(torch.randn(4, 8))
    recording.replay()
    assert torch.equal(out, torch.relu(x @ w) + 1)


def test_replay_writes_memory_in_place():
    cache, locs, values = torch.zeros(6, 2), torch.tensor([1, 2]), torch.ones(2, 2)

    def write():
        cache[locs] = values
        cache.mul_(2)

    recording, _ = taped(write)
    cache.zero_()
    locs.copy_(torch.tensor([4, 5]))
    recording.replay()
    assert cache[:, 0].tolist() == [0, 0, 0, 0, 2, 2]


def test_views_alias_and_are_no_work():
    x = torch.randn(2, 6)
    recording, (left, right) = taped(lambda: x.view(6, 2).split(3))
    assert recording.num_nodes == 0
    x.fill_(3)
    assert left.eq(3).all()
    assert right.eq(3).all()


def test_several_outputs_are_all_refreshed():
    x = torch.randn(3, 5)
    recording, (values, indices) = taped(lambda: torch.topk(x, 2))
    x.copy_(torch.randn(3, 5))
    recording.replay()
    again = torch.topk(x, 2)
    assert torch.equal(values, again.values)
    assert torch.equal(indices, again.indices)


def test_uninitialised_memory_keeps_what_was_written():
    """A replay must not put new garbage where the recording had computed values."""
    x = torch.ones(4)

    def work():
        out = torch.empty(4)
        out[:2] = x[:2]
        return out

    recording, out = taped(work)
    out[2:] = 7
    recording.replay()
    assert out.tolist() == [1, 1, 7, 7]


def test_custom_ops_are_recorded_with_their_mutations():
    x, out = torch.ones(3), torch.zeros(3)
    recording, _ = taped(lambda: scale_into(x, 2.0, out))
    (op,) = recording.log.ops
    assert op.name == "playhead_test::scale_into.default"
    assert [access.start for access in op.writes] == [out.data_ptr()]
    x.fill_(5)
    recording.replay()
    assert out.tolist() == [10, 10, 10]


def test_no_gradients_are_recorded():
    w = torch.randn(3, 3, requires_grad=True)
    _, out = taped(lambda: torch.randn(2, 3) @ w)
    assert not out.requires_grad


def test_a_replay_tracks_no_gradients_and_leaves_the_callers_mode():
    w, x = torch.randn(3, 3, requires_grad=True), torch.randn(2, 3)
    recording, out = taped(lambda: x @ w + x @ w.t())
    x.add_(1)
    recording.replay()
    assert torch.equal(out, x @ w + x @ w.t())
    assert not out.requires_grad
    assert torch.is_grad_enabled()
    with torch.no_grad():
        recording.replay()
        assert not torch.is_grad_enabled()


def test_a_replay_leaves_the_callers_mode_when_an_op_fails():
    x, out = torch.ones(3), torch.zeros(3)
    recording, _ = taped(lambda: scale_into(x, 2.0, out))
    x.resize_(2)
    with pytest.raises(RuntimeError):
        recording.replay()
    assert torch.is_grad_enabled()


def test_numpy_says_nothing_about_rows_that_nobody_reads():
    """And goes on to say it about the caller's own."""
    x, out = torch.ones(3), torch.zeros(3)
    recording, _ = taped(lambda: scale_into(x, 2.0, out))
    x.fill_(3e38)
    recording.replay()
    assert out.isinf().all()
    with pytest.warns(RuntimeWarning, match="overflow"):
        x.numpy() * np.float32(2)


def test_a_failed_recording_leaves_no_mode_behind():
    x = torch.ones(2)
    with pytest.raises(CaptureError):
        taped(lambda: x * x.sum().item())
    assert x.sum().item() == 2


@pytest.mark.parametrize(
    ("work", "op"),
    [
        (lambda x: x.sum().item(), "aten::_local_scalar_dense"),
        (lambda x: float(x[0]), "aten::_local_scalar_dense"),
        (lambda x: x if x[0] > 0 else -x, "aten::"),
        (lambda x: x.nonzero(), "aten::nonzero"),
        (lambda x: x[x > 0], "aten::index.Tensor"),
        (lambda x: torch.masked_select(x, x > 0), "aten::masked_select"),
        (lambda x: torch.unique(x), "aten::_unique2"),
        (lambda x: torch.equal(x, x), "aten::equal"),
        (lambda x: x.index_put_((x > 0,), torch.ones(())), "aten::index_put_"),
        (lambda x: x.tolist(), "Tensor.tolist"),
        (lambda x: x.numpy(), "Tensor.numpy"),
        (lambda x: x.cpu(), "Tensor.cpu"),
        (lambda x: x + torch.tensor([1.0]), "aten::lift_fresh"),
        (lambda x: x.data_ptr(), "Tensor.data_ptr"),
        (lambda x: x.to("meta"), "aten::_to_copy"),
    ],
)
def test_what_a_replay_cannot_redo_is_refused_with_op_and_line(work, op):
    x = torch.rand(4)
    with pytest.raises(CaptureError, match=re.escape(op)) as refused:
        taped(lambda: work(x))
    assert "test_recording.py:" in refused.value.where


def test_an_unregistered_kernel_is_refused_where_it_is_launched():
    """A kernel called directly takes addresses; inside a registered op it may."""
    x, out = torch.ones(3), torch.zeros(3)

    def launch():
        scale_into._init_fn(x, 2.0, out)

    with pytest.raises(CaptureError, match=r"Tensor\.numpy"):
        taped(launch)


def test_signatures_tell_constants_apart():
    x = torch.ones(3)
    logs = [taped(lambda factor=factor: x * factor)[0].log for factor in (2.0, 2.0, 3.0)]
    same, also, other = ([op.signature for op in log.ops] for log in logs)
    assert same == also != other


def test_memory_without_contents_is_the_recordings_own_and_reads_nothing():
    x, given = torch.ones(4), torch.ones(2)

    def work():
        made = x.new_empty(2)
        torch.ops.aten.new_empty.out(x, [2], out=given)
        return made.copy_(x[:2])

    recording, _ = taped(work)
    made, into, _, copied = recording.log.ops
    assert (made.name, into.name) == ("aten::new_empty.default", "aten::new_empty.out")
    assert (made.reads, made.writes[0].internal, copied.writes[0].internal) == ((), True, True)
    assert not into.writes[0].internal  # the caller's memory is written, not made
    assert made.where.endswith(tuple("0123456789"))
    assert __file__ in made.where


def test_log_counts_ops_by_name():
    x = torch.ones(3, 3)
    recording, _ = taped(lambda: (x @ x @ x).relu())
    assert recording.log.count("aten::mm") == 2
    assert recording.log.count("aten::mm.default") == 2
    assert recording.log.num_nodes == recording.num_nodes == 3


@pytest.mark.parametrize(
    ("func", "name", "outputs"),
    [
        (torch.ops.aten.mm.default, "aten::mm.out", ("out",)),
        (torch.ops.aten.add.Tensor, "aten::add.out", ("out",)),
        (torch.ops.aten.where.self, "aten::where.self_out", ("out",)),
        (torch.ops.aten.index.Tensor, "aten::index.Tensor_out", ("out",)),
        (torch.ops.aten.topk.default, "aten::topk.values", ("values", "indices")),
    ],
)
def test_results_go_straight_into_recorded_memory_where_torch_can(func, name, outputs):
    variant, names = out_variant(func)
    assert op_name(variant) == name
    assert names == outputs


def test_ops_that_mutate_or_are_not_torchs_have_no_variant():
    assert out_variant(torch.ops.aten.add_.Tensor) is None
    assert out_variant(scale_into._opoverload) is None


def test_a_result_in_another_layout_stays_as_it_was_recorded():
    """A transposed product, a strided sum: the memory the recording made is written in its own strides."""
    x = torch.randn(4, 6)
    recording, outs = taped(lambda: [(x.t() + 1.0), torch.stack([x, x], dim=-1).sum(0), x.t().contiguous().softmax(0)])
    x.copy_(torch.randn(4, 6))
    recording.replay()
    again = [(x.t() + 1.0), torch.stack([x, x], dim=-1).sum(0), x.t().contiguous().softmax(0)]
    for out, wanted in zip(outs, again, strict=True):
        assert torch.equal(out, wanted)
        assert out.stride() == wanted.stride()


@pytest.fixture(scope="module")
def world():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


FUNCTIONAL = torch.ops._c10d_functional
COLLECTIVES = {
    "all_reduce": lambda x: dist.all_reduce(x),
    "all_reduce, waited for later": lambda x: dist.all_reduce(x, async_op=True).wait(),
    "all_gather": lambda x: dist.all_gather([torch.empty(4)], x),
    "broadcast": lambda x: dist.broadcast(x, 0),
    "barrier": lambda x: dist.barrier(),
    "functional": lambda x: FUNCTIONAL.wait_tensor(FUNCTIONAL.all_reduce(x, "sum", dist.group.WORLD.group_name)),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_of_torch_are_refused(world, name):
    """Recorded, they replay wrong without a word: their results come through objects that no schema shows."""
    with pytest.raises(CaptureError, match="would not wait for the other processes"):
        taped(lambda: COLLECTIVES[name](torch.ones(4)))


@torch.library.custom_op("playhead_test::sum_over_ranks_", mutates_args=("x",))
def sum_over_ranks_(x: torch.Tensor) -> None:
    dist.all_reduce(x)


def test_an_op_that_says_what_its_collective_writes_is_recorded(world):
    x = torch.ones(4)
    recording, doubled = taped(lambda: (sum_over_ranks_(x), x * 2)[1])
    x.fill_(5)
    recording.replay()
    assert doubled.tolist() == [10.0] * 4


@pytest.mark.parametrize(("capture", "step"), [(FullCapture(), plain), (SplitCapture(), cut)], ids=["full", "split"])
def test_the_first_size_of_a_callable_is_warmed_up_alone(capture, step):
    """Two runs make the first graph, one each further graph; another callable is warmed up again."""
    sizes: list[int] = []

    def counted(inputs, scope):
        sizes.append(len(inputs["x"]))
        return step(inputs, scope)

    for size in (4, 2, 1):
        captured = capture.capture(TapeBackend(), counted, {"x": torch.ones(size)}, None)
        captured.replay(None)
        assert captured.output.tolist() == [2.0] * size
    assert sizes == [4, 4, 2, 1]
    capture.capture(TapeBackend(), lambda inputs, scope: counted(inputs, scope), {"x": torch.ones(3)}, None)
    assert sizes == [4, 4, 2, 1, 3, 3]
