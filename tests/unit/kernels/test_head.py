"""The kernel that multiplies by the vocabulary and chooses tokens, interpreted, against its references."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from playhead.kernels.head import NO_CAP, can_choose, head_logits, head_scratch, head_tokens
from playhead.kernels.tokens import choose_scratch, choose_tokens
from playhead.kernels.triton.choose import gumbel
from playhead.kernels.triton.head import launch_head, most_noise
from playhead.kernels.triton.head_tiles import HeadTiles, head_tiles
from playhead.testing.gpu_tensors import GPU, gpu_without_numbers

GREEDY_BELOW = 1e-5
NUM_IDS, WIDTH = 70, 48
FEW = HeadTiles(block_r=4, block_n=16, block_k=32, num_stages=2)
TILES = {
    "ids first": FEW,
    "rows first": replace(FEW, rows_first=True),
    "two parts": replace(FEW, num_parts=2),
    "four parts, rows first": replace(FEW, rows_first=True, num_parts=4),
}
BY_TILES = pytest.mark.parametrize("tiles", TILES.values(), ids=TILES)
NUMBERS = pytest.mark.parametrize(("scale", "cap"), [(1.0, NO_CAP), (0.0625, NO_CAP), (0.5, 3.0)])


def rows_and_matrix(num_rows, seed=0):
    """Neither fills its tiles."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, WIDTH, generator=rng), torch.randn(NUM_IDS, WIDTH, generator=rng)


def logits_of(tiles, h, weight, scale=1.0, cap=NO_CAP):
    logits = torch.full((len(h), len(weight)), math.nan)
    launch_head(tiles, h, weight, scale, cap, logits_NV=logits)
    return logits


def numbers_of(num_rows, seed=0):
    """Temperatures of every kind, seeds and positions."""
    temperatures = torch.tensor([0.0, 0.7, 30.0, 1.0, 1e-4, 9e-6])[:num_rows]
    seeds = torch.randint(-(2**63), 2**63 - 1, (num_rows,), generator=torch.Generator().manual_seed(seed))
    return temperatures, seeds, torch.arange(num_rows)


def tokens_of(tiles, h, weight, numbers, *, scale=1.0, cap=NO_CAP, draws=True):
    num_rows = len(h)
    found, best = torch.full((num_rows,), -1), head_scratch(8)
    arrivals = torch.zeros(8, dtype=torch.int32)
    choice = (*numbers, found, best, arrivals, GREEDY_BELOW, draws)
    with np.errstate(invalid="ignore"):  # of the interpreter, for NaN and infinity
        launch_head(tiles, h, weight, scale, cap, choice=choice)
    assert not arrivals.any(), "arrivals are left zeroed for the next launch"
    assert torch.equal(best, head_scratch(8)), "no key is left for the next launch"
    return found.tolist()


def chosen_from(logits, numbers, *, draws=True):
    found = torch.full((len(logits),), -1)
    choose_tokens(logits, None, *numbers, found, *choose_scratch(*logits.shape), GREEDY_BELOW, draws)
    return found.tolist()


@BY_TILES
@NUMBERS
def test_logits_agree_with_reference(tiles, scale, cap):
    h, weight = rows_and_matrix(5)
    wanted = torch.empty(5, NUM_IDS)
    head_logits.reference(wanted, h, weight, scale, cap)
    torch.testing.assert_close(logits_of(tiles, h, weight, scale, cap), wanted)


@BY_TILES
@pytest.mark.parametrize("draws", [False, True])
def test_tokens_are_those_chosen_from_the_logits_that_the_same_tiles_store(tiles, draws):
    for seed in range(2):
        h, weight = rows_and_matrix(6, seed)
        numbers = numbers_of(6, seed)
        wanted = chosen_from(logits_of(tiles, h, weight), numbers, draws=draws)
        assert tokens_of(tiles, h, weight, numbers, draws=draws) == wanted


@NUMBERS
def test_scale_and_cap_are_in_the_choice(scale, cap):
    h, weight = rows_and_matrix(3)
    numbers = (torch.tensor([0.5, 1.0, 2.0]), *numbers_of(3)[1:])
    wanted = chosen_from(logits_of(FEW, h, weight, scale, cap), numbers)
    assert tokens_of(FEW, h, weight, numbers, scale=scale, cap=cap) == wanted


@pytest.mark.parametrize("draws", [False, True])
def test_the_op_of_a_cpu_chooses_from_its_own_logits(draws):
    h, weight = rows_and_matrix(4)
    numbers, found, logits = numbers_of(4), torch.full((4,), -1), torch.empty(4, NUM_IDS)
    scratch = (head_scratch(4), torch.zeros(4, dtype=torch.int32))
    head_tokens(h, weight, 0.5, 3.0, *numbers, found, *scratch, GREEDY_BELOW, draws)
    head_logits(logits, h, weight, 0.5, 3.0)
    assert found.tolist() == chosen_from(logits, numbers, draws=draws)


@BY_TILES
def test_a_row_is_the_same_whatever_rows_are_beside_it(tiles):
    h, weight = rows_and_matrix(6)
    numbers = numbers_of(6)
    together = tokens_of(tiles, h, weight, numbers)
    for row in (0, 1, 5):
        one = slice(row, row + 1)
        assert tokens_of(tiles, h[one], weight, tuple(values[one] for values in numbers)) == [together[row]]


@BY_TILES
@pytest.mark.parametrize("draws", [False, True])
def test_equal_scores_go_to_the_lowest_id(tiles, draws):
    """In one tile and across tiles; 0.0 equals -0.0."""
    h, weight = torch.zeros(2, WIDTH), torch.zeros(NUM_IDS, WIDTH)
    h[:, 0], h[:, 1] = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    weight[[40, 33, 66], 0] = 2.0
    weight[:, 1] = -1.0
    weight[:, 1][[17, 50]] = torch.tensor([-0.0, 0.0])
    assert tokens_of(tiles, h, weight, (torch.zeros(2), *numbers_of(2)[1:]), draws=draws) == [33, 17]


@BY_TILES
@pytest.mark.parametrize("draws", [False, True])
def test_nan_is_never_better_and_infinity_is_taken_at_its_word(tiles, draws):
    h, weight = rows_and_matrix(4)
    numbers = (torch.tensor([1.0, 0.0, 1.0, 0.0]), *numbers_of(4)[1:])
    clean = tokens_of(tiles, h, weight, numbers, draws=draws)
    h[1], h[2] = math.nan, math.nan
    assert tokens_of(tiles, h, weight, numbers, draws=draws) == [clean[0], 0, 0, clean[3]]
    h[1:3] = 0.0
    h[2, 0], weight[:, 0] = 1.0, 0.0
    weight[[20, 69], 0] = math.inf
    weight[3] = math.nan
    found = tokens_of(tiles, h, weight, numbers, draws=draws)
    assert found[2] == 20
    assert 3 not in found


@triton.jit
def noises_kernel(most, noise, bits, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    bits = tl.load(bits + place).to(tl.uint64)
    most_, noise_ = most_noise(bits), gumbel(bits)
    tl.store(most + place, most_)
    tl.store(noise + place, noise_)


def test_no_noise_is_more_than_the_most_that_is_expected_of_its_bits():
    """A draw is made of the scores alone that could win with the most noise. It is close, or most scores could."""
    bits = torch.randint(-(2**63), 2**63 - 1, (4096,), generator=torch.Generator().manual_seed(0))
    bits[:129] = torch.cat([torch.tensor([0, -1]), 2 ** torch.arange(63), -(2 ** torch.arange(63)), torch.tensor([7])])
    most, noise = torch.empty(4096), torch.empty(4096)
    noises_kernel[(1,)](most, noise, bits, 4096)
    assert bool((most > noise).all())
    assert bool((most - noise)[(noise > 2) & (bits >> 32 != 0)].max() < 0.2)


def test_rules_take_large_heads_of_few_rows():
    def tiles(num_rows, num_ids=262_144, width=1152, dtype=torch.bfloat16):
        h, weight = (torch.empty(size, width, dtype=dtype, device="meta") for size in (num_rows, num_ids))
        return head_tiles(h, weight)

    assert tiles(1) is not None
    assert tiles(1, num_ids=512) is None
    assert tiles(1, width=1160) is None
    assert tiles(1, dtype=torch.float32) is None


def test_rows_that_are_added_up_in_chunks_are_not_in_the_kernels_order():
    with gpu_without_numbers():
        for width, is_in_order in ((4096, True), (4160, False)):
            h, weight = (torch.empty(size, width, dtype=torch.bfloat16, device=GPU) for size in (8, 131_072))
            assert can_choose(h, weight)
            assert can_choose(h, weight, in_order=True) == is_in_order
