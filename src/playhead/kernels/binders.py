"""The ops that a tape repeats without torch."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from playhead.kernels.op import Bind, Op

DECLARING = (
    *("attention", "blocks", "collectives", "cpu.attention", "elementwise", "experts", "filters", "head"),
    *("masks", "norm", "ordered", "projection", "rope", "tokens", "translate", "vocabulary"),
)
"""Every module that declares ops."""
MODULES: tuple[ModuleType, ...] = tuple(import_module(f"playhead.kernels.{name}") for name in DECLARING)


def cpu_binders() -> dict[Any, Bind]:
    """How the ops of `MODULES` are bound, by torch's overload: what the tape of a CPU is given."""
    return {op.overload: op.bind for module in MODULES for op in ops_of(module) if op.bind is not None}


def ops_of(module: ModuleType) -> Iterator[Op[..., Any]]:
    """The ops that a module declares, twins included."""
    for value in vars(module).values():
        if isinstance(value, Op):
            yield value
            if value.into is not None:
                yield value.into
