"""Ops that can write their result where it is wanted: a replay that uses them makes nothing and copies nothing."""

from __future__ import annotations

from typing import Any

import torch

from playhead.graph.op_facts import Op


def out_variant(func: Op) -> tuple[Op, tuple[str, ...]] | None:
    """The overload of an aten op that takes the same arguments and its outputs besides, and their names.

    `aten::mm` gives `aten::mm.out` and ("out",); `aten::topk` the one with ("values", "indices"). None for custom ops,
    for ops that mutate, and where torch has no such overload.
    """
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten" or func._schema.is_mutable:
        return None
    wanted = [(argument.name, str(argument.type)) for argument in func._schema.arguments]
    for name in func.overloadpacket.overloads():
        # torch hands out overloads by attribute, under names that are only known here.
        candidate = getattr(func.overloadpacket, name)
        outputs = tuple(argument.name for argument in candidate._schema.arguments if argument.is_out)
        inputs = [(a.name, str(a.type)) for a in candidate._schema.arguments if not a.is_out]
        if len(outputs) == len(func._schema.returns) and inputs == wanted:
            return candidate, outputs
    return None


def bind_outputs(names: tuple[str, ...], fresh: tuple[torch.Tensor | None, ...]) -> dict[str, Any] | None:
    """Keyword arguments that send a call's results into the recorded tensors; None if one of them is an alias."""
    if len(names) != len(fresh) or any(tensor is None for tensor in fresh):
        return None
    return dict(zip(names, fresh, strict=True))
