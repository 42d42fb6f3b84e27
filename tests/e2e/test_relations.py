"""K9: the same tokens, however a request is run. Greedy and drawn, through the whole engine.

`PLAYHEAD_K9_CASES` is the number of prompts. The embedded model always; SmolLM2 where its weights are (marked `real`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import pytest

from playhead.engine.front import RequestOptions
from playhead.graph.runner import GraphRunner
from playhead.graph.shapes import Dispatcher, DispatchLimits
from playhead.kv.ledger import Ledger
from playhead.llm import LLM, EngineConfig
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingKind, SamplingParams
from playhead.types import Mode
from tests.e2e.embedded import differences, reference, sampling, shared_llm, token_prompts

SMOLLM2 = os.environ.get("PLAYHEAD_SMOLLM2_GGUF", "")
NUM_PROMPTS = int(os.environ.get("PLAYHEAD_K9_CASES", "10"))
# In bfloat16 a GPU's matmuls round by the number of rows, so tokens depend on who else is in a step.
BASE = EngineConfig(
    dtype="float32", max_model_len=320, max_num_seqs=8, max_num_batched_tokens=64, kv_memory_bytes=1 << 24
)
ALL = list(range(NUM_PROMPTS))
MODELS = [
    pytest.param("embedded"),
    pytest.param(
        SMOLLM2, id="smollm2", marks=[pytest.mark.real, pytest.mark.skipif(not SMOLLM2, reason="no SmolLM2 here")]
    ),
]


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return request.param


@dataclass(frozen=True)
class Cases:
    """The prompts of one model, and how they are sampled. A model of 135M parameters gets short ones."""

    kind: str
    longest: int
    num_tokens: int

    @property
    def prompts(self) -> list[list[int]]:
        return token_prompts(NUM_PROMPTS, longest=self.longest)

    def params(self, i: int) -> SamplingParams:
        return sampling(self.kind, i, self.num_tokens)

    def run(self, llm: LLM, order: list[int] | None = None) -> list[RequestOutput]:
        """Outputs in the order of the prompts, whatever order they were sent in."""
        order, prompts = order or ALL, self.prompts
        outputs = llm.generate([prompts[i] for i in order], [self.params(i) for i in order])
        by_prompt = dict(zip(order, outputs, strict=True))
        return [by_prompt[i] for i in ALL]


@pytest.fixture(scope="module", params=["greedy", "drawn"])
def cases(model, request):
    return Cases(request.param, 200, 24) if model == "embedded" else Cases(request.param, 24, 8)


@pytest.fixture
def llm_with(model):
    """The model with some settings changed."""

    def made(**changes) -> LLM:
        if model != "embedded":  # 30 layers of 3 kv heads: two megabytes are 30 tokens
            changes = {"kv_memory_bytes": 1 << 29} | changes
        return shared_llm(replace(BASE, **changes), model)

    return made


@pytest.fixture(scope="module")
def alone(model, cases):
    """Each request by itself, without prefix cache: the truth the others are compared with."""
    big = {} if model == "embedded" else {"kv_memory_bytes": 1 << 29}
    llm = shared_llm(replace(BASE, enable_prefix_caching=False, **big), model)
    return [
        llm.generate([prompt], reference(cases.kind, i, cases.num_tokens))[0] for i, prompt in enumerate(cases.prompts)
    ]


def check(found, alone):
    real, num_ties = differences(found, alone)
    print(f"{len(found)} cases, {num_ties} ties")
    assert real == []


def test_in_a_batch(cases, alone, llm_with):
    check(cases.run(llm_with()), alone)


def test_in_another_order(cases, alone, llm_with):
    check(cases.run(llm_with(), order=sorted(ALL, key=lambda i: i * 7919 % NUM_PROMPTS)), alone)


def test_launched_before_the_last_step_is_read(cases, alone, llm_with):
    check(cases.run(llm_with(overlap=True)), alone)


def test_with_a_prefix_hit(cases, alone, llm_with):
    llm = llm_with()
    cases.run(llm)
    again = cases.run(llm)
    assert again[1].num_cached_tokens >= cases.longest - BASE.page_size - 1 or NUM_PROMPTS > 10
    check(again, alone)


@pytest.mark.parametrize("chunk", [16, 23, 256])
def test_with_another_chunk_size(cases, alone, llm_with, chunk):
    check(cases.run(llm_with(max_num_batched_tokens=chunk)), alone)


@pytest.mark.parametrize("overlap", [False, True])
def test_with_preemption(model, cases, alone, llm_with, overlap):
    little = {"kv_memory_bytes": 2_300_000}
    if model != "embedded":
        little = {"kv_memory_bytes": 7_000_000, "max_model_len": 64}  # nine pages, one of them the sink
    llm = llm_with(**little, enable_prefix_caching=False, overlap=overlap)
    found = cases.run(llm)
    assert llm.stats.num_preemptions > 0
    check(found, alone)


def test_with_aborted_neighbours(cases, alone, llm_with):
    llm = llm_with(overlap=True)
    found = []
    for i in ALL:
        for n in range(3):
            llm.engine.add_request(f"neighbour {n}", cases.prompts[n], sampling(cases.kind, 50 + n, 100))
        for _ in range(i % 4):
            llm.engine.step()
        stream = llm.stream(cases.prompts[i], cases.params(i))
        outputs = [next(stream)]
        for n in range(3):
            llm.engine.abort(f"neighbour {n}")
        found.append((outputs + list(stream))[-1])
    check(found, alone)


def test_eagerly(cases, alone, llm_with):
    llm = llm_with(graph_mode=Mode.EAGER)
    found = cases.run(llm)
    assert all(mode.startswith("eager") for mode in llm.stats.modes)
    check(found, alone)


@pytest.mark.parametrize("mode", [Mode.FULL, Mode.PIECEWISE])
def test_through_other_graphs(cases, alone, llm_with, mode):
    """One graph for a whole step over tokens, and compiled pieces."""
    llm = llm_with(graph_mode=mode)
    check(cases.run(llm), alone)
    assert any(step.mode is mode and step.raw > step.num_requests for step in llm.engine.timeline)


def test_padded_to_a_larger_bucket(cases, alone, llm_with):
    """One request at a time in graphs of eight, or of 72 tokens."""
    llm = llm_with(max_num_batched_tokens=65)  # a worker of its own: its runners get other buckets
    worker = llm.engine.worker
    for kind in SamplingKind:
        keep_only_the_largest(worker.decoder_for(kind))
    keep_only_the_largest(worker.prefill)
    found = [llm.generate([cases.prompts[i]], cases.params(i))[0] for i in ALL]
    assert {step.padded for step in llm.engine.timeline} == {8, 73}
    check(found, alone)


def keep_only_the_largest(runner: GraphRunner) -> None:
    limits = DispatchLimits(lazy=True, max_padding_ratio=100)
    if len(runner.dispatcher.buckets) > 1:
        runner.dispatcher = Dispatcher(runner.dispatcher.mode, runner.dispatcher.buckets[-1:], limits)


@pytest.mark.parametrize("page_size", [1, 64])
def test_with_another_page_size(cases, alone, llm_with, page_size):
    check(cases.run(llm_with(page_size=page_size)), alone)


def test_streamed(cases, alone, llm_with):
    llm, found = llm_with(), []
    for i in ALL:
        outputs = list(llm.stream(cases.prompts[i], cases.params(i)))
        assert [len(output.outputs[0].token_ids) for output in outputs] == list(range(1, cases.num_tokens + 1))
        found.append(outputs[-1])
    check(found, alone)


def test_after_many_others(cases, alone, llm_with):
    llm = llm_with()
    others = token_prompts(max(100, min(1000, 10 * NUM_PROMPTS)), longest=20, seed=9)
    llm.generate(others, [sampling("drawn", i, 3) for i in range(len(others))])
    check(cases.run(llm), alone)


def test_with_a_salt_of_their_own(cases, alone, llm_with):
    """The same tokens under another salt share no page; under the same one they do."""
    llm, found = llm_with(max_num_batched_tokens=48), {}
    for salt in ("a", "b", "b"):
        for i in ALL:
            llm.engine.add_request(
                f"{salt}{i}", cases.prompts[i], cases.params(i), RequestOptions(salt=salt + cases.kind)
            )
        while llm.engine.has_work:
            for output in llm.engine.step():
                found[output.request_id] = output
        cached = found[f"{salt}1"].num_cached_tokens
        if salt in found:  # its second time; many prompts may have driven each other out
            assert cached > 0 or NUM_PROMPTS > 10
        else:
            assert cached == 0
        found[salt] = found[f"{salt}1"]
    for salt in ("a", "b"):
        check([found[f"{salt}{i}"] for i in ALL], alone)


def test_the_account_is_clean_after_all_of_it(llm_with):
    llm = llm_with()
    assert not llm.engine.has_work
    assert Ledger(llm.engine.worker.kv).audit() == []
