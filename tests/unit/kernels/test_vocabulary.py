"""What a rank does with its token ids: the kernels interpreted, the CPU's work and the references say the same."""

from __future__ import annotations

import pytest
import torch

from playhead.kernels.tokens import choose_scratch, choose_tokens
from playhead.kernels.triton.choose import launch_choose_keys
from playhead.kernels.triton.embedding import launch_embed_share
from playhead.kernels.vocabulary import choose_keys, embed_share, tokens_of
from tests.unit.kernels.test_choose import GREEDY_BELOW, TWO_BLOCKS, inputs, random_logits

TEMPERATURES = (0.7, 0.0, 1.3)
CHOOSE = pytest.mark.parametrize(
    "choose", [choose_keys, choose_keys.reference, launch_choose_keys], ids=["cpu", "reference", "kernel"]
)


def key_of(choose, logits, first_id, *, draws=True):
    keys = torch.full((len(logits),), 7)
    parts, arrivals = choose_scratch(*logits.shape)
    choose(logits, *inputs(TEMPERATURES), keys, parts, arrivals, first_id, GREEDY_BELOW, draws)
    assert not arrivals.any()
    return keys


def chosen(logits, *, draws=True):
    """The choice of one rank that has all ids."""
    found = torch.full((len(logits),), -1)
    scratch = choose_scratch(*logits.shape)
    choose_tokens(logits, None, *inputs(TEMPERATURES), found, *scratch, GREEDY_BELOW, draws)
    return found


@CHOOSE
@pytest.mark.parametrize("draws", [False, True])
def test_the_largest_key_of_all_shares_is_the_choice_among_all_ids(choose, draws):
    logits = random_logits(3, TWO_BLOCKS)
    cuts = ((0, 16), (16, 1056), (1056, TWO_BLOCKS))
    keys = [key_of(choose, logits[:, first:end].contiguous(), first, draws=draws) for first, end in cuts]
    best = torch.stack(keys).amax(0)
    assert torch.equal(best, key_of(choose_keys.reference, logits, 0, draws=draws))
    assert torch.equal(tokens_of(best), chosen(logits, draws=draws))


@CHOOSE
def test_of_equal_scores_the_lower_id_wins_whatever_rank_has_it(choose):
    logits = torch.zeros(3, 64)
    logits[:, [20, 50]] = 4.0
    logits[1, [20, 50]] = torch.tensor([-0.0, 0.0])
    logits[1, :20] = -1.0
    shares = [key_of(choose, logits[:, first : first + 32].contiguous(), first, draws=False) for first in (0, 32)]
    assert tokens_of(torch.maximum(*shares)).tolist() == [20, 20, 20]


@CHOOSE
def test_a_rank_of_nothing_but_nan_loses_to_any_score(choose):
    logits = torch.full((3, 32), -100.0)
    bad = torch.full((3, 32), torch.nan)
    keys = torch.maximum(key_of(choose, bad, 0, draws=False), key_of(choose, logits, 32, draws=False))
    assert (tokens_of(keys) >= 32).all()
    nothing = torch.maximum(key_of(choose, bad, 0), key_of(choose, bad, 32))
    assert tokens_of(nothing).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "embed", [embed_share, embed_share.reference, launch_embed_share], ids=["cpu", "ref", "kernel"]
)
@pytest.mark.parametrize("scale", [1.0, 3.5])
def test_shares_of_an_embedding_sum_up_to_it_to_the_bit(embed, scale):
    table, ids = torch.randn(40, 70), torch.tensor([0, 15, 16, 39, 7], dtype=torch.int32)
    shares = [embed(ids, table[first:end].contiguous(), scale, first) for first, end in ((0, 16), (16, 32), (32, 40))]
    assert torch.equal(sum(shares), table[ids.long()] * scale)
    assert [share.any(1).nonzero().flatten().tolist() for share in shares] == [[0, 1, 4], [2], [3]]
