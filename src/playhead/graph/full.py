"""One graph for the whole callable, breaks included."""

from __future__ import annotations

from typing import Any

from playhead.graph.backends.base import Backend, Recording, record
from playhead.graph.backends.eager import EagerBackend
from playhead.graph.breaks import InlineScope
from playhead.graph.capture import CapturedStep, EagerStep, Inputs, StepFn
from playhead.graph.outputs import Outputs
from playhead.types import Mode


class FullStep:
    """One recording. It reads the `live` tensors of its capture: their addresses must be the same at every replay."""

    def __init__(self, recording: Recording, output: Outputs) -> None:
        self._recording, self.output = recording, output
        self.recordings: tuple[Recording, ...] = (recording,)

    def replay(self, live: Any) -> None:
        self._recording.replay()


class FullCapture:
    """Captures everything, so nothing of a replay runs in Python.

    The first size of a callable is warmed up. The others share its libraries, tables and workspaces, and a kernel that
    only they need is compiled and loaded while they are captured. Warming up every size took a third of a capture's
    time. A callable may not keep a tensor that it makes at the first call of a size: its memory is the graph's. An
    audit finds such a callable, because a second capture of the size then has other ops.
    """

    mode = Mode.FULL
    bridges = None

    def __init__(self) -> None:
        self._warm: set[StepFn] = set()

    def prepare(self, fn: StepFn, inputs: Inputs) -> StepFn:
        return fn

    def capture(self, backend: Backend | EagerBackend, fn: StepFn, inputs: Inputs, live: Any) -> CapturedStep:
        if isinstance(backend, EagerBackend):
            return EagerStep(fn, inputs, live)
        step = FullStep(*record(backend, lambda: fn(inputs, InlineScope(live)), is_warm=fn in self._warm))
        self._warm.add(fn)
        return step
