"""Captured execution over declared inputs.

Declare what a graph reads (`GraphSlot`, `CudaGraphBufferRegistry`), say what runs (`StepSpec`), choose how it is
captured (`FullCapture`, `BreakableCapture`, `PiecewiseCapture`) and on what (`CudaBackend`, `TapeBackend`,
`EagerBackend`), and let a `GraphRunner` run it. `audit` proves that a replay reads what was declared. `docs/graph.md`
walks through it with examples that run.
"""

from playhead.errors import CaptureError, ConfigError, GraphError, SlotError
from playhead.graph.audit import Sample, SampledStep, audit
from playhead.graph.backends.base import Backend, Recording, record
from playhead.graph.backends.cuda import CudaBackend
from playhead.graph.backends.eager import EagerBackend
from playhead.graph.backends.tape import TapeBackend
from playhead.graph.breakable import BreakableCapture
from playhead.graph.breaks import BreakOp, InlineScope, Scope, Tensors, TensorSpec
from playhead.graph.bridges import BridgePool
from playhead.graph.capture import Capture, CapturedStep, Inputs, StepFn
from playhead.graph.copies import grouped_foreach_copy_
from playhead.graph.full import FullCapture
from playhead.graph.late import LateRegistry
from playhead.graph.outputs import Outputs, map_tensors, tensors_of
from playhead.graph.piecewise import PiecewiseCapture, as_traced, compiler_for, with_inductor
from playhead.graph.registry import CudaGraphBufferRegistry
from playhead.graph.report import Check, Finding, Report
from playhead.graph.runner import GraphRunner
from playhead.graph.shapes import Decision, Dispatcher, DispatchLimits, Reason, bucket_sizes
from playhead.graph.sharing import InputBufferPool
from playhead.graph.slots import Axis, Batch, FillContext, GraphSlot, IndexSpace, PaddingPolicy, SlotViews, host_vector
from playhead.graph.spec import CaptureReport, LivePlan, OwnedMemory, RunAxis, StepResult, StepSpec
from playhead.graph.split import CUT, SplitCapture, SplitRunner
from playhead.types import Mode

__all__ = [
    "CUT",
    "Axis",
    "Backend",
    "Batch",
    "BreakOp",
    "BreakableCapture",
    "BridgePool",
    "Capture",
    "CaptureError",
    "CaptureReport",
    "CapturedStep",
    "Check",
    "ConfigError",
    "CudaBackend",
    "CudaGraphBufferRegistry",
    "Decision",
    "DispatchLimits",
    "Dispatcher",
    "EagerBackend",
    "FillContext",
    "Finding",
    "FullCapture",
    "GraphError",
    "GraphRunner",
    "GraphSlot",
    "IndexSpace",
    "InlineScope",
    "InputBufferPool",
    "Inputs",
    "LateRegistry",
    "LivePlan",
    "Mode",
    "Outputs",
    "OwnedMemory",
    "PaddingPolicy",
    "PiecewiseCapture",
    "Reason",
    "Recording",
    "Report",
    "RunAxis",
    "Sample",
    "SampledStep",
    "Scope",
    "SlotError",
    "SlotViews",
    "SplitCapture",
    "SplitRunner",
    "StepFn",
    "StepResult",
    "StepSpec",
    "TapeBackend",
    "TensorSpec",
    "Tensors",
    "as_traced",
    "audit",
    "bucket_sizes",
    "compiler_for",
    "grouped_foreach_copy_",
    "host_vector",
    "map_tensors",
    "record",
    "tensors_of",
    "with_inductor",
]
