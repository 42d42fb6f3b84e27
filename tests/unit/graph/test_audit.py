"""Each promise of the audit, broken on purpose: the finding names it, the op and the line."""

from __future__ import annotations

import json
import weakref
from importlib import import_module

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from playhead.graph import (
    Check,
    CudaGraphBufferRegistry,
    Dispatcher,
    EagerBackend,
    FullCapture,
    GraphRunner,
    GraphSlot,
    Mode,
    OwnedMemory,
    PaddingPolicy,
    SampledStep,
    StepSpec,
    TapeBackend,
    audit,
)
from playhead.graph.audit import fill_with_waves
from playhead.testing.gpu_tensors import GPU, gpu_without_numbers
from playhead.testing.toy_runners import toy_rig

STRAY = torch.ones(4)


def one_slot_runner(fn, *, policy=PaddingPolicy.ZERO, owned=(), **slot_changes) -> GraphRunner:
    """A step over one float slot of four rows, captured at two and four."""
    registry = CudaGraphBufferRegistry(max_bs=4, max_num_tokens=4, device="cpu")
    registry.register_slot(
        GraphSlot(
            name="x",
            shape_fn=lambda bs, tokens: (bs,),
            dtype=torch.float32,
            axis="bs",
            padding_policy=policy,
            **slot_changes,
        )
    )
    registry.freeze()
    step = StepSpec(
        name="test",
        axis="bs",
        fn=fn,
        plan=lambda batch, ctx, inputs: None,
        placeholder=registry.null_batch,
        owned=owned,
    )
    runner = GraphRunner(
        step,
        registry=registry,
        capture=FullCapture(),
        backend=TapeBackend(),
        dispatcher=Dispatcher(Mode.FULL, (2, 4)),
    )
    runner.capture_all()
    return runner


def sample(raw: int, seed: int) -> SampledStep:
    generator = torch.Generator().manual_seed(seed)
    return SampledStep(batch={"x": torch.rand(raw, generator=generator)}, raw_bs=raw, raw_num_tokens=raw)


def broken(runner: GraphRunner) -> set[Check]:
    return {finding.check for finding in audit(runner, sample).findings}


def test_a_sound_step_is_clean_and_every_check_looked_at_something():
    report = audit(one_slot_runner(lambda inputs, scope: inputs["x"] * 2), sample)
    assert report.ok, report.text()
    looked = {check for check, count in report.checked.items() if count}
    assert looked == set(Check) - {Check.POINTERS, Check.WRITES, Check.UNREAD_TAILS}


def test_an_undeclared_read_is_found_with_its_line():
    runner = one_slot_runner(lambda inputs, scope: inputs["x"] + STRAY[: inputs["x"].shape[0]])
    finding = audit(runner, sample).findings[0]
    assert finding.check is Check.OWNERSHIP
    assert "aten::add" in finding.where
    assert "test_audit.py" in finding.where


def test_a_declared_read_is_fine():
    fn = lambda inputs, scope: inputs["x"] + STRAY[: inputs["x"].shape[0]]  # noqa: E731
    assert broken(one_slot_runner(fn, owned=(OwnedMemory(name="stray", tensors=(STRAY,)),))) == set()


def test_a_write_to_a_slot_is_found_unless_declared():
    def fn(inputs, scope):
        inputs["x"].add_(1)
        return inputs["x"] * 1

    assert Check.WRITES in broken(one_slot_runner(fn))
    assert Check.WRITES not in broken(one_slot_runner(fn, graph_writes="the step advances itself"))


def test_a_write_to_read_only_memory_is_found():
    weights = torch.ones(1)
    owned = (OwnedMemory(name="weights", tensors=(weights,)),)

    def fn(inputs, scope):
        weights.mul_(1.0)
        return inputs["x"] * weights

    assert broken(one_slot_runner(fn, owned=owned)) == {Check.WRITES}


def test_a_read_past_the_rows_of_the_bucket_is_found():
    runners = []

    def fn(inputs, scope):
        whole = runners[0].registry.get_slot("x").buffer if runners else inputs["x"]
        return inputs["x"] + whole.sum()

    runner = one_slot_runner(fn)
    runners.append(runner)
    runner.capture_bucket(2)
    assert Check.EXTENT in broken(runner)


def test_a_tail_that_is_read_after_all_is_found():
    runner = one_slot_runner(
        lambda inputs, scope: inputs["x"] + inputs["x"].sum(),
        policy=PaddingPolicy.FOREACH_COPY,
        tail_unread="only live rows are used",
    )
    assert Check.UNREAD_TAILS in broken(runner)


def test_a_tail_that_is_not_read_is_fine():
    runner = one_slot_runner(
        lambda inputs, scope: inputs["x"] * 2, policy=PaddingPolicy.FOREACH_COPY, tail_unread="rows are independent"
    )
    report = audit(runner, sample)
    assert report.ok, report.text()
    assert report.checked[Check.UNREAD_TAILS] == 4, "one of two rows, and one to three of four"


def test_a_row_that_depends_on_what_is_in_the_sink_is_found():
    kv = torch.zeros(3, 1)

    def fn(inputs, scope):
        return inputs["x"] + kv[0]

    owned = (OwnedMemory(name="kv", tensors=(kv,), writable=True, sink_rows=1),)
    assert broken(one_slot_runner(fn, owned=owned)) == {Check.PADDED_VALUES}


class DevicesOfOps(TorchDispatchMode):
    """Where the results of ops are."""

    def __init__(self) -> None:
        super().__init__()
        self.devices: set[torch.device] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.devices.add(result.device)
        return result


def test_other_leftovers_are_made_on_the_device_that_has_them():
    with gpu_without_numbers():
        sink = torch.empty(4, 2, 3, dtype=torch.bfloat16, device=GPU)[:, 1]
        with DevicesOfOps() as made:
            fill_with_waves(sink, 1)
    assert made.devices == {GPU}


@pytest.mark.parametrize("num_places", [1, 100_000])
def test_other_leftovers_differ_by_seed_in_every_place(num_places):
    one, other = torch.empty(2, num_places)
    fill_with_waves(one, 1)
    fill_with_waves(other, 2)
    assert bool((one != other).all())
    assert len(one.unique()) > 0.9 * num_places


def test_no_more_than_two_copies_of_memory_are_compared_at_once(monkeypatch):
    """On a GPU each is all KV memory."""
    module, held = import_module("playhead.graph.audit"), []
    copy, numbers = module.live_state, []

    def counting(*args, **how):
        numbers.append(sum(one() is not None for one in held))
        state = copy(*args, **how)
        held.append(weakref.ref(state[-1]))
        return state

    monkeypatch.setattr(module, "live_state", counting)
    kv = torch.zeros(3, 1)
    owned = (OwnedMemory(name="kv", tensors=(kv,), writable=True, sink_rows=1),)
    assert broken(one_slot_runner(lambda inputs, scope: inputs["x"] + kv[1], owned=owned)) == set()
    assert max(numbers) == 1, "before a copy is made there is one other"


def test_state_that_survives_a_replay_is_found():
    """Declared memory that changes the next result: replaying twice tells."""
    total = torch.zeros(1)

    def fn(inputs, scope):
        total.add_(1)
        return inputs["x"] + total

    undeclared = one_slot_runner(fn, owned=(OwnedMemory(name="counter", tensors=(total,)),))
    assert Check.REPLAY_TWICE in broken(undeclared)


def test_a_value_computed_in_python_is_found():
    """Replay gives the value of the capture, eager the one of now."""
    calls = []

    def fn(inputs, scope):
        calls.append(1)
        return inputs["x"] * len(calls)

    assert {Check.REPLAY_VS_EAGER, Check.TWO_CAPTURES} <= broken(one_slot_runner(fn))


@pytest.mark.parametrize("kind", ["breakable", "piecewise"])
def test_a_graph_that_depends_on_the_number_of_requests_is_found(kind):
    rig = toy_rig(kind, buckets=(8,))
    forward = rig.runner.step.fn
    seen = []
    plan = rig.runner.step.plan

    def counting_plan(batch, ctx, inputs):
        seen.append(ctx.raw_bs)
        return plan(batch, ctx, inputs)

    object.__setattr__(rig.runner.step, "plan", counting_plan)
    object.__setattr__(rig.runner.step, "fn", lambda inputs, scope: forward(inputs, scope) * seen[-1])
    rig.runner.capture_all()
    findings = audit(rig.runner, rig.model.sample("tokens")).findings
    assert Check.TWO_CAPTURES in {finding.check for finding in findings}


def test_an_audit_puts_owned_memory_back():
    rig = toy_rig("full")
    rig.runner.capture_all()
    rig.model.k_cache.normal_()
    before = rig.model.k_cache.clone()
    audit(rig.runner, rig.model.sample("bs"))
    assert torch.equal(rig.model.k_cache, before)


def test_an_eager_runner_can_be_audited_too():
    rig = toy_rig("full", backend=EagerBackend())
    rig.runner.capture_all()
    assert audit(rig.runner, rig.model.sample("bs")).ok


def test_reports_read_as_text_and_as_json():
    report = audit(one_slot_runner(lambda inputs, scope: inputs["x"] + STRAY[: inputs["x"].shape[0]]), sample)
    assert "every tensor read is declared: FAILED" in report.text()
    assert "kernels were given no foreign address: not run" in report.text()
    data = json.loads(report.to_json())
    assert data["ok"] is False
    assert data["findings"][0]["check"] == "OWNERSHIP"
    assert [graph["bucket"] for graph in data["graphs"]] == [2, 4]


@pytest.mark.parametrize("kind", ["full", "breakable", "piecewise"])
def test_placeholders_must_point_at_the_sink(kind):
    rig = toy_rig(kind)
    placeholder = rig.runner.step.placeholder

    def live_rows(ctx):
        batch = placeholder(ctx)
        batch["out_cache_loc"] = batch["out_cache_loc"] + 1
        return batch

    object.__setattr__(rig.runner.step, "placeholder", live_rows)
    with pytest.raises(Exception, match="points 'out_cache_loc' at live kv locations"):
        rig.runner.capture_all()
