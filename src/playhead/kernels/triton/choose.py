# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernel of `choose_tokens` and `choose_keys`: a row's ids are cut into parts, a program each.

The program that finishes last takes the best of all parts.

A program keeps the best score and its id in every lane. At its end a score and its id become one 64-bit integer that
orders as they do, so the best of all parts is a maximum of integers: the same in any order and however the row was cut.

Shapes: J ids of a block, X parts of a row.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from playhead.kernels import tokens
from playhead.kernels.sizes import ceil_div, next_power_of_2
from playhead.kernels.triton.arrivals import count_in
from playhead.kernels.triton.dependent import after_upstream, dependent, let_downstream_start

GOLDEN = tl.constexpr(tokens.GOLDEN % 2**64)
MIX_1 = tl.constexpr(tokens.MIX_1 % 2**64)
MIX_2 = tl.constexpr(tokens.MIX_2 % 2**64)
UNIFORM_BITS = tl.constexpr(tokens.UNIFORM_BITS)
BELOW_ONE = tl.constexpr(tokens.BELOW_ONE)
UNIT = tl.constexpr(2.0**-tokens.UNIFORM_BITS)

NO_KEY = tl.constexpr(tokens.NO_KEY)
MOST_KEY = tl.constexpr(2**63 - 1)  # above it


@triton.jit
def mixed(bits):
    """splitmix64's mixing. The numbers are unsigned, so shifts fill with zeros."""
    bits = (bits ^ (bits >> 30)) * MIX_1
    bits = (bits ^ (bits >> 27)) * MIX_2
    return bits ^ (bits >> 31)


@triton.jit
def gumbel(bits):
    """The standard Gumbel number of mixed bits.

    log(1 - u) alone would be 0 for the small u that decide a draw. Kahan: the rounding of 1 - u is known exactly, and
    log x / (x - 1) barely changes over it.
    """
    u = tl.minimum(((bits >> (64 - UNIFORM_BITS)).to(tl.float32) + 0.5) * UNIT, BELOW_ONE)
    rest = 1.0 - u
    lost = 1.0 - rest
    exponential = tl.where(lost > 0.0, -tl.log(rest) * (u / tl.where(lost > 0.0, lost, 1.0)), u)
    return -tl.log(exponential)


@triton.jit
def ordered(score):
    """32-bit integers in the order of the scores. They are 64 bits wide, so that sums of two do not overflow."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)  # -0.0 becomes 0.0: they are equal
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)  # as integers, negative floats run backwards


@triton.jit
def logit_of(order):
    """The number at a place of `ordered`."""
    order = order.to(tl.int32)
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def keys(score, token):
    """Integers in the order of the scores, equal scores by lower id first."""
    return (ordered(score) << 32) | (token ^ 0x7FFFFFFF)


@triton.jit
def token_of(key):
    """The id in a key."""
    return (key & 0x7FFFFFFF) ^ 0x7FFFFFFF


@triton.jit
def load_block(row_logits, id_J, wanted, VOCAB: tl.constexpr):
    return tl.load(row_logits + id_J, mask=(id_J < VOCAB) & wanted, other=float("-inf"))


@triton.jit
def _store_best(best, row, key, KEYS: tl.constexpr):
    tl.store(best + row, key if KEYS else token_of(key))


@triton.jit(do_not_specialize=["first_id", "num_blocks"])  # one binary must serve all ranks and all batches
def choose_kernel(
    logits, least_keys, temperatures, seeds, positions, best, parts, arrivals, logits_stride, parts_stride,
    first_id, greedy_below, num_blocks,
    VOCAB: tl.constexpr, DRAWS: tl.constexpr, KEYS: tl.constexpr,
    BLOCK_J: tl.constexpr, BLOCK_X: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The best of VOCAB ids from `first_id` on, for each row: the id, or its key with KEYS."""
    let_downstream_start(DEPENDENT)
    after_upstream(DEPENDENT)
    part = tl.program_id(0)
    row = tl.program_id(1)
    first = part * num_blocks
    row_logits = logits + row.to(tl.int64) * logits_stride
    best_J = tl.full([BLOCK_J], float("-inf"), tl.float32)
    best_id_J = first * BLOCK_J + tl.arange(0, BLOCK_J)
    if least_keys is not None:
        least_key = tl.load(least_keys + row)
        least_logit, last_id = logit_of(least_key >> 32), token_of(least_key)
    if DRAWS:
        temperature = tl.load(temperatures + row)
        seed = tl.load(seeds + row).to(tl.uint64)
        position = tl.load(positions + row).to(tl.uint64)
        start = mixed(mixed(seed + GOLDEN) + position * GOLDEN)
    last = tl.minimum(first + num_blocks, tl.cdiv(VOCAB, BLOCK_J))
    id_J = best_id_J
    ahead_J = load_block(row_logits, id_J, True, VOCAB)
    for block in range(first, last):
        # One block ahead: otherwise a program has nothing in flight while it computes.
        score_J = ahead_J.to(tl.float32)
        ahead_J = load_block(row_logits, id_J + BLOCK_J, block + 1 < last, VOCAB)
        if least_keys is not None:
            is_kept_J = (score_J > least_logit) | ((score_J == least_logit) & (id_J <= last_id))
        if DRAWS:
            draws = temperature >= greedy_below
            if least_keys is not None:
                draws = draws & (tl.max(is_kept_J.to(tl.int32), 0) > 0)  # most blocks keep nothing, and noise is dear
            if draws:
                score_J = tl.div_rn(score_J, temperature) + gumbel(
                    mixed(start + (id_J + first_id).to(tl.uint64) * GOLDEN)
                )
        if least_keys is not None:  # not before: infinite numbers are divided slowly
            score_J = tl.where(is_kept_J, score_J, float("-inf"))
        # A NaN is never better; ids grow, so the first of equals stays.
        better_J = score_J > best_J
        best_J = tl.where(better_J, score_J, best_J)
        best_id_J = tl.where(better_J, id_J, best_id_J)
        id_J += BLOCK_J
    key = tl.max(keys(best_J, best_id_J + first_id), 0)
    num_parts = tl.num_programs(0)
    if num_parts > 1:
        row_parts = parts + row * parts_stride
        tl.store(row_parts + part, key)
        if count_in(arrivals + row, num_parts):
            part_X = tl.arange(0, BLOCK_X)
            key_X = tl.load(row_parts + part_X, mask=part_X < num_parts, other=NO_KEY, cache_modifier=".cg")
            _store_best(best, row, tl.max(key_X, 0), KEYS)
    else:
        _store_best(best, row, key, KEYS)


def launch_choose_tokens(*call: Any, num_blocks: int | None = None) -> None:
    *tensors, greedy_below, draws = call
    _launch(*tensors, 0, greedy_below, draws, gives_keys=False, num_blocks=num_blocks)


def launch_choose_keys(*call: Any) -> None:
    logits_NV, *rest = call
    _launch(logits_NV, None, *rest, gives_keys=True)


def _launch(*call: Any, gives_keys: bool, num_blocks: int | None = None) -> None:
    logits_NV, *rows, parts_RX, arrivals_R, first_id, greedy_below, draws = call
    num_rows, vocab_size = logits_NV.shape
    max_parts = ceil_div(vocab_size, tokens.IDS_PER_BLOCK)
    num_blocks = num_blocks or tokens.blocks_per_part(num_rows, vocab_size)
    choose_kernel[(ceil_div(max_parts, num_blocks), num_rows)](
        logits_NV, *rows, parts_RX, arrivals_R, logits_NV.stride(0), parts_RX.stride(0),
        first_id, greedy_below, num_blocks, VOCAB=vocab_size, DRAWS=draws, KEYS=gives_keys,
        BLOCK_J=tokens.IDS_PER_BLOCK, BLOCK_X=next_power_of_2(max_parts),
        num_warps=tokens.IDS_PER_BLOCK * logits_NV.element_size() // 512, **dependent(logits_NV),
    )  # fmt: skip
