"""Random arrivals, lengths, aborts, preemption and shared prefixes: every token is what the request gets alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from playhead.kv.ledger import Ledger
from playhead.llm import LLM, EngineConfig
from playhead.outputs import RequestOutput
from tests.e2e.embedded import differences, sampling, shared_llm, token_prompts

CONFIG = EngineConfig(
    max_model_len=160, max_num_seqs=6, max_num_batched_tokens=48, page_size=4, kv_memory_bytes=1_200_000
)
NUM_REQUESTS = 60


def requests(seed: int) -> list[tuple[list[int], int, str]]:
    """(prompt, number of tokens, kind); half of the prompts begin like an earlier one."""
    rng = random.Random(seed)
    made: list[tuple[list[int], int, str]] = []
    for prompt in token_prompts(NUM_REQUESTS, longest=90, seed=seed):
        if made and rng.random() < 0.5:
            shared = rng.choice(made)[0]
            prompt = [*shared[: rng.randint(1, len(shared))], *prompt[1:]][:100]
        made.append((prompt, rng.randint(1, 14), rng.choice(["greedy", "drawn"])))
    return made


def run_fuzz(llm: LLM, asked: list[tuple[list[int], int, str]], seed: int) -> dict[int, RequestOutput]:
    """Outputs of the requests that were not aborted, by number."""
    rng = random.Random(seed)
    finished: dict[int, RequestOutput] = {}
    waiting, running = list(range(len(asked))), set()
    while waiting or llm.engine.has_work:
        for _ in range(rng.choice([0, 0, 1, 3])):
            if waiting and llm.engine.can_take:
                i = waiting.pop(0)
                prompt, num_tokens, kind = asked[i]
                llm.engine.add_request(f"f{i}", prompt, sampling(kind, i, num_tokens))
                running.add(i)
        if running and rng.random() < 0.04:
            gone = rng.choice(sorted(running))
            llm.engine.abort(f"f{gone}")
            running.discard(gone)
        for output in llm.engine.step():
            if output.finished:
                i = int(output.request_id[1:])
                finished[i] = output
                running.discard(i)
        assert Ledger(llm.engine.worker.kv).audit() == []
    return finished


@pytest.mark.parametrize("seed", [1, 2])
def test_every_token_is_the_one_the_request_gets_alone(seed):
    asked = requests(seed)
    llm = shared_llm(CONFIG)
    finished = run_fuzz(llm, asked, seed)
    lone = shared_llm(replace(CONFIG, enable_prefix_caching=False, kv_memory_bytes=1 << 25))
    wanted = []
    for i in finished:
        prompt, num_tokens, kind = asked[i]
        wanted += lone.generate([prompt], sampling(kind, i, num_tokens))
    real, num_ties = differences(list(finished.values()), wanted)
    assert real == []
    print(f"{len(finished)} requests, {num_ties} ties, {llm.stats.num_preemptions} preemptions so far")
    assert len(finished) > NUM_REQUESTS // 2
    assert llm.stats.num_preemptions > 0
    assert llm.stats.num_cached_tokens > 0
