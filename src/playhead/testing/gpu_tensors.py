"""Tensors of a GPU that have no numbers: what a step would ask of one, on a machine that has none.

An op that finds a tensor of the host beside one of the GPU raises, and so does a look at a number on the host, which a
captured graph could not hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.overrides import TorchFunctionMode

from playhead.kv.tables import Int32Array
from playhead.step import outbox
from playhead.testing.mutant import Patch, swapped

GPU = torch.device("cuda", 0)


@contextmanager
def gpu_without_numbers() -> Iterator[None]:
    """In here tensors on `GPU` can be made and computed with; they have shapes, types and a device."""
    with FakeTensorMode(allow_non_fake_inputs=True), WithoutDriver(), without_pinned_memory(), torch.no_grad():
        yield


@contextmanager
def gpu_with_open_rows(num_rows: int) -> Iterator[Any]:
    """The same with a row count that is a symbol, as a trace for all sizes has it. A step that fixes it is found so."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    open_size: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    rows = mode.from_tensor(torch.empty(num_rows), symbolic_context=open_size)
    with mode, WithoutDriver(), without_pinned_memory(), torch.no_grad():
        yield rows.shape[0]


def without_pinned_memory() -> Patch:
    """What host and device both see are two memories: nobody writes either."""

    def apart(shape: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, Int32Array]:
        return torch.empty(shape, dtype=torch.int32, device=device), np.zeros(shape, dtype=np.int32)

    return swapped(outbox, "seen_by_both", apart)


class WithoutDriver(TorchFunctionMode):
    """Brackets, `copy_` and `contiguous` as the ops they stand for: torch's own way to those wants a driver."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            tensor, places = taken(*args)
            return torch.ops.aten.index.Tensor(tensor, places) if places else tensor
        if func is torch.Tensor.__setitem__:
            tensor, index, value = args
            tensor, places = taken(tensor, index)
            value = value if isinstance(value, torch.Tensor) else tensor.new_full((), value)
            return tensor.index_put_(places, value) if places else torch.ops.aten.copy_.default(tensor, value)
        if func is torch.Tensor.copy_:
            return torch.ops.aten.copy_.default(*args, **(kwargs or {}))
        if func is torch.Tensor.contiguous:
            return args[0] if args[0].is_contiguous() else args[0].clone(memory_format=torch.contiguous_format)
        return func(*args, **(kwargs or {}))


def taken(tensor: torch.Tensor, index: Any) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """The view that numbers and slices of an index make, and the tensors among them, each at its axis."""
    ones = list(index) if isinstance(index, tuple) else [index]
    num_axes = sum(one is not None and one is not Ellipsis for one in ones)
    if any(one is Ellipsis for one in ones):
        at = next(i for i, one in enumerate(ones) if one is Ellipsis)
        ones[at : at + 1] = [slice(None)] * (tensor.dim() - num_axes)
    places: list[torch.Tensor | None] = []
    axis = 0
    for one in ones:
        if isinstance(one, int):
            tensor = tensor.select(axis, one)
            continue
        if one is None:
            tensor = tensor.unsqueeze(axis)
        elif isinstance(one, slice):
            tensor = torch.ops.aten.slice.Tensor(tensor, axis, one.start, one.stop, one.step or 1)
        else:
            places += [None] * (axis - len(places)) + [one]
        axis += 1
    return tensor, places
