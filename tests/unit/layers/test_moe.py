"""Routing and grouped experts against a loop over tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from playhead.kernels.experts import every_expert_over_every_row, grouped_matmul, suits_torch
from playhead.layers.linear import PlainWeights
from playhead.layers.moe import MoeMlp
from playhead.layers.spec import MoeSpec

HIDDEN, SIZE = 8, 12


def block(num_experts, top_k, seed=0, hidden=HIDDEN, size=SIZE):
    spec = MoeSpec(num_experts=num_experts, top_k=top_k, size=size, swiglu_alpha=1.702, swiglu_limit=2.0)
    moe = MoeMlp(spec, hidden, PlainWeights(dtype=torch.float32, device=torch.device("cpu")))
    generator = torch.Generator().manual_seed(seed)
    for parameter in moe.parameters():
        parameter.normal_(0.0, 0.7, generator=generator)
    return moe


def one_token(moe, h_M):
    """The definition, written for one token and one expert at a time."""
    logits = moe.router_XM @ h_M + moe.router_bias_X
    chosen = logits.argsort(descending=True)[: moe.spec.top_k]
    weights = torch.softmax(logits[chosen], dim=0)
    total, size = torch.zeros(h_M.shape), moe.spec.size
    for weight, expert in zip(weights, chosen, strict=True):
        gate_up = moe.gate_up_XIM[expert] @ h_M + moe.gate_up_bias_XI[expert]
        gate, up = gate_up[:size].clamp(max=2.0), gate_up[size:].clamp(-2.0, 2.0)
        hidden = (up + 1) * gate * torch.sigmoid(1.702 * gate)
        total += weight * (moe.down_XMI[expert] @ hidden + moe.down_bias_XM[expert])
    return total


def test_padding_goes_to_no_expert_and_changes_no_token():
    moe = block(4, 2)
    live_T = torch.tensor([True, False, True, False, False])
    h_TM = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(1))
    seen = []
    for leftover in (0.0, 1e3, float("nan")):
        h_TM[~live_T] = leftover
        out_TM = moe(h_TM, live_T)
        assert not out_TM[~live_T].any()
        seen.append(out_TM[live_T])
    assert all(torch.equal(out, seen[0]) for out in seen)
    torch.testing.assert_close(seen[0], moe(h_TM[live_T]))


@settings(max_examples=40)
@given(num_tokens=st.integers(1, 9), num_experts=st.integers(1, 6), data=st.data())
def test_every_token_gets_its_experts(num_tokens, num_experts, data):
    top_k = data.draw(st.integers(1, num_experts))
    moe = block(num_experts, top_k, seed=num_tokens)
    h_TM = torch.randn(num_tokens, HIDDEN, generator=torch.Generator().manual_seed(num_experts)) * 2
    wanted = torch.stack([one_token(moe, h_M) for h_M in h_TM])
    torch.testing.assert_close(moe(h_TM), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("hidden", "size"), [(1, 1), (3, 5), (6, 12), (8, 3), (2, 8)])
def test_sizes_that_torch_does_not_take_are_computed_too(hidden, size):
    """Its grouped matmul wants rows of 16 bytes, or of a multiple of them."""
    moe = block(3, 2, hidden=hidden, size=size)
    h_TM = torch.randn(5, hidden, generator=torch.Generator().manual_seed(2))
    wanted = torch.stack([one_token(moe, h_M) for h_M in h_TM])
    torch.testing.assert_close(moe(h_TM), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(1, 1), (4, 6), (6, 4), (8, 3), (8, 16), (12, 8), (16, 6)])
def test_torch_is_asked_for_what_it_takes_and_for_nothing_else(num_inputs, num_outputs, dtype):
    rows_PI, ends_X = torch.ones(5, num_inputs, dtype=dtype), torch.tensor([2, 5], dtype=torch.int32)
    weights_XIO = torch.ones(2, num_outputs, num_inputs, dtype=dtype).mT
    if suits_torch(rows_PI, weights_XIO):
        F.grouped_mm(rows_PI, weights_XIO, offs=ends_X)
    else:
        with pytest.raises(RuntimeError, match="16 bytes"):
            F.grouped_mm(rows_PI, weights_XIO, offs=ends_X)
    assert grouped_matmul(rows_PI, weights_XIO, ends_X).unique().tolist() == [num_inputs]


@pytest.mark.parametrize("favourite", [0, 3])
def test_experts_without_tokens_do_no_harm(favourite):
    moe = block(4, 1)
    moe.router_XM.zero_()
    moe.router_bias_X.zero_()[favourite] = 1.0
    h_TM = torch.randn(5, HIDDEN)
    torch.testing.assert_close(moe(h_TM), torch.stack([one_token(moe, h_M) for h_M in h_TM]), rtol=1e-4, atol=1e-5)


def test_a_token_gets_the_same_whoever_is_beside_it():
    moe = block(4, 2)
    h_TM = torch.randn(6, HIDDEN, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(moe(h_TM)[2:3], moe(h_TM[2:3]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ends", [[0, 3, 3, 7], [7, 7, 7, 7], [1, 2, 3, 7]])
def test_every_expert_over_every_row_gives_each_row_its_own(ends):
    generator = torch.Generator().manual_seed(0)
    rows_PI, weights_XIO = torch.randn(7, 8, generator=generator), torch.randn(4, 8, 16, generator=generator)
    ends_X = torch.tensor(ends, dtype=torch.int32)
    found = every_expert_over_every_row(rows_PI, weights_XIO, ends_X)
    torch.testing.assert_close(found, grouped_matmul(rows_PI, weights_XIO, ends_X), rtol=1e-5, atol=1e-6)
