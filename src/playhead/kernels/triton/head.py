# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernel of the head: tiles of the vocabulary times the rows, stored as logits, or each row's best id alone.

Stored logits and the scores of a choice are the same to the bit: both come from the same sums. A row's best key so far
(`choose.py`) is in `best`, and every tile raises it by an atomic maximum, which is the same in any order. The program
that finishes last makes tokens of the keys, and leaves `best` as it was.

Noise is dear: for 128 rows it would take longer than reading the weights. So a tile first asks which of its scores
could become the best with the noise they have at most, which is cheap. Few tiles have one, except the first.

Shapes: of a program N ids, K inputs of a block, R rows (padded). A tile of scores is [R, N], or [N, R] for few rows.
"""

from __future__ import annotations

import math
from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from playhead.kernels.head import NO_CAP
from playhead.kernels.sizes import ceil_div
from playhead.kernels.splits import NUM_SMS
from playhead.kernels.triton.arrivals import count_in
from playhead.kernels.triton.choose import GOLDEN, MOST_KEY, NO_KEY, gumbel, keys, mixed, token_of
from playhead.kernels.triton.dependent import after_upstream, dependent, let_downstream_start
from playhead.kernels.triton.head_tiles import HeadTiles, head_tiles
from playhead.kernels.triton.scores import capped

PER_DIGIT = tl.constexpr(-(2.0**-23) * math.log(2))
SLACK = tl.constexpr(1e-6)  # what a quotient may be off by: far more than it is
# The logarithm of 2^-32, the exponent's bias, and what sums may be off by.
MOST = tl.constexpr((32 + 127) * math.log(2) + 1e-3)
NO_ID = tl.constexpr(2**31 - 1)


@triton.jit
def _halves(tile, ID_AXIS: tl.constexpr):
    """A tile of scores cut in two along its ids."""
    if ID_AXIS == 1:
        cut = tl.permute(tl.reshape(tile, [tile.shape[0], 2, tile.shape[1] // 2]), 0, 2, 1)
    else:
        cut = tl.permute(tl.reshape(tile, [2, tile.shape[0] // 2, tile.shape[1]]), 1, 2, 0)
    return tl.split(cut)


@triton.jit
def most_noise(bits):
    """No less than the Gumbel number of the bits, for few instructions: -log(u) by a float's exponent and digits."""
    high = (bits >> 32).to(tl.uint32).to(tl.float32)
    return high.to(tl.int32, bitcast=True).to(tl.float32) * PER_DIGIT + MOST


@triton.jit
def _best_there(score, id_, ID_AXIS: tl.constexpr):
    """The best score of each row and the lowest id that has it."""
    top_R = tl.max(score, ID_AXIS)
    return top_R, tl.min(tl.where(score == tl.expand_dims(top_R, ID_AXIS), id_, NO_ID), ID_AXIS)


@triton.jit
def _best_key(
    key_R, score, first, num_ids, start_R, temperature_R, draws_R, DRAWS: tl.constexpr, ID_AXIS: tl.constexpr
):
    """The largest key of `key_R` and the ids from `first` on."""
    id_ = tl.expand_dims(first + tl.arange(0, score.shape[ID_AXIS]), 1 - ID_AXIS)
    score = tl.where((id_ < num_ids) & (score == score), score, float("-inf"))  # a NaN is never better
    if not DRAWS:
        top_R, id_R = _best_there(score, id_, ID_AXIS)
        return tl.maximum(key_R, keys(top_R, id_R))
    # Greedy rows have no noise, and nothing to round.
    noise_R = draws_R.to(tl.float32)
    least_R = (1.0 - SLACK * noise_R) / temperature_R
    most_R = (1.0 + SLACK * noise_R) / temperature_R
    most = tl.maximum(score * tl.expand_dims(least_R, ID_AXIS), score * tl.expand_dims(most_R, ID_AXIS))
    bits = mixed(tl.expand_dims(start_R, ID_AXIS) + id_.to(tl.uint64) * GOLDEN)
    most += tl.expand_dims(noise_R, ID_AXIS) * most_noise(bits)
    top_R, id_R = _best_there(most, id_, ID_AXIS)
    while tl.max((keys(top_R, id_R) > key_R).to(tl.int32), 0) > 0:
        is_it = id_ == tl.expand_dims(id_R, ID_AXIS)
        score_R = tl.max(tl.where(is_it, score, float("-inf")), ID_AXIS)
        drawn_R = tl.div_rn(score_R, temperature_R) + gumbel(mixed(start_R + id_R.to(tl.uint64) * GOLDEN))
        # Which changes nothing: the compiler fails at a loop whose condition alone reads what it carries.
        drawn_R = tl.minimum(drawn_R, top_R)
        key_R = tl.maximum(key_R, keys(tl.where(draws_R, drawn_R, score_R), id_R))
        most = tl.where(is_it, float("-inf"), most)
        top_R, id_R = _best_there(most, id_, ID_AXIS)
    return key_R


@triton.jit
def _best_key_by_halves(
    key_R, score, first, num_ids, start_R, temperature_R, draws_R, DRAWS: tl.constexpr, ID_AXIS: tl.constexpr
):
    """The same, one half of the ids after the other."""
    left, right = _halves(score, ID_AXIS)
    key_R = _best_key(key_R, left, first, num_ids, start_R, temperature_R, draws_R, DRAWS, ID_AXIS)
    first_right = first + left.shape[ID_AXIS]
    return _best_key(key_R, right, first_right, num_ids, start_R, temperature_R, draws_R, DRAWS, ID_AXIS)


@triton.jit
def _best_key_in_parts(
    key_R, score, first, num_ids, start_R, temperature_R, draws_R,
    DRAWS: tl.constexpr, PARTS: tl.constexpr, ID_AXIS: tl.constexpr,
):  # fmt: skip
    """The same, one of 1, 2 or 4 PARTS of the ids after the other."""
    if PARTS == 1:
        key_R = _best_key(key_R, score, first, num_ids, start_R, temperature_R, draws_R, DRAWS, ID_AXIS)
    elif PARTS == 2:
        key_R = _best_key_by_halves(key_R, score, first, num_ids, start_R, temperature_R, draws_R, DRAWS, ID_AXIS)
    else:
        left, right = _halves(score, ID_AXIS)
        key_R = _best_key_by_halves(key_R, left, first, num_ids, start_R, temperature_R, draws_R, DRAWS, ID_AXIS)
        first_right = first + left.shape[ID_AXIS]
        key_R = _best_key_by_halves(key_R, right, first_right, num_ids, start_R, temperature_R, draws_R, DRAWS, ID_AXIS)
    return key_R


@triton.jit
def _seen_keys(best, token_R, live_R, THREADS: tl.constexpr):
    """The best keys so far, while other programs raise them. All threads of a program see the same.

    A vector shorter than a program is loaded by several threads for each number, and they would find different keys:
    warps that loop a different number of times over the same tile wait for each other for ever. So every thread loads
    one key, and the largest of those of a row is the row's.
    """
    copy_1X = tl.zeros([1, max(THREADS // token_R.shape[0], 1)], tl.int32)
    # Rows past the last one have a key that no other beats: they cost no draws.
    key_RX = tl.load(best + (token_R[:, None] + copy_1X), mask=live_R[:, None], other=MOST_KEY, volatile=True)
    return tl.max(key_RX, 1)


@triton.jit
def _product(
    x, weight, tile, K, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    ID_AXIS: tl.constexpr,
):  # fmt: skip
    """A tile of sums. The copy engine fetches its factors, and zeros where there are none."""
    sums = tl.zeros([BLOCK_R, BLOCK_N] if ID_AXIS == 1 else [BLOCK_N, BLOCK_R], tl.float32)
    for k in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        weight_NK = weight.load([tile * BLOCK_N, k])
        x_RK = x.load([tl.program_id(1) * BLOCK_R, k])
        if ID_AXIS == 1:
            sums = tl.dot(x_RK, weight_NK.T, sums, input_precision="ieee")
        else:
            sums = tl.dot(weight_NK, x_RK.T, sums, input_precision="ieee")
    return sums


@triton.jit
def _store_tokens(tokens, best, arrival, token_R, live_R, num_programs):
    """Tokens of the best keys, by the program that finishes last."""
    if count_in(arrival, num_programs):
        key_R = tl.load(best + token_R, mask=live_R, other=NO_KEY, cache_modifier=".cg")
        tl.store(tokens + token_R, token_of(key_R), mask=live_R)
        tl.store(best + token_R, tl.full(token_R.shape, NO_KEY, tl.int64), mask=live_R)


@triton.jit(do_not_specialize=["num_rows"])  # one binary for every number of rows
def head_kernel(
    x, weight, logits, temperatures, seeds, positions, tokens, best, arrivals,
    logits_row, num_rows, num_ids, K, scale, cap, greedy_below,
    SCALES: tl.constexpr, CAPS: tl.constexpr, CHOOSES: tl.constexpr, DRAWS: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, PARTS: tl.constexpr,
    ID_AXIS: tl.constexpr, PERSISTS: tl.constexpr, THREADS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """BLOCK_R rows times every num_programs(0)-th tile of BLOCK_N ids. With PERSISTS these are several."""
    tl.assume(K > 0)
    after_upstream(DEPENDENT)
    token_R = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    live_R = token_R < num_rows
    temperature_R = tl.full([BLOCK_R], 1.0, tl.float32)
    draws_R = live_R
    start_R = token_R.to(tl.uint64)
    if DRAWS:
        temperature_R = tl.load(temperatures + token_R, mask=live_R, other=1.0)
        draws_R = temperature_R >= greedy_below
        temperature_R = tl.where(draws_R, temperature_R, 1.0)
        seed_R = tl.load(seeds + token_R, mask=live_R, other=0).to(tl.uint64)
        position_R = tl.load(positions + token_R, mask=live_R, other=0).to(tl.uint64)
        start_R = mixed(mixed(seed_R + GOLDEN) + position_R * GOLDEN)
    for tile in tl.range(
        tl.program_id(0), tl.cdiv(num_ids, BLOCK_N), tl.num_programs(0), flatten=PERSISTS,
        num_stages=STAGES if PERSISTS else None,
    ):  # fmt: skip
        sums = _product(x, weight, tile, K, BLOCK_R, BLOCK_N, BLOCK_K, STAGES, ID_AXIS)
        score = sums.to(weight.dtype).to(tl.float32)  # as the BLAS library stores a product
        if SCALES:
            score *= scale
        if CAPS:
            score = capped(score, cap)
        if CHOOSES:
            seen_R = _seen_keys(best, token_R, live_R, THREADS)
            key_R = _best_key_in_parts(
                seen_R, score, tile * BLOCK_N, num_ids, start_R, temperature_R, draws_R, DRAWS, PARTS, ID_AXIS
            )
            tl.atomic_max(best + token_R, key_R, mask=live_R & (key_R > seen_R), sem="relaxed")
        else:
            id_ = tl.expand_dims(tile * BLOCK_N + tl.arange(0, BLOCK_N), 1 - ID_AXIS)
            place = tl.expand_dims(token_R.to(tl.int64) * logits_row, ID_AXIS) + id_
            live = tl.expand_dims(live_R, ID_AXIS) & (id_ < num_ids)
            tl.store(logits + place, score.to(logits.dtype.element_ty), mask=live)
    let_downstream_start(DEPENDENT)
    if CHOOSES:
        _store_tokens(tokens, best, arrivals + tl.program_id(1), token_R, live_R, tl.num_programs(0))


def launch_head_logits(logits_NV: Tensor, h_NM: Tensor, weight_VM: Tensor, *numbers: float) -> None:
    launch_head(_tiles(h_NM, weight_VM), h_NM, weight_VM, *numbers, logits_NV=logits_NV)


def launch_head_tokens(h_NM: Tensor, weight_VM: Tensor, *rest: Any) -> None:
    launch_head(_tiles(h_NM, weight_VM), h_NM, weight_VM, *rest[:2], choice=rest[2:])


def launch_head(
    tiles: HeadTiles, h_NM: Tensor, weight_VM: Tensor, scale: float, cap: float,
    *, logits_NV: Tensor | None = None, choice: tuple[Any, ...] = (None,) * 6 + (0.0, False),
) -> None:  # fmt: skip
    """Cut as `tiles` say: logits if there is memory for them, else tokens. `choice` are the arguments of `head_tokens`
    behind the head's own.
    """
    (num_rows, width), num_ids = h_NM.shape, weight_VM.shape[0]
    *rows, greedy_below, draws = choice
    num_tiles = ceil_div(num_ids, tiles.block_n)
    num_programs = min(tiles.programs_per_sm * NUM_SMS or num_tiles, num_tiles)
    head_kernel[(num_programs, ceil_div(num_rows, tiles.block_r))](
        TensorDescriptor.from_tensor(h_NM, [tiles.block_r, tiles.block_k]),
        TensorDescriptor.from_tensor(weight_VM, [tiles.block_n, tiles.block_k]),
        logits_NV, *rows, 0 if logits_NV is None else logits_NV.stride(0),
        num_rows, num_ids, width, scale, cap, greedy_below,
        SCALES=scale != 1.0, CAPS=cap != NO_CAP, CHOOSES=logits_NV is None, DRAWS=draws,
        BLOCK_R=tiles.block_r, BLOCK_N=tiles.block_n, BLOCK_K=tiles.block_k, STAGES=tiles.num_stages,
        PARTS=tiles.num_parts if draws else 1, ID_AXIS=int(tiles.rows_first), PERSISTS=num_programs < num_tiles,
        THREADS=32 * tiles.num_warps,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages, **dependent(h_NM),
    )  # fmt: skip


def _tiles(h_NM: Tensor, weight_VM: Tensor) -> HeadTiles:
    tiles = head_tiles(h_NM, weight_VM)
    assert tiles is not None, "callers ask `can_choose`"
    return tiles
