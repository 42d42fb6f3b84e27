"""Two ranks on this machine, by gloo and through tape graphs: they give the tokens of one, and end together.

`tests/scale` has the campaign: more requests, families and ranks.
"""

from __future__ import annotations

import pytest

from playhead import LLM, SamplingParams
from playhead.errors import ConfigError, MisuseError
from playhead.structured_outputs import StructuredOutputs

SIZES = {"max_model_len": 128, "max_num_seqs": 4, "max_num_batched_tokens": 16, "kv_memory_bytes": 1 << 23}
PROMPTS = ["It is a truth universally acknowledged, that", "The", "Once upon a time there was a", "Then said the king"]
KINDS = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 0.8},
    "filtered": {"temperature": 0.9, "top_p": 0.8, "top_k": 40},
    "penalised": {"temperature": 0.7, "repetition_penalty": 1.3, "logit_bias": {263: -5.0}, "logprobs": 3},
    "prompt logprobs": {"temperature": 0, "prompt_logprobs": 2},
    "structured": {"temperature": 0.8, "structured_outputs": StructuredOutputs(regex="[a-z]{3,9}( [a-z]+){2,5}")},
}


def answers(llm):
    """Tokens and logprobs of requests of every kind, four at a time."""
    params = [
        SamplingParams(max_tokens=12, seed=7 * i, **kind) for i, kind in enumerate(KINDS.values()) for _ in PROMPTS
    ]
    found = llm.generate(PROMPTS * len(KINDS), params, use_tqdm=False)
    return [(list(one.outputs[0].token_ids), one.outputs[0].logprobs, one.prompt_logprobs) for one in found]


@pytest.fixture(scope="module")
def alone():
    with LLM("embedded", **SIZES) as llm:
        yield answers(llm)


@pytest.fixture(scope="module")
def two_ranks():
    with LLM("embedded", tensor_parallel_size=2, **SIZES) as llm:
        yield llm


def test_two_exact_ranks_give_the_tokens_and_logprobs_of_one(alone, two_ranks):
    assert answers(two_ranks) == alone
    assert all("eager" not in mode for mode in two_ranks.stats.modes)


def test_a_second_engine_of_ranks_in_one_process_is_refused(two_ranks):
    with pytest.raises(MisuseError, match=r"this process uses torch\.distributed already"):
        LLM("embedded", tensor_parallel_size=2, **SIZES)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tensor_parallel_size": 3, "tp_mode": "fast"}, "4 query heads cannot be divided among so many ranks"),
        ({"tensor_parallel_size": 8}, "leave the last rank with none"),
        ({"tensor_parallel_size": 2, "graph_mode": "piecewise"}, "graph_mode='piecewise' compiles each rank by itself"),
    ],
)
def test_what_ranks_cannot_share_is_refused_before_one_is_started(settings, says):
    with pytest.raises(ConfigError, match=says):
        LLM("embedded", **settings)
