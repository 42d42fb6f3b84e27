"""Ops of the CPU whose arguments can be bound: what depends on addresses and shapes is worked out once, by whoever will
run the same call many times.

A torch op costs several microseconds before it does anything, and a view of its memory another; at a decode step's
sizes that is most of it. Kernels say here how their ops are bound, and the tape, which repeats calls, asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Does what the op does, with the values its memory has by then.
Work = Callable[[], None]
Bind = Callable[..., Work]

# Written while modules of kernels are imported, as torch's own table of ops is.
_BINDS: dict[object, Bind] = {}


def register_bind(op: object, bind: Bind) -> None:
    """`bind(*args)` gives the work of `op(*args)`; the op writes into its arguments and returns nothing."""
    _BINDS[op] = bind


def bound(op: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Work | None:
    """The work of one call; None for ops that only torch can call."""
    bind = _BINDS.get(op)
    return None if bind is None else bind(*args, **kwargs)
