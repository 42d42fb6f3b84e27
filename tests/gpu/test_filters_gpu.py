"""Filters on the GPU, over real vocabularies: the tokens kept are those of the sorted reference, without exception."""

from __future__ import annotations

import math

import pytest
import torch

from playhead.kernels.filters import least_keys, reach
from playhead.kernels.tokens import choose_scratch, choose_tokens

GREEDY_BELOW = 1e-5
NUM_ROWS = 48
VOCABS = (262144, 151936, 50257)  # the last is odd: rows that no 16-byte load can follow


def normal(vocab_size, scale):
    return scale * torch.randn(NUM_ROWS, vocab_size, device="cuda")


def peaked(vocab_size):
    """Thirty tokens that stand out, more or less."""
    places = torch.randint(0, vocab_size, (NUM_ROWS, 30), device="cuda")
    return normal(vocab_size, 1.5).scatter_add_(1, places, 4 + 14 * torch.rand(NUM_ROWS, 30, device="cuda"))


def masked(vocab_size):
    """A half, a tenth, a hundredth of the tokens are possible; then a few; one always."""
    shares = torch.tensor([0.5, 0.1, 0.01, 1e-4], device="cuda")[torch.arange(NUM_ROWS, device="cuda") % 4]
    is_possible = torch.rand(NUM_ROWS, vocab_size, device="cuda") < shares[:, None]
    is_possible[:, 7] = True
    return normal(vocab_size, 3.0).masked_fill_(~is_possible, -math.inf)


def with_nan(vocab_size):
    logits = normal(vocab_size, 2.0)
    logits[:, 5:50] = math.nan
    logits[0] = math.nan
    return logits


LOGITS = {
    "flat": lambda vocab_size: normal(vocab_size, 0.3),
    "normal": lambda vocab_size: normal(vocab_size, 2.5),
    "peaked": peaked,
    "coarse": lambda vocab_size: (normal(vocab_size, 6.0)).round() / 2,
    "equal": lambda vocab_size: torch.full((NUM_ROWS, vocab_size), 1.25, device="cuda"),
    "masked": masked,
    "tiny": lambda vocab_size: normal(vocab_size, 1e-30),
    "nan": with_nan,
}


def random_numbers(vocab_size):
    """Temperatures, top-k, top-p and the logarithms of min-p: every filter in some rows, none in others."""

    def some(values):
        return torch.tensor(values)[torch.randint(0, len(values), (NUM_ROWS,))].cuda()

    min_p = some([0.0, 0.0, 0.0, 0.01, 0.1, 1.0])
    return (
        some([0.0, 0.3, 0.6, 1.0, 1.3, 2.5]),
        some([0, 0, 1, 2, 20, 40, 64, 200, 500, 1000, 5000, vocab_size - 1, vocab_size, 10**9]),
        some([1.0, 1.0, 1e-9, 0.1, 0.5, 0.9, 0.95, 0.99, 0.9999]),
        min_p.log(),
    )


def kept(logits, least):
    return reach(logits.float(), least) & (logits > -math.inf)


@pytest.mark.parametrize("vocab_size", VOCABS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", LOGITS)
def test_the_tokens_kept_are_those_of_the_sorted_reference(name, dtype, vocab_size):
    torch.manual_seed(0)
    logits, numbers = LOGITS[name](vocab_size).to(dtype), random_numbers(vocab_size)
    found = kept(logits, least_keys(logits, *numbers, GREEDY_BELOW))
    wanted = kept(logits, least_keys.reference(logits, *numbers, GREEDY_BELOW))
    assert torch.equal(found, wanted)


def test_a_row_has_the_same_key_alone_and_among_others_every_time():
    torch.manual_seed(1)
    logits, numbers = normal(151936, 2.5).bfloat16(), random_numbers(151936)
    together = least_keys(logits, *numbers, GREEDY_BELOW)
    assert all(torch.equal(least_keys(logits, *numbers, GREEDY_BELOW), together) for _ in range(20))
    for row in range(NUM_ROWS):
        one = slice(row, row + 1)
        alone = least_keys(logits[one], *(values[one] for values in numbers), GREEDY_BELOW)
        assert torch.equal(alone, together[one])


def test_filters_and_choice_in_one_graph_follow_their_inputs():
    """Captured once; then other logits, other filters and other noise at the same addresses."""
    torch.manual_seed(2)
    logits, numbers = normal(151936, 2.5).bfloat16(), random_numbers(151936)
    seeds, positions, tokens = (torch.arange(NUM_ROWS, device="cuda") for _ in range(3))
    scratch = choose_scratch(NUM_ROWS, 151936, "cuda")

    def step():
        least = least_keys(logits, *numbers, GREEDY_BELOW)
        choose_tokens(logits, least, numbers[0], seeds, positions, tokens, *scratch, GREEDY_BELOW, True)

    step()  # compiles outside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        logits.copy_(peaked(151936))
        positions.add_(1)
        for kept_values, values in zip(numbers, random_numbers(151936), strict=True):
            kept_values.copy_(values)
        graph.replay()
        replayed = tokens.clone()
        step()
        assert torch.equal(tokens, replayed)
        least = least_keys.reference(logits, *numbers, GREEDY_BELOW)
        assert reach(logits.float(), least).gather(1, replayed[:, None]).all()
