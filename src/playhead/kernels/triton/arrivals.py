# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""How programs of one launch find out which of them finishes last. No program waits for another."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def count_in(arrival, num_programs):
    """True in the program that finishes last, which then sees what the others stored; the count starts over."""
    # One thread counts for all: none may still have its part in flight.
    tl.debug_barrier()
    is_last = tl.atomic_add(arrival, 1, sem="acq_rel", scope="gpu") == num_programs - 1
    if is_last:
        tl.store(arrival, 0)
    return is_last
