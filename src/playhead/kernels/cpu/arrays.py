"""Arguments of ops as numpy sees them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy.typing as npt
import torch

Array = npt.NDArray[Any]


def as_arrays(args: Iterable[Any]) -> list[Any]:
    """An op's arguments in their order, tensors as arrays over the same memory."""
    return [arg.numpy() if isinstance(arg, torch.Tensor) else arg for arg in args]
