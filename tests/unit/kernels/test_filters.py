"""Least keys of top-k, top-p and min-p: the kernel, interpreted, and the CPU keep what the sorted reference keeps."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead.kernels.filters import EVERY_KEY, LOG2_E, WEIGHT_SCALE, integer_weights, least_keys, reach
from playhead.kernels.triton.filters import launch_least_keys

GREEDY_BELOW = 1e-5
SMALL = {"lanes": 256, "candidates": 32, "num_warps": 4}  # so that a few hundred logits take every path


def kernel(*call):
    return launch_least_keys(*call, **SMALL)


BODIES = pytest.mark.parametrize("find", [least_keys, kernel], ids=["cpu", "kernel"])
ALL = pytest.mark.parametrize("find", [least_keys, least_keys.reference, kernel], ids=["cpu", "reference", "kernel"])


def call_of(logits, rows):
    """The op's arguments, from (temperature, top_k, top_p, min_p) of each row."""
    temperature, top_k, top_p, min_p = zip(*rows, strict=True)
    log_min_p = torch.tensor([math.log(value) if value > 0 else -math.inf for value in min_p])
    return logits, torch.tensor(temperature), torch.tensor(top_k), torch.tensor(top_p), log_min_p, GREEDY_BELOW


def kept(find, logits, rows):
    """Which tokens may be drawn. Of those that are impossible anyway, nothing is said."""
    least = find(*call_of(logits, rows))
    assert least.dtype is torch.int64
    return reach(logits.float(), least) & (logits > -math.inf)


def by_hand(probabilities, rows):
    logits = torch.tensor(probabilities).log().expand(len(rows), -1) + 1.7
    return [kept(find, logits.contiguous(), rows).tolist() for find in (least_keys.reference, kernel)]


def test_top_p_keeps_a_token_if_those_above_it_hold_less_than_p_of_what_top_k_left():
    rows = [(1.0, 0, 0.6, 0.0), (1.0, 0, 0.45, 0.0), (1.0, 2, 0.6, 0.0), (1.0, 2, 0.65, 0.0), (1.0, 2, 1.0, 0.0)]
    for found in by_hand([0.5, 0.3, 0.2], rows):
        assert [sum(row) for row in found] == [2, 1, 1, 2, 2]


def test_min_p_is_a_share_of_the_best_token_at_the_rows_temperature():
    for found in by_hand([0.5, 0.3, 0.2], [(1.0, 0, 1.0, 0.5), (0.5, 0, 1.0, 0.5), (2.0, 0, 1.0, 0.5)]):
        assert [sum(row) for row in found] == [2, 1, 3]


@ALL
def test_top_p_is_a_share_of_what_min_p_left(find):
    """Of 0.5, 0.3, 0.1, 0.05 and 0.05 min-p leaves three, of which the first two hold 0.89."""
    logits = torch.tensor([[0.5, 0.3, 0.1, 0.05, 0.05]]).log().expand(4, -1).contiguous()
    rows = [(1.0, 0, 0.85, 0.15), (1.0, 0, 0.85, 0.0), (1.0, 4, 0.85, 0.15), (1.0, 2, 0.6, 0.15)]
    assert kept(find, logits, rows).sum(dim=-1).tolist() == [2, 3, 2, 1]


@ALL
def test_rows_without_filters_and_greedy_rows_keep_everything(find):
    logits = torch.randn(4, 300)
    rows = [(1.0, 0, 1.0, 0.0), (0.0, 1, 0.1, 0.9), (9e-6, 2, 1.0, 0.0), (0.7, 1, 1.0, 0.0)]
    found = find(*call_of(logits, rows))
    assert found.tolist()[:3] == [EVERY_KEY] * 3
    assert reach(logits, found).sum(dim=-1).tolist() == [300, 300, 300, 1]


ROWS = [
    (0.7, 20, 1.0, 0.0),  # top-k alone: some tokens, and more than are compared at once
    (1.0, 150, 1.0, 0.0),
    (1.3, 699, 0.9, 0.0),  # with top-p
    (0.6, 20, 0.9, 0.0),
    (0.6, 0, 0.9, 0.0),  # top-p alone, and with min-p
    (2.5, 0, 0.9999, 0.02),
    (1.0, 0, 0.8, 0.05),
    (1.5, 60, 0.7, 0.1),
    (1.0, 0, 1e-9, 0.0),
]


def normal(scale, seed=0):
    return scale * torch.randn(len(ROWS), 700, generator=torch.Generator().manual_seed(seed))


def peaked():
    logits = normal(1.5)
    logits[:, ::70] += torch.linspace(4, 14, 10)
    return logits


def masked():
    """From row to row fewer tokens are possible; at last one."""
    logits = normal(3.0)
    for row in range(len(ROWS)):
        logits[row, : 699 - [400, 120, 60, 30, 15, 8, 3, 1, 0][row]] = -math.inf
    return logits


def with_nan():
    logits = normal(2.0)
    logits[:, 5:40] = math.nan
    logits[3] = math.nan
    return logits


def with_infinities():
    logits = normal(2.0)
    logits[:, 300:303] = math.inf
    logits[1] = -math.inf
    return logits


LOGITS = {
    "flat": lambda: normal(0.3),
    "normal": lambda: normal(3.0),
    "peaked": peaked,
    "coarse": lambda: (2 * normal(2.0)).round() / 2,
    "equal": lambda: torch.full((len(ROWS), 700), 1.25),
    "masked": masked,
    "tiny": lambda: normal(1e-30),
    "huge": lambda: normal(1e30),
    "half precision": lambda: normal(3.0).bfloat16(),
    "nan": with_nan,
    "infinities": with_infinities,
}


@BODIES
@pytest.mark.parametrize("name", LOGITS)
def test_the_tokens_kept_are_those_of_the_sorted_reference(find, name):
    logits = LOGITS[name]()
    assert torch.equal(kept(find, logits, ROWS), kept(least_keys.reference, logits, ROWS))


@ALL
def test_a_bound_that_exactly_k_logits_reach_is_low_enough(find):
    """Between two clusters there is nothing, so that bounds fall there; k is larger than the number of lanes."""
    logits = torch.cat((torch.linspace(1, 2, 350), torch.linspace(-2, -1, 350)))[None, torch.randperm(700)]
    assert torch.equal(kept(find, logits, [(1.0, 350, 1.0, 0.0)]), logits > 0)


@ALL
def test_a_logit_that_equals_the_lower_bound_is_gathered(find):
    """All lanes have the same maximum, and that is the guess."""
    logits = torch.full((1, 700), -math.inf)
    logits[0, :10], logits[0, 256:266] = 1.0, 0.5
    assert kept(find, logits, [(1.0, 5, 1.0, 0.0)]).nonzero()[:, 1].tolist() == [0, 1, 2, 3, 4]


quarters = st.integers(-40, 40).map(lambda n: n / 4)
numbers = st.tuples(
    st.sampled_from([0.0, 0.3, 1.0, 3.0]),
    st.sampled_from([0, 1, 2, 7, 40, 1000]),
    st.sampled_from([1e-9, 0.15, 0.61, 0.93, 1.0]),
    st.sampled_from([0.0, 0.07, 1.0]),
)


def sorted_by_hand(values, row):
    """The ids that are kept, by what the filters are documented to do."""
    temperature, top_k, top_p, min_p = row
    ids = [i for i, value in enumerate(values) if value > -math.inf]
    if temperature < GREEDY_BELOW or not ids:
        return set(ids)
    ids.sort(key=lambda i: (-values[i], i))
    best, scale = values[ids[0]], torch.tensor(LOG2_E) / torch.tensor(temperature)
    least = torch.tensor(best) + torch.tensor(temperature) * torch.tensor(min_p).log()
    left = [i for i in ids if values[i] >= least]
    left = left[:top_k] if top_k else left
    weights = integer_weights(torch.tensor([[values[i] for i in left]]), torch.tensor([[best]]), scale)[0].tolist()
    limit = max(1, int(torch.tensor(top_p).item() * sum(weights)))
    if top_p < 1:
        left = [i for place, i in enumerate(left) if sum(weights[:place]) < limit]
    return set(left)


@settings(max_examples=25)
@given(st.lists(quarters | st.just(-math.inf), min_size=1, max_size=150), numbers)
def test_of_equal_logits_the_lower_ids_are_kept(values, row):
    for find in (least_keys, least_keys.reference, kernel):
        found = kept(find, torch.tensor([values]), [row])[0]
        assert set(found.nonzero()[:, 0].tolist()) == sorted_by_hand(values, row)


@ALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("value", [1.25, -3.0, 0.0])
def test_of_more_equal_logits_than_are_compared_at_once_the_first_are_kept(find, value, dtype):
    """They begin in one block of the row and end in another; some logits are above them, some below."""
    logits = torch.full((2, 700), value - 1.0, dtype=dtype)
    logits[:, 100:600], logits[:, 650:660] = value, value + 1.0
    by_k, by_p = kept(find, logits, [(1.0, 310, 1.0, 0.0), (1.0, 0, 0.5, 0.0)])
    assert by_k.nonzero()[:, 0].tolist() == [*range(100, 400), *range(650, 660)]
    num_kept = len(sorted_by_hand(logits[1].float().tolist(), (1.0, 0, 0.5, 0.0)))
    assert by_p.nonzero()[:, 0].tolist() == [*range(100, 90 + num_kept), *range(650, 660)]


@ALL
def test_the_first_token_of_top_p_zero_and_of_top_k_one_is_the_greedy_one(find):
    logits = torch.full((2, 300), 2.0)
    logits[:, 100] = logits[:, 7] = 3.0
    found = kept(find, logits, [(1.0, 1, 1.0, 0.0), (1.0, 0, 1e-9, 0.0)])
    assert found.nonzero().tolist() == [[0, 7], [1, 7]]


@settings(max_examples=100)
@given(st.integers(0, 2**31), numbers)
def test_the_cpu_keeps_what_the_reference_keeps(seed, row):
    logits = 4 * torch.randn(1, 900, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(kept(least_keys, logits, [row]), kept(least_keys.reference, logits, [row]))


@BODIES
def test_columns_past_the_vocabulary_are_not_looked_at(find):
    """Logits of a padded head: the row's stride is wider than the vocabulary."""
    padded = torch.randn(2, 324)
    padded[:, 300:] = 1e9
    rows = [(1.0, 20, 0.9, 0.0), (1.0, 0, 0.5, 0.0)]
    wanted = kept(least_keys.reference, padded[:, :300].contiguous(), rows)
    assert torch.equal(kept(find, padded[:, :300], rows), wanted)


def test_weights_are_integers_whose_sum_no_order_changes():
    logits = 3 * torch.randn(1, 5000, generator=torch.Generator().manual_seed(0))
    weights = integer_weights(logits, logits.amax(-1, keepdim=True), 1.0)
    assert weights.dtype is torch.int64
    assert weights.max().item() == WEIGHT_SCALE
    assert weights.sum() == weights[:, torch.randperm(5000)].sum()
    torch.testing.assert_close(weights / WEIGHT_SCALE, (logits - logits.max()).exp2())
