"""What a step gives back: tensors in any nesting, and plain values beside them.

A replay refreshes the tensors. Plain values (None, numbers, strings, enums) stay those of the capture: Python does not
run again. Every backend and every capture treats outputs by these functions, so they cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from operator import attrgetter
from typing import Any

import torch
from torch.utils._pytree import tree_map

from playhead.errors import CaptureError

Outputs = Any  # a tensor or a plain value, or a tuple, list, dict or dataclass of such

PLAIN = (type(None), bool, int, float, complex, str, bytes, Enum)


def map_tensors(fn: Callable[[torch.Tensor], torch.Tensor], output: Outputs) -> Outputs:
    """The same structure with `fn` applied to every tensor. What could hide a tensor from us is refused."""

    def visit(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return fn(leaf)
        if is_dataclass(leaf) and not isinstance(leaf, type):
            names = [field.name for field in fields(leaf) if field.init]
            return replace(leaf, **{name: map_tensors(fn, attrgetter(name)(leaf)) for name in names})
        if isinstance(leaf, PLAIN):
            return leaf
        kind = "number that depends on the rows" if isinstance(leaf, torch.SymInt) else type(leaf).__name__
        raise CaptureError(
            "output",
            "the step's return",
            f"a {kind} can be neither replayed nor cut to the live rows",
            "Return tensors, None, numbers and strings, in tuples, lists, dicts or dataclasses.",
        )

    return tree_map(visit, output)


def tensors_of(output: Outputs) -> list[torch.Tensor]:
    """All tensors of an output, in order."""
    found: list[torch.Tensor] = []

    def take(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(take, output)
    return found


def with_tensors(output: Outputs, tensors: list[torch.Tensor]) -> Outputs:
    """The same structure with other tensors, in the order of `tensors_of`."""
    given = iter(tensors)
    return map_tensors(lambda _: next(given), output)
