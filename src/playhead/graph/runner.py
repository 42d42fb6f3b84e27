"""A registry, a capture, a backend and buckets: everything a step needs, whichever axis it pads.

A decode runner pads requests; a prefill runner pads tokens and, where its graph is full, requests too. One function
prepares a step (fill, then plan) for capture, for replay and for eager runs, so the three cannot disagree about what a
step reads.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch

from playhead.errors import ConfigError, GraphError, SlotError
from playhead.graph.backends.base import Backend
from playhead.graph.backends.eager import EagerBackend
from playhead.graph.breaks import InlineScope
from playhead.graph.capture import Capture, CapturedStep, Inputs
from playhead.graph.outputs import Outputs, map_tensors, tensors_of
from playhead.graph.registry import CudaGraphBufferRegistry
from playhead.graph.shapes import Decision, Dispatcher, Reason
from playhead.graph.slots import Batch, FillContext, SlotViews
from playhead.graph.spec import CaptureReport, LivePlan, StepResult, StepSpec
from playhead.logs import event
from playhead.types import Mode

LOG = logging.getLogger(__name__)

PlanKey = tuple[type, tuple[tuple[int, tuple[int, ...], torch.dtype], ...]]


def plan_key(live: LivePlan | None) -> PlanKey:
    """Type, addresses, shapes and dtypes of a plan: what a full graph has baked in."""
    tensors = () if live is None else live.tensors()
    return type(live), tuple((tensor.data_ptr(), tuple(tensor.shape), tensor.dtype) for tensor in tensors)


class GraphRunner:
    """Runs steps through captured graphs, or eagerly over the same buffers, and says which and why."""

    def __init__(
        self,
        step: StepSpec,
        *,
        registry: CudaGraphBufferRegistry,
        capture: Capture,
        backend: Backend | EagerBackend,
        dispatcher: Dispatcher,
    ) -> None:
        if dispatcher.mode not in (capture.mode, Mode.EAGER):
            raise ConfigError(
                f"{step.name}: the dispatcher chooses {dispatcher.mode.value!r} graphs and the capture makes "
                f"{capture.mode.value!r} ones. Build Dispatcher(capture.mode, ...)."
            )
        registry.freeze()
        self.step, self.registry, self.capture, self.backend = step, registry, capture, backend
        self.dispatcher = dispatcher
        self._captured: dict[int, CapturedStep] = {}
        self.is_capturing = False  # other threads read it: a capture may take longer than a healthy step
        self.reports: dict[int, CaptureReport] = {}
        self.num_replays, self.num_raw = Counter[int](), Counter[int]()  # by bucket; raw rows are not padding
        self._views: dict[tuple[int, int], dict[str, torch.Tensor]] = {}
        self._plan_keys: dict[int, PlanKey] = {}
        self._live_outputs: dict[tuple[int, int], Outputs] = {}
        self._last: tuple[FillContext, LivePlan | None, int] | None = None
        self._checked: dict[int, LivePlan | None] = {}

    @property
    def captured(self) -> Mapping[int, CapturedStep]:
        return self._captured

    def context(
        self,
        *,
        raw_bs: int,
        raw_num_tokens: int,
        bucket: int,
        pp_proxy_tensors: Mapping[str, torch.Tensor] | None = None,
    ) -> FillContext:
        """The fill context of a step in a bucket, with what the previous pipeline stage handed over, if there is one.

        A full graph over tokens has room for as many requests as its tokens could belong to. A graph with breaks has
        no batch size: its breaks run live and see the step's own requests.
        """
        padded_bs = padded_num_tokens = bucket
        if self.step.axis == "tokens":
            padded_bs = min(bucket, self.registry.max_bs) if self.capture.mode is Mode.FULL else raw_bs
        else:
            padded_num_tokens *= self.step.num_tokens_per_bs
            if raw_num_tokens != raw_bs * self.step.num_tokens_per_bs:
                raise GraphError(
                    f"{self.step.name}: {raw_num_tokens} tokens of {raw_bs} requests; wanted "
                    f"{self.step.num_tokens_per_bs} of each. Use a runner over tokens for steps of other shapes."
                )
        return FillContext(
            raw_bs=raw_bs,
            padded_bs=padded_bs,
            raw_num_tokens=raw_num_tokens,
            padded_num_tokens=padded_num_tokens,
            pp_proxy_tensors=pp_proxy_tensors,
        )

    def placeholder_context(self, bucket: int) -> FillContext:
        """The context a bucket is captured in: full, and one request where the axis is tokens."""
        num_requests, num_tokens = (
            (bucket, bucket * self.step.num_tokens_per_bs) if self.step.axis == "bs" else (1, bucket)
        )
        ctx = self.context(raw_bs=num_requests, raw_num_tokens=num_tokens, bucket=bucket)
        return replace(ctx, pp_proxy_tensors=self.registry.null_proxies(ctx))

    def capture_all(self, progress: Callable[[CaptureReport], None] | None = None) -> None:
        """Capture every bucket, largest first: the smaller ones then fit into memory the largest made."""
        sizes = sorted(set(self.dispatcher.buckets) - self._captured.keys(), reverse=True)
        with quiet_gc():  # all that a capture makes stays, and looking through it would be a tenth of the time
            for done, size in enumerate(sizes, start=1):
                if not self.dispatcher.within_budget():
                    break
                report = self.capture_bucket(size, done=done, total=len(sizes))
                if progress is not None:
                    progress(report)

    def capture_bucket(self, bucket: int, *, done: int = 1, total: int = 1) -> CaptureReport:
        """Capture one size on placeholder requests."""
        started = time.perf_counter()
        ctx = self.placeholder_context(bucket)
        live = self.prepare(self.step.placeholder(ctx), ctx)
        self._refuse_live_rows(ctx)
        self._last = None  # the placeholder is in the slots now
        self._checked.pop(bucket, None)
        self.is_capturing = True
        try:
            with quiet_gc():
                self.capture.prepare(self.step.fn, self.largest_inputs())
                captured = self.capture.capture(self.backend, self.step.fn, self.graph_inputs(ctx), live)
        finally:
            self.is_capturing = False
        tensors_of(captured.output)  # refuses outputs that cannot be replayed, before the first use
        self._captured[bucket], self._plan_keys[bucket] = captured, plan_key(live)
        self._live_outputs = {key: output for key, output in self._live_outputs.items() if key[0] != bucket}
        num_bytes = sum(recording.num_bytes for recording in captured.recordings)
        num_nodes = sum(recording.num_nodes for recording in captured.recordings)
        self.dispatcher.mark_captured(bucket, num_bytes)
        seconds = time.perf_counter() - started
        event(LOG, logging.DEBUG, "graph captured", axis=self.step.axis, size=bucket, bytes=num_bytes, seconds=seconds)
        self.reports[bucket] = report = CaptureReport(
            size=bucket, seconds=seconds, num_bytes=num_bytes, num_nodes=num_nodes, done=done, total=total
        )
        return report

    def run(
        self,
        batch: Batch,
        *,
        raw_bs: int,
        raw_num_tokens: int,
        pp_proxy_tensors: Mapping[str, torch.Tensor] | None = None,
    ) -> StepResult:
        """Run one step the way the dispatcher decides.

        The output has the live rows alone, and lies in the graph's memory: use it before the next step, or take
        `StepResult.cloned()`.
        """
        raw = raw_bs if self.step.axis == "bs" else raw_num_tokens
        decision = self.dispatcher.decide(raw)
        if decision.reason is Reason.CAPTURE_NOW:
            try:
                self.capture_bucket(decision.bucket)
            except torch.OutOfMemoryError:
                self.dispatcher.mark_failed(decision.bucket)
                decision = self.dispatcher.decide(raw)
        ctx = self.context(
            raw_bs=raw_bs, raw_num_tokens=raw_num_tokens, bucket=decision.bucket, pp_proxy_tensors=pp_proxy_tensors
        )
        live = self.prepare(batch, ctx)
        self._last = ctx, live, self.registry.num_fills
        return self._run_filled(decision, ctx, live)

    def run_or_go_on(self, batch: Batch | None, num_requests: int) -> StepResult:
        """Run a step over requests: `batch`, or without one the step whose inputs are in the slots already."""
        if batch is None:
            return self.replay_advanced()
        return self.run(batch, raw_bs=num_requests, raw_num_tokens=num_requests * self.step.num_tokens_per_bs)

    def replay_advanced(self) -> StepResult:
        """Run the next step on the inputs that the last step's graph left in the slots. Nothing is filled.

        Refused if the slots were filled since the last step, for instance by another runner over the same registry.
        """
        if self._last is None:
            raise GraphError(f"{self.step.name}: replay_advanced without a step before it. Call run first.")
        ctx, live, num_fills = self._last
        if num_fills != self.registry.num_fills:
            raise GraphError(
                f"{self.step.name}: replay_advanced over slots that were filled since the last step. Call run."
            )
        decision = self.dispatcher.decide(ctx.raw_bs if self.step.axis == "bs" else ctx.raw_num_tokens)
        return self._run_filled(decision, ctx, live)

    def _run_filled(self, decision: Decision, ctx: FillContext, live: LivePlan | None) -> StepResult:
        if decision.mode is Mode.EAGER:
            return StepResult(output=self.live_rows(self.run_eager(ctx, live), ctx), decision=decision)
        self.replay(decision.bucket, live)
        self.num_replays[decision.bucket] += 1
        self.num_raw[decision.bucket] += ctx.raw(self.step.axis)
        return StepResult(output=self._live_output(decision.bucket, ctx), decision=decision)

    def _live_output(self, bucket: int, ctx: FillContext) -> Outputs:
        """The live rows of a bucket's output, which lies where it lay at the last step of this size."""
        key = bucket, ctx.raw_num_tokens if self._gives_tokens else ctx.raw_bs
        output = self._live_outputs.get(key)
        if output is None:
            output = self._live_outputs[key] = self.live_rows(self._captured[bucket].output, ctx)
        return output

    def live_rows(self, output: Outputs, ctx: FillContext) -> Outputs:
        """A step's output without its padding: the first dimension of every tensor is its rows.

        A step over requests may give rows of tokens too; their number tells which they are. What a step over tokens
        gives is `StepSpec.output_axis`. A tensor without dimensions is left as it is.
        """

        def cut(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.dim():
                return tensor
            has_as_many_rows = self.step.axis == "bs" and tensor.shape[0] == ctx.padded_num_tokens
            has_token_rows = self._gives_tokens or has_as_many_rows
            return tensor[: ctx.raw_num_tokens if has_token_rows else ctx.raw_bs]

        return map_tensors(cut, output)

    @property
    def _gives_tokens(self) -> bool:
        return self.step.axis == self.step.output_axis == "tokens"

    def prepare(self, batch: Batch, ctx: FillContext) -> LivePlan | None:
        """Fill the slots and plan the step: the one way to get ready, for capture, replay and eager runs."""
        self.registry.fill_from(batch, ctx)
        return self.step.plan(batch, ctx, self.views(ctx))

    def replay(self, bucket: int, live: LivePlan | None) -> Outputs:
        """Replay a bucket that `prepare` has just filled. Gives the whole padded output, in the graph's memory."""
        self._check_plan(bucket, live)
        self._captured[bucket].replay(live)
        return self._captured[bucket].output

    def _check_plan(self, bucket: int, live: LivePlan | None) -> None:
        if self.capture.mode is not Mode.FULL or self._is_checked(bucket, live):
            return
        if plan_key(live) != self._plan_keys[bucket]:
            raise GraphError(
                f"{self.step.name} bucket {bucket}: the plan has other tensors than at capture; "
                f"wanted {self._plan_keys[bucket]}, found {plan_key(live)}. Keep plan tensors in slots."
            )
        self._checked[bucket] = live

    def _is_checked(self, bucket: int, live: LivePlan | None) -> bool:
        """Whether the bucket's last replay had this very plan: steps of a size have the same one."""
        return bucket in self._checked and self._checked[bucket] is live

    def run_eager(self, ctx: FillContext, live: LivePlan | None, *, prepared: bool = False) -> Outputs:
        """Run the callable itself over the filled slots; with `prepared`, the form of it that is captured."""
        inputs = self.graph_inputs(ctx)
        fn = self.capture.prepare(self.step.fn, inputs) if prepared else self.step.fn
        with torch.no_grad():
            return fn(inputs, InlineScope(live))

    def views(self, ctx: FillContext) -> Mapping[str, torch.Tensor]:
        """Every slot at the padded size. Making views costs more than replaying, so they are kept.

        A step over tokens can have many sizes: only views of captured sizes are kept.
        """
        key = (ctx.padded_bs, ctx.padded_num_tokens)
        views = self._views.get(key)
        if views is None:
            views = self.registry.extract_buffer(ctx)
            if self.step.axis == "bs" or ctx.padded_num_tokens in self.dispatcher.buckets:
                self._views[key] = views
        return views

    def graph_inputs(self, ctx: FillContext) -> Inputs:
        """What captured work may read. With breaks, slots with one row per request are for the plan alone."""
        views = self.views(ctx)
        if self.step.axis == "bs" or self.capture.mode is Mode.FULL:
            return views
        slots = self.registry.slots
        return SlotViews({name: view for name, view in views.items() if slots[name].axis != "bs"}, self._explain_absent)

    def largest_inputs(self) -> Inputs:
        """The inputs at the largest size. The form of the callable that serves all sizes is traced with these.

        A trace made with one row would contain the number 1, and no other size could use it.
        """
        most = self.registry.max_bs if self.step.axis == "bs" else self.registry.max_num_tokens
        return self.graph_inputs(self.placeholder_context(most))

    def _explain_absent(self, name: str) -> None:
        """Why captured work with breaks was not given this slot."""
        axis = self.registry.get_slot(name).axis
        fix = "Read it in the plan, which hands it to the breaks."
        raise SlotError(name, f"axis {axis!r} read by a {self.capture.mode.value} graph", "a slot over tokens", fix)

    def _refuse_live_rows(self, ctx: FillContext) -> None:
        """A capture runs the step for real: its writes must end in the sink."""
        for name, slot in self.registry.slots.items():
            if slot.index is not None and bool((slot.rows(0, ctx.padded(slot.axis)) != slot.index.sink).any()):
                raise GraphError(
                    f"{self.step.name}: the placeholder batch points {name!r} at live {slot.index.name}; "
                    f"wanted the sink {slot.index.sink} in every row. Build it from registry.null_batch()."
                )


@contextmanager
def quiet_gc() -> Iterator[None]:
    """No collection in here: one that frees device memory during a capture would invalidate it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
