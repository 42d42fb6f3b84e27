"""A graph in segments, with live work between them.

What is captured depends on the number of tokens alone: a break gets this step's requests when it runs, so a graph
captured with one placeholder request serves any number of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from playhead.graph.backends.base import Backend, OpenRecording, Recording
from playhead.graph.backends.eager import EagerBackend
from playhead.graph.breaks import BreakOp, Tensors, TensorSpec
from playhead.graph.bridges import BridgePool, WarmUpScope
from playhead.graph.capture import CapturedStep, EagerStep, Inputs, StepFn
from playhead.graph.leases import BridgeLeases
from playhead.graph.oplog import current_observer
from playhead.graph.outputs import Outputs, tensors_of
from playhead.types import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundBreak:
    """One call of a break, bound to its bridges."""

    op: BreakOp
    inputs: Tensors
    outputs: Tensors
    site: int


class SegmentScope:
    """Records a callable as segments: each break ends one and begins the next. The break itself does not run.

    Capturing issues no work on a GPU, so there would be nothing for a break to read. The warm-up ran it.
    """

    def __init__(self, backend: Backend, bridges: BridgePool) -> None:
        self._backend, self._bridges = backend, bridges
        self._open: OpenRecording | None = None
        self._last: Recording | None = None
        self._given: dict[int, torch.Tensor] = {}
        self._leases = BridgeLeases()
        self.parts: list[Recording | BoundBreak] = []

    def record(self, work: Callable[[], Outputs]) -> Outputs:
        self._begin()
        try:
            outputs = work()
            self._leases.refuse_expired("the step's output", "its return", tensors_of(outputs))
        except BaseException:
            assert self._open is not None
            self._open.abandon()
            raise
        self._close()
        return outputs

    def call(self, op: BreakOp, *inputs: torch.Tensor, site: int) -> Tensors:
        bridged = tuple(self._bridge_in(op, i, tensor) for i, tensor in enumerate(inputs))
        self._close()
        specs = op.output_specs(inputs)
        outputs = tuple(
            self._leases.lend(
                self._bridges.view(op, "out", i, spec), op.name, f"output {i} of the break at site {site}"
            )
            for i, spec in enumerate(specs)
        )
        self.parts.append(BoundBreak(op=op, inputs=bridged, outputs=outputs, site=site))
        self._begin()
        return outputs

    def bridge(self, op: BreakOp, position: int, spec: TensorSpec, like: torch.Tensor) -> torch.Tensor:
        self._given[position] = self._input(op, position, spec)
        return self._given[position]

    def share_memory(self) -> None:
        """All sites share bridges anyway."""

    def _bridge_in(self, op: BreakOp, position: int, tensor: torch.Tensor) -> torch.Tensor:
        """The input in its bridge: computed there, or copied there by the segment that made it."""
        if tensor is self._given.pop(position, None):
            return tensor
        return self._input(op, position, TensorSpec.like(tensor)).copy_(tensor)

    def _input(self, op: BreakOp, position: int, spec: TensorSpec) -> torch.Tensor:
        view = self._bridges.view(op, "in", position, spec)
        return self._leases.lend(view, op.name, f"input {position} of the break")

    def _begin(self) -> None:
        self._open = self._backend.open(after=self._last)
        observer = current_observer()
        if observer is not None:
            observer.leases = self._leases

    def _close(self) -> None:
        assert self._open is not None
        self._last = self._open.close()
        self.parts.append(self._last)


class BreakableStep:
    """Segments and breaks in order."""

    def __init__(self, parts: list[Recording | BoundBreak], output: Outputs) -> None:
        self.output = output
        self.recordings = tuple(part for part in parts if not isinstance(part, BoundBreak))
        self.breaks = tuple(part for part in parts if isinstance(part, BoundBreak))

    def replay(self, live: Any) -> None:
        first, *rest = self.recordings
        first.replay()
        with torch.no_grad():
            for bound, segment in zip(self.breaks, rest, strict=True):
                bound.op.run(live, bound.inputs, bound.outputs, bound.site)
                segment.replay()


class BreakableCapture:
    """Captures the work between breaks. All sizes and all callables given the same `bridges` share their memory."""

    mode = Mode.BREAKABLE

    def __init__(self, bridges: BridgePool) -> None:
        self.bridges = bridges

    def prepare(self, fn: StepFn, inputs: Inputs) -> StepFn:
        return fn

    def capture(self, backend: Backend | EagerBackend, fn: StepFn, inputs: Inputs, live: Any) -> CapturedStep:
        if isinstance(backend, EagerBackend):
            return EagerStep(fn, inputs, live)
        backend.warm_up(lambda: fn(inputs, WarmUpScope(live, self.bridges)))
        scope = SegmentScope(backend, self.bridges)
        output = scope.record(lambda: fn(inputs, scope))
        return BreakableStep(scope.parts, output)
