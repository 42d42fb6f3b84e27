"""What requests get from a real engine, against an oracle made of transformers' processors and vLLM's documented order.

Logits are transformers' own for the tokens that came out, so one forward says all about an answer.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
import torch

from playhead.engine.engine import Engine
from playhead.engine.front import RequestOptions
from playhead.kv.plan import KVLimits
from playhead.models.text.ids_only import IdsOnlyTokenizer
from playhead.outputs import CompletionOutput
from playhead.sampling_params import SamplingParams
from playhead.step.build import build_worker
from playhead.step.worker import WorkerConfig
from tests.parity.oracle import CASES, VOCAB, ours, reference, their_logits
from tests.parity.sampling_oracle import (
    Asked,
    pooled_chi_square,
    probabilities,
    scores_of,
    wrong_logprobs,
    wrong_tables,
    wrong_tokens,
)

EOS = 3
NUM_REQUESTS = int(os.environ.get("PLAYHEAD_SAMPLING_REQUESTS", "80"))
LIMITS = KVLimits(max_context_tokens=48, max_running=16, chunk_tokens=32)
ALL_BUT_ONE = dict.fromkeys((token for token in range(VOCAB) if token != 41), -100.0)

EDGES = [
    {"temperature": 1e-6, "top_p": 0.5},
    {"temperature": 1e6},
    {"top_p": 1e-9},
    {"top_k": 10**6, "top_p": 0.9},
    {"min_p": 1.0},
    {"temperature": 2.0, "min_p": 0.3, "top_p": 0.6},
    {"temperature": 2.0, "min_p": 0.2, "top_p": 0.6, "top_k": 5},
    {"logit_bias": ALL_BUT_ONE},
    {"temperature": 0, "logit_bias": {EOS: 100.0}, "min_tokens": 3},
    {"temperature": 0, "logit_bias": {EOS: 100.0}, "min_tokens": 3, "ignore_eos": True},
    {"temperature": 0, "logit_bias": {7: 100.0}, "min_tokens": 2, "stop_token_ids": [7]},
    {"temperature": 0, "frequency_penalty": 2.0, "presence_penalty": 2.0},
    {"temperature": 0, "repetition_penalty": 5.0, "logprobs": 20},
]


@pytest.fixture(scope="module")
def model():
    return reference(next(case for case in CASES if case.name == "gemma3"))


@pytest.fixture(scope="module")
def engine(model):
    config = WorkerConfig(kv_memory_bytes=1 << 23, limits=LIMITS, page_size=4)
    return Engine(build_worker(ours(model), config), IdsOnlyTokenizer([EOS]))


def run(engine, asked, begun=()):
    """The outputs of requests that run beside each other, in their order; `begun` is what all of them have already."""
    outputs, waiting = {}, list(enumerate(asked))
    options = RequestOptions(streams=False, resume_from=begun)
    while waiting or engine.has_work:
        while waiting and engine.can_take:
            i, one = waiting.pop(0)
            checked = replace(engine.reader.check(one.prompt, one.params), bad_words=one.bad_words)
            engine.submit(f"{i}", checked, options)
        outputs |= {output.request_id: output for output in engine.step() if output.finished}
    return [outputs[f"{i}"] for i in range(len(asked))]


def some(rng, most):
    return [rng.randrange(VOCAB) for _ in range(rng.randint(1, most))]


def random_fields(rng):
    """Every field of every other request, from its range and its edges."""

    def often(off, *values):
        return rng.choice([off] * len(values) + list(values))

    fields = {
        "temperature": rng.choice([0.0, 0.0, 1e-6, 0.3, 0.7, 1.0, 1.5, 5.0, 1e3]),
        "top_k": often(0, -1, 1, 2, 5, 40, VOCAB, 10**6),
        "top_p": often(1.0, 1e-9, 0.1, 0.5, 0.9, 0.99),
        "min_p": often(0.0, 0.01, 0.1, 0.5, 1.0),
        "repetition_penalty": often(1.0, 0.5, 1.3, 2.0, 10.0),
        "presence_penalty": often(0.0, -2.0, -0.5, 0.5, 2.0),
        "frequency_penalty": often(0.0, -2.0, -0.5, 0.5, 2.0),
        "logprobs": rng.choice([None, 0, 1, 5, 20]),
        "prompt_logprobs": often(None, 0, 3),
        "ignore_eos": rng.random() < 0.3,
        "stop_token_ids": often(None, some(rng, 10)),
        "min_tokens": often(0, 1, 4),
    }
    masks = [{}, {"logit_bias": {token: rng.uniform(-6, 6) for token in [EOS, *some(rng, 12)]}}]
    return fields | rng.choice([*masks, {"allowed_token_ids": [0, 1, *some(rng, 20)]}, {"logit_bias": ALL_BUT_ONE}])


def bad_words(rng, model, prompt):
    """What a free answer begins with, as one word or as two that begin alike; and any others. 0 and 1 stay allowed."""
    first = int(their_logits(model, prompt)[-1].argmax())
    second = int(their_logits(model, (*prompt, first))[-1].argmax())
    others = [tuple(some(rng, 3)) for _ in range(rng.randint(0, 4))]
    words = [*rng.choice([[(first,), (first, second)], [(first, second), (first, second, 7)]]), *others]
    return tuple(word for word in words if word not in ((0,), (1,)))


def requests_of(model, seed):
    """Prompts whose tokens repeat."""
    rng, made = random.Random(seed), []
    for i in range(max(NUM_REQUESTS, len(EDGES))):
        prompt = tuple(rng.choice([7, 9, rng.randrange(VOCAB)]) for _ in range(rng.randint(1, 10)))
        fields = EDGES[i] if i < len(EDGES) else random_fields(rng)
        params = SamplingParams(**{"max_tokens": rng.choice([4, 5, 9]), "seed": i, **fields})
        words = bad_words(rng, model, prompt) if i % 2 and i >= len(EDGES) else ()
        made.append(Asked(prompt, params, frozenset({EOS}), words))
    return made


@pytest.fixture(scope="module")
def answers(model, engine):
    asked = requests_of(model, seed=1)
    outputs = run(engine, asked)
    return [
        (one, output, their_logits(model, (*one.prompt, *output.outputs[0].token_ids)))
        for one, output in zip(asked, outputs, strict=True)
    ]


def test_tokens_of_any_parameters_are_those_that_the_oracle_lets_come_out(answers):
    """Greedy tokens are the oracle's best, drawn ones have a chance, and an answer ends where it says."""
    wrong = [line for one, output, logits_TV in answers for line in wrong_tokens(logits_TV, one, output.outputs[0])]
    assert wrong == []
    assert {str(output.outputs[0].finish_reason) for _, output, _ in answers} == {"stop", "length"}


def test_logprobs_are_the_models_own_whatever_was_done_to_the_scores(answers):
    wrong = [line for one, output, logits_TV in answers for line in wrong_logprobs(logits_TV, one, output.outputs[0])]
    assert wrong == []


def test_prompt_logprobs_have_the_oracles_numbers_and_ranks(answers):
    num_tables = 0
    for one, output, logits_TV in answers:
        if one.params.prompt_logprobs is None:
            assert output.prompt_logprobs is None
            continue
        nothing, *tables = output.prompt_logprobs
        rows_TV = logits_TV[: len(tables)].double().log_softmax(dim=-1)
        assert nothing is None
        assert wrong_tables(rows_TV, one.prompt[1:], tables, one.params.prompt_logprobs) == []
        num_tables += len(tables)
    assert num_tables > 20


DISTRIBUTIONS = {
    "plain": {"temperature": 1.5},
    "flat and cut": {"temperature": 3.0, "top_k": 12},
    "a share": {"temperature": 1.5, "top_p": 0.7},
    "all filters": {"temperature": 2.0, "top_k": 20, "top_p": 0.8, "min_p": 0.1},
    "a share of few": {"temperature": 3.0, "top_p": 0.6, "min_p": 0.3},
    "penalties and bias": {
        "repetition_penalty": 1.5,
        "presence_penalty": -1.0,
        "frequency_penalty": 0.5,
        "logit_bias": {5: 6.0, 50: 6.5, 7: 6.0},
        "top_p": 0.95,
    },
}
NUM_DRAWS = 400
PROMPT, BEGUN = (7, 9, 7), (5, 50, 5)


@pytest.mark.parametrize("fields", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_draws_of_many_seeds_have_the_oracles_distribution(model, engine, fields):
    """The fourth token of answers that have begun with the same three, which penalties count."""
    params = SamplingParams(max_tokens=len(BEGUN) + 1, **fields)
    asked = [Asked(PROMPT, replace(params, seed=seed)) for seed in range(NUM_DRAWS)]
    begun = CompletionOutput(index=0, text="", token_ids=list(BEGUN), finish_reason=None)
    tokens = [output.outputs[0].token_ids[-1] for output in run(engine, asked, (begun,))]
    logits_V = their_logits(model, (*PROMPT, *BEGUN))[-1]
    wanted_V = probabilities(scores_of(logits_V, asked[0], BEGUN), params)
    counts_V = torch.bincount(torch.tensor(tokens), minlength=VOCAB)
    assert counts_V[wanted_V == 0].sum() == 0
    assert ((wanted_V * NUM_DRAWS > 5) & (counts_V == 0)).sum() == 0
    found, freedom = pooled_chi_square(counts_V, wanted_V)
    # Wilson and Hilferty's approximation of the bound that one fair run in 3,000 passes.
    bound = freedom * (1 - 2 / (9 * freedom) + 3.4 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert freedom >= 3
    assert found < bound
