"""A number for each page of a large pool."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt


def zeros_int32(count: int) -> memoryview[int]:
    """Zeros that read and write like a list's: four times faster than numpy's, entry by entry.

    The system makes the memory when it is touched. A small model on a large GPU has millions of pages, and writing
    their zeros would be a second of its start.
    """
    return np.zeros(4 * count, np.uint8).data.cast("i")


def zeros_int64(count: int) -> memoryview[int]:
    """The same with eight bytes each."""
    return np.zeros(8 * count, np.uint8).data.cast("q")


def as_int32(numbers: Collection[int]) -> npt.NDArray[np.int32]:
    """Numbers for numpy, which reads them in half the time if it is told how many there are."""
    return np.fromiter(numbers, dtype=np.int32, count=len(numbers))
