"""Places where captured work stops, something runs live, and captured work goes on.

A break is declared: its inputs and outputs are tensors with one row per token, kept in bridge buffers that are sized
for the largest bucket and shared by all. Captured work writes the inputs and reads the outputs; the live part reads
and writes the same addresses. Nothing refers into a graph's private memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from uuid import uuid4

import torch

from playhead.errors import CaptureError

Tensors = tuple[torch.Tensor, ...]
Direction = Literal["in", "out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Shape and dtype of a break's output; the first dimension is the rows."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def like(cls, tensor: torch.Tensor) -> TensorSpec:
        return cls(shape=tuple(tensor.shape), dtype=tensor.dtype)


RunBreak = Callable[[Any, Tensors, Tensors, int], None]
OutputSpecs = Callable[[Tensors], Sequence[TensorSpec]]


class BreakOp:
    """A declared break: `run(live, inputs, outputs, site)` writes all rows of its outputs that the step uses.

    `live` is what this step alone knows (an attention plan, say); `site` tells the calls of one forward apart: the
    layer's index, for a break that every layer has. `name` is a torch op name, 'library::op': piecewise capture leaves
    the break in a traced graph under it.
    """

    def __init__(self, name: str, *, run: RunBreak, outputs: OutputSpecs) -> None:
        self.name, self.run, self.output_specs = name, run, outputs

        # Two models of one process may each have a break of this name; torch's list of ops is global.
        @torch.library.custom_op(f"{name}_{uuid4().hex}", mutates_args=())
        def traced(inputs: list[torch.Tensor], site: int) -> list[torch.Tensor]:
            raise CaptureError(name, f"site {site}", "a traced break was run", "Run it through a scope.")

        def traced_fake(inputs: list[torch.Tensor], site: int) -> list[torch.Tensor]:
            return [inputs[0].new_empty(spec.shape, dtype=spec.dtype) for spec in outputs(tuple(inputs))]

        traced.register_fake(traced_fake)
        self.traced: Callable[[list[torch.Tensor], int], list[torch.Tensor]] = traced
        self.traced_target = traced._opoverload


class Scope(Protocol):
    """How a callable reaches its breaks, whichever way it is being run."""

    def call(self, op: BreakOp, *inputs: torch.Tensor, site: int) -> Tensors: ...

    def bridge(self, op: BreakOp, position: int, spec: TensorSpec, like: torch.Tensor) -> torch.Tensor:
        """Memory for an input of the next `call`, on the device of `like`. An input computed into it is not copied."""

    def share_memory(self) -> None:
        """The callable says that it reads nothing of a break after the break's next call. A capture with segments
        refuses a callable that does; others believe it, and give all calls of a break from here on the same memory.
        """


class InlineScope:
    """Breaks run in place: eager work, warm-up, and full captures, whose graphs then contain them."""

    def __init__(self, live: Any) -> None:
        self._live = live
        self._shared: dict[tuple[BreakOp, Direction, int, TensorSpec], torch.Tensor] | None = None

    def call(self, op: BreakOp, *inputs: torch.Tensor, site: int) -> Tensors:
        specs = op.output_specs(inputs)
        outputs = tuple([self._memory(op, "out", i, spec, inputs[0]) for i, spec in enumerate(specs)])
        op.run(self._live, inputs, outputs, site)
        return outputs

    def bridge(self, op: BreakOp, position: int, spec: TensorSpec, like: torch.Tensor) -> torch.Tensor:
        return self._memory(op, "in", position, spec, like)

    def share_memory(self) -> None:
        self._shared = {}

    def _memory(
        self, op: BreakOp, direction: Direction, position: int, spec: TensorSpec, like: torch.Tensor
    ) -> torch.Tensor:
        shared = {} if self._shared is None else self._shared
        key = (op, direction, position, spec)
        if key not in shared:
            shared[key] = like.new_empty(spec.shape, dtype=spec.dtype)
        return shared[key]
