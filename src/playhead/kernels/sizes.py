"""Whole numbers of blocks. Triton has these functions too, but a call of Triton's takes 4 us on the host, because its
compiler can run them: they look for its constants among their arguments. Capturing all graphs calls them 95,000 times.
"""

from __future__ import annotations


def ceil_div(number: int, size: int) -> int:
    """How many blocks of a size hold a number of things: 3 of 4 for 9."""
    return -(-number // size)


def next_power_of_2(number: int) -> int:
    """The least power of two that is no less than a positive number: 16 for 9, and for 16."""
    return 1 << (number - 1).bit_length()
