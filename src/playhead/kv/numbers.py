"""A number for each page of a large pool."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number", bound=np.generic)


def zeros_int32(count: int) -> memoryview[int]:
    """Zeros that read and write like a list's: four times faster than numpy's, entry by entry.

    The system makes the memory when it is touched. A small model on a large GPU has millions of pages, and writing
    their zeros would be a second of its start.
    """
    return np.zeros(4 * count, np.uint8).data.cast("i")


def zeros_int64(count: int) -> memoryview[int]:
    """The same with eight bytes each."""
    return np.zeros(8 * count, np.uint8).data.cast("q")


def pairs_of(pairs: Collection[tuple[int, int]], dtype: type[Number]) -> npt.NDArray[Number]:
    """A row for each pair. Of a list of tuples numpy makes them in more than twice the time."""
    return np.fromiter(chain.from_iterable(pairs), dtype, 2 * len(pairs)).reshape(-1, 2)
