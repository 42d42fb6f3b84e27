"""Masks over logits: the kernel, interpreted, and what the CPU runs, against the reference and against bits by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead.kernels.masks import forbid_
from playhead.kernels.tokens import choose_scratch, choose_tokens
from playhead.kernels.triton.masks import launch_forbid


def by_hand(logits: torch.Tensor, words: list[list[int]]) -> torch.Tensor:
    kept = [
        [x if words[row][i // 32] >> (i % 32) & 1 else -math.inf for i, x in enumerate(line)]
        for row, line in enumerate(logits.tolist())
    ]
    return torch.tensor(kept)


@pytest.mark.parametrize("run", [forbid_, forbid_.reference, launch_forbid])
@settings(max_examples=10, deadline=None)
@given(data=st.data(), num_rows=st.integers(1, 3), vocab_size=st.sampled_from((1, 31, 32, 33, 70, 1100)))
def test_a_logit_stays_where_its_bit_is_set(run, data, num_rows, vocab_size):
    num_words = -(-vocab_size // 32)
    word = st.sampled_from((-1, 0, 1, -(2**31), 2**31 - 1)) | st.integers(-(2**31), 2**31 - 1)
    words = [[data.draw(word) for _ in range(num_words)] for _ in range(num_rows)]
    # Rows of a wider matrix, as the first rows of a shared buffer are.
    logits = torch.randn(num_rows, vocab_size + 3, generator=torch.Generator().manual_seed(0))[:, :vocab_size]
    wanted = by_hand(logits, words)
    run(logits, torch.tensor(words, dtype=torch.int32))
    assert torch.equal(logits, wanted)


@pytest.mark.parametrize("run", [forbid_, launch_forbid])
def test_logits_that_are_rounded_stay_what_they_are(run):
    logits = torch.randn(2, 64).to(torch.bfloat16)
    before = logits.clone()
    run(logits, torch.tensor([[-1, -1], [-1, -2]], dtype=torch.int32))
    before[1, 32] = -math.inf
    assert torch.equal(logits, before)


@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("run", [forbid_, forbid_.reference, launch_forbid])
def test_a_forbidden_token_is_not_chosen_whatever_its_logit_is(run, draws):
    """Also with NaN and inf: a broken row must not leave its form where it could keep it."""
    logits = torch.tensor([[math.nan, math.inf, 1.0, -math.inf, 2.0], [math.nan, -1.0, math.nan, math.inf, -2.0]])
    run(logits, torch.tensor([[0b00101], [0b00110]], dtype=torch.int32))
    tokens, ones, numbers = torch.zeros(2, dtype=torch.int64), torch.ones(2), torch.arange(2)
    choose_tokens(logits, None, ones, numbers, numbers, tokens, *choose_scratch(2, 5), 1e-5, draws)
    assert tokens.tolist() == [2, 1]
