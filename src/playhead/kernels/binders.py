"""The ops that a tape repeats without torch."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from playhead.kernels import (
    attention,
    blocks,
    elementwise,
    experts,
    filters,
    masks,
    norm,
    ordered,
    rope,
    tokens,
    translate,
)
from playhead.kernels.cpu import attention as cpu_attention
from playhead.kernels.op import Bind, Op

# Every module that declares ops.
MODULES = (
    *(attention, blocks, elementwise, experts, filters, masks, norm, ordered, rope, tokens, translate),
    cpu_attention,
)


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
