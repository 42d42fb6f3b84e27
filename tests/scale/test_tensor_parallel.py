"""The campaign of tensor parallelism: one, two and four ranks, several families, every kind of sampling.

    PLAYHEAD_SCALE=full python -m pytest -m scale tests/scale/test_tensor_parallel.py

By gloo between processes of this machine, through tape graphs.
"""

from __future__ import annotations

import os
import random

import pytest

from playhead import LLM, SamplingParams
from playhead.parallel import leader
from playhead.step.audit import audit_worker
from tests.e2e.test_rank_loss import SIZES as LOSS_SIZES
from tests.e2e.test_rank_loss import lose
from tests.scale.tiny_families import FAMILIES, write_family

pytestmark = [
    pytest.mark.scale,
    pytest.mark.skipif(os.environ.get("PLAYHEAD_SCALE") != "full", reason="a campaign: PLAYHEAD_SCALE=full"),
]

NUM_REQUESTS = 200
SIZES = {"max_model_len": 128, "max_num_seqs": 16, "max_num_batched_tokens": 64, "kv_memory_bytes": 1 << 24}
TOLERANCE = 1e-4
"""Of logprobs in fast mode, in float32."""


def requests(vocab_size):
    """Greedy and drawn in turn, some filtered, with penalties or logprobs; some prompts begin alike."""
    rng = random.Random(5)
    start = [rng.randrange(3, vocab_size) for _ in range(20)]
    more = ({}, {}, {"top_p": 0.8}, {"repetition_penalty": 1.2, "logprobs": 2})
    for i in range(NUM_REQUESTS):
        prompt = [*start[: rng.randrange(20)], *(rng.randrange(3, vocab_size) for _ in range(rng.randrange(1, 20)))]
        params = {"temperature": 0.8 * (i % 2), "seed": i, "max_tokens": rng.randrange(4, 16), "ignore_eos": True}
        yield {"prompt_token_ids": prompt}, SamplingParams(**params, **more[i // 2 % 4])


def tokens_of(llm, vocab_size):
    prompts, params = zip(*requests(vocab_size), strict=True)
    found = llm.generate(list(prompts), list(params), use_tqdm=False)
    return [list(one.outputs[0].token_ids) for one in found]


def prompt_logprobs(llm, vocab_size):
    """How likely each token of some prompts is: ranks that round otherwise cannot take another way here."""
    prompts = [prompt for prompt, _ in requests(vocab_size)][:40]
    found = llm.generate(prompts, SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False)
    return [table[token].logprob for one in found for table in one.prompt_logprobs if table for token in table]


class Models:
    """Where each model is, its vocabulary, and what one process gives."""

    def __init__(self, directory):
        self._paths = {name: write_family(name, directory / name) for name in FAMILIES} | {"embedded": "embedded"}
        self._alone = {}

    def llm(self, name, **settings):
        return LLM(self._paths[name], skip_tokenizer_init=True, **{**SIZES, **settings})

    def alone(self, name):
        if name not in self._alone:
            with self.llm(name) as llm:
                size = llm.engine.worker.model.decoder.spec.vocab_size
                self._alone[name] = size, tokens_of(llm, size), prompt_logprobs(llm, size)
        return self._alone[name]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return Models(tmp_path_factory.mktemp("families"))


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("name", ["embedded", *FAMILIES])
def test_exact_ranks_give_the_tokens_of_one(models, name, num_ranks):
    vocab_size, wanted, logprobs = models.alone(name)
    with models.llm(name, tensor_parallel_size=num_ranks) as llm:
        assert tokens_of(llm, vocab_size) == wanted
        assert prompt_logprobs(llm, vocab_size) == logprobs
        assert not any("eager" in mode and "padding" not in mode for mode in llm.stats.modes)


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("name", ["embedded", *FAMILIES])
def test_fast_ranks_stay_within_the_tolerance(models, name, num_ranks):
    vocab_size, _, wanted = models.alone(name)
    with models.llm(name, tensor_parallel_size=num_ranks, tp_mode="fast") as llm:
        found = prompt_logprobs(llm, vocab_size)
        assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) < TOLERANCE
        tokens_of(llm, vocab_size)


@pytest.mark.parametrize(("name", "num_ranks"), [("embedded", 2), ("gpt_oss", 2), ("llama", 4)])
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_the_audit_is_clean_on_every_rank_and_leaves_nothing_behind(models, name, num_ranks, mode):
    vocab_size, _, _ = models.alone(name)
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 8}
    with models.llm(name, tensor_parallel_size=num_ranks, tp_mode=mode, **sizes) as llm:
        before = tokens_of(llm, vocab_size)
        worker = llm.engine.worker
        assert [report.text() for report in audit_worker(worker) if not report.ok] == []
        assert len(worker.leader.audits) == num_ranks - 1
        assert [text for others in worker.leader.audits for _, is_ok, text in others if not is_ok] == []
        assert tokens_of(llm, vocab_size) == before


def test_a_rank_that_does_not_come_ends_the_engine_with_a_typed_error(monkeypatch):
    """It beats: only the collective shows that it is missing."""
    monkeypatch.setattr(leader, "MODULE", "playhead.testing.slow_rank")
    says = lose(LLM("embedded", tensor_parallel_size=2, **LOSS_SIZES), lambda process: None)
    assert says.startswith("rank 1 of 2 did not come to a collective within")


def test_a_rank_that_is_killed_ends_the_engine_with_a_typed_error():
    says = lose(LLM("embedded", tensor_parallel_size=2, **LOSS_SIZES), lambda process: process.kill())
    assert says.startswith("rank 1 of 2 was killed by SIGKILL")
