"""Gluon kernels on a CPU, one program after the other: what Triton's interpreter does for Triton's kernels.

A Gluon kernel says itself when it waits for what in shared memory. So that is what the interpreter watches. It is
stricter than the compiler, which adds barriers and fences of its own.

A copy lands when a program waits for it, and no earlier; until then its place holds NaN, and nothing else may be
written there. A matrix instruction may read a place that was waited for, fenced, and behind a barrier. A place that it
has read may be written behind the next barrier. Else a `SharedMemoryError` says which rule was broken.

Layouts decide where numbers are and not which: they are ignored. Numbers are float64, and integers int64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from triton.runtime.jit import KernelInterface

Numbers = npt.NDArray[Any]


class SharedMemoryError(Exception):
    """A program read or wrote a place of shared memory too early."""


class Stage(IntEnum):
    """How far a number of shared memory is on its way to a matrix instruction."""

    EMPTY = 0
    ON_ITS_WAY = 1
    LANDED = 2
    FENCED = 3
    VISIBLE = 4


class Tile(np.ndarray[Any, Any]):
    """Numbers of a program. There are no others to convert them to."""

    def to(self, dtype: object) -> Tile:
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """Places in a tensor's memory, counted from its first number."""

    memory: Numbers
    places: Numbers

    @classmethod
    def to(cls, tensor: torch.Tensor) -> Pointer:
        whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
        return cls(memory=whole.numpy(), places=np.asarray(tensor.storage_offset()))

    @property
    def dtype(self) -> SimpleNamespace:
        return SimpleNamespace(element_ty=None)

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(memory=self.memory, places=self.places + np.asarray(offset))

    def load(self, mask: Any = None) -> Numbers:
        """The numbers there; zeros where the mask says no."""
        places, live = np.broadcast_arrays(self.places, True if mask is None else mask)
        self._check(places[live])
        found = np.zeros(places.shape)
        found[live] = self.memory[places[live]]
        return found.view(Tile)

    def store(self, values: Any, mask: Any = None) -> None:
        places, numbers, live = np.broadcast_arrays(self.places, values, True if mask is None else mask)
        self._check(places[live])
        self.memory[places[live]] = numbers[live]

    def _check(self, places: Numbers) -> None:
        if places.size and not 0 <= places.min() <= places.max() < len(self.memory):
            raise IndexError(
                f"found places {places.min()} to {places.max()}; the memory has {len(self.memory)} numbers"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A view of shared memory: its numbers, how far each of them is, and which a matrix instruction may still read."""

    values: Numbers
    stages: Numbers
    are_read: Numbers

    @classmethod
    def of(cls, shape: Sequence[int]) -> Shared:
        full = np.full(shape, np.nan)
        return cls(values=full, stages=np.zeros(shape, np.int8), are_read=np.zeros(shape, bool))

    def viewed(self, view: Callable[[Numbers], Numbers]) -> Shared:
        return Shared(values=view(self.values), stages=view(self.stages), are_read=view(self.are_read))

    def index(self, place: int) -> Shared:
        return self.viewed(lambda array: array[place])

    def slice(self, start: int, length: int, dim: int = 0) -> Shared:
        return self.viewed(lambda array: np.swapaxes(np.swapaxes(array, 0, dim)[start : start + length], 0, dim))

    def permute(self, order: Sequence[int]) -> Shared:
        return self.viewed(lambda array: array.transpose(order))

    def store(self, values: Numbers) -> None:
        """From registers, at once. Matrix instructions see it behind a fence and a barrier, as they see a copy."""
        self.begin_write()
        self.values[...] = values
        self.stages[...] = Stage.LANDED

    def begin_write(self) -> None:
        if self.are_read.any():
            raise SharedMemoryError("a block is written while other warps may still multiply by it")
        if (self.stages == Stage.ON_ITS_WAY).any():
            raise SharedMemoryError("a block is written while a copy to its place is on its way")
        self.values[...] = np.nan
        self.stages[...] = Stage.ON_ITS_WAY

    def read(self) -> Numbers:
        early = Stage(int(self.stages.min()))
        if early is not Stage.VISIBLE:
            raise SharedMemoryError(f"a block is multiplied by that is {early.name.lower().replace('_', ' ')}")
        self.are_read[...] = True
        return self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program of a launch: its ids, its shared memory, and copies on their way, in groups, the oldest first."""

    ids: tuple[int, ...]
    allocated: list[Shared] = field(default_factory=list)
    groups: list[list[tuple[Shared, Numbers]]] = field(default_factory=lambda: [[]])

    def allocate(self, dtype: object, shape: Sequence[int], layout: object) -> Shared:
        self.allocated.append(Shared.of(shape))
        return self.allocated[-1]

    def copy(self, place: Shared, source: Pointer, mask: Any = None) -> None:
        place.begin_write()
        self.groups[-1].append((place, source.load(mask)))

    def commit(self) -> None:
        self.groups.append([])

    def wait(self, num_outstanding: int) -> None:
        if num_outstanding < 0:
            raise ValueError(f"{num_outstanding} groups of copies cannot be on their way")
        while len(self.groups) - 1 > num_outstanding:
            for place, numbers in self.groups.pop(0):
                place.values[...] = numbers
                place.stages[...] = Stage.LANDED

    def fence(self) -> None:
        self._advance(Stage.LANDED, Stage.FENCED)

    def barrier(self) -> None:
        self._advance(Stage.FENCED, Stage.VISIBLE)
        for shared in self.allocated:
            shared.are_read[...] = False

    def _advance(self, start: Stage, end: Stage) -> None:
        for shared in self.allocated:
            shared.stages[shared.stages == start] = end

    @property
    def words(self) -> dict[str, Any]:
        """What kernels and their functions call, by the names under which they import it."""
        elementwise = {"minimum": np.minimum, "maximum": np.maximum, "sigmoid": lambda x: 1 / (1 + np.exp(-x))}
        gluon = SimpleNamespace(
            **elementwise,
            program_id=lambda axis: self.ids[axis],
            arange=lambda start, end, layout=None: np.arange(start, end).view(Tile),
            zeros=lambda shape, dtype, layout=None: np.zeros(shape).view(Tile),
            load=lambda pointer, mask=None: pointer.load(mask),
            store=lambda pointer, values, mask=None: pointer.store(values, mask),
            reshape=np.reshape,
            permute=np.transpose,
            split=lambda values: (values[..., 0], values[..., 1]),
            convert_layout=lambda values, layout: values,
            allocate_shared_memory=self.allocate,
            static_range=range,
            static_assert=_static_assert,
            int64=None,
            float32=None,
            **dict.fromkeys(LAYOUTS, lambda *numbers, **named: None),
        )
        copies = SimpleNamespace(async_copy_global_to_shared=self.copy, commit_group=self.commit, wait_group=self.wait)
        triton = SimpleNamespace(**elementwise, debug_barrier=self.barrier)
        return {
            "gl": gluon,
            "tl": triton,
            "async_copy": copies,
            "fence_async_shared": self.fence,
            "warpgroup_mma": lambda a, b, sums: sums + a.read() @ b.read(),
        }


def _static_assert(condition: bool, message: str = "") -> None:
    assert condition, message


LAYOUTS = ("BlockedLayout", "SliceLayout", "NVMMASharedLayout", "NVMMADistributedLayout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreted:
    """A Gluon kernel that is launched like the compiled one, over CPU tensors of float32 or float64."""

    kernel: Any

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **named: Any) -> None:
            given = dict(zip(self.kernel.arg_names, args, strict=False)) | named
            values = [given[name] for name in self.kernel.arg_names]
            values = [Pointer.to(value) if isinstance(value, torch.Tensor) else value for value in values]
            for ids in itertools.product(*map(range, grid)):
                program = Program(ids=ids)
                with np.errstate(over="ignore", invalid="ignore"):  # padded rows may hold anything
                    rewritten(self.kernel, program.words)(*values)

        return launch


def rewritten(kernel: Any, words: dict[str, Any]) -> Callable[..., Any]:
    """The Python function of a kernel, and those of the functions that it calls, with these words in place of Gluon."""
    function = kernel.fn if isinstance(kernel, KernelInterface) else kernel
    names = dict(function.__globals__)
    called = {name: names[name] for name in function.__code__.co_names if name in names and name not in words}
    names |= words | {
        name: rewritten(value, words)
        for name, value in called.items()
        if isinstance(value, KernelInterface | FunctionType)
    }
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__)
