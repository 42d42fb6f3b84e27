"""How many programs share one request's keys in a decode step. No torch: the answer is fixed when a graph is captured.

Splits are cut from the keys a layer can see, so a window layer's number does not depend on the context. Lengths differ
from step to step and splits do not: the kernel spreads the keys there are over the splits there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

NUM_SMS = 132  # of an H100 or H200; on another chip the splits are as right and a little less fast
PROGRAMS_PER_SM = 3  # two blocks of keys and values in flight take 74 KiB of an SM's 228
SLOTS = NUM_SMS * PROGRAMS_PER_SM
SMALL_SLOTS = 2 * SLOTS  # for the programs of narrow heads in steps of many requests, which are half as large or less

# Enough waves that requests of unequal length even out, and little left over in the last one.
LEAST_WAVES = 1.5
LEAST_WAVES_OF_SMALL = 2  # for small programs, of which twice as many run at once: more than that many
LEAST_FILL = 0.85

# With this many splits each, unequal requests even out inside one wave, and a second wave would cost its latency. An SM
# then gets two programs: measured, a third saves less than it costs to merge its part.
ENOUGH_SPLITS = 32
SMALL_WAVE = 2 * NUM_SMS

PROGRAMS_PER_TOKEN = 8  # of a step with prompts

MIN_KEYS_PER_SPLIT = 32  # a block of the widest heads: with less, a program reads keys that others read too
MAX_SPLITS = 128

# Kv heads of all requests that nearly fill a device by themselves. Where each sees few keys, one program reads them all
# in long blocks: it is as soon done as several that merge.
MANY_KV_HEADS = 64
FEW_KEYS = 512

MANY_PROGRAMS = 256  # two for every multiprocessor, with a split each
WIDE_HEAD = 256  # dims of a head whose blocks of keys are so short that longer ones pay

# Where one kernel turns the newest token and attends: keys that a layer sees, and fewer heads of a kv head than these.
# With more keys, programs that start beside the projection crowd on few multiprocessors.
MOST_KEYS_TOGETHER = 16_384
MOST_HEADS_TOGETHER = 16

# Parts of one request's output that its reader merges. Each is a few loads of every program of the reader.
LEFT_OF_WIDE_HEADS = 16
LEFT_OF_NARROW_HEADS = 4
NARROW_HEAD = 64

# Parts are merged in steps, one after the other. The numbers of a step take 64 registers of each of 128 threads, which
# leaves room for the programs above. A group of splits takes this many steps, and so do all groups; programs of fewer
# threads take more steps, of fewer parts each.
MERGE_ELEMENTS = 8192
MERGE_STEPS = 2
# Each part of a step has code of its own. Small parts take more steps, which cost less than another group.
MERGE_PARTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeShape:
    """What the number of splits depends on beside the batch size. `max_keys` is the window or the longest context."""

    num_heads: int
    num_kv_heads: int
    v_head_dim: int
    max_keys: int

    @property
    def part_elements(self) -> int:
        """Numbers that one split leaves to merge, for the query heads of one kv head."""
        return self.num_heads // self.num_kv_heads * self.v_head_dim


class KeysPerSplit(NamedTuple):
    """How a kernel cuts a request's keys into splits, which may be fewer than there are.

    Merging costs more than a block of keys, and merging groups of splits as much again. So a request of at most `whole`
    keys is one split, others have at least `least` keys in each, and up to `few` splits these may grow to `most` keys.
    """

    whole: int
    least: int
    few: int
    most: int


def parts_left(shape: DecodeShape, num_requests: int) -> int:
    """How many parts of its output attention leaves to be merged by the product behind it; 0: it merges them itself.

    One request alone waits for the merge. Measured in steps of one request with 128 to 378 tokens: Gemma-3-1B 842 ->
    791 us, Llama-3.2-1B 772 -> 732, but Gemma-3-4B, which has several wide heads, 2,306 -> 2,390.
    """
    group, num_inputs = shape.num_heads // shape.num_kv_heads, shape.num_heads * shape.v_head_dim
    is_one_kernel = group < MOST_HEADS_TOGETHER and shape.max_keys <= MOST_KEYS_TOGETHER
    if num_requests > 1 or not is_one_kernel or num_inputs % merging_share(shape.v_head_dim):
        return 0
    most = 0
    if shape.v_head_dim == NARROW_HEAD:
        most = LEFT_OF_NARROW_HEADS
    elif shape.v_head_dim == WIDE_HEAD and shape.num_kv_heads == 1:
        most = LEFT_OF_WIDE_HEADS
    return min(most, num_splits(shape, num_requests))  # a program fills each part, with or without keys


def merging_share(head_dim: int) -> int:
    """Inputs of a program of the product that merges parts: one head of 256 dims, or eight of 64."""
    return 512 if head_dim == NARROW_HEAD else 256


def keys_per_split(
    programs_per_split: int, block_keys: int, part_elements: int, *, beside_prompts: bool = False
) -> KeysPerSplit:
    """For a step of `programs_per_split` = requests * kv heads: what was fastest on an H200, at head dims 64 to 256.

    One request of Gemma-3-1B: 200 keys are 7 splits, 1,000 are 16, and 8,000 are 125. 1,000 keys of each of 8 requests
    are 11 splits, of each of 32 requests 8. Where splits grow by a block their number falls, from 12 to 7 at 385 keys.
    Parts of 256 numbers, as Llama's, merge at little cost: as many splits as there are.
    """
    whole = (2 if programs_per_split <= 32 else 4) * block_keys
    if programs_per_split >= MANY_PROGRAMS:  # beside prompts, most have no work
        least = 256 if beside_prompts else 512
        return KeysPerSplit(whole=max(whole, least), least=least, few=MAX_SPLITS, most=1)
    least = 1 if programs_per_split <= 32 else 96
    if part_elements <= 256:
        return KeysPerSplit(whole=whole, least=least, few=MAX_SPLITS, most=1)
    if programs_per_split < 8:
        # As many as merge at once: 16 of Gemma-3-1B's, 32 of Gemma-3-4B's.
        few = merge_width(part_elements)
        return KeysPerSplit(whole=whole, least=least, few=few, most=64 if programs_per_split < 4 else 128)
    if MANY_KV_HEADS < programs_per_split <= NUM_SMS:  # as many splits as make one wave
        return KeysPerSplit(whole=whole, least=least, few=SLOTS // programs_per_split, most=384)
    few = 12 if programs_per_split < 32 else 8
    return KeysPerSplit(whole=whole, least=least, few=few, most=128)


def is_worth_an_order(shape: DecodeShape, num_requests: int) -> bool:
    """Whether the longest requests of a step are to start first: in steps of so many programs that some begin when
    others have ended. If a long request began last, the step would wait for it. Programs of wide heads are larger, so
    fewer run at once.
    """
    num_programs = num_requests * shape.num_kv_heads
    return num_programs > MANY_PROGRAMS or (shape.v_head_dim >= WIDE_HEAD and num_programs == MANY_PROGRAMS)


def num_splits(shape: DecodeShape, num_requests: int) -> int:
    """Splits for a batch: the fewest that make full waves of programs; where none do, those that come nearest.

    32 requests of Gemma-3-1B (one kv head) at 8192 keys: 22 splits, 704 programs, 89% of two waves. Eight requests: 33,
    two programs an SM. One request: 128, which merge as 8 groups of 16.

    Small programs that do not all run at once are one split, full waves or not. They start in an order, so the shortest
    requests fill what is left of the last wave; a second split of the longest would start behind them. 160 requests of
    Qwen3-0.6B of unequal lengths: 5,023 us in two splits, 4,892 in one.
    """
    if shape.v_head_dim < WIDE_HEAD and num_requests * shape.num_kv_heads > SMALL_SLOTS:
        return 1
    return _splits_of_waves(shape, num_requests)


def _splits_of_waves(shape: DecodeShape, num_requests: int) -> int:
    """The fewest splits that make full waves, or nearly."""
    programs_per_split = num_requests * shape.num_kv_heads
    if shape.v_head_dim >= WIDE_HEAD and shape.max_keys <= FEW_KEYS and programs_per_split > MANY_KV_HEADS:
        return 1
    width = merge_width(shape.part_elements)
    most = min(MAX_SPLITS, -(-shape.max_keys // MIN_KEYS_PER_SPLIT), width * width)
    in_one_wave = SMALL_WAVE // programs_per_split
    if in_one_wave >= ENOUGH_SPLITS:
        return min(most, in_one_wave)
    is_crowded = shape.v_head_dim < WIDE_HEAD and programs_per_split > SLOTS
    least_waves = LEAST_WAVES_OF_SMALL if is_crowded else LEAST_WAVES
    for count in range(1, most + 1):
        num_programs = programs_per_split * count
        if num_programs > least_waves * SLOTS and wave_fill(num_programs) >= LEAST_FILL:
            return count
    return max(range(1, most + 1), key=lambda count: wave_fill(programs_per_split * count))


def wave_fill(num_programs: int) -> float:
    """How much of its waves a launch uses: 0.97 for 768 programs, two waves of 396 places."""
    return num_programs / (-(-num_programs // SLOTS) * SLOTS)


def num_splits_beside_prompts(shape: DecodeShape, num_places: int, num_tokens: int | None = None) -> int:
    """Splits for requests that decode in a step over tokens, which has places for many more than mostly decode there.

    As many as for a quarter of the places: without splits the step would wait for its few requests. A thousand programs
    without a request cost 1 us, so there are no more than eight for each of the tokens. 256 places, Gemma-3-1B: 11
    splits.
    """
    splits = _splits_of_waves(shape, max(num_places // 4, 1))  # in no order, and most of these programs have no request
    if num_tokens is None:
        return splits
    return max(min(splits, PROGRAMS_PER_TOKEN * num_tokens // (num_places * shape.num_kv_heads)), 1)


def num_parts(shape: DecodeShape, num_requests: int, splits: int) -> int:
    """Partial results of one decode step, each `v_head_dim` numbers."""
    return num_requests * shape.num_heads * splits


def num_arrivals(shape: DecodeShape, num_requests: int, splits: int) -> int:
    """Counters of one decode step: for each block of query heads one per group of splits, and one for the groups.

    A program takes a block of heads; there are never more blocks than heads.
    """
    num_groups = -(-splits // splits_per_group(splits, shape.part_elements))
    return num_requests * shape.num_heads * (num_groups + 1)


def splits_per_group(num_splits: int, part_elements: int) -> int:
    """How many neighbouring splits merge first. 22 splits of which 16 fit a group are two groups of 11."""
    num_groups = -(-num_splits // merge_width(part_elements))
    return -(-num_splits // num_groups)


def merge_width(part_elements: int) -> int:
    """How many parts a group has: 16 of Gemma-3-1B's, four heads of 256 each, which merge in MERGE_STEPS."""
    return max(MERGE_STEPS * MERGE_ELEMENTS // part_elements, 2)
