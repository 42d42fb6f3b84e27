"""Toy runners of every kind, ready to capture: what the contract tests, the checkers and the demo run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from playhead.graph.audit import SampledStep
from playhead.graph.backends.base import Backend
from playhead.graph.backends.cuda import CudaBackend
from playhead.graph.backends.eager import EagerBackend
from playhead.graph.backends.tape import TapeBackend
from playhead.graph.breakable import BreakableCapture
from playhead.graph.breaks import Scope
from playhead.graph.bridges import BridgePool
from playhead.graph.capture import Capture, Inputs
from playhead.graph.full import FullCapture
from playhead.graph.piecewise import PiecewiseCapture, compiler_for
from playhead.graph.registry import CudaGraphBufferRegistry
from playhead.graph.runner import GraphRunner
from playhead.graph.shapes import Dispatcher, DispatchLimits
from playhead.graph.slots import Batch, FillContext, GraphSlot, IndexSpace, PaddingPolicy
from playhead.graph.spec import OwnedMemory, RunAxis, StepSpec
from playhead.testing.toy import ToyModel, ToyShape, toy_registry
from playhead.types import Mode

LOCS = IndexSpace(name="locations", dtype=torch.int64)
NUM_LOCS = 40
WRITE_BUCKET = 4

# What a step does with its locations, the mask of its live rows, and the cache.
WriteStep = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]

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


def locs_slot(**changes: Any) -> GraphSlot:
    """Locations on the device, which the graph may advance."""
    settings = {"padding_policy": PaddingPolicy.ZERO, "graph_writes": "the step advances itself", "index": LOCS}
    return GraphSlot(
        name="locs",
        shape_fn=lambda bs, tokens: (bs,),
        dtype=LOCS.dtype,
        axis="bs",
        **{**settings, **changes},
    )


def mark_live(buffer: torch.Tensor, batch: Batch, ctx: FillContext) -> None:
    """One for each live row, zero for the others."""
    buffer.copy_(torch.arange(len(buffer)) < ctx.raw_bs)


def write_runner(step_over: WriteStep, slot: GraphSlot | None = None) -> GraphRunner:
    """A captured step that writes into a cache; `step_over` says where, and what it leaves in its locations."""
    registry = CudaGraphBufferRegistry(max_bs=WRITE_BUCKET, max_num_tokens=WRITE_BUCKET, device="cpu")
    registry.register_slot(slot or locs_slot())
    registry.register_slot(
        GraphSlot(
            name="live",
            shape_fn=lambda bs, tokens: (bs,),
            dtype=torch.int64,
            axis="bs",
            padding_policy=PaddingPolicy.ZERO,
            copy_from_fb=False,
            post_fill=mark_live,
        )
    )
    cache = torch.zeros(NUM_LOCS)

    def fn(inputs: Inputs, scope: Scope) -> torch.Tensor:
        step_over(inputs["locs"], inputs["live"], cache)
        return inputs["locs"] * 1

    step = StepSpec(
        name="writes",
        axis="bs",
        fn=fn,
        plan=lambda batch, ctx, inputs: None,
        placeholder=registry.null_batch,
        owned=(OwnedMemory(name="cache", tensors=(cache,), writable=True, sink_rows=1),),
    )
    runner = GraphRunner(
        step,
        registry=registry,
        capture=FullCapture(),
        backend=TapeBackend(),
        dispatcher=Dispatcher(Mode.FULL, (WRITE_BUCKET,), DispatchLimits(max_padding_ratio=100)),
    )
    runner.capture_all()
    return runner


def write_sample(raw: int, seed: int) -> SampledStep:
    """Random locations with room for a few steps after them."""
    generator = torch.Generator().manual_seed(seed)
    locs = 2 + torch.randperm(NUM_LOCS - 8, generator=generator)[:raw]
    return SampledStep(batch={"locs": locs}, raw_bs=raw, raw_num_tokens=raw)


def advance_all(locs: torch.Tensor, live: torch.Tensor, cache: torch.Tensor) -> None:
    """The bug: padded rows walk through the cache too."""
    cache.index_fill_(0, locs, 1.0)
    locs.add_(1)


def advance_live(locs: torch.Tensor, live: torch.Tensor, cache: torch.Tensor) -> None:
    cache.index_fill_(0, locs, 1.0)
    locs.add_(live)
