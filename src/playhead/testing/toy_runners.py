"""Toy runners of every kind, ready to capture: what the contract tests, the checkers and the demo run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from playhead.graph.backends.base import Backend
from playhead.graph.backends.cuda import CudaBackend
from playhead.graph.backends.eager import EagerBackend
from playhead.graph.backends.tape import TapeBackend
from playhead.graph.breakable import BreakableCapture
from playhead.graph.breaks import BridgePool
from playhead.graph.capture import Capture
from playhead.graph.full import FullCapture
from playhead.graph.piecewise import PiecewiseCapture, compiler_for
from playhead.graph.runner import GraphRunner, RunAxis
from playhead.graph.shapes import Dispatcher, DispatchLimits
from playhead.testing.toy import ToyModel, ToyShape, toy_registry

Kind = Literal["full", "breakable", "piecewise"]
KINDS: tuple[Kind, ...] = ("full", "breakable", "piecewise")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyRig:
    """A model and the runner over it."""

    model: ToyModel
    runner: GraphRunner
    axis: RunAxis


def toy_capture(kind: Kind, *, max_rows: int, device: torch.device) -> Capture:
    bridges = BridgePool(max_rows=max_rows, device=device)
    if kind == "full":
        return FullCapture()
    return BreakableCapture(bridges) if kind == "breakable" else PiecewiseCapture(bridges, compiler_for(device))


def toy_rig(
    kind: Kind,
    *,
    buckets: tuple[int, ...] = (4, 8),
    backend: Backend | EagerBackend | None = None,
    limits: DispatchLimits | None = None,
    shape: ToyShape | None = None,
) -> ToyRig:
    """A runner over a toy model: decode for `full`, prefill for the other two. Nothing is captured yet."""
    axis: RunAxis = "bs" if kind == "full" else "tokens"
    device = backend.device if isinstance(backend, CudaBackend) else torch.device("cpu")
    model = ToyModel(shape or ToyShape(), device)
    registry = toy_registry(axis, max_rows=buckets[-1], device=device)
    capture = toy_capture(kind, max_rows=buckets[-1], device=model.device)
    runner = GraphRunner(
        model.step(axis, registry),
        registry=registry,
        capture=capture,
        backend=backend or TapeBackend(),
        dispatcher=Dispatcher(capture.mode, buckets, limits),
    )
    return ToyRig(model=model, runner=runner, axis=axis)
