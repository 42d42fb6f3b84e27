"""Sampler inputs for tests, made the way a worker makes them: rows are set, then the declared inputs are made.

And random requests to make them of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from hypothesis import strategies as st

from playhead.kv.cache import HybridKVCache
from playhead.sampling_params import SamplingParams
from playhead.schedule.request import Chunk, Request
from playhead.step.inputs import SAMPLING, StepRequests
from playhead.step.sampling import SamplerRows
from playhead.step.scores import SamplerInputs
from playhead.testing.kv_rules import small_layer, small_plan

VOCAB = 24


def build_inputs(rows: Sequence[Request], *, num_rows: int, vocab_size: int) -> SamplerInputs:
    """These requests in rows 1, 2, ..., followed by empty ones up to `num_rows`."""
    kv = HybridKVCache(small_plan([small_layer(None)], page_size=4, num_slabs=40 + num_rows, max_running=num_rows))
    sampler = SamplerRows(max_running=num_rows, vocab_size=vocab_size, device=torch.device("cpu"))
    sampler.make_tables()
    chunks = []
    for i, row in enumerate(rows):
        seq = kv.admit(f"request {i}", [0])
        sampler.set(seq.row, row)
        chunks.append(replace(Chunk.newest(seq, [0]), request=row, num_generated=len(row.output)))
    step, num_empty = StepRequests(chunks, kv, sampler), num_rows - len(rows)
    numbers = {
        one.slot.name: torch.from_numpy(np.pad(one.make(step), (0, num_empty), constant_values=one.slot.pad_value))
        for one in SAMPLING
    }
    return sampler.inputs(numbers, torch.from_numpy(np.pad(step.rows, (0, num_empty))))


def tensors_of(inputs: SamplerInputs) -> list[torch.Tensor]:
    assert inputs.tables is not None
    return [*inputs.numbers.values(), inputs.rows_N, inputs.parts_RX, inputs.arrivals_R, *inputs.tables.tensors]


def refill(target: SamplerInputs, source: SamplerInputs) -> None:
    """Other values at the same addresses."""
    for kept, value in zip(tensors_of(target), tensors_of(source), strict=True):
        kept.copy_(value)


# Requests and logits on a coarse grid, so that ties happen.

seeds = st.integers(-(2**63), 2**63 - 1)
tokens = st.integers(0, VOCAB - 1)
token_lists = st.lists(tokens, max_size=6)
quarters = st.integers(-40, 40).map(lambda n: n / 4)
logit_rows = st.lists(quarters, min_size=VOCAB, max_size=VOCAB)


def row_of(params, prompt=(), output=(), late=(), bad_words=()):
    """A request that has a row, with what it has generated so far."""
    return Request(
        id="row",
        prompt=tuple(prompt),
        params=params,
        max_new_tokens=100,
        arrival=0,
        late_ids=frozenset(late),
        bad_words=tuple(bad_words),
        output=list(output),
    )


@st.composite
def sampler_rows(draw):
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.25, 0.7, 1.0, 3.0])),
        top_k=draw(st.sampled_from([-1, 0, 1, 2, 5, VOCAB - 1, VOCAB, 1000])),
        top_p=draw(st.sampled_from([1e-9, 0.15, 0.61, 0.93, 0.9999, 1.0])),
        min_p=draw(st.sampled_from([0.0, 1e-4, 0.07, 0.33, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 0.5, 1.3, 2.0])),
        presence_penalty=draw(st.sampled_from([0.0, -2.0, 0.5, 2.0])),
        frequency_penalty=draw(st.sampled_from([0.0, -1.0, 0.25, 2.0])),
        logit_bias=draw(st.dictionaries(st.integers(0, VOCAB - 1), quarters, max_size=4)),
        min_tokens=draw(st.integers(0, 4)),
        allowed_token_ids=draw(st.none() | st.lists(tokens, min_size=1)),
        logprobs=draw(st.sampled_from([None, 0, 3, 20])),
        seed=draw(seeds),
    )
    late = draw(st.lists(st.integers(0, VOCAB - 1), max_size=3))
    output = draw(token_lists)
    # Words that begin as the output ends, and any others.
    starts = st.integers(0, len(output)).map(lambda n: output[n:]) | token_lists
    bad_words = draw(st.lists(st.tuples(starts, tokens).map(lambda word: (*word[0], word[1])), max_size=4))
    return row_of(params, draw(token_lists), output, late, bad_words)
