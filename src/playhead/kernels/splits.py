"""How many programs share one request's keys in a decode step. No torch: the answer is fixed when a graph is captured.

Splits are cut from the keys a layer can see, so a window layer's number does not depend on the context. Lengths differ
from step to step and splits do not: the kernel spreads the keys there are over the splits there are.
"""

from __future__ import annotations

from dataclasses import dataclass

NUM_SMS = 132  # of an H100 or H200; on another chip the splits are as right and a little less fast
PROGRAMS_PER_SM = 3  # two blocks of keys and values in flight take 74 KiB of an SM's 228
SLOTS = NUM_SMS * PROGRAMS_PER_SM

# Enough waves that requests of unequal length even out, and little left over in the last one.
LEAST_WAVES = 1.5
LEAST_FILL = 0.85

MIN_KEYS_PER_SPLIT = 64  # below this a program's start costs more than its share of the keys
MAX_SPLITS = 64

# The last program to finish merges all parts of its heads in steps of this many numbers, one step after the other. They
# take 64 registers of each of 128 threads, which leaves room for the programs above.
MERGE_ELEMENTS = 8192
MAX_MERGE_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeShape:
    """What the number of splits depends on beside the batch size. `max_keys` is the window or the longest context."""

    num_heads: int
    num_kv_heads: int
    v_head_dim: int
    max_keys: int


def num_splits(shape: DecodeShape, num_requests: int) -> int:
    """Splits for a batch: the fewest that make full waves of programs; where none do, those that come nearest.

    32 requests of Gemma-3-1B (one kv head) at 8192 keys: 22 splits, 704 programs, 89% of two waves. One request: 32,
    because merging more would take longer than they save.
    """
    most = min(MAX_SPLITS, -(-shape.max_keys // MIN_KEYS_PER_SPLIT), _most_to_merge(shape))
    programs_per_split = num_requests * shape.num_kv_heads
    for count in range(1, most + 1):
        num_programs = programs_per_split * count
        if num_programs >= LEAST_WAVES * SLOTS and wave_fill(num_programs) >= LEAST_FILL:
            return count
    return max(range(1, most + 1), key=lambda count: wave_fill(programs_per_split * count))


def wave_fill(num_programs: int) -> float:
    """How much of its waves a launch uses: 0.97 for 768 programs, two waves of 396 places."""
    return num_programs / (-(-num_programs // SLOTS) * SLOTS)


def num_parts(shape: DecodeShape, num_requests: int) -> int:
    """Partial results of one decode step, each `v_head_dim` numbers."""
    return num_requests * shape.num_heads * num_splits(shape, num_requests)


def _most_to_merge(shape: DecodeShape) -> int:
    heads_per_program = shape.num_heads // shape.num_kv_heads
    return max(1, MAX_MERGE_STEPS * MERGE_ELEMENTS // (heads_per_program * shape.v_head_dim))
