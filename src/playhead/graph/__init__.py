"""Captured execution over declared inputs.

Declare what a graph reads (`GraphSlot`, `CudaGraphBufferRegistry`), say what runs (`StepSpec`), choose how it is
captured (`FullCapture`, `BreakableCapture`, `PiecewiseCapture`) and on what (`CudaBackend`, `TapeBackend`,
`EagerBackend`), and let a `GraphRunner` run it. `audit` proves that a replay reads what was declared.
"""

from playhead.graph.audit import Sample, SampledStep, audit
from playhead.graph.backends.base import Backend, Recording, record
from playhead.graph.backends.cuda import CudaBackend
from playhead.graph.backends.eager import EagerBackend
from playhead.graph.backends.tape import TapeBackend
from playhead.graph.breakable import BreakableCapture
from playhead.graph.breaks import BreakOp, BridgePool, Scope, TensorSpec
from playhead.graph.copies import grouped_foreach_copy_
from playhead.graph.full import FullCapture
from playhead.graph.piecewise import PiecewiseCapture, as_traced, compiler_for, with_inductor
from playhead.graph.registry import CudaGraphBufferRegistry
from playhead.graph.report import Check, Finding, Report
from playhead.graph.runner import CaptureReport, GraphRunner, LivePlan, OwnedMemory, StepResult, StepSpec
from playhead.graph.shapes import Decision, Dispatcher, DispatchLimits, Mode, Reason, ShapeKey, bucket_sizes
from playhead.graph.sharing import InputBufferPool
from playhead.graph.slots import Batch, FillContext, GraphSlot, IndexSpace, PaddingPolicy

__all__ = [
    "Backend",
    "Batch",
    "BreakOp",
    "BreakableCapture",
    "BridgePool",
    "CaptureReport",
    "Check",
    "CudaBackend",
    "CudaGraphBufferRegistry",
    "Decision",
    "DispatchLimits",
    "Dispatcher",
    "EagerBackend",
    "FillContext",
    "Finding",
    "FullCapture",
    "GraphRunner",
    "GraphSlot",
    "IndexSpace",
    "InputBufferPool",
    "LivePlan",
    "Mode",
    "OwnedMemory",
    "PaddingPolicy",
    "PiecewiseCapture",
    "Reason",
    "Recording",
    "Report",
    "Sample",
    "SampledStep",
    "Scope",
    "ShapeKey",
    "StepResult",
    "StepSpec",
    "TapeBackend",
    "TensorSpec",
    "as_traced",
    "audit",
    "bucket_sizes",
    "compiler_for",
    "grouped_foreach_copy_",
    "record",
    "with_inductor",
]
