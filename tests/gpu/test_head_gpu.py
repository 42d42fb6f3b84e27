"""The head on a GPU: its logits against float64, and tokens chosen without logits against tokens chosen from them."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from playhead.kernels.head import NO_CAP, can_choose, head_logits, head_scratch, head_tokens
from playhead.kernels.tokens import choose_scratch, choose_tokens
from tests.gpu.test_kernels_gpu import check, random

SHAPES = [(262144, 1152), (128256, 2048), (151936, 1024)]
ROWS = [1, 3, 8, 16, 17, 32, 50, 64, 100, 128]
GREEDY_BELOW = 1e-5


@cache
def weight_of(num_ids, width):
    """Made on the device, once: the host would take seconds for each."""
    rng = torch.Generator(device="cuda").manual_seed(1)
    weight = torch.randn(num_ids, width, generator=rng, device="cuda")
    return weight.mul_(2.5 * width**-0.5).bfloat16()


def head(num_rows, num_ids, width, *, seed=0):
    return random(num_rows, width, seed=seed), weight_of(num_ids, width)


def logits_of(h, weight, scale=1.0, cap=NO_CAP):
    dtype = h.dtype if (scale, cap) == (1.0, NO_CAP) else torch.float32
    logits = torch.full((len(h), len(weight)), float("nan"), dtype=dtype, device="cuda")
    head_logits(logits, h, weight, scale, cap)
    return logits


def numbers_of(num_rows):
    """Greedy rows and others in turn."""
    row = torch.arange(num_rows, device="cuda")
    return torch.where(row % 3 == 0, 0.0, 0.4 + row / num_rows), row * 7919 - 50, row * 31


def tokens_of(h, weight, *, scale=1.0, cap=NO_CAP, draws=True):
    num_rows = len(h)
    tokens, best = torch.full((num_rows,), -1, device="cuda"), head_scratch(num_rows, "cuda")
    arrivals = torch.zeros(num_rows, dtype=torch.int32, device="cuda")
    head_tokens(h, weight, scale, cap, *numbers_of(num_rows), tokens, best, arrivals, GREEDY_BELOW, draws)
    assert not arrivals.any(), "arrivals are left zeroed for the next launch"
    assert torch.equal(best, head_scratch(num_rows, "cuda")), "no key is left for the next launch"
    return tokens


def chosen_from(logits, *, draws=True):
    tokens = torch.full((len(logits),), -1, device="cuda")
    scratch = choose_scratch(*logits.shape, "cuda")
    choose_tokens(logits, None, *numbers_of(len(logits)), tokens, *scratch, GREEDY_BELOW, draws)
    return tokens


@pytest.mark.parametrize(("num_ids", "width"), SHAPES)
def test_tokens_are_those_chosen_from_the_logits_of_as_many_rows(num_ids, width, capsys):
    fused = [num_rows for num_rows in ROWS if can_choose(*head(num_rows, num_ids, width))]
    assert fused, "some size has the kernel"
    for num_rows in fused:
        for seed in range(5):
            h, weight = head(num_rows, num_ids, width, seed=seed)
            logits = logits_of(h, weight)
            for draws in (False, True):
                assert torch.equal(tokens_of(h, weight, draws=draws), chosen_from(logits, draws=draws)), num_rows
        check(f"head {num_rows} x {width} -> {num_ids}", logits, h.double() @ weight.double().t(), capsys)


@pytest.mark.parametrize(("scale", "cap"), [(0.0625, NO_CAP), (1.0, 30.0)])
def test_scale_and_cap_are_in_logits_and_choice(scale, cap):
    h, weight = head(8, 262144, 1152)
    logits = logits_of(h, weight, scale, cap)
    wanted = torch.empty_like(logits)
    head_logits.reference(wanted, h, weight, scale, cap)
    torch.testing.assert_close(logits, wanted, rtol=1e-2, atol=1e-2)
    for draws in (False, True):
        assert torch.equal(tokens_of(h, weight, scale=scale, cap=cap, draws=draws), chosen_from(logits, draws=draws))


@pytest.mark.parametrize("num_rows", [8, 32, 128])
def test_a_row_is_the_same_whatever_rows_are_beside_it(num_rows):
    h, weight = head(num_rows, 262144, 1152)
    if not can_choose(h, weight):
        pytest.skip("the BLAS library multiplies so many rows")
    logits, others = logits_of(h, weight), random(num_rows, 1152, seed=9)
    for row in (0, 3, num_rows - 1):
        beside = others.clone()
        beside[row] = h[row]
        assert torch.equal(logits_of(beside, weight)[row], logits[row])


@pytest.mark.parametrize("draws", [False, True])
def test_a_row_of_nan_gets_an_id_and_harms_nobody(draws):
    h, weight = head(8, 262144, 1152)
    clean = tokens_of(h, weight, draws=draws)
    h[3:5] = float("nan")
    found = tokens_of(h, weight, draws=draws)
    assert found[3:5].tolist() == [0, 0]
    assert torch.equal(torch.cat((found[:3], found[5:])), torch.cat((clean[:3], clean[5:])))
