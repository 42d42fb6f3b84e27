"""Sequences that grow together, by one count."""

from __future__ import annotations

import numpy as np
import pytest

from playhead.kv.cache import HybridKVCache
from playhead.kv.sequence import NEVER, SequenceKV, Stride
from playhead.testing.kv_checkers import check_strides, hybrid_plan, prefilled
from playhead.testing.kv_rules import run_step


@pytest.fixture
def cache():
    return HybridKVCache(hybrid_plan(), strict=True)


def in_stride(cache: HybridKVCache, seqs: list[SequenceKV]) -> Stride:
    stride = Stride()
    cache.join(stride, seqs)
    return stride


def test_sequences_that_grow_together_have_what_each_would_have_alone():
    assert check_strides() == []


def test_a_step_of_a_stride_makes_all_its_sequences_longer_at_once(cache):
    seqs = [prefilled(cache, name, size) for name, size in (("a", 5), ("b", 2))]
    stride = in_stride(cache, seqs)
    cache.advance(stride)
    assert [(seq.num_tokens, seq.num_launched_tokens) for seq in seqs] == [(6, 5), (3, 2)]
    cache.retract()
    assert [seq.num_tokens for seq in seqs] == [5, 2]
    cache.advance(stride)
    run_step(cache)
    assert [(seq.num_tokens, seq.num_launched_tokens) for seq in seqs] == [(6, 6), (3, 3)]


def test_joining_and_leaving_change_no_count(cache):
    seq = prefilled(cache, "a", 5)
    stride = in_stride(cache, [seq])
    for _ in range(2):
        cache.advance(stride)
        run_step(cache)
    for other in (Stride(), Stride(num_placed=9, num_launched=8), stride):
        seq.join(other)
        assert (seq.num_tokens, seq.num_launched_tokens) == (7, 7)


def test_a_count_that_is_set_stays_what_it_was_set_to(cache):
    """A sequence that is extended alone keeps the stride it was in."""
    seq = prefilled(cache, "a", 5)
    cache.advance(in_stride(cache, [seq]))
    run_step(cache)
    cache.extend(seq, 2)
    assert (seq.num_tokens, seq.num_launched_tokens) == (8, 6)
    run_step(cache)
    assert (seq.num_tokens, seq.num_launched_tokens) == (8, 8)


def test_a_sequence_that_has_left_has_no_later_step_look_at_it(cache):
    """Its next slide would come due again and again: of a batch that loses requests every step would look."""
    seqs = [prefilled(cache, name, 5) for name in ("a", "b")]
    stride = in_stride(cache, seqs)
    cache.advance(stride)
    run_step(cache)
    seqs[0].join(Stride())
    for _ in range(12):
        for seq in seqs:
            cache.reserve([seq], np.array([seq.num_tokens + 1]))
        cache.advance(stride)
        run_step(cache)
    assert stride.looks_at.tolist() == [NEVER, stride.looks_at_next(seqs[1])]
    assert stride.next_look > stride.num_launched
