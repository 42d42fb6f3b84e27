"""Our logits against transformers', position by position, however the tokens come in."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead.models.dense_context import DenseSequence
from tests.parity.oracle import CASES, VOCAB, WINDOW, ours, reference, relative_error, step, their_logits

TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def pair(request):
    model = reference(request.param)
    return model, ours(model)


def prompt_of(length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (length,), generator=generator).tolist()


@pytest.mark.parametrize("length", [1, WINDOW - 1, WINDOW, WINDOW + 1, 5 * WINDOW])
def test_logits_of_every_position_equal_the_references(pair, length):
    model, decoder = pair
    prompt = prompt_of(length)
    (found,) = step(decoder, [DenseSequence()], [prompt])
    assert relative_error(found, their_logits(model, prompt)) < TOLERANCE


def test_a_ragged_batch_gives_each_sequence_what_it_gets_alone(pair):
    model, decoder = pair
    prompts = [prompt_of(length, seed=length) for length in (3, 4 * WINDOW, 1, WINDOW + 2)]
    found = step(decoder, [DenseSequence() for _ in prompts], prompts)
    for logits, prompt in zip(found, prompts, strict=True):
        assert relative_error(logits, their_logits(model, prompt)) < TOLERANCE


def test_decode_after_prefill_continues_the_sequence(pair):
    model, decoder = pair
    prompt, sequence = prompt_of(3 * WINDOW), DenseSequence()
    step(decoder, [sequence], [prompt[:-8]])
    found = torch.cat([step(decoder, [sequence], [[token]])[0] for token in prompt[-8:]])
    assert relative_error(found, their_logits(model, prompt)[-8:]) < TOLERANCE


@settings(max_examples=6)
@given(cuts=st.sets(st.integers(1, 4 * WINDOW - 1), max_size=6), other=st.integers(1, 9))
def test_any_chunking_gives_the_same_logits(pair, cuts, other):
    """Chunks of one prompt run beside a neighbour that decodes, as in a mixed batch."""
    model, decoder = pair
    prompt = prompt_of(4 * WINDOW, seed=1)
    edges = [0, *sorted(cuts), len(prompt)]
    sequence, neighbour, chunks = DenseSequence(), DenseSequence(), []
    step(decoder, [neighbour], [prompt_of(other, seed=2)])
    for start, stop in pairwise(edges):
        chunk, _ = step(decoder, [sequence, neighbour], [prompt[start:stop], [5]])
        chunks.append(chunk)
    assert relative_error(torch.cat(chunks), their_logits(model, prompt)) < TOLERANCE
