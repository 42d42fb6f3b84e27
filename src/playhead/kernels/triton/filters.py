# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernel of `least_keys`: one program per row, which finds the key without sorting the row.

A pass over the row takes the largest logit of each lane. At least k lanes reach the k-th of these maxima, so at least
k logits do, and hardly more: they are gathered from these lanes alone, and the program compares the key of each with
all others. Where too many reach that guess (a large k, a flat distribution, many equal logits), further passes quarter
the range in which the logit must lie until the logits in it can be gathered, or are all equal.

Both filters look for the same thing: the largest key such that the tokens that reach it hold a target, where a token
holds 1 for top-k and its weight for top-p.

Shapes: J lanes of a block of logits, C candidates.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from playhead.kernels import filters
from playhead.kernels.triton.choose import MOST_KEY, NO_KEY, keys, load_block, logit_of, ordered, token_of

LOG2_E = tl.constexpr(filters.LOG2_E)
EVERY_KEY = tl.constexpr(filters.EVERY_KEY)
LAST_ID = tl.constexpr(filters.LAST_ID)
WEIGHT_SCALE = tl.constexpr(filters.WEIGHT_SCALE)
WEIGHTLESS = tl.constexpr(43.0)  # so many powers of two below the best logit a weight is 0
LOWEST = tl.constexpr(-3.4028234663852886e38)  # of finite logits

LANES = 4096
CANDIDATES = 512
NUM_WARPS = 16
GUESS_STEPS = tl.constexpr(12)  # more would leave out a candidate or two
LINEAR_STEPS = tl.constexpr(8)
UNROLL = tl.constexpr(4)  # blocks on their way at once
BF16_GRAIN = 1 << 16  # so far apart, or further, are two different bf16 numbers in the order of `ordered`


@triton.jit
def weights(logit, best, per_logit):
    """`integer_weights`."""
    return (tl.exp2((logit - best) * per_logit) * WEIGHT_SCALE).to(tl.int64)


@triton.jit
def lane_maxima(row_logits, VOCAB: tl.constexpr, BLOCK_J: tl.constexpr):
    """Of the logits at j, j + BLOCK_J, j + 2 * BLOCK_J, ... the largest, for every j."""
    id_J = tl.arange(0, BLOCK_J)
    most_J = tl.full([BLOCK_J], float("-inf"), tl.float32)
    for start in tl.range(0, VOCAB, BLOCK_J, loop_unroll_factor=UNROLL):
        logit_J = load_block(row_logits, start + id_J, True, VOCAB).to(tl.float32)
        most_J = tl.where(logit_J > most_J, logit_J, most_J)  # a NaN is never more
    return most_J


@triton.jit
def guessed(most_J, best, rank):
    """A logit that at least `rank` lanes reach, and hardly more; the lowest one if fewer lanes have any."""
    low = tl.min(tl.where(most_J > float("-inf"), most_J, float("inf")), 0)
    is_enough = tl.sum((most_J >= low).to(tl.int32), 0) >= rank
    high = best
    for _ in range(GUESS_STEPS):
        middle = low + (high - low) * 0.5
        if tl.sum((most_J >= middle).to(tl.int32), 0) >= rank:
            low = middle
        else:
            high = middle
    return tl.where(is_enough, low, LOWEST)


@triton.jit
def weight_from(row_logits, least_key, best, per_logit, VOCAB: tl.constexpr, BLOCK_J: tl.constexpr):
    """What the tokens that reach a key weigh."""
    id_J = tl.arange(0, BLOCK_J)
    weight_J = tl.zeros([BLOCK_J], tl.int64)
    least_logit, last_id = logit_of(least_key >> 32), token_of(least_key)
    for start in tl.range(0, VOCAB, BLOCK_J, loop_unroll_factor=UNROLL):
        logit_J = load_block(row_logits, start + id_J, True, VOCAB).to(tl.float32)
        reaches_J = (logit_J > least_logit) | ((logit_J == least_logit) & (start + id_J <= last_id))
        weight_J += weights(tl.where(reaches_J, logit_J, float("-inf")), best, per_logit)
    return tl.sum(weight_J, 0)


@triton.jit
def reach(
    row_logits, first, second, third, best, per_logit,
    BY_WEIGHT: tl.constexpr, VOCAB: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """How many logits reach each of three rising bounds, and what they hold."""
    id_J, none_J = tl.arange(0, BLOCK_J), tl.zeros([BLOCK_J], tl.int64)
    held_1_J, held_2_J, held_3_J = none_J, none_J, none_J
    num_1_J, num_2_J, num_3_J = none_J.to(tl.int32), none_J.to(tl.int32), none_J.to(tl.int32)
    ahead_J = load_block(row_logits, id_J, True, VOCAB)
    for start in range(0, VOCAB, BLOCK_J):
        logit_J = ahead_J.to(tl.float32)
        ahead_J = load_block(row_logits, start + BLOCK_J + id_J, True, VOCAB)
        reaches_1_J, reaches_2_J, reaches_3_J = logit_J >= first, logit_J >= second, logit_J >= third
        num_1_J += reaches_1_J.to(tl.int32)
        num_2_J += reaches_2_J.to(tl.int32)
        num_3_J += reaches_3_J.to(tl.int32)
        if BY_WEIGHT:
            weight_J = weights(tl.where(reaches_1_J, logit_J, float("-inf")), best, per_logit)
            held_1_J += weight_J
            held_2_J += tl.where(reaches_2_J, weight_J, 0)
            held_3_J += tl.where(reaches_3_J, weight_J, 0)
    num_1, num_2, num_3 = (
        tl.sum(num_1_J, 0).to(tl.int64), tl.sum(num_2_J, 0).to(tl.int64), tl.sum(num_3_J, 0).to(tl.int64)
    )  # fmt: skip
    held_1, held_2, held_3 = num_1, num_2, num_3
    if BY_WEIGHT:
        held_1, held_2, held_3 = tl.sum(held_1_J, 0), tl.sum(held_2_J, 0), tl.sum(held_3_J, 0)
    return num_1, num_2, num_3, held_1, held_2, held_3


@triton.jit
def narrowed(
    row_logits, low, high, num_above, above, target, best, per_logit,
    BY_WEIGHT: tl.constexpr, VOCAB: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_C: tl.constexpr, GRAIN: tl.constexpr,
):  # fmt: skip
    """The range [low, high) of the logit that is looked for, in the order of `ordered`, with at most `BLOCK_C` in it.

    Or as long as `GRAIN`: then all logits in it are equal. Gives how many they are and what the logits above it hold.
    """
    num_from = tl.full([], VOCAB, tl.int64)
    step = tl.full([], 0, tl.int32)
    while (num_from - num_above > BLOCK_C) & (high - low > GRAIN):
        quarter = (high - low) >> 2
        first, second, third = low + quarter, low + 2 * quarter, low + 3 * quarter
        # Quarters of the distance follow the logits; those of the order end after 16 steps whatever the logits are.
        if step < LINEAR_STEPS:
            least, distance = logit_of(low), logit_of(high - 1) - logit_of(low)
            first, second = ordered(least + distance * 0.25), ordered(least + distance * 0.5)
            third = ordered(least + distance * 0.75)
        first = tl.minimum(tl.maximum(first, low + 1), high - 1)
        second = tl.minimum(tl.maximum(second, first), high - 1)
        third = tl.minimum(tl.maximum(third, second), high - 1)
        num_1, num_2, num_3, held_1, held_2, held_3 = reach(
            row_logits, logit_of(first), logit_of(second), logit_of(third), best, per_logit,
            BY_WEIGHT, VOCAB, BLOCK_J,
        )  # fmt: skip
        if held_3 >= target:
            low, num_from = third, num_3
        elif held_2 >= target:
            low, num_from, high, num_above, above = second, num_2, third, num_3, held_3
        elif held_1 >= target:
            low, num_from, high, num_above, above = first, num_1, second, num_2, held_2
        else:
            high, num_above, above = first, num_1, held_1
        step += 1
    return low, high, num_from - num_above, above


@triton.jit
def counted(counter, is_in_J, BLOCK_J: tl.constexpr):
    """A place of its own for each lane that is in, in any order."""
    return tl.atomic_add(counter + tl.zeros([BLOCK_J], tl.int32), 1, mask=is_in_J, sem="relaxed", scope="cta")


@triton.jit
def restart(counter):
    tl.debug_barrier()  # what was counted and stored before has been read
    tl.store(counter, 0)
    tl.debug_barrier()


@triton.jit
def count_of(counter):
    tl.debug_barrier()
    return tl.load(counter, cache_modifier=".cg")


@triton.jit
def gather_lanes(most_J, counter, lanes, guess, BLOCK_J: tl.constexpr, BLOCK_C: tl.constexpr):
    """Writes which lanes reach the guess, and says how many they are; the first ones fit."""
    restart(counter)
    reaches_J = most_J >= guess
    place_J = counted(counter, reaches_J, BLOCK_J)
    tl.store(lanes + place_J, tl.arange(0, BLOCK_J), mask=reaches_J & (place_J < BLOCK_C))
    return count_of(counter)


@triton.jit
def gather(
    row_logits, room, counter, lanes, num_lanes, low, high,
    OF_LANES: tl.constexpr, VOCAB: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Writes the keys of the logits of [low, high) into `room`, in any order, and says how many; the first ones fit.

    They are looked for in the whole row, or in the lanes that were gathered.
    """
    restart(counter)
    least, most = logit_of(low), logit_of(high - 1)
    num_blocks: tl.constexpr = (VOCAB + BLOCK_J - 1) // BLOCK_J
    num_looked_at = num_lanes * num_blocks if OF_LANES else VOCAB
    for start in range(0, num_looked_at, BLOCK_J):
        id_J = start + tl.arange(0, BLOCK_J)
        if OF_LANES:
            lane_J = tl.load(lanes + id_J // num_blocks, mask=id_J < num_looked_at, other=VOCAB, cache_modifier=".cg")
            id_J = lane_J + id_J % num_blocks * BLOCK_J
        logit_J = load_block(row_logits, id_J, True, VOCAB).to(tl.float32)
        is_in_J = (logit_J >= least) & (logit_J <= most)
        place_J = counted(counter, is_in_J, BLOCK_J)
        tl.store(room + place_J, keys(logit_J, id_J), mask=is_in_J & (place_J < BLOCK_C))
    return count_of(counter)


@triton.jit
def load_candidates(room, num, BLOCK_C: tl.constexpr):
    place_C = tl.arange(0, BLOCK_C)
    return tl.load(room + place_C, mask=place_C < num, other=NO_KEY)


@triton.jit
def least_kept(room, num, above, target, best, per_logit, BY_WEIGHT: tl.constexpr, BLOCK_C: tl.constexpr):
    """The least candidate such that the tokens above it hold less than the target; less than any if all do."""
    key_C = load_candidates(room, num, BLOCK_C)
    above_C = tl.zeros([BLOCK_C], tl.int64) + above
    for place in tl.range(0, num, loop_unroll_factor=8):
        key = tl.load(room + place)
        held = weights(logit_of(key >> 32), best, per_logit) if BY_WEIGHT else 1
        above_C += tl.where(key > key_C, held, 0)
    return tl.min(tl.where(above_C < target, key_C, MOST_KEY), 0)


@triton.jit
def most_in(row_logits, low, high, VOCAB: tl.constexpr, BLOCK_J: tl.constexpr):
    """The largest logit in [low, high)."""
    id_J = tl.arange(0, BLOCK_J)
    least, most = logit_of(low), logit_of(high - 1)
    most_J = tl.full([BLOCK_J], float("-inf"), tl.float32)
    for start in range(0, VOCAB, BLOCK_J):
        logit_J = load_block(row_logits, start + id_J, True, VOCAB).to(tl.float32)
        is_in_J = (logit_J >= least) & (logit_J <= most)
        most_J = tl.where(is_in_J & (logit_J > most_J), logit_J, most_J)
    return tl.max(most_J, 0)


@triton.jit
def key_of_tie(row_logits, low, high, rank, VOCAB: tl.constexpr, BLOCK_J: tl.constexpr):
    """The key of the logits in [low, high), which are all equal, that has so many of them up to its id."""
    id_J = tl.arange(0, BLOCK_J)
    least, most = logit_of(low), logit_of(high - 1)
    num_before, found = tl.full([], 0, tl.int64), tl.full([], NO_KEY, tl.int64)
    for start in range(0, VOCAB, BLOCK_J):
        logit_J = load_block(row_logits, start + id_J, True, VOCAB).to(tl.float32)
        is_in_J = (logit_J >= least) & (logit_J <= most)
        num = tl.sum(is_in_J.to(tl.int32), 0)
        if (num_before < rank) & (num_before + num >= rank):
            is_last_J = is_in_J & (num_before + tl.cumsum(is_in_J.to(tl.int32), 0) == rank)
            found = tl.max(tl.where(is_last_J, keys(logit_J, start + id_J), NO_KEY), 0)
        num_before += num
    return found


@triton.jit
def searched(
    row_logits, room, counter, low, high, num_above, above, target, best, per_logit,
    BY_WEIGHT: tl.constexpr, VOCAB: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_C: tl.constexpr, GRAIN: tl.constexpr,
):  # fmt: skip
    """The least key of a target, whose logit is within [low, high), by as many passes as it takes."""
    low, high, most, above = narrowed(
        row_logits, low, high, num_above, above, target, best, per_logit,
        BY_WEIGHT, VOCAB, BLOCK_J, BLOCK_C, GRAIN,
    )  # fmt: skip
    if most <= BLOCK_C:
        num = gather(row_logits, room, counter, counter, 0, low, high, False, VOCAB, BLOCK_J, BLOCK_C)
        key = least_kept(room, num, above, target, best, per_logit, BY_WEIGHT, BLOCK_C)
    else:
        rank = target - above
        if BY_WEIGHT:
            held = weights(most_in(row_logits, low, high, VOCAB, BLOCK_J), best, per_logit)
            rank = (rank + held - 1) // held
        key = key_of_tie(row_logits, low, high, rank, VOCAB, BLOCK_J)
    return key


@triton.jit
def least_key_of(
    row_logits, room, counter, lanes, most_J, best, per_logit, by_min_p, top_k, top_p, has_k, has_p,
    VOCAB: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_C: tl.constexpr, GRAIN: tl.constexpr,
):  # fmt: skip
    """The least key that top-k and then top-p keep of the tokens that reach the key of min-p."""
    # Without top-k: as many as p tends to leave, or more.
    guess = guessed(most_J, best, tl.where(has_k, tl.minimum(top_k, BLOCK_J), BLOCK_C // 2))
    end = ordered(best) + 1
    num = gather_lanes(most_J, counter, lanes, guess, BLOCK_J, BLOCK_C)
    fits = num <= BLOCK_C
    if fits:
        num = gather(row_logits, room, counter, lanes, num, ordered(guess), end, True, VOCAB, BLOCK_J, BLOCK_C)
        fits = num <= BLOCK_C
    none = tl.full([], 0, tl.int64)

    key = by_min_p
    if has_k:
        if fits:
            key = least_kept(room, num, none, top_k, best, per_logit, False, BLOCK_C)
        else:
            low = ordered(tl.where(top_k <= BLOCK_J, guess, LOWEST))
            key = searched(
                row_logits, room, counter, low, end, none, none, top_k, best, per_logit,
                False, VOCAB, BLOCK_J, BLOCK_C, GRAIN,
            )  # fmt: skip
        key = tl.maximum(key, by_min_p)
    if has_p:
        held = none
        if fits:
            key_C = load_candidates(room, num, BLOCK_C)
            logit_C = tl.where(key_C >= key, logit_of(key_C >> 32), float("-inf"))
            held = tl.sum(weights(logit_C, best, per_logit), 0)
        total = held
        if (fits & has_k) == 0:
            total = weight_from(row_logits, key, best, per_logit, VOCAB, BLOCK_J)
        target = tl.maximum((top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64), 1)
        if fits & (held >= target):
            key = least_kept(room, num, none, target, best, per_logit, True, BLOCK_C)
        else:
            lowest = tl.maximum(best - WEIGHTLESS / per_logit, LOWEST)
            low = tl.maximum(key >> 32, ordered(lowest))
            high, num_above = end, none
            if fits:
                high, num_above = ordered(guess), num.to(tl.int64)
            key = searched(
                row_logits, room, counter, low, high, num_above, held, target, best, per_logit,
                True, VOCAB, BLOCK_J, BLOCK_C, GRAIN,
            )  # fmt: skip
    return key


@triton.jit
def least_keys_kernel(
    logits, temperatures, top_ks, top_ps, log_min_ps, least_keys, candidates, lanes, logits_stride, greedy_below,
    VOCAB: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_C: tl.constexpr, GRAIN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    temperature, top_k = tl.load(temperatures + row), tl.load(top_ks + row)
    top_p, log_min_p = tl.load(top_ps + row), tl.load(log_min_ps + row)
    has_k, has_p, has_min_p = (top_k > 0) & (top_k < VOCAB), top_p < 1.0, log_min_p > float("-inf")
    key = tl.full([], EVERY_KEY, tl.int64)
    if (temperature >= greedy_below) & (has_k | has_p | has_min_p):
        row_logits = logits + row.to(tl.int64) * logits_stride
        most_J = lane_maxima(row_logits, VOCAB, BLOCK_J)
        best = tl.max(most_J, 0)
        is_finite = (best > float("-inf")) & (best < float("inf"))
        if is_finite & has_min_p:
            # The product is rounded before it is added, as the reference's is.
            below = (temperature.to(tl.float64) * log_min_p.to(tl.float64)).to(tl.float32)
            key = tl.maximum(key, keys(best + below, LAST_ID))
        if is_finite & (has_k | has_p):
            per_logit = tl.div_rn(LOG2_E, temperature)
            row_lanes = lanes + row * (1 + BLOCK_C)
            key = least_key_of(
                row_logits, candidates + row * BLOCK_C, row_lanes, row_lanes + 1, most_J, best, per_logit, key,
                top_k, top_p, has_k, has_p, VOCAB, BLOCK_J, BLOCK_C, GRAIN,
            )  # fmt: skip
    tl.store(least_keys + row, key)


def launch_least_keys(
    *call: Any, lanes: int = LANES, candidates: int = CANDIDATES, num_warps: int = NUM_WARPS
) -> torch.Tensor:
    logits_NV, *numbers, greedy_below = call
    num_rows, vocab_size = logits_NV.shape
    least_keys_N = torch.empty(num_rows, dtype=torch.int64, device=logits_NV.device)
    candidates_NC = torch.empty((num_rows, candidates), dtype=torch.int64, device=logits_NV.device)
    lanes_NX = logits_NV.new_empty((num_rows, 1 + candidates), dtype=torch.int32)  # a count, then lanes
    least_keys_kernel[(num_rows,)](
        logits_NV, *numbers, least_keys_N, candidates_NC, lanes_NX, logits_NV.stride(0), greedy_below,
        VOCAB=vocab_size, BLOCK_J=lanes, BLOCK_C=candidates,
        GRAIN=BF16_GRAIN if logits_NV.dtype is torch.bfloat16 else 1, num_warps=num_warps,
    )  # fmt: skip
    return least_keys_N
