"""The kernel that chooses tokens, interpreted, against its reference; and what a reference must do anyway."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead.kernels.filters import least_key_of, token_keys
from playhead.kernels.tokens import (
    GOLDEN,
    IDS_PER_BLOCK,
    NUM_PROGRAMS,
    blocks_per_part,
    choose_scratch,
    choose_tokens,
    gumbel_noise,
    mixed_,
)
from playhead.kernels.triton.choose import GOLDEN as UNSIGNED_GOLDEN
from playhead.kernels.triton.choose import gumbel, launch_choose_tokens, mixed

GREEDY_BELOW = 1e-5
TWO_BLOCKS = IDS_PER_BLOCK + 70
BOTH = pytest.mark.parametrize(
    "choose", [choose_tokens, choose_tokens.reference, launch_choose_tokens], ids=["cpu", "reference", "kernel"]
)


def inputs(temperatures, seed=0):
    """Temperatures, and seeds and positions of all sizes."""
    rng = torch.Generator().manual_seed(seed)
    num_rows = len(temperatures)
    seeds = torch.randint(-(2**63), 2**63 - 1, (num_rows,), generator=rng)
    positions = torch.randint(0, 2**20, (num_rows,), generator=rng)
    return torch.tensor(temperatures, dtype=torch.float32), seeds, positions


def tokens(choose, logits, temperatures, seed=0, *, draws=True, least=None, **options):
    num_rows, vocab_size = logits.shape
    found = torch.full((num_rows,), -1)
    parts, arrivals = choose_scratch(num_rows, vocab_size)
    parts.fill_(2**63 - 1)  # what an earlier launch left, at its worst
    choose(logits, least, *inputs(temperatures, seed), found, parts, arrivals, GREEDY_BELOW, draws, **options)
    assert not arrivals.any(), "arrivals are left zeroed for the next launch"
    return found.tolist()


def random_logits(num_rows, vocab_size, seed=0, dtype=torch.float32):
    return (3 * torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed))).to(dtype)


@settings(max_examples=25)
@given(
    temperatures=st.lists(st.sampled_from([0.0, 9e-6, 1e-5, 0.3, 1.0, 2.5, 1e6]), min_size=1, max_size=3),
    vocab_size=st.integers(1, 3 * IDS_PER_BLOCK),
    num_blocks=st.integers(1, 3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    draws=st.booleans(),
    filters=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_kernel_agrees_with_reference(temperatures, vocab_size, num_blocks, dtype, draws, filters, seed):
    logits = random_logits(len(temperatures), vocab_size, seed, dtype)
    least = token_keys(logits.float()).sort(dim=-1).values[:, vocab_size * 9 // 10] if filters else None
    options = {"draws": draws, "least": least}
    found = tokens(launch_choose_tokens, logits, temperatures, seed, num_blocks=num_blocks, **options)
    assert found == tokens(choose_tokens, logits, temperatures, seed, **options)


@BOTH
def test_no_token_below_its_rows_least_key_is_drawn(choose):
    """The noise of some token would lift it over the only one that is left."""
    logits = random_logits(3, TWO_BLOCKS)
    best = logits.amax(-1)
    free = tokens(choose, logits, [50.0] * 3)
    assert tokens(choose, logits, [50.0] * 3, least=least_key_of(torch.tensor([best[0], -math.inf, best[2]]))) == [
        logits[0].argmax().item(),
        free[1],
        logits[2].argmax().item(),
    ]
    assert free != logits.argmax(-1).tolist()


@pytest.mark.parametrize("num_blocks", [1, 2, 3])
def test_a_row_is_the_same_alone_and_in_any_batch_however_it_is_cut(num_blocks):
    logits = random_logits(3, 2 * IDS_PER_BLOCK + 5)
    together = tokens(launch_choose_tokens, logits, [0.0, 0.8, 1.2], num_blocks=num_blocks)
    temperature, seeds, positions = inputs([0.0, 0.8, 1.2])
    for row, token in enumerate(together):
        one = slice(row, row + 1)
        alone = torch.tensor([-1])
        call = (logits[one], None, temperature[one], seeds[one], positions[one], alone)
        launch_choose_tokens(*call, *choose_scratch(4, logits.shape[1]), GREEDY_BELOW, True)
        assert alone.tolist() == [token]


@BOTH
@pytest.mark.parametrize("draws", [False, True])
def test_equal_scores_go_to_the_lowest_id(choose, draws):
    """In one lane, across lanes, across blocks, and 0.0 equals -0.0."""
    logits = torch.full((3, TWO_BLOCKS), -1.0)
    logits[0, [7, 3, 7 + IDS_PER_BLOCK]] = 2.0
    logits[1, [900, 900 + 70, IDS_PER_BLOCK + 1]] = 2.0
    logits[2, 5], logits[2, IDS_PER_BLOCK + 2] = -0.0, 0.0
    assert tokens(choose, logits, [0.0, 0.0, 0.0], draws=draws) == [3, 900, 5]


@BOTH
@pytest.mark.parametrize(("temperature", "draws"), [(0.0, False), (0.0, True), (1.0, True)])
def test_nan_counts_as_minus_infinity_and_harms_nobody(choose, temperature, draws):
    logits = random_logits(3, TWO_BLOCKS)
    clean = tokens(choose, logits, [temperature] * 3, draws=draws)
    logits[0] = math.nan
    logits[2, clean[2] ^ 1] = math.nan
    assert tokens(choose, logits, [temperature] * 3, draws=draws) == [0, clean[1], clean[2]]


@BOTH
@pytest.mark.parametrize(("temperature", "draws"), [(0.0, False), (0.0, True), (1.0, True)])
def test_infinities_are_taken_at_their_word(choose, temperature, draws):
    logits = torch.full((3, TWO_BLOCKS), -math.inf)
    logits[1, TWO_BLOCKS - 1] = -3e38
    logits[2, [9, 1050]] = math.inf
    assert tokens(choose, logits, [temperature] * 3, draws=draws) == [0, TWO_BLOCKS - 1, 9]


def test_columns_past_the_vocabulary_are_not_looked_at():
    """Logits of a padded head: the row's stride is wider than the vocabulary."""
    padded = random_logits(2, TWO_BLOCKS + 24)
    padded[:, TWO_BLOCKS:] = 1e9
    found = tokens(launch_choose_tokens, padded[:, :TWO_BLOCKS], [0.0, 1.0])
    assert found == tokens(choose_tokens, padded[:, :TWO_BLOCKS].contiguous(), [0.0, 1.0])


@triton.jit
def noise_kernel(out, seed, position, GOLDEN_: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.arange(0, BLOCK)
    start = mixed(mixed(tl.load(seed).to(tl.uint64) + GOLDEN_) + tl.load(position).to(tl.uint64) * GOLDEN_)
    tl.store(out + token, gumbel(mixed(start + token.to(tl.uint64) * GOLDEN_)))


@triton.jit
def gumbel_kernel(out, bits, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(out + place, gumbel(tl.load(bits + place).to(tl.uint64)))


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (-1, 7), (2**63 - 1, 2**40), (-(2**63), 1)])
def test_kernel_noise_is_the_references(seed, position):
    found = torch.empty(8192)
    noise_kernel[(1,)](found, torch.tensor([seed]), torch.tensor([position]), UNSIGNED_GOLDEN, 8192)
    wanted = gumbel_noise(torch.tensor([seed]), torch.tensor([position]), 8192)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def test_noise_is_right_where_one_minus_the_uniform_number_rounds():
    """From the smallest uniform number to the largest: the small ones, which decide draws, lose their bits in 1 - u."""
    high = torch.cat([torch.tensor([0, 1, 2]), 2 ** torch.arange(2, 40), 2**40 - 2 ** torch.arange(39, -1, -1)])
    bits = torch.zeros(128, dtype=torch.int64)
    bits[: len(high)] = high << 24
    found = torch.empty(128)
    gumbel_kernel[(1,)](found, bits, 128)
    uniform = torch.minimum((high.double() + 0.5) / 2**40, torch.tensor(1 - 2**-24, dtype=torch.float64))
    wanted = -torch.log(-torch.log1p(-uniform))
    torch.testing.assert_close(found[: len(high)].double(), wanted, rtol=3e-7, atol=3e-7)


def test_signed_and_unsigned_constants_are_the_same_bits():
    assert UNSIGNED_GOLDEN.value == GOLDEN % 2**64
    assert mixed_(torch.tensor([GOLDEN])).item() % 2**64 == 0xE220A8397B1DCDAF  # splitmix64's first number from seed 0


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_4000_seeds_draw_the_softmax_of_logits_over_temperature(temperature):
    """Four degrees of freedom: beyond 25 once in 20,000 seed sets, and this one is fixed."""
    logits = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05]).log() + 1.7
    num_draws = 4000
    found = torch.empty(num_draws, dtype=torch.int64)
    per_row = (torch.full((num_draws,), temperature), torch.arange(num_draws), torch.zeros(num_draws).long())
    rows = logits.expand(num_draws, -1)
    choose_tokens(rows, None, *per_row, found, *choose_scratch(num_draws, 5), GREEDY_BELOW, True)
    counts = Counter(found.tolist())
    wanted = (num_draws * (logits / temperature).softmax(-1)).tolist()
    assert sum((counts[token] - expected) ** 2 / expected for token, expected in enumerate(wanted)) < 25
    some = torch.empty(64, dtype=torch.int64)
    scratch = choose_scratch(64, 5)
    launch_choose_tokens(rows[:64], None, *(values[:64] for values in per_row), some, *scratch, GREEDY_BELOW, True)
    assert torch.equal(some, found[:64])


def test_parts_fill_the_device_and_no_more():
    assert blocks_per_part(1, 262_144) == 1
    assert blocks_per_part(128, 262_144) == 11
    assert blocks_per_part(10**6, 262_144) == 256
    for num_rows in (1, 8, 32, 128, 1000):
        parts = -(-256 // blocks_per_part(num_rows, 262_144))
        assert parts * num_rows <= max(NUM_PROGRAMS, num_rows)
