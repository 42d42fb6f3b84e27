"""numpy without warnings, for the length of a call."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from typing import Any, TypeVar

import numpy as np

R = TypeVar("R")


def quietly(work: Callable[..., R], *args: Any) -> R:
    """Do the work in a context of its own, where numpy says nothing about numbers that overflow or are none.

    With `np.errstate` an interrupt between the work and the end of its block would leave the caller's numpy silent.
    """
    return copy_context().run(_do, work, args)


def _do(work: Callable[..., R], args: tuple[Any, ...]) -> R:
    np.seterr(all="ignore")
    return work(*args)
