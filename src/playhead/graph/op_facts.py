"""What an op's schema and tags say, worked out once: a capture asks for every one of its thousands of ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

Op = Callable[..., Any]
PLAIN = frozenset({int, float, bool, str, type(None)})  # types of most arguments that are no tensors

# Collectives of torch.distributed. They give their result through objects that no op's schema shows.
COLLECTIVES = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "symm_mem::")
# Memory without contents: a replay has nothing to redo.
UNINITIALISED = ("aten::empty.", "aten::empty_like.", "aten::empty_strided.", "aten::new_empty.")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFacts:
    """One overload. `refusal` says why no graph can have it and what to do instead; None if a graph can."""

    name: str
    written: tuple[tuple[int, str], ...]
    """Position and name of each argument that the op writes."""
    refusal: tuple[str, str] | None
    takes_indices: bool
    may_move: bool
    """Whether the op may take data to the device in its argument `device`."""
    makes_memory: bool
    """Whether the op gives memory without contents, and does nothing else."""

    def written_among(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors of a call that the schema declares as mutated."""
        given = (args[i] if i < len(args) else kwargs.get(name) for i, name in self.written)
        return split_leaves(given)[0]


@cache
def facts_of(func: Op) -> OpFacts:
    """The facts of an op as the dispatcher hands it out, such as torch.ops.aten.mm.default."""
    name, takes_indices = op_name(func), op_name(func).startswith(("aten::index.", "aten::index_put"))
    arguments = enumerate(func._schema.arguments)  # type: ignore[attr-defined]
    written = tuple((i, one.name) for i, one in arguments if one.alias_info is not None and one.alias_info.is_write)
    return OpFacts(
        name=name,
        written=written,
        refusal=_refusal(name, func.tags, takes_indices=takes_indices),  # type: ignore[attr-defined]
        takes_indices=takes_indices,
        may_move=name.startswith("aten::_to_copy"),
        makes_memory=name.startswith(UNINITIALISED) and not written,
    )


def _refusal(name: str, tags: Iterable[torch.Tag], *, takes_indices: bool) -> tuple[str, str] | None:
    if torch.Tag.data_dependent_output in tags:
        return "the host waits for a tensor's value", "Keep it in a tensor, or make it a slot."
    # An index has a fixed shape unless it is a mask, which only the call can tell.
    if torch.Tag.dynamic_output_shape in tags and not takes_indices:
        return "the shape of its result depends on data", "Compute a fixed shape and mask it."
    if name.startswith("aten::lift_fresh"):
        return "a host constant would be baked into the graph", "Make it a slot or a buffer."
    if name.startswith(COLLECTIVES):
        return "a replay would not wait for the other processes", "Put it into an op that says what it writes."
    return None


def op_name(func: Op) -> str:
    """'aten::mm.default' for torch.ops.aten.mm.default."""
    overload: str = func._overloadname  # type: ignore[attr-defined]
    return f"{func._schema.name}.{overload}"  # type: ignore[attr-defined]


def tensors_in(value: object) -> list[torch.Tensor]:
    """The tensors of an op's arguments or results: one alone, or those in tuples, lists and dicts."""
    return [value] if isinstance(value, torch.Tensor) else split_leaves((value,))[0]


def split_leaves(values: Iterable[object]) -> tuple[list[torch.Tensor], list[object]]:
    """The tensors among values and in their tuples, lists and dicts, in order; then everything that is no tensor.

    A plain loop, because torch's pytree took two thirds of a capture's time.
    """
    tensors: list[torch.Tensor] = []
    others: list[object] = []
    for value in values:
        if type(value) in PLAIN:
            others.append(value)
        elif isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (tuple, list, dict)):
            inner = split_leaves(value.values() if isinstance(value, dict) else value)
            tensors += inner[0]
            others += inner[1]
        else:
            others.append(value)
    return tensors, others
