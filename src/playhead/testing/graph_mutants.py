"""The bugs of captured execution that we know of, as patches of `playhead.graph`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule
from torch.utils._pytree import tree_map_only

from playhead.graph import op_facts as op_facts_module
from playhead.graph import piecewise as piecewise_module
from playhead.graph import registry as registry_module
from playhead.graph import runner as runner_module
from playhead.graph.audit import Sample, SampledStep
from playhead.graph.breakable import BreakableStep
from playhead.graph.breaks import BreakOp, Direction, TensorSpec
from playhead.graph.bridges import BridgePool
from playhead.graph.leases import BridgeLeases
from playhead.graph.oplog import Issued, OpObserver
from playhead.graph.piecewise import BreakSite, PiecewiseCapture
from playhead.graph.registry import CudaGraphBufferRegistry, DeviceEntry
from playhead.graph.report import Report
from playhead.graph.runner import GraphRunner
from playhead.graph.sharing import SharedBuffer
from playhead.graph.slots import Batch, FillContext, GraphSlot
from playhead.graph.spec import LivePlan, StepResult
from playhead.graph.staging import Stage, StagingRing
from playhead.testing.mutant import Mutant, Patch, mutant, swapped
from playhead.testing.toy import ToyModel, ToyPlan

Apply = Callable[[], Patch]


def stale_tail(slot_name: str) -> Apply:
    """The padding of one slot keeps what a larger step left there."""
    reset = CudaGraphBufferRegistry._reset_staged_tail

    def forgetful(
        self: CudaGraphBufferRegistry, slot: GraphSlot, values: np.ndarray[Any, Any], raw: int, left: int
    ) -> None:
        if slot.name != slot_name:
            reset(self, slot, values, raw, left)

    return lambda: swapped(CudaGraphBufferRegistry, "_reset_staged_tail", forgetful)


@mutant("stale device tail", source="SGLang #26742: tails stale by default", killed_by=("K1 poison",))
def device_tail_never_reset() -> Patch:
    def nothing(self: CudaGraphBufferRegistry, entry: DeviceEntry, ctx: FillContext) -> None:
        return None

    return swapped(CudaGraphBufferRegistry, "_reset_tail", nothing)


@mutant("shared tail trusted", source="two registries, one buffer", killed_by=("K1 shared buffers",))
def own_mark_trusted() -> Patch:
    """A registry trusts its own mark although another one filled the shared buffer since."""
    reset = CudaGraphBufferRegistry._reset_tail

    def trusting(self: CudaGraphBufferRegistry, entry: DeviceEntry, ctx: FillContext) -> None:
        if entry.shared is not None:
            entry.shared.filled_by = self
        reset(self, entry, ctx)

    return swapped(CudaGraphBufferRegistry, "_reset_tail", trusting)


@mutant("slice from the end", source="capture and fill used other rows", killed_by=("audit, full",))
def slice_from_the_end() -> Patch:
    def from_the_end(self: GraphSlot, bs: int, num_tokens: int) -> torch.Tensor:
        assert self.buffer is not None
        return self.buffer if self.axis == "none" else self.buffer[-(bs if self.axis == "bs" else num_tokens) :]

    return swapped(GraphSlot, "slice_for", from_the_end)


@mutant("warm-up pollutes capture", source="SGLang #25824: memo filled by warm-up", killed_by=("audit, full",))
def warm_up_remembered() -> Patch:
    """A look-up memoised by address: the warm-up computes it, the capture finds it done and records nothing."""
    memo: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def memoised(self: ToyModel, plan: ToyPlan) -> tuple[torch.Tensor, torch.Tensor]:
        key = (plan.rows_R.untyped_storage().data_ptr(), plan.rows_R.shape[0])
        return memo.setdefault(key, (plan.rows_R.clone(), plan.lens_R.clone()))

    return swapped(ToyModel, "_per_token", memoised)


@mutant("staging reused before its copy", source="pinned buffer without an event", killed_by=("K7 lagging device",))
def stage_reused_early() -> Patch:
    def impatient(self: StagingRing) -> Stage:
        stage = self.stages[self._next]
        self._next = (self._next + 1) % len(self.stages)
        return stage

    return swapped(StagingRing, "acquire", impatient)


@mutant(
    "copy marked when it was started",
    source="found in review: an interrupt between the copy and its mark",
    killed_by=("K7 interrupted copy",),
)
def copy_marked_late() -> Patch:
    def send(self: Stage) -> None:
        self.channel.send()
        self.in_flight = True

    return swapped(Stage, "send", send)


@mutant("source missing", source="SGLang #26742: None was skipped", killed_by=("missing source refused",))
def missing_source_skipped() -> Patch:
    """A value the batch lacks keeps the last step's, silently."""

    def tolerant(self: CudaGraphBufferRegistry, batch: Batch, ctx: FillContext) -> None:
        assert isinstance(batch, dict)
        for name in self._sources - batch.keys():
            slot = self.get_slot(name)
            batch[name] = slot.rows(0, ctx.raw(slot.axis)).cpu().numpy()

    return swapped(CudaGraphBufferRegistry, "_check_fill", tolerant)


@mutant("dtype wrap", source="int64 locations in int32 memory", killed_by=("wrapped value refused",))
def dtype_wraps() -> Patch:
    def wrapping(slot: GraphSlot, dtype: np.dtype[Any], source: object) -> np.ndarray[Any, Any]:
        return np.asarray(source).astype(dtype, casting="unsafe")

    return swapped(registry_module, "as_host_array", wrapping)


@mutant(
    "break output reused by a later bucket",
    source="weak references into the graph pool",
    killed_by=("audit, breakable",),
)
@contextmanager
def bridge_replaced_by_later_bucket() -> Iterator[None]:
    """Each bucket gets bridges of its own, and live work writes into those of the bucket captured last."""
    newest: dict[tuple[str, int], torch.Tensor] = {}

    def own_memory(
        self: BridgePool, op: BreakOp, direction: Direction, position: int, spec: TensorSpec
    ) -> torch.Tensor:
        buffer = torch.zeros((self._max_rows, *spec.shape[1:]), dtype=spec.dtype, device=self._device)
        if direction == "out":
            newest[op.name, position] = buffer
        return buffer[: spec.shape[0]]

    def into_the_newest(self: BreakableStep, live: Any) -> None:
        first, *rest = self.recordings
        first.replay()
        for bound, segment in zip(self.breaks, rest, strict=True):
            outputs = tuple(newest[bound.op.name, i][: out.shape[0]] for i, out in enumerate(bound.outputs))
            bound.op.run(live, bound.inputs, outputs, bound.site)
            segment.replay()

    with swapped(BridgePool, "view", own_memory), swapped(BreakableStep, "replay", into_the_newest):
        yield


@mutant(
    "metadata prepared at capture only", source="SGLang #26742: the DSV4 upgrade hole", killed_by=("audit, breakable",)
)
def plan_made_at_capture_only() -> Patch:
    replay = GraphRunner.replay

    def with_first_plan(self: GraphRunner, bucket: int, live: LivePlan | None) -> Any:
        ctx = self.placeholder_context(bucket)
        return replay(self, bucket, self.step.plan(self.step.placeholder(ctx), ctx, self.views(ctx)))

    return swapped(GraphRunner, "replay", with_first_plan)


@mutant("dummy run through live rows", source="capture in mid-serving wrote KV", killed_by=("late capture",))
@contextmanager
def dummy_run_through_live_rows() -> Iterator[None]:
    """Placeholders of ones instead of sinks, and nobody looks."""
    null_batch = CudaGraphBufferRegistry.null_batch

    def ones(self: CudaGraphBufferRegistry, ctx: FillContext) -> dict[str, Any]:
        return {name: np.ones_like(value) for name, value in null_batch(self, ctx).items()}

    def nobody_looks(self: GraphRunner, ctx: FillContext) -> None:
        return None

    with (
        swapped(CudaGraphBufferRegistry, "null_batch", ones),
        swapped(GraphRunner, "_refuse_live_rows", nobody_looks),
    ):
        yield


@mutant("host value baked in", source=".item() at capture", killed_by=("host value refused",))
def host_sync_recorded() -> Patch:
    """A value read on the host at capture becomes a constant of the graph."""

    def lenient(self: OpObserver, issued: Issued) -> None:
        return None

    return swapped(OpObserver, "_refuse", lenient)


@mutant(
    "padding written once is moved by the graph",
    source="an index slot with FILL_ONCE that its graph advances",
    killed_by=("moving padding refused",),
)
def moving_padding_accepted() -> Patch:
    rules_of = GraphSlot._broken_rules

    def without_one(self: GraphSlot) -> list[tuple[str, str, str]]:
        return [rule for rule in rules_of(self) if not rule[0].startswith("FILL_ONCE")]

    return swapped(GraphSlot, "_broken_rules", without_one)


@mutant(
    "audit stops after one step",
    source="padded rows that a graph moves are put back by every fill",
    killed_by=("consecutive steps",),
)
def one_step_audited() -> Patch:
    def nothing(runner: GraphRunner, step: SampledStep, ctx: FillContext, report: Report) -> None:
        return None

    # The package's `audit` is the function, which hides the module of that name.
    return swapped(import_module("playhead.graph.audit"), "audit_padded_rows", nothing)


@mutant(
    "break output read after its memory was reused",
    source="bridges are shared by all calls of a break",
    killed_by=("stale break output refused",),
)
def leases_never_end() -> Patch:
    def nothing(self: BridgeLeases, reader: str, where: str, tensors: Sequence[torch.Tensor]) -> None:
        return None

    return swapped(BridgeLeases, "refuse_expired", nothing)


@mutant(
    "bind overwrites", source="padding written into an adopted tensor at registration", killed_by=("adopted tensors",)
)
def bind_overwrites() -> Patch:
    adopted = CudaGraphBufferRegistry._adopted

    def overwriting(self: CudaGraphBufferRegistry, slot: GraphSlot, bind: torch.Tensor | None) -> torch.Tensor | None:
        tensor = adopted(self, slot, bind)
        return None if tensor is None else tensor.contiguous().fill_(slot.pad_value)

    return swapped(CudaGraphBufferRegistry, "_adopted", overwriting)


@mutant("expanded tensor bound", source="all rows of a slot in one place", killed_by=("adopted tensors",))
def any_bind_accepted() -> Patch:
    def nothing(slot: GraphSlot, bind: torch.Tensor, shape: Sequence[int], device: torch.device) -> None:
        return None

    return swapped(registry_module, "check_bind", nothing)


@mutant("goes on over another's fill", source="two runners over one registry", killed_by=("going on",))
def foreign_fill_ignored() -> Patch:
    """A step goes on although the slots were filled since."""

    def anyway(self: GraphRunner) -> StepResult:
        assert self._last is not None
        ctx, live, _ = self._last
        return self._run_filled(self.dispatcher.decide(ctx.raw(self.step.axis)), ctx, live)

    return swapped(GraphRunner, "replay_advanced", anyway)


@mutant("shared fill not counted", source="two registries, one buffer", killed_by=("going on",))
def shared_fill_not_counted() -> Patch:
    """Another registry's fill of shared memory does not show in `num_fills`."""
    own_fills = property(lambda registry: registry._num_own_fills)
    return swapped(CudaGraphBufferRegistry, "num_fills", own_fills)


@mutant(
    "joining registry's padding trusted",
    source="two registries, one buffer, another pad value",
    killed_by=("late joiner",),
)
def joining_goes_unnoticed() -> Patch:
    def only_fills(self: SharedBuffer, by: object | None) -> None:
        self.filled_by = by or self.filled_by
        self.num_writes += 1

    return swapped(SharedBuffer, "mark_written", only_fills)


@mutant(
    "dataclass outputs keep their padding",
    source="pytree takes a dataclass for one value",
    killed_by=("nested outputs",),
)
def dataclasses_are_opaque() -> Patch:
    def by_pytree(fn: Callable[[torch.Tensor], torch.Tensor], output: Any) -> Any:
        return tree_map_only(torch.Tensor, fn, output)

    return swapped(runner_module, "map_tensors", by_pytree)


@mutant(
    "row counts become numbers",
    source="linear maps over blocks asked for len(x): piecewise steps of other sizes failed or computed other rows",
    killed_by=("fixed rows refused",),
)
def fixed_rows_accepted() -> Patch:
    return swapped(piecewise_module, "refuse_fixed_rows", lambda traced, examples, num_rows: None)


@mutant(
    "a break gets its inputs in another order",
    source="found in review: the audit compared a split step with itself, and not with the callable",
    killed_by=("audit, piecewise",),
)
def inputs_in_another_order() -> Patch:
    site_of = piecewise_module.break_site

    def backwards(part: GraphModule, ops: Mapping[Any, BreakOp]) -> BreakSite | None:
        site = site_of(part, ops)
        return None if site is None else replace(site, order=site.order[::-1])

    return swapped(piecewise_module, "break_site", backwards)


@mutant(
    "audit compares captures of one trace",
    source="found in review: what Python computes while a piecewise step is traced is the same in all its captures",
    killed_by=("baked into a trace",),
)
def trace_not_audited() -> Patch:
    def nothing(runner: GraphRunner, capture: PiecewiseCapture, sample: Sample, report: Report) -> None:
        return None

    return swapped(import_module("playhead.graph.audit"), "audit_trace", nothing)


@mutant(
    "collectives are ops like others",
    source="a captured all_reduce of torch.distributed replayed wrong 200 times of 200, without a word",
    killed_by=("collective refused",),
)
def collectives_recorded() -> Patch:
    return swapped(op_facts_module, "COLLECTIVES", ())


STALE_LOC_TAIL = Mutant(
    name="stale location tail",
    source="SGLang #23552: padded rows wrote into live requests' KV",
    apply=stale_tail("out_cache_loc"),
    killed_by=("shrinking batch",),
)

GRAPH_MUTANTS: tuple[Mutant, ...] = (
    STALE_LOC_TAIL,
    Mutant(
        name="stale position tail",
        source="the same hole, other slot",
        apply=stale_tail("positions"),
        killed_by=("K1 shrinking fills",),
    ),
    Mutant(
        name="stale row tail",
        source="the same hole, other slot",
        apply=stale_tail("req_pool_indices"),
        killed_by=("K1 shrinking fills",),
    ),
    device_tail_never_reset,
    own_mark_trusted,
    slice_from_the_end,
    warm_up_remembered,
    stage_reused_early,
    copy_marked_late,
    missing_source_skipped,
    dtype_wraps,
    bridge_replaced_by_later_bucket,
    plan_made_at_capture_only,
    dummy_run_through_live_rows,
    host_sync_recorded,
    moving_padding_accepted,
    one_step_audited,
    leases_never_end,
    bind_overwrites,
    any_bind_accepted,
    foreign_fill_ignored,
    shared_fill_not_counted,
    joining_goes_unnoticed,
    dataclasses_are_opaque,
    fixed_rows_accepted,
    inputs_in_another_order,
    trace_not_audited,
    collectives_recorded,
)
