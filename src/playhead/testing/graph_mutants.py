"""The bugs of captured execution that we know of, as patches of `playhead.graph`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch

from playhead.graph import registry as registry_module
from playhead.graph.breakable import BreakableStep
from playhead.graph.breaks import BreakOp, BridgePool, Direction, TensorSpec
from playhead.graph.oplog import OpObserver
from playhead.graph.registry import CudaGraphBufferRegistry, DeviceEntry
from playhead.graph.runner import GraphRunner, LivePlan
from playhead.graph.slots import Batch, FillContext, GraphSlot
from playhead.graph.staging import Stage, StagingRing
from playhead.testing.mutant import Mutant, swapped
from playhead.testing.toy import ToyModel, ToyPlan

Apply = Callable[[], AbstractContextManager[None]]


def stale_tail(slot_name: str) -> Apply:
    """The padding of one slot keeps what a larger step left there."""
    reset = CudaGraphBufferRegistry._reset_staged_tail

    def forgetful(
        self: CudaGraphBufferRegistry, slot: GraphSlot, values: np.ndarray[Any, Any], raw: int, left: int
    ) -> None:
        if slot.name != slot_name:
            reset(self, slot, values, raw, left)

    return lambda: swapped(CudaGraphBufferRegistry, "_reset_staged_tail", forgetful)


def device_tail_never_reset() -> AbstractContextManager[None]:
    def nothing(self: CudaGraphBufferRegistry, entry: DeviceEntry, ctx: FillContext) -> None:
        return None

    return swapped(CudaGraphBufferRegistry, "_reset_tail", nothing)


def own_mark_trusted() -> AbstractContextManager[None]:
    """A registry trusts its own mark although another one filled the shared buffer since."""
    reset = CudaGraphBufferRegistry._reset_tail

    def trusting(self: CudaGraphBufferRegistry, entry: DeviceEntry, ctx: FillContext) -> None:
        if entry.shared is not None:
            entry.shared.filled_by = self
        reset(self, entry, ctx)

    return swapped(CudaGraphBufferRegistry, "_reset_tail", trusting)


def slice_from_the_end() -> AbstractContextManager[None]:
    def from_the_end(self: GraphSlot, bs: int, num_tokens: int) -> torch.Tensor:
        assert self.buffer is not None
        return self.buffer if self.axis == "none" else self.buffer[-(bs if self.axis == "bs" else num_tokens) :]

    return swapped(GraphSlot, "slice_for", from_the_end)


def warm_up_remembered() -> AbstractContextManager[None]:
    """A look-up memoised by address: the warm-up computes it, the capture finds it done and records nothing."""
    memo: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def memoised(self: ToyModel, plan: ToyPlan) -> tuple[torch.Tensor, torch.Tensor]:
        key = (plan.rows_R.untyped_storage().data_ptr(), plan.rows_R.shape[0])
        return memo.setdefault(key, (plan.rows_R.clone(), plan.lens_R.clone()))

    return swapped(ToyModel, "_per_token", memoised)


def stage_reused_early() -> AbstractContextManager[None]:
    def impatient(self: StagingRing) -> Stage:
        stage = self.stages[self._next]
        self._next = (self._next + 1) % len(self.stages)
        return stage

    return swapped(StagingRing, "acquire", impatient)


def missing_source_skipped() -> AbstractContextManager[None]:
    """A value the batch lacks keeps the last step's, silently."""

    def tolerant(self: CudaGraphBufferRegistry, batch: Batch, ctx: FillContext) -> None:
        assert isinstance(batch, dict)
        for name in self._sources - batch.keys():
            slot = self.get_slot(name)
            batch[name] = slot.rows(0, ctx.raw(slot.axis)).cpu().numpy()

    return swapped(CudaGraphBufferRegistry, "_check_fill", tolerant)


def dtype_wraps() -> AbstractContextManager[None]:
    def wrapping(slot: GraphSlot, dtype: np.dtype[Any], source: object) -> np.ndarray[Any, Any]:
        return np.asarray(source).astype(dtype, casting="unsafe")

    return swapped(registry_module, "as_host_array", wrapping)


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


def plan_made_at_capture_only() -> AbstractContextManager[None]:
    replay = GraphRunner.replay

    def with_first_plan(self: GraphRunner, bucket: int, live: LivePlan | None) -> Any:
        ctx = self.placeholder_context(bucket)
        return replay(self, bucket, self.step.plan(self.step.placeholder(ctx), ctx, self.views(ctx)))

    return swapped(GraphRunner, "replay", with_first_plan)


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


def host_sync_recorded() -> AbstractContextManager[None]:
    """A value read on the host at capture becomes a constant of the graph."""

    def lenient(self: OpObserver, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        return None

    return swapped(OpObserver, "_refuse", lenient)


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
    Mutant(
        name="stale device tail",
        source="SGLang #26742: tails stale by default",
        apply=device_tail_never_reset,
        killed_by=("K1 poison",),
    ),
    Mutant(
        name="shared tail trusted",
        source="two registries, one buffer",
        apply=own_mark_trusted,
        killed_by=("K1 shared buffers",),
    ),
    Mutant(
        name="slice from the end",
        source="capture and fill used other rows",
        apply=slice_from_the_end,
        killed_by=("audit, full",),
    ),
    Mutant(
        name="warm-up pollutes capture",
        source="SGLang #25824: memo filled by warm-up",
        apply=warm_up_remembered,
        killed_by=("audit, full",),
    ),
    Mutant(
        name="staging reused before its copy",
        source="pinned buffer without an event",
        apply=stage_reused_early,
        killed_by=("K7 lagging device",),
    ),
    Mutant(
        name="source missing",
        source="SGLang #26742: None was skipped",
        apply=missing_source_skipped,
        killed_by=("missing source refused",),
    ),
    Mutant(
        name="dtype wrap",
        source="int64 locations in int32 memory",
        apply=dtype_wraps,
        killed_by=("wrapped value refused",),
    ),
    Mutant(
        name="break output reused by a later bucket",
        source="weak references into the graph pool",
        apply=bridge_replaced_by_later_bucket,
        killed_by=("audit, breakable",),
    ),
    Mutant(
        name="metadata prepared at capture only",
        source="SGLang #26742: the DSV4 upgrade hole",
        apply=plan_made_at_capture_only,
        killed_by=("audit, breakable",),
    ),
    Mutant(
        name="dummy run through live rows",
        source="capture in mid-serving wrote KV",
        apply=dummy_run_through_live_rows,
        killed_by=("late capture",),
    ),
    Mutant(
        name="host value baked in",
        source=".item() at capture",
        apply=host_sync_recorded,
        killed_by=("host value refused",),
    ),
)
