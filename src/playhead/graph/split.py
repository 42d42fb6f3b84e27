"""A step captured as two graphs, body and tail, with time between them for the host.

The callable calls `scope.call(CUT, ...)` once. What it issues before is the body, what it issues after is the tail.
The tail may read slots, owned memory and nothing else: memory that the body made belongs to the body's graph. While the
body runs the host finds out what the tail needs, fills the registry's late slot and launches the tail.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from playhead.errors import CaptureError, GraphError
from playhead.graph.backends.base import Backend, OpenRecording, Recording
from playhead.graph.backends.eager import EagerBackend
from playhead.graph.breaks import BreakOp, InlineScope, Tensors
from playhead.graph.capture import CapturedStep, EagerStep, Inputs, StepFn
from playhead.graph.late import LateRegistry
from playhead.graph.outputs import Outputs
from playhead.graph.runner import GraphRunner
from playhead.graph.shapes import Decision
from playhead.graph.slots import FillContext
from playhead.graph.spec import LivePlan, StepResult
from playhead.types import Mode


def nothing(live: Any, inputs: Tensors, outputs: Tensors, site: int) -> None:
    """What runs at the cut: nothing, the host has its time there."""


CUT = BreakOp("playhead_graph::cut", run=nothing, outputs=lambda inputs: ())


class CutScope(InlineScope):
    """Records body and tail. Other breaks run in place and are a part of the graph they stand in."""

    def __init__(self, live: Any, backend: Backend) -> None:
        super().__init__(live)
        self._backend = backend
        self.open: OpenRecording = backend.open()
        self.body: Recording | None = None

    def call(self, op: BreakOp, *inputs: torch.Tensor, site: int) -> Tensors:
        if op is not CUT:
            return super().call(op, *inputs, site=site)
        if self.body is not None:
            raise CaptureError(CUT.name, f"site {site}", "a second cut", "A step has one body and one tail.")
        self.body = self.open.close()
        self.open = self._backend.open(after=self.body)
        return ()


class SplitStep:
    """Body and tail. They read the `live` tensors of their capture, as a full graph does."""

    def __init__(self, body: Recording, tail: Recording, output: Outputs) -> None:
        self.body, self.tail, self.output = body, tail, output
        self.recordings: tuple[Recording, ...] = (body, tail)

    def replay(self, live: Any) -> None:
        self.body.replay()
        self.tail.replay()


class SplitCapture:
    """Captures everything in two graphs. Like `FullCapture` it warms up the first size of a callable alone."""

    mode = Mode.FULL
    bridges = None

    def __init__(self) -> None:
        self._warm: set[StepFn] = set()

    def prepare(self, fn: StepFn, inputs: Inputs) -> StepFn:
        return fn

    def capture(self, backend: Backend | EagerBackend, fn: StepFn, inputs: Inputs, live: Any) -> CapturedStep:
        if isinstance(backend, EagerBackend):
            return EagerStep(fn, inputs, live)
        if fn not in self._warm:
            backend.warm_up(lambda: fn(inputs, InlineScope(live)))
        scope = CutScope(live, backend)
        try:
            output = fn(inputs, scope)
        except BaseException:
            scope.open.abandon()
            raise
        tail = scope.open.close()
        if scope.body is None:
            raise CaptureError(CUT.name, "the step's return", "a step without a cut", "Use FullCapture.")
        self._warm.add(fn)
        return SplitStep(scope.body, tail, output)


class SplitRunner(GraphRunner):
    """Runs steps in two parts: `run` and `replay_advanced` launch the body, `finish` launches the tail.

    An eager step runs whole in `finish`. The result of the first part says how the step runs; its output is there
    when the second part was launched.
    """

    registry: LateRegistry
    _open: tuple[StepResult, Recording | None, FillContext, LivePlan | None] | None = None

    def _run_filled(self, decision: Decision, ctx: FillContext, live: LivePlan | None) -> StepResult:
        if decision.mode is Mode.EAGER:
            result = StepResult(output=None, decision=decision)
            self._open = result, None, ctx, live
            return result
        captured = self._captured[decision.bucket]
        assert isinstance(captured, SplitStep), "this runner's capture makes these"
        self._check_plan(decision.bucket, live)
        captured.body.replay()
        self.num_replays[decision.bucket] += 1
        self.num_raw[decision.bucket] += ctx.raw_bs
        result = StepResult(output=self._live_output(decision.bucket, ctx), decision=decision)
        self._open = result, captured.tail, ctx, live
        return result

    def finish(self) -> StepResult:
        """Send the rows that `LateRegistry.open_late` gave, and launch the tail of the step whose body ran last."""
        if self._open is None:
            raise GraphError(f"{self.step.name}: finish without a body that was launched. Call run first.")
        (result, tail, ctx, live), self._open = self._open, None
        self.registry.send_late()
        if tail is None:
            return replace(result, output=self.run_eager(ctx, live))
        tail.replay()
        return result
