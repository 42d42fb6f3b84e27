"""Shares cover everything once, begin at whole lanes, and keep heads together."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from playhead.kernels.elementwise import UNCLAMPED, gated_activation
from playhead.layers.shard import LANES, Shard
from playhead.layers.spec import AttentionSpec
from playhead.types import TPMode

ATTENTION = AttentionSpec(window=None, num_heads=8, num_kv_heads=2, k_head_dim=16, v_head_dim=16, scale=0.25, rope=None)


def ranks(num_ranks, mode=TPMode.EXACT):
    return [Shard(rank=rank, num_ranks=num_ranks, mode=mode) for rank in range(num_ranks)]


@given(count=st.integers(1, 5000), num_ranks=st.integers(1, 16))
def test_the_spans_of_all_ranks_are_everything_once_and_begin_at_whole_lanes(count, num_ranks):
    spans = [shard.span(count) for shard in ranks(num_ranks)]
    assert [i for first, end in spans for i in range(first, end)] == list(range(count))
    assert all(first % LANES == 0 or first == count for first, _ in spans)
    assert max(end - first for first, end in spans) == ranks(num_ranks)[0].share(count)


def test_fewer_units_than_ranks_are_had_by_several_ranks_each():
    assert [shard.span(256, num_units=2) for shard in ranks(4)] == [(0, 128), (0, 128), (128, 256), (128, 256)]
    assert ranks(4)[0].num_copies(2) == 2


@pytest.mark.parametrize(("mode", "heads"), [(TPMode.EXACT, [4, 4, 4, 4]), (TPMode.FAST, [2, 2, 2, 2])])
def test_exact_ranks_keep_the_query_heads_of_a_kv_head_together(mode, heads):
    shares = [shard.attention(ATTENTION) for shard in ranks(4, mode)]
    assert [share.num_heads for share in shares] == heads
    assert [share.num_kv_heads for share in shares] == [1, 1, 1, 1]


@pytest.mark.parametrize("num_tokens", [1, 2, 7])
@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(256, 224), (704, 224), (64, 112), (32, 1000)])
def test_a_column_has_the_same_bits_in_a_share_as_in_the_whole(num_tokens, num_ranks, num_inputs, num_outputs):
    """The arithmetic under exact ranks: a CPU rounds the columns after the last whole lane otherwise."""
    x, weight = torch.randn(num_tokens, num_inputs), torch.randn(num_outputs, num_inputs)
    spans = [shard.span(num_outputs) for shard in ranks(num_ranks)]
    parts = [torch.mm(x, weight[first:end].t().contiguous()) for first, end in spans]
    assert torch.equal(torch.cat(parts, dim=1), torch.mm(x, weight.t().contiguous()))


@pytest.mark.parametrize("activation", ["gelu_tanh", "silu"])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_an_activated_column_has_the_same_bits_in_a_share_as_in_the_whole(num_ranks, activation):
    """Found with shares of 176 columns of 704, five and a half times what a CPU takes at once."""
    gate, up = torch.randn(2, 3, 704)
    whole = gated_activation(torch.cat((gate, up), dim=1), activation, *UNCLAMPED)
    for first, end in (shard.span(704) for shard in ranks(num_ranks)):
        share = torch.cat((gate[:, first:end], up[:, first:end]), dim=1)
        assert torch.equal(gated_activation(share, activation, *UNCLAMPED), whole[:, first:end])
