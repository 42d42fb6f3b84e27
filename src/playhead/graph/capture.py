"""What the three ways to capture have in common: the callable, the result, and the eager stand-in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from playhead.graph.backends.base import Backend, Recording
from playhead.graph.backends.eager import EagerBackend
from playhead.graph.breaks import InlineScope, Scope
from playhead.graph.bridges import BridgePool
from playhead.graph.outputs import Outputs, tensors_of
from playhead.types import Mode

Inputs = Mapping[str, torch.Tensor]
StepFn = Callable[[Inputs, Scope], Outputs]


class CapturedStep(Protocol):
    """A step that can run again: fill the inputs, give it this step's `live` values, read `output`."""

    @property
    def output(self) -> Outputs: ...

    @property
    def recordings(self) -> tuple[Recording, ...]: ...

    def replay(self, live: Any) -> None: ...


class Capture(Protocol):
    """A way to turn a callable into something that replays."""

    @property
    def mode(self) -> Mode: ...

    @property
    def bridges(self) -> BridgePool | None: ...

    def prepare(self, fn: StepFn, inputs: Inputs) -> StepFn:
        """The callable that is really captured: `fn`, or what a compiler made of it."""

    def capture(self, backend: Backend | EagerBackend, fn: StepFn, inputs: Inputs, live: Any) -> CapturedStep: ...


class EagerStep:
    """The callable itself, run again into the tensors of its first run; plain outputs stay the first run's."""

    recordings: tuple[Recording, ...] = ()

    def __init__(self, fn: StepFn, inputs: Inputs, live: Any) -> None:
        self._fn, self._inputs = fn, inputs
        self.output: Outputs = self._run(live)

    def _run(self, live: Any) -> Outputs:
        with torch.no_grad():
            return self._fn(self._inputs, InlineScope(live))

    def replay(self, live: Any) -> None:
        for kept, value in zip(tensors_of(self.output), tensors_of(self._run(live)), strict=True):
            kept.copy_(value)
