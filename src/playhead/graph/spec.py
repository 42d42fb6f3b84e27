"""What a runner is given and what it gives back: a step's callable with what it touches, and a step's result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch

from playhead.errors import ConfigError
from playhead.graph.capture import Inputs, StepFn
from playhead.graph.outputs import Outputs, map_tensors
from playhead.graph.shapes import Decision
from playhead.graph.slots import Batch, FillContext

RunAxis = Literal["bs", "tokens"]


class LivePlan(Protocol):
    """What one step knows beyond its slots. A full graph reads these tensors, so their addresses may not change."""

    def tensors(self) -> tuple[torch.Tensor, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedMemory:
    """Memory captured work may read, and write if `writable`: weights, KV pools, declared workspaces.

    What padded rows write goes into the first `sink_rows` rows; comparisons leave them out.
    """

    name: str
    tensors: tuple[torch.Tensor, ...]
    writable: bool = False
    sink_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """What a runner runs.

    `plan` makes the live values from the batch, after the fill, for every capture, replay and eager run alike.
    `placeholder` is the batch a capture runs on: well-formed requests whose every index is the sink.
    """

    name: str
    axis: RunAxis
    fn: StepFn
    plan: Callable[[Batch, FillContext, Inputs], LivePlan | None]
    placeholder: Callable[[FillContext], Batch]
    owned: tuple[OwnedMemory, ...] = ()
    num_tokens_per_bs: int = 1
    """Tokens of every request of a step over requests: more than one where a draft is verified."""
    output_axis: RunAxis = "tokens"
    """What the rows of a step over tokens are that it gives: its tokens, or its requests."""

    def __post_init__(self) -> None:
        if self.num_tokens_per_bs < 1 or (self.axis == "tokens" and self.num_tokens_per_bs != 1):
            raise ConfigError(
                f"{self.name}: num_tokens_per_bs is {self.num_tokens_per_bs} on axis {self.axis!r}; wanted at least 1 "
                "on axis 'bs'. A step over tokens gives each request any number."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureReport:
    """One captured size, as told to the progress callback."""

    size: int
    seconds: float
    num_bytes: int
    num_nodes: int
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The live rows of a step's output, and how it ran.

    **The output is the graph's memory.** The next step through the same graph overwrites it, and so may a step of
    another size, because graphs share their memory. Use it before the next step, or take `cloned()`.
    """

    output: Outputs
    decision: Decision

    def cloned(self) -> StepResult:
        """The same with tensors of its own, which no later step changes."""
        return replace(self, output=map_tensors(torch.clone, self.output))
