"""K9: the same tokens, however a request is run. Greedy and drawn, on the embedded model, through the whole engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from playhead.graph import Mode
from playhead.kv.ledger import Ledger
from playhead.llm import LLM, EngineConfig
from tests.e2e.embedded import differences, sampling, shared_llm, token_prompts

BASE = EngineConfig(max_model_len=320, max_num_seqs=8, max_num_batched_tokens=64, kv_memory_bytes=1 << 26)
NUM_PROMPTS, LONGEST, NUM_TOKENS = 10, 200, 24
PROMPTS = token_prompts(NUM_PROMPTS, longest=LONGEST)
KINDS = ["greedy", "drawn"]


def run(llm: LLM, kind: str, order: list[int] | None = None):
    """Outputs in the order of PROMPTS, whatever order they were sent in."""
    order = order or list(range(NUM_PROMPTS))
    outputs = llm.generate([PROMPTS[i] for i in order], [sampling(kind, i, NUM_TOKENS) for i in order])
    by_prompt = dict(zip(order, outputs, strict=True))
    return [by_prompt[i] for i in range(NUM_PROMPTS)]


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def alone(kind):
    """Each request by itself, without prefix cache: the truth the others are compared with."""
    llm = shared_llm(replace(BASE, enable_prefix_caching=False))
    return [llm.generate([PROMPTS[i]], sampling(kind, i, NUM_TOKENS))[0] for i in range(NUM_PROMPTS)]


def check(found, alone):
    real, num_ties = differences(found, alone)
    print(f"{num_ties} ties")
    assert real == []


def test_in_a_batch(kind, alone):
    check(run(shared_llm(BASE), kind), alone)


def test_in_another_order(kind, alone):
    check(run(shared_llm(BASE), kind, order=[7, 3, 9, 0, 5, 1, 8, 2, 6, 4]), alone)


def test_with_a_prefix_hit(kind, alone):
    llm = shared_llm(BASE)
    run(llm, kind)
    again = run(llm, kind)
    assert again[1].num_cached_tokens >= LONGEST - BASE.page_size - 1
    check(again, alone)


@pytest.mark.parametrize("chunk", [16, 23, 256])
def test_with_another_chunk_size(kind, alone, chunk):
    check(run(shared_llm(replace(BASE, max_num_batched_tokens=chunk)), kind), alone)


def test_with_preemption(kind, alone):
    llm = shared_llm(replace(BASE, kv_memory_bytes=3_000_000, enable_prefix_caching=False))
    found = run(llm, kind)
    assert llm.stats.num_preemptions > 0
    check(found, alone)


def test_with_aborted_neighbours(kind, alone):
    llm = shared_llm(BASE)
    for i in range(4):
        llm.engine.add_request(f"neighbour {i}", PROMPTS[i], sampling(kind, 50 + i, 100))
    for _ in range(3):
        llm.engine.step()
    stream = llm.stream(PROMPTS[5], sampling(kind, 5, NUM_TOKENS))
    outputs = [next(stream)]
    for i in range(4):
        llm.engine.abort(f"neighbour {i}")
    outputs += list(stream)
    check([outputs[-1]], [alone[5]])


def test_eagerly(kind, alone):
    llm = shared_llm(replace(BASE, graph_mode=Mode.EAGER))
    found = run(llm, kind)
    assert all(mode.startswith("eager") for mode in llm.stats.modes)
    check(found, alone)


def test_through_compiled_pieces(kind, alone):
    check(run(shared_llm(replace(BASE, graph_mode=Mode.PIECEWISE)), kind), alone)


@pytest.mark.parametrize("page_size", [1, 64])
def test_with_another_page_size(kind, alone, page_size):
    check(run(shared_llm(replace(BASE, page_size=page_size)), kind), alone)


def test_streamed(kind, alone):
    llm = shared_llm(BASE)
    for i in (0, 1, 4):
        outputs = list(llm.stream(PROMPTS[i], sampling(kind, i, NUM_TOKENS)))
        assert [len(output.outputs[0].token_ids) for output in outputs] == list(range(1, NUM_TOKENS + 1))
        check([outputs[-1]], [alone[i]])


def test_after_many_others(kind, alone):
    llm = shared_llm(BASE)
    others = token_prompts(100, longest=20, seed=9)
    llm.generate(others, [sampling("drawn", i, 3) for i in range(len(others))])
    check(run(llm, kind), alone)


def test_the_account_is_clean_after_all_of_it():
    llm = shared_llm(BASE)
    assert not llm.engine.has_work
    assert Ledger(llm.engine.worker.kv).audit() == []
