"""Checks of captured execution that are silent on sound code. Each runs in well under two seconds, on the tape."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from playhead.errors import CaptureError, GraphError, SlotError
from playhead.graph.audit import audit, unwritten_tails
from playhead.graph.backends.base import record
from playhead.graph.backends.tape import TapeBackend
from playhead.graph.breaks import Scope
from playhead.graph.capture import Inputs
from playhead.graph.op_facts import facts_of
from playhead.graph.piecewise import as_traced, split_at_breaks
from playhead.graph.registry import NUM_STAGES, CudaGraphBufferRegistry
from playhead.graph.report import Check
from playhead.graph.shapes import DispatchLimits
from playhead.graph.sharing import InputBufferPool
from playhead.graph.slots import Axis, FillContext, GraphSlot, PaddingPolicy
from playhead.graph.staging import CopyPort
from playhead.testing.fake_stream import LaggingChannel, LaggingPort
from playhead.testing.mutant import Checker, swapped
from playhead.testing.toy import KV_LOCS, POSITIONS, ROWS, ToyRequest
from playhead.testing.toy_runners import (
    WRITE_BUCKET,
    Kind,
    advance_all,
    advance_live,
    locs_slot,
    toy_rig,
    write_runner,
    write_sample,
)

ANY_PADDING = DispatchLimits(max_padding_ratio=100)
MAX_BS = 6


def policy_slots() -> list[GraphSlot]:
    """One slot per policy and kind of source, and the index slots a decode step has."""

    def slot(name: str, policy: PaddingPolicy, *, axis: Axis = "bs", **changes: Any) -> GraphSlot:
        return GraphSlot(
            name=name,
            shape_fn=lambda bs, tokens: (bs if axis == "bs" else tokens, 2),
            dtype=changes.pop("dtype", torch.int32),
            axis=axis,
            padding_policy=policy,
            **changes,
        )

    claim = "the kernels stop at the live rows"
    return [
        slot("zero", PaddingPolicy.ZERO),
        slot("zero_staged", PaddingPolicy.ZERO, staged=True),
        slot("sentinel", PaddingPolicy.FILL_SENTINEL, pad_value=-1),
        slot("sentinel_staged", PaddingPolicy.FILL_SENTINEL, pad_value=-1, staged=True),
        slot("once", PaddingPolicy.FILL_ONCE, pad_value=9),
        slot("once_staged", PaddingPolicy.FILL_ONCE, pad_value=9, staged=True),
        slot("copied", PaddingPolicy.FOREACH_COPY, tail_unread=claim),
        slot("kept", PaddingPolicy.KEEP_PAD, tail_unread=claim),
        slot("floats", PaddingPolicy.ZERO, dtype=torch.float32, axis="tokens"),
        slot("out_cache_loc", PaddingPolicy.ZERO, axis="tokens", index=KV_LOCS, staged=True),
        slot("positions", PaddingPolicy.ZERO, axis="tokens", dtype=torch.int64, index=POSITIONS, staged=True),
        slot("req_pool_indices", PaddingPolicy.ZERO, index=ROWS, staged=True),
        slot("locs_on_device", PaddingPolicy.ZERO, axis="tokens", index=KV_LOCS),
    ]


def policy_registry(pool: InputBufferPool | None = None, port: CopyPort | None = None) -> CudaGraphBufferRegistry:
    registry = CudaGraphBufferRegistry(max_bs=MAX_BS, max_num_tokens=MAX_BS, device="cpu", pool=pool, port=port)
    for slot in policy_slots():
        registry.register_slot(slot)
    registry.freeze()
    return registry


def policy_batch(registry: CudaGraphBufferRegistry, raw: int, value: int) -> dict[str, Any]:
    """`raw` rows of `value` for every slot."""
    batch: dict[str, Any] = {}
    for name, slot in registry.slots.items():
        rows = torch.full_like(slot.rows(0, raw), value)
        batch[name] = rows.numpy() if slot.staged else rows
    return batch


def square(raw: int, padded: int) -> FillContext:
    return FillContext(raw_bs=raw, padded_bs=padded, raw_num_tokens=raw, padded_num_tokens=padded)


def poisoned_fills() -> list[str]:
    """K1: after poison, every fill leaves its values in the live rows and its padding behind them."""
    registry, found = policy_registry(), []
    for padded in range(1, MAX_BS + 1):
        for raw in range(padded + 1):
            registry.poison()
            registry.fill_from(policy_batch(registry, raw, 100 + raw), square(raw, padded))
            found += [f"({raw} of {padded}) {message}" for message in unwritten_tails(registry, square(raw, padded))]
            for name, slot in registry.slots.items():
                if bool((slot.rows(0, raw) != 100 + raw).any()):
                    found.append(f"({raw} of {padded}) live rows of {name!r} are not what was filled")
    return found


def shrinking_fills() -> list[str]:
    """Large, small, larger: only fills, no poison, so that marks of what was left behind are what is tested."""
    registry, found = policy_registry(), []
    for raw in (*[MAX_BS] * NUM_STAGES, 1, 4, 2, 2, 0, 5, 1):
        registry.fill_from(policy_batch(registry, raw, 100 + raw), square(raw, MAX_BS))
        found += [f"raw {raw}: {message}" for message in unwritten_tails(registry, square(raw, MAX_BS))]
    return found


def shared_fills() -> list[str]:
    """Two registries on one pool, filled in turn."""
    pool = InputBufferPool()
    one, other, found = policy_registry(pool), policy_registry(pool), []
    for registry, raw in ((one, 2), (other, MAX_BS), (one, 2), (other, 1), (one, 0)):
        registry.fill_from(policy_batch(registry, raw, 100 + raw), square(raw, MAX_BS))
        found += [f"raw {raw}: {message}" for message in unwritten_tails(registry, square(raw, MAX_BS))]
    return found


def lagging_device() -> list[str]:
    """K7: a device that copies as late as it may, and a host that runs ahead."""
    port = LaggingPort()
    registry = policy_registry(port=port)
    for step in range(8):
        registry.fill_from(policy_batch(registry, 1 + step % MAX_BS, step), square(1 + step % MAX_BS, MAX_BS))
    port.drain()
    return port.violations


def interrupted_send() -> list[str]:
    """K7: an interrupt comes when a copy is under way already: its stage is not written before that copy is done."""
    port, send, num_sent = LaggingPort(), LaggingChannel.send, itertools.count(1)
    registry = policy_registry(port=port)

    def interrupted(self: LaggingChannel) -> None:
        send(self)
        if next(num_sent) == 2:
            raise KeyboardInterrupt

    with swapped(LaggingChannel, "send", interrupted):
        for step in range(8):
            with suppress(KeyboardInterrupt):
                registry.fill_from(policy_batch(registry, 1 + step % MAX_BS, step), square(1 + step % MAX_BS, MAX_BS))
    port.drain()
    return port.violations


def missing_source() -> list[str]:
    registry = policy_registry()
    batch = policy_batch(registry, 2, 1)
    registry.fill_from(dict(batch), square(2, 4))
    del batch["positions"]
    return refusal("a batch without positions", SlotError, lambda: registry.fill_from(batch, square(2, 4)))


def wrapped_value() -> list[str]:
    registry = policy_registry()
    batch = policy_batch(registry, 1, 1) | {"out_cache_loc": [[1, 2**32 + 7]]}
    return refusal("location 2^32 + 7 in int32", SlotError, lambda: registry.fill_from(batch, square(1, 4)))


def host_value() -> list[str]:
    length = torch.tensor([3.0])
    return refusal(
        "a length read on the host", CaptureError, lambda: record(TapeBackend(), lambda: length * length.item())
    )


def refusal(what: str, error: type[Exception], act: Callable[[], object]) -> list[str]:
    """Silent if `act` is refused with `error`."""
    try:
        act()
    except error:
        return []
    return [f"{what} was accepted"]


def audited(kind: Kind) -> Callable[[], list[str]]:
    """The whole audit of a toy runner with two buckets."""

    def run() -> list[str]:
        rig = toy_rig(kind, limits=ANY_PADDING)
        rig.runner.capture_all()
        report = audit(rig.runner, rig.model.sample(rig.axis), raws=(1, 3, 4, 7))
        return [f"{finding.check.value}: {finding.message}" for finding in report.findings]

    return run


def late_capture() -> list[str]:
    """A bucket captured between two steps changes nobody's KV."""
    rig = toy_rig("full", limits=DispatchLimits(lazy=True))
    rig.model.k_cache.fill_(5)
    rig.runner.capture_bucket(8)
    return [] if bool((rig.model.k_cache[:, 1:] == 5).all()) else ["a capture wrote into live KV locations"]


def shrinking_batch() -> list[str]:
    """S2.1: four requests, then one; the memory of the other three now belongs to somebody else."""
    rig = toy_rig("full", limits=ANY_PADDING)
    rig.runner.capture_all()
    others = rig.model.table_RL[2:5, 0].long()
    for num_requests in (*[4] * NUM_STAGES, 1):  # every stage of the ring has held four rows
        rig.model.k_cache[:, others] = 77
        requests = [ToyRequest(row=1 + i, num_cached=0, tokens=[3]) for i in range(num_requests)]
        rig.runner.run(rig.model.batch(requests, axis="bs"), raw_bs=num_requests, raw_num_tokens=num_requests)
    return [] if bool((rig.model.k_cache[:, others] == 77).all()) else ["padded rows wrote into live KV locations"]


def moving_padding() -> list[str]:
    """S2.1: padding that is written once, in a slot that its graph moves."""
    return refusal(
        "an index slot with FILL_ONCE that its graph writes",
        SlotError,
        lambda: locs_slot(padding_policy=PaddingPolicy.FILL_ONCE),
    )


def consecutive_steps() -> list[str]:
    """The audit tells a graph that moves its padded rows from one that does not."""
    found = {step: audit(write_runner(step), write_sample).findings for step in (advance_all, advance_live)}
    missed = [] if found[advance_all] else ["a graph that moves its padded rows passed the audit"]
    return missed + [finding.message for finding in found[advance_live]]


def stale_break_output() -> list[str]:
    """A break's output, read after the next call of the break took its memory."""
    rig = toy_rig("breakable", buckets=(8,))
    op = rig.model.attention

    def reads_late(inputs: Inputs, scope: Scope) -> torch.Tensor:
        h_TM = rig.model.embed_VM[inputs["input_ids"]]
        (first_TM,) = scope.call(op, h_TM, h_TM, h_TM, site=0)
        (second_TM,) = scope.call(op, first_TM, first_TM, first_TM, site=1)
        return first_TM + second_TM

    ctx = rig.runner.placeholder_context(8)
    live = rig.runner.prepare(rig.runner.step.placeholder(ctx), ctx)
    inputs = rig.runner.graph_inputs(ctx)
    return refusal(
        "a break's output read too late",
        CaptureError,
        lambda: rig.runner.capture.capture(TapeBackend(), reads_late, inputs, live),
    )


def adopted_tensors() -> list[str]:
    """Registration leaves an adopted tensor as it was, and refuses one whose rows are one place."""
    registry = CudaGraphBufferRegistry(max_bs=WRITE_BUCKET, max_num_tokens=WRITE_BUCKET, device="cpu")
    memory = torch.full((WRITE_BUCKET,), 5, dtype=torch.int64)
    registry.register_slot(locs_slot(), bind=memory)
    other = CudaGraphBufferRegistry(max_bs=WRITE_BUCKET, max_num_tokens=WRITE_BUCKET, device="cpu")
    expanded = torch.zeros(1, dtype=torch.int64).expand(WRITE_BUCKET)
    found = refusal("an expanded tensor", SlotError, lambda: other.register_slot(locs_slot(), bind=expanded))
    return found if bool((memory == 5).all()) else [*found, "registration wrote into an adopted tensor"]


def going_on() -> list[str]:
    """A step without a fill runs over what its own graph left, and over nobody else's values."""
    runner, ctx = write_runner(advance_live), square(1, WRITE_BUCKET)
    runner.run({"locs": torch.tensor([5])}, raw_bs=1, raw_num_tokens=1)
    runner.registry.fill_from({"locs": torch.tensor([9])}, ctx)
    found = refusal("a step over slots that were filled since", GraphError, runner.replay_advanced)
    pool = InputBufferPool()
    one, other = policy_registry(pool), policy_registry(pool)
    before = one.num_fills
    other.fill_from(policy_batch(other, 2, 1), square(2, 4))
    return found if one.num_fills > before else [*found, "a fill of shared memory was not counted"]


def late_joiner() -> list[str]:
    """A registry that joins a pool must not leave its padding where another trusts its own."""
    pool, registries = InputBufferPool(), []
    for pad_value in (9, 5):
        registry = CudaGraphBufferRegistry(max_bs=4, max_num_tokens=4, device="cpu", pool=pool)
        once = locs_slot(padding_policy=PaddingPolicy.FILL_ONCE, pad_value=pad_value, index=None, graph_writes=None)
        registry.register_slot(once)
        registry.freeze()
        registries.append(registry)
        registries[0].fill_from({"locs": torch.ones(2, dtype=torch.int64)}, square(2, 4))
    return list(unwritten_tails(registries[0], square(2, 4)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapped:
    """An output that pytree would take for one opaque value."""

    locs: torch.Tensor


def nested_outputs() -> list[str]:
    """Tensors of a dataclass are cut to the live rows like all others."""
    runner = write_runner(advance_live)
    ctx = runner.context(raw_bs=2, raw_num_tokens=2, bucket=WRITE_BUCKET)
    cut = runner.live_rows(Wrapped(locs=torch.zeros(WRITE_BUCKET)), ctx)
    return [] if len(cut.locs) == 2 else ["a dataclass of tensors keeps its padded rows"]


def fixed_rows() -> list[str]:
    """A trace for all sizes is refused where the callable asked for the number of its rows."""

    def counting(inputs: Inputs, scope: Scope) -> torch.Tensor:
        return inputs["x"] + torch.ones(len(inputs["x"]), 2)

    try:
        split_at_breaks(counting, {"x": torch.zeros(8, 2)}, as_traced)
    except CaptureError:
        return []
    return ["a trace for 7 rows was taken for one of any number"]


def baked_into_a_trace() -> list[str]:
    """The audit finds a number that Python computed while a piecewise step was traced."""
    rig = toy_rig("piecewise", buckets=(8,))
    step, calls = rig.runner.step, list[int]()

    def counting(inputs: Inputs, scope: Scope) -> torch.Tensor:
        calls.append(1)
        scaled: torch.Tensor = step.fn(inputs, scope) * len(calls)
        return scaled

    rig.runner.step = replace(step, fn=counting)
    rig.runner.capture_all()
    findings = audit(rig.runner, rig.model.sample(rig.axis), raws=(8,)).findings
    # Compiled pieces are not compared with the callable, which rounds otherwise: this check alone is left for them.
    is_found = any(finding.check is Check.TWO_CAPTURES for finding in findings)
    return [] if is_found else ["a trace with a number of its own passed for the same as another"]


def collective() -> list[str]:
    """What torch.distributed does is refused: its ops do not say what they write, or when it is there."""
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    facts_of.cache_clear()
    x = torch.ones(2)
    try:
        record(TapeBackend(), lambda: torch.distributed.all_reduce(x))
    except CaptureError:
        return []
    finally:
        torch.distributed.destroy_process_group()
        facts_of.cache_clear()
    return ["an all_reduce was recorded"]


GRAPH_CHECKERS: tuple[Checker, ...] = (
    Checker(name="shrinking batch", run=shrinking_batch),
    Checker(name="K1 poison", run=poisoned_fills),
    Checker(name="K1 shrinking fills", run=shrinking_fills),
    Checker(name="K1 shared buffers", run=shared_fills),
    Checker(name="K7 lagging device", run=lagging_device),
    Checker(name="K7 interrupted copy", run=interrupted_send),
    Checker(name="missing source refused", run=missing_source),
    Checker(name="wrapped value refused", run=wrapped_value),
    Checker(name="host value refused", run=host_value),
    Checker(name="late capture", run=late_capture),
    Checker(name="moving padding refused", run=moving_padding),
    Checker(name="consecutive steps", run=consecutive_steps),
    Checker(name="stale break output refused", run=stale_break_output),
    Checker(name="adopted tensors", run=adopted_tensors),
    Checker(name="going on", run=going_on),
    Checker(name="late joiner", run=late_joiner),
    Checker(name="nested outputs", run=nested_outputs),
    Checker(name="fixed rows refused", run=fixed_rows),
    Checker(name="baked into a trace", run=baked_into_a_trace),
    Checker(name="collective refused", run=collective),
    Checker(name="audit, full", run=audited("full")),
    Checker(name="audit, breakable", run=audited("breakable")),
    Checker(name="audit, piecewise", run=audited("piecewise")),
)
