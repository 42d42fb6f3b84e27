"""Where weights come from: named tensors with known shapes, read one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from playhead.layers.blocks import Blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """What a source promises about a tensor before it is read. `num_bytes` is what reading it moves."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A tensor's indices [start, stop) along one axis."""

    axis: int
    start: int
    stop: int

    @property
    def index(self) -> tuple[slice, ...]:
        """What to put in brackets after a tensor to have this part of it."""
        return (*(slice(None),) * self.axis, slice(self.start, self.stop))


class TensorSource(Protocol):
    """Named tensors. `tensors` is in the order that reads fastest."""

    @property
    def label(self) -> str:
        """What to call it in a message."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def read(self, name: str, part: Part | None = None) -> torch.Tensor:
        """The tensor or a part of it on the host, of the promised dtype. It may be the source's own memory."""

    def blocks(self, name: str, part: Part | None = None) -> Blocks | None:
        """The small integers that the tensor, or rows of it, are stored as; None if they are stored otherwise."""


class InMemoryTensors:
    """Weights that are already tensors: another model's state dict, say."""

    label = "tensors in memory"

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = dict(tensors)
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(shape=tuple(t.shape), dtype=t.dtype, num_bytes=t.numel() * t.element_size())
            for name, t in tensors.items()
        }

    def read(self, name: str, part: Part | None = None) -> torch.Tensor:
        return self._tensors[name] if part is None else self._tensors[name][part.index]

    def blocks(self, name: str, part: Part | None = None) -> None:
        """Tensors in memory are plain."""
