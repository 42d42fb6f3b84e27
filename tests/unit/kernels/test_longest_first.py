"""The order in which requests start, interpreted, against its reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from playhead.kernels.attention import longest_first
from playhead.kernels.triton.longest_first import BLOCK_REQUESTS, launch_longest_first


def lengths(values):
    return torch.tensor(values, dtype=torch.int32)


def test_the_docstrings_numbers():
    assert longest_first(lengths([3, 9, 3])).tolist() == [1, 0, 2]


@given(seq_lens=st.lists(st.integers(1, 6), min_size=1, max_size=40))
def test_kernel_agrees_with_reference(seq_lens):
    """Few lengths: many are equal, and every request has a place of its own all the same."""
    found = launch_longest_first(lengths(seq_lens))
    assert found.dtype == torch.int32
    assert found.tolist() == longest_first.reference(lengths(seq_lens)).tolist()
    assert sorted(found.tolist()) == list(range(len(seq_lens)))


@pytest.mark.parametrize("num_requests", [BLOCK_REQUESTS, BLOCK_REQUESTS + 1, 200])
def test_requests_of_several_programs_find_their_places(num_requests):
    seq_lens = torch.randint(1, 1 << 20, (num_requests,), dtype=torch.int32, generator=torch.Generator().manual_seed(1))
    assert launch_longest_first(seq_lens).tolist() == longest_first.reference(seq_lens).tolist()
